{{/* The parts that several files use. Each takes a dict: root (the chart's own dot), component, and what else it names. */}}

{{/* The port of gRPC of each component; its metrics are 1000 above. */}}
{{- define "tenure.ports" -}}
gateway: 8470
coordinator: 8471
checkpoint: 8472
tools: 8473
worker: 8474
models: 8477
{{- end }}

{{/* Who calls whom, by callee: the map of ARCHITECTURE.md. */}}
{{- define "tenure.callers" -}}
gateway: []
coordinator: [gateway, worker]
checkpoint: [gateway, coordinator, worker, models]
tools: [gateway, coordinator, worker]
worker: [gateway]
models: [worker, models] # a replica relays to the one that makes the call
{{- end }}

{{- define "tenure.address" -}}
{{ .root.Release.Name }}-{{ .component }}:{{ get (fromYaml (include "tenure.ports" .)) .component }}
{{- end }}

{{- define "tenure.selector" -}}
app.kubernetes.io/name: tenure
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .pool }}
tenure/pool: {{ . }}
{{- end }}
{{- end }}

{{- define "tenure.labels" -}}
{{ include "tenure.selector" . }}
app.kubernetes.io/part-of: tenure
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "tenure.image" -}}
{{- $image := mergeOverwrite (deepCopy .root.Values.image) (.image | default dict) -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end }}
{{- end }}

{{- define "tenure.secret" -}}
{{ .secret | default (printf "%s-%s" .root.Release.Name .component) }}
{{- end }}

