{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /*
Every template here takes a dict of two: "root" is the chart's own root context, "config" is this:

  flag                 the value that switches the feature on, as the user writes it
  modeFlag             the value that says the mode
  enabled              the feature is on
  mode                 auto | beside | alone, see kube-ovn-nftable-lb-lib.mode
  handler              auto | "true" | "false": run the gateways; auto: in mode alone
  handlerAbilities     auto, or what those who run the gateways beside can do
  stockServes          auto | "yes" | "no": Kube-OVN's own controller serves Services where its flags do not say so; auto: after v1.17
  requireEIPGrant      only namespaces that an EIP's annotation names may use it
  withdraw             uninstalling, and switching off, take back what was published
  namespace            where everything goes
  image, gatewayImage  references; the latter is for mode alone
  besideImage          that of gateways which Kube-OVN runs, for the notes
  pullPolicy, pullSecrets
  replicas
  verbosity, logFormat, metricsPort
  labels, annotations, podLabels, podAnnotations
  resources, nodeSelector, tolerations, affinity, priorityClassName
  natGateway.enabled, natGateway.namePrefix
  gatewayNamespaces    where gateways may run besides namespace; ["*"]: anywhere
  webhook.enabled, .replicas, .certManager, .tlsMinVersion, .resources
  monitoring.enabled, .labels
  ownerFinalizers      the API server has OwnerReferencesPermissionEnforcement on
*/ -}}

{{- define "kube-ovn-nftable-lb-lib.name" -}}kube-ovn-nftable-lb{{- end }}

{{- define "kube-ovn-nftable-lb-lib.setup" -}}kube-ovn-nftable-lb-setup{{- end }}

{{- define "kube-ovn-nftable-lb-lib.crd" -}}iptables-dnat-rules.kubeovn.io{{- end }}

{{- define "kube-ovn-nftable-lb-lib.selector" -}}
app.kubernetes.io/name: kube-ovn-nftable-lb
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "kube-ovn-nftable-lb-lib.labels" -}}
{{ include "kube-ovn-nftable-lb-lib.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: kube-ovn
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version | replace "+" "_" }}
{{- with .config.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* ours OBJECT: it belongs to this release. */ -}}
{{- define "kube-ovn-nftable-lb-lib.ours" -}}
{{- $annotations := dig "metadata" "annotations" dict .object -}}
{{- if and (eq (get $annotations "meta.helm.sh/release-name") .root.Release.Name) (eq (get $annotations "meta.helm.sh/release-namespace") .root.Release.Namespace) -}}true{{- end -}}
{{- end }}

