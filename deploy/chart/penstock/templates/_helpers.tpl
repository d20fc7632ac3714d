{{/* The name of everything that the chart makes. */}}
{{- define "penstock.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end }}

{{- define "penstock.account" -}}
{{ .Values.serviceAccount.name | default (include "penstock.name" .) }}
{{- end }}

{{- define "penstock.secret" -}}
{{ .Values.admin.existingSecret | default (include "penstock.name" .) }}
{{- end }}

{{/* The name of what it may read in a namespace. Args: root, namespace. */}}
{{- define "penstock.role" -}}
{{- $name := include "penstock.name" .root }}
{{- eq .namespace .root.Release.Namespace | ternary $name (printf "%s-%s" $name .root.Release.Namespace | trunc 63 | trimSuffix "-") }}
{{- end }}

{{/* The kinds of objects that penstock must read, by namespace, as JSON. */}}
{{- define "penstock.rights" -}}
{{- $rights := dict }}
{{- range $pool := .Values.config.pools }}
{{- with $pool.discover }}{{ with .kubernetes }}
{{- $namespace := .namespace | default $.Release.Namespace }}
{{- $kinds := get $rights $namespace | default dict }}
{{- $_ := set $kinds (empty .service | ternary "pods" "endpointslices") true }}
{{- $_ := set $rights $namespace $kinds }}
{{- end }}{{ end }}
{{- end }}
{{- $rights | toJson }}
{{- end }}

{{/* The metadata of a pod with penstock in it. */}}
{{- define "penstock.pod" -}}
labels: {{ merge (include "penstock.labels" . | fromYaml) .Values.podLabels | toYaml | nindent 2 }}
annotations: {{ merge (dict "penstock/config" (.Values.config | toJson | sha256sum)) .Values.podAnnotations | toYaml | nindent 2 }}
{{- end }}

{{/* A duration of the configuration in seconds: a number, or text such as 500ms, 5s, 10m, 1h. Args: the duration. */}}
{{- define "penstock.seconds" -}}
{{- $text := toString . }}
{{- if hasSuffix "ms" $text }}{{ trimSuffix "ms" $text | float64 | mulf 0.001 }}
{{- else if hasSuffix "h" $text }}{{ trimSuffix "h" $text | float64 | mulf 3600 }}
{{- else if hasSuffix "m" $text }}{{ trimSuffix "m" $text | float64 | mulf 60 }}
{{- else }}{{ trimSuffix "s" $text | float64 }}{{ end }}
{{- end }}

{{/* What all pods share. */}}
{{- define "penstock.podSpec" -}}
serviceAccountName: {{ include "penstock.account" . }}
automountServiceAccountToken: {{ ne "{}" (include "penstock.rights" .) }}
{{- $drain := merge (.Values.config.drain | default dict | deepCopy) (dict "grace_s" 5 "timeout_s" 300) }}
{{- $needs := addf (include "penstock.seconds" $drain.grace_s | float64) (include "penstock.seconds" $drain.timeout_s | float64) }}
{{- if .Values.sidecar.enabled }}
{{- $needs = addf $needs .Values.sidecar.preStopSeconds .Values.sidecar.shutdownSeconds }}
{{- end }}
{{- if le (float64 .Values.terminationGracePeriodSeconds) $needs }}
{{- fail (printf "terminationGracePeriodSeconds is %d: set it above %.0f, the time that a pod may need to leave, or running streams are killed" (int .Values.terminationGracePeriodSeconds) $needs) }}
{{- end }}
terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  - {{ merge (dict "labelSelector" (dict "matchLabels" (include "penstock.selector" $ | fromYaml))) . | toYaml | nindent 4 | trim }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The container, without what makes it a sidecar. */}}
{{- define "penstock.container" -}}
name: penstock
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: [serve, --config, /etc/penstock/penstock.yaml]
env:
  - {name: PENSTOCK_LISTEN__PORT, value: "8080"}
  - {name: PENSTOCK_ADMIN__PORT, value: "9321"}
  - {name: PENSTOCK_ADMIN__HOST, value: "0.0.0.0"}   # the kubelet probes the pod's address
  # admin.token, which `kubectl exec … penstock status` uses too.
  - name: PENSTOCK_ADMIN__TOKEN
    valueFrom: {secretKeyRef: {name: {{ include "penstock.secret" . }}, key: token}}
  {{- with .Values.env }}{{ toYaml . | nindent 2 }}{{ end }}
ports:
  - {name: http, containerPort: 8080}
  - {name: admin, containerPort: 9321}
# Never the data port: its /health is about the fleet, and shares its connection limit.
startupProbe:
  httpGet: {path: /livez, port: admin}
  periodSeconds: 1
  failureThreshold: 30
readinessProbe:
  httpGet: {path: /readyz, port: admin}
  periodSeconds: 2
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /livez, port: admin}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
resources: {{ toYaml .Values.resources | nindent 2 }}
volumeMounts:
  - {name: config, mountPath: /etc/penstock, readOnly: true}
  - {name: state, mountPath: /var/lib/penstock}
  {{- range $number, $name := .Values.secrets }}
  - {name: secret-{{ $number }}, mountPath: /etc/penstock/secrets/{{ $name }}, readOnly: true}
  {{- end }}
{{- end }}

{{- define "penstock.volumes" -}}
- name: config
  configMap: {name: {{ include "penstock.name" . }}}
- name: state
  emptyDir: {sizeLimit: 64Mi}
{{- range $number, $name := .Values.secrets }}
- name: secret-{{ $number }}
  secret: {secretName: {{ $name | quote }}}
{{- end }}
{{- end }}
