{{/* The name of everything: that of the release, and "headgate" in it. */}}
{{- define "headgate.name" -}}
{{- if contains "headgate" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-headgate" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end -}}
{{- end -}}

{{- define "headgate.selector" -}}
app.kubernetes.io/name: headgate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "headgate.labels" -}}
{{ include "headgate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "headgate.hasDatabase" -}}
{{- if or .Values.database.url .Values.database.existingSecret }}yes{{ end -}}
{{- end -}}

{{- define "headgate.hasEnvoy" -}}
{{- if or .Values.envoy.files .Values.envoy.existingConfigMap }}yes{{ end -}}
{{- end -}}

{{/* An environment variable from a Secret: call with (list root name values). */}}
{{- define "headgate.fromSecret" -}}
{{- $root := index . 0 }}{{ $values := index . 2 -}}
- name: {{ index . 1 }}
  valueFrom: {secretKeyRef: {name: {{ $values.existingSecret | default (include "headgate.name" $root) }}, key: {{ $values.key }}}}
{{- end -}}

{{/* A file that is given as text or as a map. */}}
{{- define "headgate.text" -}}
{{- if kindIs "string" . }}{{ . | trimSuffix "\n" }}{{ else }}{{ toYaml . }}{{ end -}}
{{- end -}}
