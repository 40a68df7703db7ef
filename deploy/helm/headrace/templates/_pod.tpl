{{/* The pod of a service: root, component, service (headrace's command), role, target (image), port, own (its values),
     section (settings that the chart knows), env, writable (a claim or "" for what is kept), priority. */}}

{{- define "headrace.settings" -}}
{{- $known := dict "models" (dict "home" "/models") "telemetry" (dict "metrics_listen" "0.0.0.0:9470" "endpoint" .root.Values.monitoring.tracing) -}}
{{- if and .root.Values.tenants.keysSecret (eq .service "gateway") }}{{ $_ := set $known "tenants" (dict "keys_file" "/etc/headrace/keys/keys.toml") }}{{ end -}}
{{- mergeOverwrite (deepCopy .root.Values.settings) $known (deepCopy .section) (deepCopy .settings) | toToml }}
{{- end }}

{{- define "headrace.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "headrace.health" -}}
{{- if .root.Values.tls.enabled -}}
exec: {command: [headrace, health, "127.0.0.1:{{ .port }}", --of, {{ .role }}]}
timeoutSeconds: 10
periodSeconds: 10
{{- else -}}
grpc: {port: {{ .port }}}
periodSeconds: 5
{{- end }}
{{- end }}

{{- define "headrace.pod" -}}
metadata:
  labels:
    {{- include "headrace.labels" . | nindent 4 }}
    {{- with .root.Values.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  annotations:
    checksum/settings: {{ include "headrace.settings" . | sha256sum }}
    {{- with .root.Values.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  serviceAccountName: {{ include "headrace.account" .root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with .root.Values.image.pullSecrets }}
  imagePullSecrets: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- if .root.Values.priorityClasses.create }}
  priorityClassName: {{ include "headrace.name" .root }}-{{ .priority }}
  {{- end }}
  terminationGracePeriodSeconds: {{ add (int (dig "transport" "drain_s" 30 (mergeOverwrite (deepCopy .root.Values.settings) (deepCopy .settings)))) 20 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  {{- with .own.nodeSelector | default .root.Values.scheduling.nodeSelector }}
  nodeSelector: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .own.tolerations | default .root.Values.scheduling.tolerations }}
  tolerations: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .own.affinity | default .root.Values.scheduling.affinity }}
  affinity: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- if .root.Values.scheduling.topologySpread.enabled }}
  topologySpreadConstraints:
    {{- $spread := . }}
    {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
    - topologyKey: {{ . }}
      maxSkew: 1
      whenUnsatisfiable: {{ $spread.root.Values.scheduling.topologySpread.whenUnsatisfiable }}
      labelSelector:
        matchLabels: {{ include "headrace.selector" $spread | nindent 10 }}
    {{- end }}
  {{- end }}
  {{- if and .models (eq .root.Values.models.volume "emptyDir") }}
  initContainers:
    {{- $init := . }}
    {{- range .models }}
    - name: add-{{ . | lower | replace ":" "-" | replace "/" "-" | replace "@" "-" | replace "." "-" | replace "_" "-" | trunc 50 | trimSuffix "-" }}
      {{- include "headrace.adding" (dict "root" $init.root "model" .) | nindent 6 }}
    {{- end }}
  {{- end }}
  containers:
    - name: {{ .service }}
      image: {{ include "headrace.image" . | quote }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      args: [{{ .service }}, --config, /etc/headrace/headrace.toml]
      {{- if or .env .root.Values.tls.enabled }}
      env:
        {{- with .env }}{{ toYaml . | nindent 8 }}{{ end }}
        {{- if .root.Values.tls.enabled }}
        # variables, so that the probe's command has them too
        - {name: HEADRACE_TRANSPORT__TLS__DIR, value: /etc/headrace/tls}
        - {name: HEADRACE_TRANSPORT__TLS__DOMAIN, value: {{ .root.Values.tls.domain | quote }}}
        {{- end }}
      {{- end }}
      ports:
        - {name: grpc, containerPort: {{ .port }}}
        - {name: metrics, containerPort: 9470}
        {{- if .http }}
        - {name: http, containerPort: 8480}
        {{- end }}
      securityContext: {{ include "headrace.confined" . | nindent 8 }}
      resources: {{ toYaml .own.resources | nindent 8 }}
      startupProbe: {tcpSocket: {port: metrics}, periodSeconds: 2, failureThreshold: 60}
      livenessProbe: {tcpSocket: {port: metrics}, periodSeconds: 20, failureThreshold: 3}
      readinessProbe: {{ include "headrace.health" . | nindent 8 }}
      {{- if .lingers }}
      lifecycle: {preStop: {sleep: {seconds: 5}}} # until nobody is sent here any more; SIGTERM then drains
      {{- end }}
      volumeMounts:
        - {name: settings, mountPath: /etc/headrace/headrace.toml, subPath: headrace.toml, readOnly: true}
        - {name: tmp, mountPath: /tmp}
        {{- if .models }}
        - {name: models, mountPath: /models, readOnly: true}
        {{- end }}
        {{- if .writable }}
        - {name: kept, mountPath: /var/lib/headrace}
        {{- end }}
        {{- if .root.Values.tls.enabled }}
        - {name: tls, mountPath: /etc/headrace/tls, readOnly: true}
        {{- end }}
        {{- if and .root.Values.tenants.keysSecret (eq .service "gateway") }}
        - {name: keys, mountPath: /etc/headrace/keys, readOnly: true}
        {{- end }}
  volumes:
    - name: settings
      configMap: {name: {{ include "headrace.name" .root }}-{{ .component }}}
    - name: tmp
      emptyDir: {}
    {{- if .models }}
    - name: models
      {{- include "headrace.modelVolume" .root | nindent 6 }}
    {{- end }}
    {{- if .writable }}
    - name: kept
      emptyDir: {sizeLimit: {{ .writable }}}
    {{- end }}
    {{- if .root.Values.tls.enabled }}
    - name: tls
      secret: {secretName: {{ index .root.Values.tls.secrets .role | default (printf "%s-%s-tls" (include "headrace.name" .root) .role) }}, defaultMode: 0440}
    {{- end }}
    {{- if and .root.Values.tenants.keysSecret (eq .service "gateway") }}
    - name: keys
      secret: {secretName: {{ .root.Values.tenants.keysSecret }}, defaultMode: 0440}
    {{- end }}
{{- end }}

{{- define "headrace.modelVolume" -}}
{{- if eq .Values.models.volume "pvc" -}}
persistentVolumeClaim: {claimName: {{ include "headrace.claim" . }}}
{{- else if eq .Values.models.volume "hostPath" -}}
hostPath: {path: {{ .Values.models.hostPath }}, type: Directory}
{{- else -}}
emptyDir: {sizeLimit: {{ .Values.models.size }}}
{{- end }}
{{- end }}

{{- define "headrace.adding" -}}
image: {{ include "headrace.image" (dict "root" .root "target" "models") | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
args: [{{ .model | quote }}]
securityContext: {{ include "headrace.confined" . | nindent 2 }}
resources: {requests: {cpu: "1", memory: 2Gi}, limits: {memory: 4Gi}}
volumeMounts:
  - {name: models, mountPath: /models}
  - {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "headrace.redisEnv" -}}
{{- range .names }}
- name: {{ . }}
  {{- if $.root.Values.redis.secret }}
  valueFrom: {secretKeyRef: {name: {{ $.root.Values.redis.secret }}, key: url}}
  {{- else }}
  value: {{ $.root.Values.redis.url | quote }}
  {{- end }}
{{- end }}
{{- end }}
