{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /*
The validating webhook. It is help, not authority: what it would refuse, the controller refuses as well, later and in a
condition. So it fails open (failurePolicy: Ignore, and a short timeout), and a cluster whose webhook is dead goes on as if
there were none. Of Services, the API server asks only about those that name an EIP.
*/ -}}

{{- define "kube-ovn-nftable-lb-lib.webhookSelector" -}}
app.kubernetes.io/name: kube-ovn-webhook
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "kube-ovn-nftable-lb-lib.webhook" -}}
{{- $name := "kube-ovn-webhook" -}}
{{- $mode := include "kube-ovn-nftable-lb-lib.mode" . -}}
{{- $labels := printf "%s\n%s" (omit (include "kube-ovn-nftable-lb-lib.labels" . | fromYaml) "app.kubernetes.io/name" | toYaml) "app.kubernetes.io/name: kube-ovn-webhook" -}}
{{- $certManager := .config.webhook.certManager -}}
{{- with .config -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name }}
  namespace: {{ .namespace }}
  labels: {{- $labels | nindent 4 }}
{{- with .pullSecrets }}
imagePullSecrets: {{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ $name }}
  labels: {{- $labels | nindent 4 }}
rules:
  # What a refusal rests on is read live.
  - apiGroups: [kubeovn.io]
    resources: [iptables-dnat-rules, iptables-eips, iptables-fip-rules, vpc-nat-gateways]
    verbs: [get, list, watch]
  - apiGroups: [""]
    resources: [services]
    verbs: [list, watch]
  {{- if not $certManager }}
  - apiGroups: [admissionregistration.k8s.io]
    resources: [validatingwebhookconfigurations]
    resourceNames: [{{ $name }}]
    verbs: [get, list, watch, patch]
  {{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $name }}
  labels: {{- $labels | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ $name }}
    namespace: {{ .namespace }}
{{- if not $certManager }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}
  namespace: {{ .namespace }}
  labels: {{- $labels | nindent 4 }}
rules:
  # Its certificate authority. Creating cannot be restricted to a name.
  - apiGroups: [""]
    resources: [secrets]
    verbs: [create]
  - apiGroups: [""]
    resources: [secrets]
    resourceNames: [{{ $name }}-ca]
    verbs: [get, list, watch, update]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}
  namespace: {{ .namespace }}
  labels: {{- $labels | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ $name }}
    namespace: {{ .namespace }}
{{- else }}
---
apiVersion: cert-manager.io/v1
kind: Issuer
metadata:
  name: {{ $name }}
  namespace: {{ .namespace }}
  labels: {{- $labels | nindent 4 }}
spec:
  selfSigned: {}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  name: {{ $name }}
  namespace: {{ .namespace }}
  labels: {{- $labels | nindent 4 }}
