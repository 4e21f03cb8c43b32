{{- define "toolproxy.name" -}}
{{- if contains "toolproxy" .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}{{ else }}{{ printf "%s-toolproxy" .Release.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "toolproxy.selector" -}}
app.kubernetes.io/name: toolproxy
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "toolproxy.labels" -}}
{{ include "toolproxy.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "toolproxy.secret" -}}
{{ .Values.existingSecret | default (include "toolproxy.name" .) }}
{{- end }}

{{- define "toolproxy.config" -}}
{{ .Values.config | default (.Files.Get "config.yaml") }}
{{- end }}