{{- define "tenure.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
{{- end }}

{{- define "tenure.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{/* Volumes: the secret of the process, what is public, and /tmp; nothing else can be written. */}}
{{- define "tenure.volumes" -}}
- { name: own, secret: { secretName: {{ include "tenure.secret" . }}, defaultMode: 0440 } }
- { name: public, secret: { secretName: {{ .root.Values.publicSecret | default (printf "%s-public" .root.Release.Name) }} } }
- { name: tmp, emptyDir: {} }
{{- end }}

{{- define "tenure.mounts" -}}
- { name: own, mountPath: /run/tenure/own, readOnly: true }
- { name: public, mountPath: /run/tenure/public, readOnly: true }
- { name: tmp, mountPath: /tmp }
{{- end }}

{{/*
The values of a pool of workers, as YAML. "auto": without the model runner, workers need what it would need. root, own.
*/}}
{{- define "tenure.pool" -}}
{{- $values := mergeOverwrite (deepCopy .root.Values.worker) (deepCopy (.own | default dict)) -}}
{{- $models := .root.Values.models -}}
{{- if eq (toString $values.modelKeys) "auto" -}}
{{- $_ := set $values "modelKeys" (ternary list $models.modelKeys $models.enabled) -}}
{{- end -}}
{{- if eq (toString $values.internet) "auto" -}}
{{- $_ := set $values "internet" (ternary false $models.internet $models.enabled) -}}
{{- end -}}
{{- toYaml $values -}}
{{- end }}

{{/* The variables of every service. */}}
{{- define "tenure.commonEnv" -}}
{{- $port := get (fromYaml (include "tenure.ports" .)) .component | int -}}
TENURE_TLS_CERTIFICATE_FILE: /run/tenure/own/certificate.pem
TENURE_TLS_KEY_FILE: /run/tenure/own/certificate.key.pem
TENURE_TLS_CA_FILE: /run/tenure/public/ca.pem
TENURE_TLS_INSTALLATION: {{ .root.Values.installation | quote }}
TENURE_METRICS_ALLOW_NETWORK: "true"
TENURE_{{ upper .component }}_LISTEN: "0.0.0.0:{{ $port }}"
TENURE_{{ upper .component }}_METRICS_LISTEN: "0.0.0.0:{{ add $port 1000 }}"
{{- with .root.Values.traces.endpoint }}
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: {{ . | quote }}
OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: {{ $.root.Values.traces.protocol | quote }}
{{- end }}
{{- end }}

{{/*
A deployment with its disruption budget. name, values; env: the variables as YAML; drain: how long it drains, in seconds;
image, pool, args, command, ports (further ones), mounts, volumes, security, podSecurity: as YAML, where it differs.
*/}}
{{- define "tenure.workload" -}}
{{- $port := get (fromYaml (include "tenure.ports" .)) .component | int -}}
{{- $env := mergeOverwrite (fromYaml (include "tenure.commonEnv" .)) (fromYaml .env) .values.env -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .name }}
  labels: {{- include "tenure.labels" . | nindent 4 }}
spec:
  {{- if not .scaled }}
  replicas: {{ .values.replicas }}
  {{- end }}
  revisionHistoryLimit: 3
  selector:
    matchLabels: {{- include "tenure.selector" . | nindent 6 }}
  strategy:
    {{- if .recreate }}
    type: Recreate
    {{- else }}
    rollingUpdate: { maxUnavailable: 0, maxSurge: 1 }
    {{- end }}
  template:
    metadata:
      labels: {{- include "tenure.labels" . | nindent 8 }}
      annotations:
        prometheus.io/scrape: "true"
        prometheus.io/port: "{{ add $port 1000 }}"
        {{- with .checksum }}
        tenure/config: {{ . }}
        {{- end }}
        {{- with .values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false # their variables begin with the names of the services
      {{- with .values.serviceAccountName }}
      serviceAccountName: {{ . }}
      {{- end }}
      {{- if .ownUsers }}
      hostUsers: false
      {{- end }}
      terminationGracePeriodSeconds: {{ add .drain 35 }} # the drain, 30 s to close, and 5 s
      securityContext: {{- include "tenure.podSecurity" . | nindent 8 }}
      {{- with .root.Values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with .values.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels: {{- include "tenure.selector" . | nindent 14 }}
      containers:
        - name: {{ .component }}
          image: {{ include "tenure.image" . | quote }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          {{- with .values.command }}
          command: {{- toYaml . | nindent 12 }}
          {{- end }}
          {{- with .values.args | default (ternary list (list .component) (not (empty .values.command))) }}
          args: {{- toYaml . | nindent 12 }}
          {{- end }}
          ports:
            - { name: grpc, containerPort: {{ $port }} }
            - { name: metrics, containerPort: {{ add $port 1000 }} }
            {{- with .ports }}
            {{- . | nindent 12 }}
            {{- end }}
          # Kubernetes's own gRPC probes know no mutual TLS, so the service's command asks with its certificate.
          startupProbe:
            exec: { command: [python, -P, -m, tenure.serve, {{ .component }}, health] }
            periodSeconds: 5
            timeoutSeconds: 20
            failureThreshold: 36
          readinessProbe:
            exec: { command: [python, -P, -m, tenure.serve, {{ .component }}, health] }
            periodSeconds: 15
            timeoutSeconds: 20
            failureThreshold: 2
          # No liveness probe: a service that cannot reach its store is NOT_SERVING, and a restart does not help. A process
          # whose duty is stuck ends itself.
          securityContext: {{- .security | default (include "tenure.confined" .) | nindent 12 }}
          resources: {{- toYaml .values.resources | nindent 12 }}
          env:
            {{- if has .component (list "worker" "models") }}
            - { name: POD_IP, valueFrom: { fieldRef: { fieldPath: status.podIP } } }
            {{- end }}
            {{- range $variable, $value := $env }}
            - { name: {{ $variable }}, value: {{ $value | quote }} }
            {{- end }}
          {{- with .values.envFrom }}
          envFrom: {{- toYaml . | nindent 12 }}
          {{- end }}
          volumeMounts:
            {{- include "tenure.mounts" . | nindent 12 }}
            {{- with .mounts }}
            {{- . | nindent 12 }}
            {{- end }}
      volumes:
        {{- include "tenure.volumes" . | nindent 8 }}
        {{- with .volumes }}
        {{- . | nindent 8 }}
        {{- end }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  labels: {{- include "tenure.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{- include "tenure.selector" . | nindent 6 }}
{{- end }}

{{/* A headless Service: clients of gRPC see all replicas, and go on at another one. ports: further ones, as YAML. */}}
{{- define "tenure.service" -}}
{{- $port := get (fromYaml (include "tenure.ports" .)) .component | int -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}
  labels: {{- include "tenure.labels" . | nindent 4 }}
spec:
  clusterIP: None
  selector: {{- include "tenure.selector" . | nindent 4 }}
  ports:
    - { name: grpc, port: {{ $port }} }
    - { name: metrics, port: {{ add $port 1000 }} }
    {{- with .ports }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end }}