spec:
  secretName: {{ $name }}-tls
  dnsNames: [{{ $name }}.{{ .namespace }}.svc]
  issuerRef:
    name: {{ $name }}
  privateKey:
    algorithm: ECDSA
    rotationPolicy: Always
{{- end }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  namespace: {{ .namespace }}
  labels: {{- $labels | nindent 4 }}
spec:
  selector: {{- include "kube-ovn-nftable-lb-lib.webhookSelector" $ | nindent 4 }}
  ports:
    - name: webhook
      port: 443
      targetPort: webhook
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  namespace: {{ .namespace }}
  labels: {{- $labels | nindent 4 }}
spec:
  replicas: {{ .webhook.replicas }}
  selector:
    matchLabels: {{- include "kube-ovn-nftable-lb-lib.webhookSelector" $ | nindent 6 }}
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxUnavailable: 0
      maxSurge: 1
  template:
    metadata:
      labels: {{- $labels | nindent 8 }}
    spec:
      serviceAccountName: {{ $name }}
      {{- with .priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      securityContext: {{- include "kube-ovn-nftable-lb-lib.podSecurityContext" $ | nindent 8 }}
      terminationGracePeriodSeconds: 30
      {{- with .nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      affinity:
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              podAffinityTerm:
                topologyKey: kubernetes.io/hostname
                labelSelector:
                  matchLabels: {{- include "kube-ovn-nftable-lb-lib.webhookSelector" $ | nindent 20 }}
      containers:
        - name: {{ $name }}
          image: {{ .image }}
          imagePullPolicy: {{ .pullPolicy }}
          command: [/kube-ovn-webhook]
          args:
            # Who may write the labels that say which Service owns a rule.
            - --controller-username=system:serviceaccount:{{ .namespace }}:{{ include "kube-ovn-nftable-lb-lib.name" $ }}
            {{- if eq $mode "beside" }}
            - --controller-username=system:serviceaccount:{{ .namespace }}:ovn
            {{- end }}
            - --nftable-lb-svc-require-eip-grant={{ .requireEIPGrant }}
            - --tls-min-version={{ .webhook.tlsMinVersion }}
            {{- if $certManager }}
            - --tls-cert-file=/etc/{{ $name }}/tls.crt
            - --tls-private-key-file=/etc/{{ $name }}/tls.key
            - --webhook-configuration=
            {{- else }}
            - --cert-secret-name={{ $name }}-ca
            - --webhook-configuration={{ $name }}
            {{- end }}
            - --logging-format={{ .logFormat }}
            - --v={{ .verbosity }}
          env:
            - name: POD_NAMESPACE
              valueFrom:
                fieldRef:
                  fieldPath: metadata.namespace
          ports:
            - name: webhook
              containerPort: 8443
            - name: health
              containerPort: 8080
          startupProbe:
            httpGet:
              path: /healthz
              port: health
            periodSeconds: 1
            failureThreshold: 30
          livenessProbe:
            httpGet:
              path: /healthz
              port: health
            periodSeconds: 10
            timeoutSeconds: 5
          readinessProbe:
            httpGet:
              path: /readyz
              port: health
            periodSeconds: 5
            timeoutSeconds: 5
          resources: {{- toYaml .webhook.resources | nindent 12 }}
          securityContext: {{- include "kube-ovn-nftable-lb-lib.securityContext" $ | nindent 12 }}
          {{- if $certManager }}
          volumeMounts:
            - name: tls
              mountPath: /etc/{{ $name }}
              readOnly: true
      volumes:
        - name: tls
          secret:
            secretName: {{ $name }}-tls
          {{- end }}
{{- if gt (int .webhook.replicas) 1 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  namespace: {{ .namespace }}
  labels: {{- $labels | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- include "kube-ovn-nftable-lb-lib.webhookSelector" $ | nindent 6 }}
{{- end }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ $name }}
  namespace: {{ .namespace }}
  labels: {{- $labels | nindent 4 }}
spec:
  podSelector:
    matchLabels: {{- include "kube-ovn-nftable-lb-lib.webhookSelector" $ | nindent 6 }}
  policyTypes: [Ingress]
  ingress:
    # API servers are on no Pod network that could be named here.
    - ports:
        - port: webhook
        - port: health
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata:
  name: {{ $name }}
  labels: {{- $labels | nindent 4 }}
  {{- if $certManager }}
  annotations:
    cert-manager.io/inject-ca-from: {{ .namespace }}/{{ $name }}
  {{- end }}
webhooks:
  {{- range $resource, $hook := include "kube-ovn-nftable-lb-lib.webhookKinds" $ | fromYaml }}
  - name: {{ $resource }}.webhook.kubeovn.io
    clientConfig:
      service:
        name: {{ $name }}
        namespace: {{ $.config.namespace }}
        path: {{ $hook.path }}
    rules:
      - apiGroups: [{{ $hook.group | quote }}]
        apiVersions: [v1]
        resources: [{{ $resource }}]
        operations: {{ toJson $hook.operations }}
    {{- with $hook.conditions }}
    matchConditions: {{- toYaml . | nindent 6 }}
    {{- end }}
    failurePolicy: Ignore
    # More than the two seconds that reading what a refusal rests on may take.
    timeoutSeconds: 3
    matchPolicy: Equivalent
    sideEffects: None
    admissionReviewVersions: [v1]
  {{- end }}
{{- end }}
{{- end }}

{{- define "kube-ovn-nftable-lb-lib.webhookKinds" -}}
iptables-dnat-rules:
  group: kubeovn.io
  path: /validate-kubeovn-io-v1-iptablesdnatrule
  operations: [CREATE, UPDATE]
iptables-fip-rules:
  group: kubeovn.io
  path: /validate-kubeovn-io-v1-iptablesfiprule
  operations: [CREATE, UPDATE]
iptables-eips:
  group: kubeovn.io
  path: /validate-kubeovn-io-v1-iptableseip
  operations: [CREATE, UPDATE, DELETE]
vpc-nat-gateways:
  group: kubeovn.io
  path: /validate-kubeovn-io-v1-vpcnatgateway
  operations: [CREATE, UPDATE, DELETE]
services:
  group: ""
  path: /validate--v1-service
  operations: [CREATE, UPDATE]
  conditions:
    - name: names-an-eip
      expression: "has(object.metadata.annotations) && 'ovn.kubernetes.io/eip' in object.metadata.annotations"
{{- end }}
