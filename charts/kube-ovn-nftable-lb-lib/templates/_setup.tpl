{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /*
What has to be done once, by Jobs that Helm waits for, each with an account that lives no longer than it. The controller
itself may neither touch CRDs nor its own Deployment.

  crd       before installing or upgrading beside Kube-OVN: gives its CRD of DNAT rules the two fields it may lack
  withdraw  before uninstalling, and after switching off: takes back the rules and the EXTERNAL-IPs
*/ -}}

{{- define "kube-ovn-nftable-lb-lib.setupCRD" -}}
{{- $hook := dict "on" "pre-install,pre-upgrade" "task" "crd" -}}
{{- include "kube-ovn-nftable-lb-lib.setupJob" (merge (dict "args" (list "crd")) $hook .) }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{- include "kube-ovn-nftable-lb-lib.hookMeta" (merge (dict "weight" "-10") $hook .) | nindent 2 }}
rules:
  - apiGroups: [apiextensions.k8s.io]
    resources: [customresourcedefinitions]
    resourceNames: [{{ include "kube-ovn-nftable-lb-lib.crd" . }}]
    verbs: [get, patch]
{{- end }}

{{- define "kube-ovn-nftable-lb-lib.setupWithdraw" -}}
{{- $hook := dict "on" (.config.enabled | ternary "pre-delete" "post-upgrade") "task" "withdraw" -}}
{{- $deployment := printf "--deployment=%s/%s" .config.namespace (include "kube-ovn-nftable-lb-lib.name" .) -}}
{{- include "kube-ovn-nftable-lb-lib.setupJob" (merge (dict "args" (list "withdraw" $deployment)) $hook .) }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{- include "kube-ovn-nftable-lb-lib.hookMeta" (merge (dict "weight" "-10") $hook .) | nindent 2 }}
rules:
  - apiGroups: [kubeovn.io]
    resources: [iptables-dnat-rules]
    verbs: [list, delete]
  - apiGroups: [""]
    resources: [services]
    verbs: [list]
  - apiGroups: [""]
    resources: [services/status]
    verbs: [patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{- include "kube-ovn-nftable-lb-lib.hookMeta" (merge (dict "weight" "-10" "namespaced" true) $hook .) | nindent 2 }}
rules:
  - apiGroups: [apps]
    resources: [deployments]
    resourceNames: [{{ include "kube-ovn-nftable-lb-lib.name" . }}]
    verbs: [get, patch]
  - apiGroups: [""]
    resources: [pods]
    verbs: [list]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{- include "kube-ovn-nftable-lb-lib.hookMeta" (merge (dict "weight" "-5" "namespaced" true) $hook .) | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ include "kube-ovn-nftable-lb-lib.setup" . }}-withdraw
subjects:
  - kind: ServiceAccount
    name: {{ include "kube-ovn-nftable-lb-lib.setup" . }}-withdraw
    namespace: {{ .config.namespace }}
{{- end }}

{{- define "kube-ovn-nftable-lb-lib.hookMeta" -}}
name: {{ include "kube-ovn-nftable-lb-lib.setup" . }}-{{ .task }}
{{- if .namespaced }}
namespace: {{ .config.namespace }}
{{- end }}
labels: {{- include "kube-ovn-nftable-lb-lib.labels" . | nindent 2 }}
  app.kubernetes.io/component: {{ .task }}
annotations:
  helm.sh/hook: {{ .on }}
  helm.sh/hook-weight: {{ .weight | quote }}
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
  {{- /* Helm prints what the Jobs say. */}}
  helm.sh/hook-output-log-policy: hook-succeeded,hook-failed
{{- end }}

{{- define "kube-ovn-nftable-lb-lib.setupJob" -}}
{{- $setup := printf "%s-%s" (include "kube-ovn-nftable-lb-lib.setup" .) .task -}}
apiVersion: v1
kind: ServiceAccount
metadata: {{- include "kube-ovn-nftable-lb-lib.hookMeta" (merge (dict "weight" "-10" "namespaced" true) .) | nindent 2 }}
{{- with .config.pullSecrets }}
imagePullSecrets: {{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{- include "kube-ovn-nftable-lb-lib.hookMeta" (merge (dict "weight" "-5") .) | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $setup }}
subjects:
  - kind: ServiceAccount
    name: {{ $setup }}
    namespace: {{ .config.namespace }}
---
apiVersion: batch/v1
kind: Job
metadata: {{- include "kube-ovn-nftable-lb-lib.hookMeta" (merge (dict "weight" "0" "namespaced" true) .) | nindent 2 }}
spec:
  backoffLimit: 3
  activeDeadlineSeconds: 300
  template:
    metadata:
      labels:
        app.kubernetes.io/name: {{ include "kube-ovn-nftable-lb-lib.setup" . }}
        app.kubernetes.io/instance: {{ .root.Release.Name }}
        app.kubernetes.io/component: {{ .task }}
    spec:
      serviceAccountName: {{ $setup }}
      restartPolicy: Never
      securityContext: {{- include "kube-ovn-nftable-lb-lib.podSecurityContext" . | nindent 8 }}
      {{- with .config.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .config.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: setup
          image: {{ .config.image }}
          imagePullPolicy: {{ .config.pullPolicy }}
          command: [/kube-ovn-setup]
          args: {{- toYaml .args | nindent 12 }}
          resources:
            requests:
              cpu: 10m
              memory: 32Mi
            limits:
              memory: 256Mi
          securityContext: {{- include "kube-ovn-nftable-lb-lib.securityContext" . | nindent 12 }}
{{- end }}
