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

{{/* The kinds of objects that penstock must read, by namespace, as JSON. */}}
{{- define "penstock.rights" -}}
{{- $rights := dict }}
{{- range $pool := .Values.config.pools }}
{{- with $pool.discover }}{{ with .kubernetes }}
{{- $namespace := .namespace | default $.Release.Namespace }}
{{- $kinds := get $rights $namespace | default dict }}
{{- $_ := set $kinds (ternary "endpointslices" "pods" (hasKey . "service")) true }}
{{- $_ := set $rights $namespace $kinds }}
{{- end }}{{ end }}
{{- end }}
{{- $rights | toJson }}
{{- end }}

{{/* The metadata of a pod with penstock in it. */}}
{{- define "penstock.pod" -}}
labels:
  {{- include "penstock.labels" . | nindent 2 }}
  {{- with .Values.podLabels }}{{ toYaml . | nindent 2 }}{{ end }}
annotations:
  penstock/config: {{ .Values.config | toJson | sha256sum }}
  {{- with .Values.podAnnotations }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}

{{/* What all pods share. */}}
{{- define "penstock.podSpec" -}}
serviceAccountName: {{ include "penstock.account" . }}
automountServiceAccountToken: {{ ne "{}" (include "penstock.rights" .) }}
{{- $drain := .Values.config.drain | default dict }}
{{- $grace := $drain.grace_s | default 5 }}{{ $timeout := $drain.timeout_s | default 300 }}
{{- if and (not (kindIs "string" $grace)) (not (kindIs "string" $timeout)) }}
{{- $needs := addf $grace $timeout | ceil | int }}
{{- if .Values.sidecar.enabled }}{{ $needs = add $needs .Values.sidecar.preStopSeconds }}{{ end }}
{{- if le (int .Values.terminationGracePeriodSeconds) $needs }}
{{- fail (printf "terminationGracePeriodSeconds is %d: set it above %d, the time that a pod may need to drain (config.drain), or running streams are killed" (int .Values.terminationGracePeriodSeconds) $needs) }}
{{- end }}
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
  {{- range .Values.secrets }}
  - {name: {{ printf "secret-%s" . | replace "." "-" | trunc 63 }}, mountPath: /etc/penstock/secrets/{{ . }}, readOnly: true}
  {{- end }}
{{- end }}

{{- define "penstock.volumes" -}}
- name: config
  configMap: {name: {{ include "penstock.name" . }}}
- name: state
  emptyDir: {sizeLimit: 64Mi}
{{- range .Values.secrets }}
- name: {{ printf "secret-%s" . | replace "." "-" | trunc 63 }}
  secret: {secretName: {{ . | quote }}}
{{- end }}
{{- end }}
