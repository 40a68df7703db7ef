{{/* A service's settings, its Deployment and the names by which it is found. Beside the pod's: replicas (none where
     something else scales it), strategy, headless. */}}

{{- define "headrace.service" -}}
{{- $name := printf "%s-%s" (include "headrace.name" .root) .component }}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $name }}
  labels: {{ include "headrace.labels" . | nindent 4 }}
data:
  headrace.toml: |
    {{- include "headrace.settings" . | nindent 4 }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  labels: {{ include "headrace.labels" . | nindent 4 }}
spec:
  {{- if not .scaled }}
  replicas: {{ .own.replicas }}
  {{- end }}
  revisionHistoryLimit: 5
  strategy: {{ .strategy | toYaml | nindent 4 }}
  selector:
    matchLabels: {{ include "headrace.selector" . | nindent 6 }}
  template: {{ include "headrace.pod" . | nindent 4 }}
---
# Headless: callers see every ready pod and balance among them themselves.
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}{{ if .public }}-headless{{ end }}
  labels: {{ include "headrace.labels" . | nindent 4 }}
spec:
  clusterIP: None
  selector: {{ include "headrace.selector" . | nindent 4 }}
  ports:
    - {name: grpc, port: {{ .port }}, targetPort: grpc, appProtocol: kubernetes.io/h2c}
    - {name: metrics, port: 9470, targetPort: metrics}
{{- if and .root.Values.podDisruptionBudgets.enabled .budget }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  labels: {{ include "headrace.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{ include "headrace.selector" . | nindent 6 }}
{{- end }}
{{- end }}
