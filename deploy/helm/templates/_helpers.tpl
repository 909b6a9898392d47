{{- define "ferroute.labels" -}}
app.kubernetes.io/name: ferroute
{{- end }}

{{- define "ferroute.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{- /* KubeProxyConfiguration: the values, and the path of the kubeconfig that the chart mounts. */ -}}
{{- define "ferroute.config" -}}
{{- $fixed := dict "apiVersion" "kubeproxy.config.k8s.io/v1alpha1" "kind" "KubeProxyConfiguration"
    "clientConnection" (dict "kubeconfig" "/var/lib/ferroute/kubeconfig.conf") -}}
{{- mustMergeOverwrite (deepCopy .Values.config) $fixed | toYaml }}
{{- end }}

{{- /* The port of config.metricsBindAddress, which must be reachable from other nodes. */ -}}
{{- define "ferroute.metricsPort" -}}
{{- $address := .Values.config.metricsBindAddress | default "127.0.0.1:10249" -}}
{{- if or (hasPrefix "127." $address) (hasPrefix "[::1]" $address) (hasPrefix "localhost" $address) -}}
{{- fail (printf "podMonitor.enabled: Prometheus cannot reach %s; set config.metricsBindAddress, such as 0.0.0.0:10249" $address) }}
{{- end -}}
{{- regexFind "[0-9]+$" $address | default "10249" }}
{{- end }}