{{- /*
mode: "beside" a Kube-OVN that is there, "alone" where there is none. Detected by the CRD of DNAT rules: one that has not
the mark of those that come with this is Kube-OVN's. They stay when a release goes, so that it may be of an earlier one, or
of install.sh. Without a cluster to look at (helm template) it is beside, which replaces nothing.
*/ -}}
{{- define "kube-ovn-nftable-lb-lib.mode" -}}
{{- if ne .config.mode "auto" -}}
{{- .config.mode -}}
{{- else -}}
{{- $crd := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" (include "kube-ovn-nftable-lb-lib.crd" .) -}}
{{- if $crd -}}
{{- if eq (dig "metadata" "annotations" "kubeovn.io/installed-by" "" $crd) (include "kube-ovn-nftable-lb-lib.name" .) -}}alone{{- else -}}beside{{- end -}}
{{- else if lookup "v1" "Namespace" "" "kube-system" -}}
alone
{{- else -}}
beside
{{- end -}}
{{- end -}}
{{- end }}

{{- /* handler: "true" where the gateways are ours to run. */ -}}
{{- define "kube-ovn-nftable-lb-lib.handler" -}}
{{- $handler := toString .config.handler -}}
{{- if eq $handler "auto" -}}
{{- eq (include "kube-ovn-nftable-lb-lib.mode" .) "alone" -}}
{{- else -}}
{{- $handler -}}
{{- end -}}
{{- end }}

{{- /* runs: "true" where there is something for the controller to do. */ -}}
{{- define "kube-ovn-nftable-lb-lib.runs" -}}
{{- if or .config.enabled (eq (include "kube-ovn-nftable-lb-lib.handler" .) "true") -}}true{{- end -}}
{{- end }}

{{- /* stockServes: auto, yes or no. YAML takes yes and no that are not quoted for booleans. */ -}}
{{- define "kube-ovn-nftable-lb-lib.stockServes" -}}
{{- $serves := toString .config.stockServes -}}
{{- get (dict "true" "yes" "false" "no") $serves | default $serves -}}
{{- end }}

{{- /*
guard fails where what is installed could not work: beside no Kube-OVN, or one whose gateways do not know share rules, before
v1.17; and where a kube-ovn-controller that is there acts on the same Services: by its own flags, or where they leave that
open, because stockServes says so or, at auto, because it is newer than v1.17. The rule is the controller's own.
*/ -}}
{{- define "kube-ovn-nftable-lb-lib.guard" -}}
{{- if .config.enabled -}}
{{- $crd := include "kube-ovn-nftable-lb-lib.crd" . -}}
{{- if and (eq (include "kube-ovn-nftable-lb-lib.mode" .) "beside") (lookup "v1" "Namespace" "" "kube-system") (not (lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $crd)) -}}
{{- fail (printf "there is no CRD %s: install Kube-OVN first, or install with --set %s=alone" $crd .config.modeFlag) -}}
{{- end -}}
{{- $flag := .config.flag -}}
{{- $serves := include "kube-ovn-nftable-lb-lib.stockServes" . -}}
{{- range $namespace := uniq (list .config.namespace "kube-system") -}}
{{- $stock := lookup "apps/v1" "Deployment" $namespace "kube-ovn-controller" -}}
{{- /* The container of that name, or else the first: what runs beside it has versions and flags of its own. */ -}}
{{- $containers := dig "spec" "template" "spec" "containers" list $stock -}}
{{- $named := list -}}
{{- range $containers -}}{{- if eq (default "" .name) "kube-ovn-controller" -}}{{- $named = append $named . -}}{{- end -}}{{- end -}}
{{- with first (concat $named $containers) -}}
{{- $container := . -}}
{{- $said := "" -}}
{{- $lb := true -}}
{{- range $arg := concat (default list $container.command) (default list $container.args) -}}
{{- if regexMatch "^--?enable-nftable-lb-svc(=.*)?$" $arg -}}{{- $said = $arg -}}{{- end -}}
{{- if regexMatch "^--?enable-lb(=.*)?$" $arg -}}{{- $lb = not (regexMatch "=(0|f|F|false|False|FALSE)$" $arg) -}}{{- end -}}
{{- end -}}
{{- $image := first (splitList "@" (default "" $container.image)) -}}
{{- $tag := trimPrefix ":" (regexFind ":v?[0-9]+\\.[0-9]+\\.[0-9]+[^:/]*$" $image) -}}
{{- $version := regexFind "[0-9]+\\.[0-9]+\\.[0-9]+" $tag -}}
{{- if and $version (semverCompare "<1.17.0-0" $version) -}}
{{- fail (printf "Deployment %s/kube-ovn-controller is of Kube-OVN %s, whose gateways do not know share rules: upgrade it to v1.17" $namespace $version) -}}
{{- end -}}
{{- $open := and (not $said) (eq $serves "auto") $version -}}
{{- if and (not $said) (eq $serves "yes") -}}{{- $said = "stockServes=yes" -}}{{- end -}}
{{- if and $lb $said (not (regexMatch "=(0|f|F|false|False|FALSE)$" $said)) -}}
{{- fail (printf "Deployment %s/kube-ovn-controller serves the same Services already (%s): switch it off there with --enable-nftable-lb-svc=false, or here with --set %s=false" $namespace $said $flag) -}}
{{- end -}}
{{- if and $lb $open (semverCompare ">=1.18.0-0" $version) -}}
{{- fail (printf "Deployment %s/kube-ovn-controller may serve the same Services (%s is newer than v1.17: releases after it may serve them by default, and nothing says whether this one does): set --enable-nftable-lb-svc=false there, or --set stockServes=no here" $namespace $tag) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "kube-ovn-nftable-lb-lib.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "kube-ovn-nftable-lb-lib.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}
