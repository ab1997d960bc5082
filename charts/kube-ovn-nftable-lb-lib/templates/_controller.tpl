{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}

{{- define "kube-ovn-nftable-lb-lib.controller" -}}
{{- $name := include "kube-ovn-nftable-lb-lib.name" . -}}
{{- $mode := include "kube-ovn-nftable-lb-lib.mode" . -}}
{{- with .config -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name }}
  namespace: {{ .namespace }}
  labels: {{- include "kube-ovn-nftable-lb-lib.labels" $ | nindent 4 }}
{{- with .pullSecrets }}
imagePullSecrets: {{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  namespace: {{ .namespace }}
  labels: {{- include "kube-ovn-nftable-lb-lib.labels" $ | nindent 4 }}
  {{- with .annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  replicas: {{ .replicas }}
  selector:
    matchLabels: {{- include "kube-ovn-nftable-lb-lib.selector" $ | nindent 6 }}
  strategy:
    # One at a time is at work, the others wait for its lease.
    type: RollingUpdate
    rollingUpdate:
      maxUnavailable: 1
      maxSurge: 1
  template:
    metadata:
      labels: {{- include "kube-ovn-nftable-lb-lib.labels" $ | nindent 8 }}
        {{- with .podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with .podAnnotations }}
      annotations: {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: {{ $name }}
      {{- with .priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      securityContext: {{- include "kube-ovn-nftable-lb-lib.podSecurityContext" $ | nindent 8 }}
      # It does not hand its work over before it is told to, and gives its lease back then.
      terminationGracePeriodSeconds: 30
      {{- with .nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      affinity:
        {{- if .affinity }}
        {{- toYaml .affinity | nindent 8 }}
        {{- else }}
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              podAffinityTerm:
                topologyKey: kubernetes.io/hostname
                labelSelector:
                  matchLabels: {{- include "kube-ovn-nftable-lb-lib.selector" $ | nindent 20 }}
        {{- end }}
      containers:
        - name: kube-ovn-controller
          image: {{ .image }}
          imagePullPolicy: {{ .pullPolicy }}
          command: [/kube-ovn-controller]
          args:
            - --enable-lb=true
            - --enable-nftable-lb-svc={{ .enabled }}
            - --enable-nat-gw-handler={{ include "kube-ovn-nftable-lb-lib.handler" $ }}
            - --nftable-lb-svc-require-eip-grant={{ .requireEIPGrant }}
            - --stock-serves={{ include "kube-ovn-nftable-lb-lib.stockServes" $ }}
            {{- if and (eq $mode "beside") (ne .handlerAbilities "auto") }}
            - --nat-gw-handler-abilities={{ .handlerAbilities }}
            {{- end }}
            # Alone it takes the lease of Kube-OVN's own controller: should that one come, only one of the two is at work.
            - --leader-elect-resource-name={{ eq $mode "alone" | ternary "kube-ovn-controller" $name }}
            - --pprof-port={{ .metricsPort }}
            - --logging-format={{ .logFormat }}
            - --v={{ .verbosity }}
          env:
            - name: POD_NAME
              valueFrom:
                fieldRef:
                  fieldPath: metadata.name
            - name: POD_NAMESPACE
              valueFrom:
                fieldRef:
                  fieldPath: metadata.namespace
          ports:
            - name: metrics
              containerPort: {{ .metricsPort }}
          startupProbe:
            httpGet:
              path: /healthz
              port: metrics
            periodSeconds: 1
            failureThreshold: 30
          livenessProbe:
            httpGet:
              path: /healthz
              port: metrics
            periodSeconds: 10
            timeoutSeconds: 5
          readinessProbe:
            httpGet:
              path: /readyz
              port: metrics
            periodSeconds: 5
            timeoutSeconds: 5
          # The last line says why it has ended, be it that another controller serves the same Services.
          terminationMessagePolicy: FallbackToLogsOnError
          resources: {{- toYaml .resources | nindent 12 }}
          securityContext: {{- include "kube-ovn-nftable-lb-lib.securityContext" $ | nindent 12 }}
{{- if gt (int .replicas) 1 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  namespace: {{ .namespace }}
  labels: {{- include "kube-ovn-nftable-lb-lib.labels" $ | nindent 4 }}
spec:
  maxUnavailable: 1
  # A controller that is not ready is no reason to keep a node.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- include "kube-ovn-nftable-lb-lib.selector" $ | nindent 6 }}
{{- end }}
{{- end }}
{{- end }}

{{- /* What the gateways are made of, where nobody else says so. */ -}}
{{- define "kube-ovn-nftable-lb-lib.gatewayConfig" -}}
{{- with .config -}}
{{- $image := lookup "v1" "ConfigMap" .namespace "ovn-vpc-nat-config" -}}
{{- if or (not $image) (include "kube-ovn-nftable-lb-lib.ours" (dict "root" $.root "object" $image)) }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: ovn-vpc-nat-config
  namespace: {{ .namespace }}
  labels: {{- include "kube-ovn-nftable-lb-lib.labels" $ | nindent 4 }}
data:
  image: {{ .gatewayImage | quote }}
  {{- with .natGateway.namePrefix }}
  natGwNamePrefix: {{ . | quote }}
  {{- end }}
{{- end }}
{{- $switch := lookup "v1" "ConfigMap" .namespace "ovn-vpc-nat-gw-config" -}}
{{- if or (not $switch) (include "kube-ovn-nftable-lb-lib.ours" (dict "root" $.root "object" $switch)) }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: ovn-vpc-nat-gw-config
  namespace: {{ .namespace }}
  labels: {{- include "kube-ovn-nftable-lb-lib.labels" $ | nindent 4 }}
data:
  enable-vpc-nat-gw: {{ .natGateway.enabled | quote }}
{{- end }}
{{- end }}
{{- end }}
