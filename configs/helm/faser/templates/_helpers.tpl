{{/* The name of everything here: the release's, with the chart's where that is not in it. */}}
{{- define "faser.name" -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) | trunc 52 | trimSuffix "-" }}
{{- end }}

{{/* What a Service, a pool and a budget find the pods by that answer requests. */}}
{{- define "faser.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- if gt (int .Values.nodes) 1 }}
leaderworkerset.sigs.k8s.io/worker-index: "0"
{{- end }}
{{- end }}

{{- define "faser.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* faser's config file: the values' own, over what the chart knows. */}}
{{- define "faser.config" -}}
{{- $config := deepCopy .Values.config }}
{{- $server := dict "listen" "0.0.0.0:8000" "metrics_open" true }}
{{- if not .Values.apiKeys.existingSecret }}
{{- if .Values.apiKeys.required }}
{{- fail "every pod of the cluster can reach the service: name a Secret with keys by apiKeys.existingSecret, or set apiKeys.required to false" }}
{{- end }}
{{- $_ := set $server "allow_public_without_keys" true }}
{{- end }}
{{- $_ := set $config "server" (mergeOverwrite $server (default (dict) $config.server)) }}
{{- if gt (int .Values.nodes) 1 }}
{{- $_ := set $config "node" (mergeOverwrite (dict "rank" "auto" "listen" "0.0.0.0:29500") (default (dict) $config.node)) }}
{{- end }}
{{- toYaml $config }}
{{- end }}

{{/* What values must not be together. */}}
{{- define "faser.refusals" -}}
{{- if and (eq .Values.cache.type "pvc") (ne .Values.cache.accessMode "ReadWriteMany") (or (gt (int .Values.replicas) 1) .Values.autoscaling.enabled (gt (int .Values.nodes) 1)) }}
{{- fail "several pods share the claim of cache.type pvc: it needs cache.accessMode ReadWriteMany" }}
{{- end }}
{{- if and (eq .Values.cache.type "existing") (not .Values.cache.claim) }}
{{- fail "cache.type existing needs the claim's name in cache.claim" }}
{{- end }}
{{- end }}

{{/* A pod. `answers` says whether it takes requests; of several nodes only the leader does. */}}
{{- define "faser.pod" -}}
{{- $values := .root.Values }}
metadata:
  labels:
    {{- include "faser.labels" .root | nindent 4 }}
    # Its metrics are there by vLLM's names too, by which llm-d's router reads them.
    llm-d.ai/engine-type: vllm
    {{- with $values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # Another config is another pod.
    checksum/config: {{ include "faser.config" .root | sha256sum }}
    {{- with $values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: {{ add (int (default 30 $values.config.drain_timeout_s)) (int $values.preStopSeconds) 15 }}
  {{- with $values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  containers:
    - name: faser
      image: "{{ $values.image.repository }}:{{ default (printf "%s-%s" .root.Chart.AppVersion (ternary "cuda12" "cpu" (gt (int $values.gpus) 0))) $values.image.tag }}"
      imagePullPolicy: {{ $values.image.pullPolicy }}
      args: [serve, -c, /etc/faser/faser.yaml]
      {{- if or $values.hub.tokenSecret $values.env }}
      env:
        {{- with $values.hub.tokenSecret }}
        - name: HF_TOKEN
          valueFrom:
            secretKeyRef:
              name: {{ . }}
              key: token
        {{- end }}
        {{- with $values.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      {{- if .answers }}
      ports:
        - name: http
          containerPort: 8000
      # /ready is 200 once models are loaded; liveness begins then, so a long load is no reason to start anew.
      startupProbe:
        httpGet:
          path: /ready
          port: http
          {{- if (default (dict) $values.config.server).tls }}
          scheme: HTTPS
          {{- end }}
        periodSeconds: 5
        failureThreshold: {{ div (int $values.startup.withinSeconds) 5 }}
      readinessProbe:
        httpGet:
          path: /ready
          port: http
          {{- if (default (dict) $values.config.server).tls }}
          scheme: HTTPS
          {{- end }}
        periodSeconds: 2
        failureThreshold: 2
      # 200 while it drains, or rebuilds a device. A process that has lost all its devices ends by itself.
      livenessProbe:
        httpGet:
          path: /health
          port: http
          {{- if (default (dict) $values.config.server).tls }}
          scheme: HTTPS
          {{- end }}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 3
      lifecycle:
        preStop:
          sleep:
            seconds: {{ $values.preStopSeconds }}
      {{- end }}
      {{- $resources := deepCopy $values.resources }}
      {{- if gt (int $values.gpus) 0 }}
      {{- $_ := set $resources "limits" (mergeOverwrite (default (dict) $resources.limits) (dict "nvidia.com/gpu" $values.gpus)) }}
      {{- end }}
      {{- with $resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
      volumeMounts:
        - name: config
          mountPath: /etc/faser
          readOnly: true
        - name: cache
          mountPath: /var/cache/faser
        # The admin socket, for `kubectl exec POD -- faser ctl status`.
        - name: run
          mountPath: /run/faser
        - name: tmp
          mountPath: /tmp
        {{- if $values.apiKeys.existingSecret }}
        - name: api-keys
          mountPath: /run/secrets
          readOnly: true
        {{- end }}
        {{- if $values.models.existingClaim }}
        - name: models
          mountPath: /models
          readOnly: true
        {{- end }}
        {{- if gt (int $values.gpus) 1 }}
        - name: shm
          mountPath: /dev/shm
        {{- end }}
        {{- with $values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: config
      configMap:
        name: {{ include "faser.name" .root }}
    - name: cache
      {{- if eq $values.cache.type "emptyDir" }}
      emptyDir:
        sizeLimit: {{ $values.cache.size }}
      {{- else }}
      persistentVolumeClaim:
        claimName: {{ ternary (printf "%s-cache" (include "faser.name" .root)) $values.cache.claim (eq $values.cache.type "pvc") }}
      {{- end }}
    - name: run
      emptyDir: {}
    - name: tmp
      emptyDir: {}
    {{- with $values.apiKeys.existingSecret }}
    - name: api-keys
      secret:
        secretName: {{ . }}
        items:
          - key: api-keys
            path: api-keys
    {{- end }}
    {{- with $values.models.existingClaim }}
    - name: models
      persistentVolumeClaim:
        claimName: {{ . }}
        readOnly: true
    {{- end }}
    {{- if gt (int $values.gpus) 1 }}
    # NCCL takes it where GPUs have no way of their own; a container has 64 MiB of it otherwise.
    - name: shm
      emptyDir:
        medium: Memory
    {{- end }}
    {{- with $values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- range $key := list "runtimeClassName" "priorityClassName" "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" }}
  {{- with index $values $key }}
  {{ $key }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
{{- end }}
