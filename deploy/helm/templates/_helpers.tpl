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

{{- /* Splits an address of the configuration, such as 10.0.0.1:80, [::]:80, 10.0.0.1 or ::, into `host` and `port`. */ -}}
{{- define "ferroute.address" -}}
{{- $host := .address -}}
{{- $port := .port -}}
{{- if regexMatch "^([^:]*|\\[.*\\]):[0-9]+$" .address -}}
{{- $host = regexReplaceAll ":[0-9]+$" .address "" | trimAll "[]" -}}
{{- $port = regexFind "[0-9]+$" .address -}}
{{- end -}}
{{- dict "host" $host "port" (int $port) | toJson -}}
{{- end }}

{{- /* Where the kubelet finds the health checks: at the node's address, unless they listen at another one only. */ -}}
{{- define "ferroute.probe" -}}
{{- $address := include "ferroute.address" (dict "address" (.Values.config.healthzBindAddress | default "0.0.0.0") "port" 10256) | fromJson -}}
{{- if not (has $address.host (list "0.0.0.0" "::")) -}}
host: {{ $address.host | quote }}
{{ end -}}
port: {{ $address.port }}
{{- end }}

{{- /* The port of config.metricsBindAddress, which must be reachable from other nodes. */ -}}
{{- define "ferroute.metricsPort" -}}
{{- $address := .Values.config.metricsBindAddress | default "127.0.0.1" -}}
{{- $parts := include "ferroute.address" (dict "address" $address "port" 10249) | fromJson -}}
{{- if or (hasPrefix "127." $parts.host) (has $parts.host (list "::1" "localhost")) -}}
{{- fail (printf "podMonitor.enabled: Prometheus cannot reach %s; set config.metricsBindAddress, such as 0.0.0.0:10249" $address) }}
{{- end -}}
{{- $parts.port }}
{{- end }}
