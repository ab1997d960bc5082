{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* This chart's values in the form of the library. */ -}}
{{- define "kube-ovn.config" -}}
{{- $images := .Values.global.images.kubeovn -}}
{{- $registry := .Values.global.registry.address -}}
{{- $tag := default .Chart.AppVersion $images.tag -}}
{{- $controller := index .Values "kube-ovn-controller" -}}
flag: func.ENABLE_NFTABLE_LB_SVC
modeFlag: installMode
enabled: {{ and .Values.func.ENABLE_NFTABLE_LB_SVC .Values.func.ENABLE_LB }}
mode: {{ .Values.installMode }}
handler: {{ .Values.func.ENABLE_NAT_GW_HANDLER | quote }}
handlerAbilities: {{ .Values.natGwHandlerAbilities | default "auto" | quote }}
stockServes: {{ .Values.stockServes | quote | default "auto" }}
requireEIPGrant: {{ .Values.func.REQUIRE_EIP_GRANT }}
withdraw: {{ .Values.withdrawOnUninstall }}
namespace: {{ .Values.namespace }}
image: {{ printf "%s/%s:%s" $registry $images.repository $tag }}
gatewayImage: {{ printf "%s/%s:%s" $registry $images.vpcRepository $tag }}
besideImage: {{ printf "%s/vpc-nat-gateway-beside:%s" $registry $tag }}
pullPolicy: {{ .Values.image.pullPolicy }}
pullSecrets: {{ toJson .Values.global.registry.imagePullSecrets }}
replicas: {{ .Values.replicaCount }}
verbosity: {{ $controller.verbosity }}
logFormat: {{ $controller.logFormat }}
metricsPort: {{ .Values.networking.CONTROLLER_METRICS_PORT }}
labels: {{ toJson $controller.labels }}
annotations: {{ toJson $controller.annotations }}
podLabels: {{ toJson $controller.podLabels }}
podAnnotations: {{ toJson $controller.podAnnotations }}
resources: {{ toJson (dict "requests" $controller.requests "limits" $controller.limits) }}
nodeSelector: {{ toJson $controller.nodeSelector }}
tolerations: {{ toJson $controller.tolerations }}
affinity: {{ toJson $controller.affinity }}
priorityClassName: {{ $controller.priorityClassName }}
natGateway: {{ toJson (dict "enabled" .Values.func.ENABLE_NAT_GW "namePrefix" .Values.natGwNamePrefix) }}
gatewayNamespaces: {{ toJson .Values.natGwNamespaces }}
webhook: {{ toJson .Values.webhook }}
monitoring: {{ toJson .Values.monitoring }}
ownerFinalizers: {{ .Values.ownerReferencesPermissionEnforcement }}
{{- end }}
