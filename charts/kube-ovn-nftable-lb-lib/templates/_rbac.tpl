{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /*
What the controller may do, each verb because its code uses it. What it reads it watches, by informers; what it writes it
patches, never updates. The rules of the two halves come and go with them.
*/ -}}

{{- define "kube-ovn-nftable-lb-lib.rbac" -}}
{{- $name := include "kube-ovn-nftable-lb-lib.name" . -}}
{{- $handler := eq (include "kube-ovn-nftable-lb-lib.handler" .) "true" -}}
{{- $lease := eq (include "kube-ovn-nftable-lb-lib.mode" .) "alone" | ternary "kube-ovn-controller" $name -}}
{{- with .config -}}
{{- $everywhere := has "*" .gatewayNamespaces -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ $name }}
  labels: {{- include "kube-ovn-nftable-lb-lib.labels" $ | nindent 4 }}
rules:
  - apiGroups: [events.k8s.io]
    resources: [events]
    verbs: [create, patch]
  - apiGroups: [kubeovn.io]
    resources: [iptables-dnat-rules, iptables-eips, iptables-fip-rules, subnets, vpc-nat-gateways]
    verbs: [list, watch]
  - apiGroups: [""]
    resources: [pods]
    verbs: [list, watch]
  {{- if .enabled }}
  # Services to rules.
  - apiGroups: [""]
    resources: [services]
    verbs: [list, watch]
  - apiGroups: [""]
    resources: [services/status]
    verbs: [patch]
  - apiGroups: [discovery.k8s.io]
    resources: [endpointslices]
    verbs: [list, watch]
  - apiGroups: [kubeovn.io]
    resources: [iptables-dnat-rules]
    verbs: [create, patch, delete]
  {{- if not $handler }}
  # Whether Kube-OVN's own controller serves Services.
  - apiGroups: [apps]
    resources: [deployments]
    resourceNames: [kube-ovn-controller]
    verbs: [list, watch]
  {{- end }}
  {{- end }}
  {{- if $handler }}
  # Rules to gateways.
  - apiGroups: [kubeovn.io]
    resources: [vpcs]
    verbs: [list, watch]
  - apiGroups: [kubeovn.io]
    resources:
      - iptables-dnat-rules
      - iptables-dnat-rules/status
      - iptables-eips
      - iptables-eips/status
      - vpc-nat-gateways
      - vpc-nat-gateways/status
    verbs: [patch]
  {{- if .ownerFinalizers }}
  # OwnerReferencesPermissionEnforcement asks for it of whoever makes a gateway the owner of its workload.
  - apiGroups: [kubeovn.io]
    resources: [vpc-nat-gateways/finalizers]
    verbs: [update]
  {{- end }}
  - apiGroups: [apps]
    resources: [deployments, statefulsets]
    verbs: [list, watch]
  {{- if $everywhere }}
  {{- include "kube-ovn-nftable-lb-lib.gatewayRules" . | nindent 2 }}
  {{- end }}
  {{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $name }}
  labels: {{- include "kube-ovn-nftable-lb-lib.labels" $ | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ $name }}
    namespace: {{ .namespace }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}
  namespace: {{ .namespace }}
  labels: {{- include "kube-ovn-nftable-lb-lib.labels" $ | nindent 4 }}
rules:
  # The lease of the one that is at work. Creating cannot be restricted to a name.
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    verbs: [create]
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    resourceNames: [{{ $lease }}]
    verbs: [get, update]
  {{- if $handler }}
  - apiGroups: [""]
    resources: [configmaps]
    resourceNames: [ovn-vpc-nat-config, ovn-vpc-nat-gw-config]
    verbs: [list, watch]
  {{- if not $everywhere }}
  {{- include "kube-ovn-nftable-lb-lib.gatewayRules" . | nindent 2 }}
  {{- end }}
  {{- end }}
---
{{ include "kube-ovn-nftable-lb-lib.roleBinding" (dict "root" $.root "config" . "namespace" .namespace "name" $name) }}
{{- if and $handler (not $everywhere) }}
{{- range $namespace := without (uniq .gatewayNamespaces) .namespace }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}
  namespace: {{ $namespace }}
  labels: {{- include "kube-ovn-nftable-lb-lib.labels" $ | nindent 4 }}
rules:
  {{- include "kube-ovn-nftable-lb-lib.gatewayRules" $.config | nindent 2 }}
---
{{ include "kube-ovn-nftable-lb-lib.roleBinding" (dict "root" $.root "config" $.config "namespace" $namespace "name" $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "kube-ovn-nftable-lb-lib.roleBinding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ .name }}
  namespace: {{ .namespace }}
  labels: {{- include "kube-ovn-nftable-lb-lib.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ .name }}
    namespace: {{ .config.namespace }}
{{- end }}

{{- /* Where gateways run. */ -}}
{{- define "kube-ovn-nftable-lb-lib.gatewayRules" -}}
- apiGroups: [apps]
  resources: [deployments, statefulsets]
  # Server-side apply is a patch that may create.
  verbs: [create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  # One that cannot start is replaced once its StatefulSet has another revision.
  verbs: [patch, delete]
# A WebSocket is opened by a GET, what SPDY does by a POST; newer API servers ask for create in both cases.
- apiGroups: [""]
  resources: [pods/exec]
  verbs: [create, get]
{{- end }}
