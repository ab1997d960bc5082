{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* For the Prometheus operator: what to scrape, and when to raise the alarm. docs/monitoring.md tells of both. */ -}}

{{- define "kube-ovn-nftable-lb-lib.monitoring" -}}
{{- $labels := merge (dict) .config.monitoring.labels (include "kube-ovn-nftable-lb-lib.labels" . | fromYaml) -}}
{{- if include "kube-ovn-nftable-lb-lib.runs" . }}
---
{{ include "kube-ovn-nftable-lb-lib.podMonitor" (dict "name" (include "kube-ovn-nftable-lb-lib.name" .) "namespace" .config.namespace "labels" $labels "selector" (include "kube-ovn-nftable-lb-lib.selector" .) "port" "metrics") }}
{{- end }}
{{- if .config.webhook.enabled }}
---
{{ include "kube-ovn-nftable-lb-lib.podMonitor" (dict "name" "kube-ovn-webhook" "namespace" .config.namespace "labels" $labels "selector" (include "kube-ovn-nftable-lb-lib.webhookSelector" .) "port" "health") }}
{{- end }}
---
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: {{ include "kube-ovn-nftable-lb-lib.name" . }}
  namespace: {{ .config.namespace }}
  labels: {{- toYaml $labels | nindent 4 }}
spec:
{{ include "kube-ovn-nftable-lb-lib.alerts" . | trim | indent 2 }}
{{- end }}

{{- define "kube-ovn-nftable-lb-lib.podMonitor" -}}
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  name: {{ .name }}
  namespace: {{ .namespace }}
  labels: {{- toYaml .labels | nindent 4 }}
spec:
  selector:
    matchLabels: {{- .selector | nindent 6 }}
  podMetricsEndpoints:
    - port: {{ .port }}
{{- end }}
