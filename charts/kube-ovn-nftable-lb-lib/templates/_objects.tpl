{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}

{{- define "kube-ovn-nftable-lb-lib.objects" -}}
{{- include "kube-ovn-nftable-lb-lib.guard" . -}}
{{- if eq (include "kube-ovn-nftable-lb-lib.mode" .) "alone" }}
{{ include "kube-ovn-nftable-lb-lib.crds" . }}
{{ include "kube-ovn-nftable-lb-lib.gatewayConfig" . }}
{{- else if .config.enabled }}
{{ include "kube-ovn-nftable-lb-lib.setupCRD" . }}
{{- end }}
{{- if include "kube-ovn-nftable-lb-lib.runs" . }}
---
{{ include "kube-ovn-nftable-lb-lib.rbac" . }}
---
{{ include "kube-ovn-nftable-lb-lib.controller" . }}
{{- end }}
{{- if .config.webhook.enabled }}
---
{{ include "kube-ovn-nftable-lb-lib.webhook" . }}
{{- end }}
{{- if .config.monitoring.enabled }}
{{ include "kube-ovn-nftable-lb-lib.monitoring" . }}
{{- end }}
{{- if and .config.withdraw (or .config.enabled .root.Release.IsUpgrade) }}
---
{{ include "kube-ovn-nftable-lb-lib.setupWithdraw" . }}
{{- end }}
{{- end }}

{{- define "kube-ovn-nftable-lb-lib.notes" -}}
{{- $mode := include "kube-ovn-nftable-lb-lib.mode" . -}}
{{- $name := include "kube-ovn-nftable-lb-lib.name" . -}}
{{- with .config -}}
{{- if eq $mode "alone" -}}
Installed alone{{ eq .mode "auto" | ternary ", as no Kube-OVN was found" "" }}: with the CRDs, and with the NAT gateways to run.
{{- else -}}
Installed beside Kube-OVN{{ eq .mode "auto" | ternary ", which was found" "" }}: its objects stay as they are, and its kube-ovn-controller runs the NAT gateways.
{{- end }}
{{ .modeFlag }}=alone or beside says so yourself.

{{ if .enabled -}}
LoadBalancer Services that name an IptablesEIP are served:

  kubectl annotate service NAME ovn.kubernetes.io/eip=EIP
  kubectl -n {{ .namespace }} logs deployment/{{ $name }}

{{ if eq $mode "beside" -}}
The CRD iptables-dnat-rules.kubeovn.io has got the fields sessionAffinity and sessionAffinityTimeoutSeconds, if it lacked
them. When Kube-OVN is upgraded and brings its CRD anew, upgrade this release as well.

{{ if ne (include "kube-ovn-nftable-lb-lib.handler" $) "true" -}}
The gateways' script has to know share rules: Kube-OVN v1.17 and newer do. For the one of this project (nothing is sent
twice, clients pinned at no cost), set the gateways' image to Kube-OVN's own with that script laid over it. Gateways that
are made from then on have it:

  kubectl -n {{ .namespace }} patch configmap ovn-vpc-nat-config --type=merge -p '{"data":{"image":"{{ .besideImage }}"}}'

Kube-OVN does not compare the image of those that are there. Set it one after the other (deployment/… where a gateway has
several replicas); one of a single replica forwards nothing while its pod is replaced:

  kubectl -n {{ .namespace }} set image statefulset/vpc-nat-gw-GATEWAY vpc-nat-gw={{ .besideImage }}
  kubectl -n {{ .namespace }} rollout status statefulset/vpc-nat-gw-GATEWAY

{{ end -}}
{{ end -}}
Uninstalling this release, or setting {{ .flag }}=false, {{ if .withdraw -}}
first deletes
the DNAT rules that were made for Services, and takes back the EXTERNAL-IPs that were published. Services, EIPs and
gateways of yours stay. To leave the rules to another controller, which takes them over: helm uninstall --no-hooks.
{{- else -}}
leaves the DNAT rules that were made for Services, and their EXTERNAL-IPs.
{{- end }}
{{- else -}}
LoadBalancer Services are not served: switch it on with --set {{ .flag }}=true.
{{- end }}
{{- end }}
{{- end }}
