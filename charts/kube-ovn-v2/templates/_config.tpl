{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* This chart's values in the form of the library. */ -}}
{{- define "kube-ovn-v2.config" -}}
{{- $images := .Values.global.images -}}
{{- $registry := .Values.global.registry.address -}}
{{- $controller := .Values.controller -}}
flag: features.enableNftableLoadbalancerService
modeFlag: installMode
enabled: {{ and .Values.features.enableNftableLoadbalancerService .Values.features.enableLoadbalancer }}
mode: {{ .Values.installMode }}
handler: {{ .Values.features.enableNatGatewayHandler | quote }}
handlerAbilities: {{ .Values.natGw.handlerAbilities | default "auto" | quote }}
stockServes: {{ .Values.stockServes | quote | default "auto" }}
requireEIPGrant: {{ .Values.features.requireEipGrant }}
withdraw: {{ .Values.withdrawOnUninstall }}
namespace: {{ default .Release.Namespace .Values.namespaceOverride }}
image: {{ printf "%s/%s:%s" $registry $images.kubeovn.repository (default .Chart.AppVersion $images.kubeovn.tag) }}
gatewayImage: {{ printf "%s/%s:%s" $registry $images.natgateway.repository (default .Chart.AppVersion $images.natgateway.tag) }}
besideImage: {{ printf "%s/vpc-nat-gateway-beside:%s" $registry (default .Chart.AppVersion $images.natgateway.tag) }}
pullPolicy: {{ .Values.image.pullPolicy }}
pullSecrets: {{ toJson .Values.global.registry.imagePullSecrets }}
replicas: {{ $controller.replicas }}
verbosity: {{ $controller.verbosity }}
logFormat: {{ $controller.logFormat }}
metricsPort: {{ $controller.metrics.port }}
labels: {{ toJson $controller.labels }}
annotations: {{ toJson $controller.annotations }}
podLabels: {{ toJson $controller.podLabels }}
podAnnotations: {{ toJson $controller.podAnnotations }}
resources: {{ toJson $controller.resources }}
nodeSelector: {{ toJson $controller.nodeSelector }}
tolerations: {{ toJson $controller.tolerations }}
affinity: {{ toJson $controller.affinity }}
priorityClassName: {{ $controller.priorityClassName }}
natGateway: {{ toJson (dict "enabled" .Values.features.enableNatGateways "namePrefix" .Values.natGw.namePrefix) }}
gatewayNamespaces: {{ toJson .Values.natGw.namespaces }}
webhook: {{ toJson .Values.webhook }}
monitoring: {{ toJson .Values.monitoring }}
ownerFinalizers: {{ .Values.ownerReferencesPermissionEnforcement }}
{{- end }}
