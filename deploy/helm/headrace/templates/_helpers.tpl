{{- define "headrace.image" -}}
{{ printf "%s%s:%s" .root.Values.image.repository .variant (.root.Values.image.tag | default .root.Chart.AppVersion) }}
{{- end }}

{{/* The name of a suite's object: the release, the slot unless it is the release's name, the part. */}}
{{- define "headrace.suite" -}}
{{- $slot := .slot.name | replace "_" "-" -}}
{{- if eq $slot .root.Release.Name }}{{ $slot }}{{ else }}{{ printf "%s-%s" .root.Release.Name $slot }}{{ end }}
{{- end }}

{{- define "headrace.labels" -}}
app.kubernetes.io/name: headrace
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "headrace.selector" -}}
app.kubernetes.io/name: headrace
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
headrace/slot: {{ .slot.name | quote }}
{{- end }}

{{- define "headrace.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "headrace.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "headrace.secretPair" -}}
- name: {{ .user }}
  valueFrom: {secretKeyRef: {name: {{ .secret | quote }}, key: username}}
- name: {{ .password }}
  valueFrom: {secretKeyRef: {name: {{ .secret | quote }}, key: password}}
{{- end }}

{{/*
How a container signs in: `postgres` is the role's part after `headrace_`, or `admin`; `nats` is the user's name in
permissions.conf. `postgresSecret` and `natsSecret` name other secrets than those of the values.
*/}}
{{- define "headrace.postgresSecret" -}}
{{- $values := .root.Values }}
{{- .postgresSecret | default (ternary $values.setup.postgresSecret (index $values.postgres.secrets .postgres) (eq .postgres "admin")) }}
{{- end }}

{{- define "headrace.natsSecret" -}}
{{- $values := .root.Values }}
{{- .natsSecret | default (ternary $values.setup.natsSecret (index $values.nats.secrets .nats) (eq .nats "admin")) }}
{{- end }}

{{/* Whether a login's secret is existingSecret, in which every key names its user. */}}
{{- define "headrace.postgresShared" -}}
{{- if and .root.Values.existingSecret (not .postgresSecret) }}true{{ end }}
{{- end }}

{{- define "headrace.natsShared" -}}
{{- if and .root.Values.existingSecret (not .natsSecret) }}true{{ end }}
{{- end }}

{{- define "headrace.postgresLogin" -}}
{{- $values := .root.Values }}
{{- $shared := include "headrace.postgresShared" . }}
{{- $secret := ternary $values.existingSecret (include "headrace.postgresSecret" .) (ne $shared "") }}
{{- $admin := eq .postgres "admin" }}
{{- if $shared }}
- {name: POSTGRES_BRIDGE_USER, value: {{ ternary $values.setup.postgresUser (printf "headrace_%s" .postgres) $admin | quote }}}
{{- else }}
- name: POSTGRES_BRIDGE_USER
  valueFrom: {secretKeyRef: {name: {{ $secret | quote }}, key: username}}
{{- end }}
{{- if eq $values.postgres.authentication "certificate" }}
- {name: PGSSLCERT, value: /etc/headrace/postgres-user/tls.crt}
- {name: PGSSLKEY, value: /etc/headrace/postgres-user/tls.key}
{{- else }}
- name: POSTGRES_BRIDGE_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ $secret | quote }}, key: {{ ternary (ternary "POSTGRES_PASSWORD" (printf "PG_%s_PASSWORD" (upper .postgres)) $admin) "password" (ne $shared "") }}}}
{{- end }}
{{- end }}

{{- define "headrace.natsLogin" -}}
{{- $values := .root.Values }}
{{- $how := $values.nats.authentication }}
{{- $shared := include "headrace.natsShared" . }}
{{- $names := dict "wal-reader" "READER" "snapshot-responder" "SNAPSHOT" "schema-publisher" "SCHEMA" "audit-writer" "AUDIT" "lake-writer" "LAKE" "sql-server" "SQL" "wal-archiver" "BACKUP" }}
{{- if eq $how "credentials" }}
- {name: NATS_CREDS, value: /etc/headrace/nats-user/user.creds}
{{- else if eq $how "nkey" }}
- {name: NATS_NKEY_SEED, value: /etc/headrace/nats-user/user.nk}
{{- else if eq $how "certificate" }}
- {name: NATS_TLS_CERT, value: /etc/headrace/nats-user/tls.crt}
- {name: NATS_TLS_KEY, value: /etc/headrace/nats-user/tls.key}
{{- else if $shared }}
- {name: NATS_BRIDGE_USER, value: {{ .nats | quote }}}
- name: NATS_BRIDGE_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ $values.existingSecret | quote }}, key: NATS_{{ index $names .nats | default (upper .nats) }}_PASSWORD}}
{{- else }}
{{ include "headrace.secretPair" (dict "user" "NATS_BRIDGE_USER" "password" "NATS_BRIDGE_PASSWORD" "secret" (include "headrace.natsSecret" .)) }}
{{- end }}
{{- if and $values.nats.clientSecret (ne $how "certificate") }}
- {name: NATS_TLS_CERT, value: /etc/headrace/nats-client/tls.crt}
- {name: NATS_TLS_KEY, value: /etc/headrace/nats-client/tls.key}
{{- end }}
{{- end }}

{{/* A token from its secret, or from existingSecret, which need not have it unless it is `required`. */}}
{{- define "headrace.token" -}}
{{- $existing := .root.Values.existingSecret }}
{{- if .secret -}}
- name: {{ .name }}
  valueFrom: {secretKeyRef: {name: {{ .secret | quote }}, key: token}}
{{- else if $existing -}}
- name: {{ .name }}
  valueFrom: {secretKeyRef: {name: {{ $existing | quote }}, key: {{ .name }}, optional: {{ not .required }}}}
{{- end }}
{{- end }}

{{/* Settings that can't be meant. */}}
{{- define "headrace.checkLogins" -}}
{{- $values := .Values }}
{{- if and (eq $values.nats.authentication "certificate") $values.nats.clientSecret }}{{ fail "nats.clientSecret: with nats.authentication certificate, each user has its own certificate in nats.secrets" }}{{ end }}
{{- if and (eq $values.postgres.authentication "certificate") (eq $values.postgres.sslmode "disable") }}{{ fail "postgres.authentication certificate needs TLS: set postgres.sslmode to verify-full" }}{{ end }}
{{- end }}

{{/* A process's environment: the suite's variables, then the chart's settings, then the slot's. */}}
{{- define "headrace.environment" -}}
{{- $values := .root.Values }}
- {name: PG_HOST, value: {{ required "postgres.host must be set" $values.postgres.host | quote }}}
- {name: PG_PORT, value: {{ $values.postgres.port | quote }}}
- {name: PG_DB, value: {{ required "postgres.database must be set" $values.postgres.database | quote }}}
- {name: PGSSLMODE, value: {{ $values.postgres.sslmode | quote }}}
{{- if $values.postgres.caSecret }}
- {name: PGSSLROOTCERT, value: /etc/headrace/postgres/ca.crt}
{{- else if hasPrefix "verify" $values.postgres.sslmode }}
- {name: PGSSLROOTCERT, value: /etc/ssl/certs/ca-certificates.crt}
{{- end }}
- {name: NATS_URL, value: {{ required "nats.url must be set" $values.nats.url | quote }}}
{{- if $values.nats.caSecret }}
- {name: NATS_TLS_CA, value: /etc/headrace/nats/ca.crt}
{{- end }}
{{- if .postgres }}
{{ include "headrace.postgresLogin" . | trim }}
{{- end }}
{{ include "headrace.natsLogin" . | trim }}
- {name: HEADRACE_SLOT, value: {{ .slot.name | quote }}}
- {name: HEADRACE_PUB, value: {{ .slot.publication | quote }}}
- {name: HEADRACE_HTTP_HOST, value: 0.0.0.0}
{{- if $values.archive.url }}
- {name: HEADRACE_ARCHIVE_URL, value: {{ include "headrace.archiveUrl" . | quote }}}
- {name: HEADRACE_ARCHIVE_REQUIRED, value: {{ $values.archive.required | quote }}}
{{- end }}
{{- with include "headrace.token" (dict "root" .root "name" "HEADRACE_SHUTDOWN_TOKEN" "secret" $values.shutdownTokenSecret) }}
{{ . }}
{{- end }}
{{- $audit := dict }}
{{- if $values.audit.enabled }}
{{- $trail := printf "%s.%s" $values.audit.schema (include "headrace.auditTable" .) }}
{{- $month := "[0-9][0-9][0-9][0-9]_[0-9][0-9]" }}
{{- $tables := printf "%s.headrace_audit_*" $values.audit.schema }}
{{- $audit = dict "HEADRACE_MESSAGE_PREFIXES" "_bemi" "HEADRACE_EXCLUDE" (printf "%s,%s_p%s,%s" $trail $trail $month $tables) }}
{{- end }}
{{- range $name, $value := merge (dict) (.slot.settings | default dict) $values.settings $audit }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{/* Each archive has one source. */}}
{{- define "headrace.archiveUrl" -}}
{{- $url := .root.Values.archive.url | trimSuffix "/" -}}
{{- if gt (len .root.Values.slots) 1 }}{{ $url }}/{{ .slot.name }}{{ else }}{{ $url }}{{ end }}
{{- end }}

{{/* The lake-writer's environment, in addition to the suite's. Suites share the catalog: their tables differ. */}}
{{- define "headrace.lakeEnvironment" -}}
{{- $lake := .root.Values.lake }}
{{- $url := $lake.url | trimSuffix "/" }}
{{- if gt (len .root.Values.slots) 1 }}{{ $url = printf "%s/%s" $url .slot.name }}{{ end }}
- {name: HEADRACE_LAKE_URL, value: {{ $url | quote }}}
- name: HEADRACE_LAKE_CATALOG
  {{- if and .root.Values.existingSecret (not .catalogSecret) }}
  valueFrom: {secretKeyRef: {name: {{ .root.Values.existingSecret | quote }}, key: HEADRACE_LAKE_CATALOG}}
  {{- else }}
  valueFrom: {secretKeyRef: {name: {{ .catalogSecret | default $lake.catalogSecret | quote }}, key: url}}
  {{- end }}
{{- if eq .component "lake-writer" }}
{{- with include "headrace.token" (dict "root" .root "name" "HEADRACE_LAKE_TOKEN" "secret" $lake.tokenSecret) }}
{{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* The SQL server's environment, in addition to the suite's. */}}
{{- define "headrace.sqlEnvironment" -}}
{{- $sql := .root.Values.sql }}
{{- include "headrace.lakeEnvironment" (merge (dict "catalogSecret" $sql.catalogSecret) .) }}
- {name: HEADRACE_SQL_HOST, value: 0.0.0.0}
- {name: HEADRACE_SQL_FOLDER, value: /sql}
{{- if $sql.tlsSecret }}
- {name: HEADRACE_SQL_TLS_CERT, value: /etc/headrace/sql/tls.crt}
- {name: HEADRACE_SQL_TLS_KEY, value: /etc/headrace/sql/tls.key}
- {name: HEADRACE_SQL_TLS_REQUIRED, value: "true"}
{{- end }}
{{- range $name, $value := $sql.settings }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{/* The environment of wal-archiver and of the commands on its store, in addition to the suite's. */}}
{{- define "headrace.backupEnvironment" -}}
- {name: HEADRACE_BACKUP_URL, value: {{ .root.Values.backup.url | quote }}}
{{- range $name, $value := .root.Values.backup.settings }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{/* Whether backups are this suite's: one is of the whole cluster, whose log has one reader. */}}
{{- define "headrace.keepsBackups" -}}
{{- if and .root.Values.backup.url (eq .slot.name (first .root.Values.slots).name) }}true{{ end }}
{{- end }}

{{/* The sinks of a suite, as a list. A sink without a slot is the first suite's. */}}
{{- define "headrace.sinks" -}}
{{- $first := (first .root.Values.slots).name }}
{{- $slot := .slot.name }}
{{- range .root.Values.sinks }}
{{- if eq (.slot | default $first) $slot }}
- {{ . | toJson }}
{{- end }}
{{- end }}
{{- end }}

{{/* A sink as it is in headrace.toml. */}}
{{- define "headrace.sinkToml" -}}
[[sink]]
name = {{ .name | quote }}
{{ .toml | trim }}
{{- end }}

{{/* Secrets with variables of a service's stores and targets. */}}
{{- define "headrace.secretsOf" -}}
{{- $values := .root.Values }}
{{- $found := list }}
{{- if has .component (list "archiver" "lake-writer") }}{{ $found = concat $found $values.archive.secrets }}{{ end }}
{{- if eq .component "lake-writer" }}{{ $found = concat $found $values.lake.secrets }}{{ end }}
{{- if eq .component "sql-server" }}{{ $found = $values.sql.secrets | default $values.lake.secrets }}{{ end }}
{{- if eq .component "wal-archiver" }}{{ $found = $values.backup.secrets }}{{ end }}
{{- if eq .component "console" }}
{{- $lake := ternary $values.lake.secrets list (ne $values.lake.url "") }}
{{- $backup := ternary $values.backup.secrets list (ne (include "headrace.keepsBackups" .) "") }}
{{- $found = $values.console.secrets | default (concat $lake $backup) }}
{{- end }}
{{- with .sink }}{{ $found = concat (.secrets | default list) (ternary $values.archive.secrets list (ne $values.archive.url "")) }}{{ end }}
{{- $found | uniq | toJson }}
{{- end }}

{{/* Each trail has one source. */}}
{{- define "headrace.auditTable" -}}
{{- $table := .root.Values.audit.table -}}
{{- if gt (len .root.Values.slots) 1 }}{{ $table }}_{{ .slot.name }}{{ else }}{{ $table }}{{ end }}
{{- end }}

{{/* The trail's place and its hidden columns, for its writer and its readers, each with the role of its `auditSecret`. */}}
{{- define "headrace.auditEnvironment" -}}
{{- $audit := .root.Values.audit }}
{{- with $audit.host }}
- {name: DEST_DB_HOST, value: {{ . | quote }}}
{{- end }}
{{- if $audit.port }}
- {name: DEST_DB_PORT, value: {{ $audit.port | quote }}}
{{- end }}
{{- with $audit.database }}
- {name: DEST_DB_NAME, value: {{ . | quote }}}
{{- end }}
{{- if and (eq .component "audit-writer") .root.Values.existingSecret }}
- {name: DEST_DB_USER, value: headrace_audit}
- name: DEST_DB_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .root.Values.existingSecret | quote }}, key: PG_AUDIT_PASSWORD}}
{{- else if .auditSecret }}
{{ include "headrace.secretPair" (dict "user" "DEST_DB_USER" "password" "DEST_DB_PASSWORD" "secret" .auditSecret) }}
{{- end }}
- {name: HEADRACE_AUDIT_SCHEMA, value: {{ $audit.schema | quote }}}
- {name: HEADRACE_AUDIT_TABLE, value: {{ include "headrace.auditTable" . | quote }}}
{{- if eq .component "audit-writer" }}
{{- with include "headrace.token" (dict "root" .root "name" "HEADRACE_AUDIT_TOKEN" "secret" $audit.tokenSecret) }}
{{ . }}
{{- end }}
{{- end }}
{{- range $name, $value := $audit.settings }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{/* The console's environment, in addition to the suite's. */}}
{{- define "headrace.consoleEnvironment" -}}
{{- $console := .root.Values.console }}
- {name: HEADRACE_TELEMETRY_URL, value: "http://{{ include "headrace.suite" . }}-telemetry:9090"}
{{- with include "headrace.token" (dict "root" .root "name" "HEADRACE_CONSOLE_TOKEN" "secret" $console.tokenSecret "required" (not $console.accessSecret)) }}
{{ . }}
{{- end }}
{{- if $console.accessSecret }}
- {name: HEADRACE_CONSOLE_ACCESS_FILE, value: /etc/headrace/console/access.toml}
{{- end }}
{{- with $console.proxies }}
- {name: HEADRACE_CONSOLE_PROXIES, value: {{ join "," . | quote }}}
- name: HEADRACE_CONSOLE_PROXY_SECRET
  valueFrom: {secretKeyRef: {name: {{ $console.proxySecret | quote }}, key: secret}}
{{- end }}
{{- /* Also without a role for the trail: a column that is hidden there is hidden everywhere. */}}
{{- if .root.Values.audit.enabled }}
{{ include "headrace.auditEnvironment" (merge (dict "auditSecret" $console.auditSecret) .) | trim }}
{{- if $console.auditSecret }}
- {name: HEADRACE_AUDIT, value: "true"}
{{- end }}
{{- end }}
{{- if .root.Values.lake.url }}
{{ include "headrace.lakeEnvironment" (merge (dict "catalogSecret" $console.catalogSecret) .) | trim }}
{{- end }}
{{- if include "headrace.keepsBackups" . }}
{{ include "headrace.backupEnvironment" . | trim }}
{{- end }}
{{- with $console.sqlSecret }}
- name: HEADRACE_CONSOLE_SQL_URL
  valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: url}}
{{- end }}
{{- range $name, $value := $console.settings }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{/* Values with which the console would not start, or would show less than they say. */}}
{{- define "headrace.checkConsole" -}}
{{- $console := .Values.console }}
{{- if not (or $console.tokenSecret $console.accessSecret .Values.existingSecret) }}{{ fail "console.enabled needs console.tokenSecret or console.accessSecret, or HEADRACE_CONSOLE_TOKEN in existingSecret: without either, nobody could sign in" }}{{ end }}
{{- if and $console.proxies (not (and $console.accessSecret $console.proxySecret)) }}{{ fail "console.proxies needs console.accessSecret, which has the users, and console.proxySecret, which proves that a proxy names them" }}{{ end }}
{{- if and $console.auditSecret (not .Values.audit.enabled) }}{{ fail "console.auditSecret needs audit.enabled: there is no audit trail" }}{{ end }}
{{- end }}

{{/* The values of one service. */}}
{{- define "headrace.given" -}}
{{- $values := .root.Values -}}
{{- $optional := dict "archiver" $values.archive "audit-writer" (merge (dict "replicas" 1) $values.audit) "console" $values.console "lake-writer" $values.lake "sql-server" $values.sql "wal-archiver" $values.backup -}}
{{- $sink := dict "replicas" 1 "resources" (dict "requests" (dict "cpu" "50m" "memory" "96Mi") "limits" (dict "memory" "512Mi")) -}}
{{- range $values.sinks }}{{ $_ := set $optional (printf "sink-%s" .name) (merge (pick . "resources") $sink) }}{{ end -}}
{{- index (merge (dict) $optional $values.services) .name | toYaml }}
{{- end }}

{{/* The environment, rights and mounts of a command on the backup store. */}}
{{- define "headrace.backupContainer" -}}
{{- $more := include "headrace.backupEnvironment" . | trim }}
{{- include "headrace.commandContainer" (merge (dict "postgres" "backup" "nats" "wal-archiver" "more" $more "secrets" .root.Values.backup.secrets) .) }}
{{- end }}

{{/* The same of a command on a slot's archive, which may read its tables. */}}
{{- define "headrace.archiveContainer" -}}
{{- include "headrace.commandContainer" (merge (dict "postgres" "snapshot" "nats" "archiver" "secrets" .root.Values.archive.secrets) .) }}
{{- end }}

{{/* The environment, rights and mounts of a command: its users, the suite's variables and `more`, its store's secrets. */}}
{{- define "headrace.commandContainer" -}}
env:
  {{- include "headrace.environment" . | nindent 2 }}
  {{- with .more }}
  {{- . | nindent 2 }}
  {{- end }}
{{- with .secrets }}
envFrom:
  {{- range . }}
  - secretRef: {name: {{ . | quote }}}
  {{- end }}
{{- end }}
securityContext:
  {{- include "headrace.containerSecurity" .root | nindent 2 }}
volumeMounts:
  {{- include "headrace.mounts" . | nindent 2 }}
{{- end }}

{{/* A scheduled command: `job` as in the values, in `container`, with its `resources`. */}}
{{- define "headrace.cronJob" -}}
{{- $root := .root }}
---
apiVersion: batch/v1
kind: CronJob
metadata:
  name: {{ include "headrace.suite" (dict "root" $root "slot" .slot) }}-{{ .job.name }}
  labels:
    {{- include "headrace.labels" . | nindent 4 }}
    app.kubernetes.io/component: {{ .job.name }}
spec:
  schedule: {{ .job.schedule | quote }}
  # A run that takes longer than its interval is not joined by another one.
  concurrencyPolicy: Forbid
  jobTemplate:
    spec:
      backoffLimit: 2
      template:
        metadata:
          labels:
            {{- include "headrace.selector" . | nindent 12 }}
          {{- with $root.Values.podAnnotations }}
          annotations: {{- toYaml . | nindent 12 }}
          {{- end }}
        spec:
          restartPolicy: Never
          serviceAccountName: {{ $root.Release.Name }}
          automountServiceAccountToken: false
          securityContext:
            {{- include "headrace.podSecurity" $root | nindent 12 }}
          {{- include "headrace.placement" $root | nindent 10 }}
          containers:
            - name: {{ .job.name }}
              image: {{ .job.image | default (include "headrace.image" (dict "root" $root "variant" "-archive")) | quote }}
              imagePullPolicy: {{ $root.Values.image.pullPolicy }}
              args: {{ .job.args | toJson }}
              {{- .container | nindent 14 }}
                {{- if .job.scratch }}
                - {name: scratch, mountPath: /scratch}
                {{- end }}
              resources: {{- toYaml .resources | nindent 16 }}
          volumes:
            {{- include "headrace.volumes" . | nindent 12 }}
            {{- with .job.scratch }}
            - {name: scratch, emptyDir: {sizeLimit: {{ . | quote }}}}
            {{- end }}
{{- end }}

{{- define "headrace.mounts" -}}
{{- $values := .root.Values -}}
- {name: tmp, mountPath: /tmp}
{{- if $values.postgres.caSecret }}
- {name: postgres-ca, mountPath: /etc/headrace/postgres, readOnly: true}
{{- end }}
{{- if $values.nats.caSecret }}
- {name: nats-ca, mountPath: /etc/headrace/nats, readOnly: true}
{{- end }}
{{- if $values.nats.clientSecret }}
- {name: nats-client, mountPath: /etc/headrace/nats-client, readOnly: true}
{{- end }}
{{- if ne $values.nats.authentication "password" }}
- {name: nats-user, mountPath: /etc/headrace/nats-user, readOnly: true}
{{- end }}
{{- if and .postgres (eq $values.postgres.authentication "certificate") }}
- {name: postgres-user, mountPath: /etc/headrace/postgres-user, readOnly: true}
{{- end }}
{{- end }}

{{- define "headrace.volumes" -}}
{{- $values := .root.Values -}}
- {name: tmp, emptyDir: {}}
{{- with $values.postgres.caSecret }}
- {name: postgres-ca, secret: {secretName: {{ . | quote }}}}
{{- end }}
{{- with $values.nats.caSecret }}
- {name: nats-ca, secret: {secretName: {{ . | quote }}}}
{{- end }}
{{- with $values.nats.clientSecret }}
- {name: nats-client, secret: {secretName: {{ . | quote }}, defaultMode: 0440}}
{{- end }}
{{- $how := $values.nats.authentication }}
{{- if ne $how "password" }}
{{- $shared := include "headrace.natsShared" . }}
- name: nats-user
  secret:
    secretName: {{ ternary $values.existingSecret (include "headrace.natsSecret" .) (ne $shared "") | quote }}
    defaultMode: 0440
    items:
      {{- range index (dict "credentials" (list "user.creds") "nkey" (list "user.nk") "certificate" (list "tls.crt" "tls.key")) $how }}
      - {key: {{ ternary (printf "%s%s" $.nats (ext .)) . (ne $shared "") }}, path: {{ . }}}
      {{- end }}
{{- end }}
{{- if and .postgres (eq $values.postgres.authentication "certificate") }}
{{- $shared := include "headrace.postgresShared" . }}
{{- /* libpq refuses a key that others than its owner and, if that is root, its group may read. */}}
{{- $user := ternary $values.setup.postgresUser (printf "headrace_%s" .postgres) (eq .postgres "admin") }}
- name: postgres-user
  secret:
    secretName: {{ ternary $values.existingSecret (include "headrace.postgresSecret" .) (ne $shared "") | quote }}
    defaultMode: 0440
    items:
      {{- range list "tls.crt" "tls.key" }}
      - {key: {{ ternary (printf "%s%s" $user (ext .)) . (ne $shared "") }}, path: {{ . }}}
      {{- end }}
{{- end }}
{{- end }}

{{- define "headrace.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The services of a suite: their images, ports and secrets. The ports are the defaults in the code. */}}
{{- define "headrace.services" -}}
{{- include "headrace.checkLogins" .root }}
{{- $values := .root.Values }}
{{- $names := list }}
{{- range $values.slots }}{{ $names = append $names .name }}{{ end }}
{{- if ne (len $names) (len ($names | uniq)) }}{{ fail "slots: two suites have one slot name; a slot has one reader" }}{{ end }}
wal-reader: {port: 9091, variant: "", postgres: reader}
publisher: {port: 9092, variant: "", postgres: catalog}
snapshot-responder: {port: 9093, variant: -spark, postgres: snapshot}
schema-publisher: {port: 9094, variant: "", postgres: catalog}
telemetry: {port: 9090, variant: "", postgres: catalog}
{{- if $values.archive.url }}
archiver: {port: 9095, variant: -archive, postgres: catalog}
{{- end }}
{{- if $values.lake.url }}
{{- if not $values.archive.url }}{{ fail "lake.url needs archive.url: the lake is made from the archive" }}{{ end }}
lake-writer: {port: 9097, variant: -lake, postgres: snapshot}
{{- end }}
{{- if $values.audit.enabled }}
audit-writer: {port: 9096, variant: "", postgres: catalog}
{{- end }}
{{- if $values.console.enabled }}
{{- include "headrace.checkConsole" .root }}
{{- /* Its pages on the lake and on backups read these with the packages of that image. */}}
console: {port: 9087, variant: -lake, postgres: catalog}
{{- end }}
{{- if $values.sql.enabled }}
{{- if not $values.lake.url }}{{ fail "sql.enabled needs lake.url: the SQL server reads the lake" }}{{ end }}
sql-server: {port: 9099, variant: -sql, postgres: ""}
{{- end }}
{{- if include "headrace.keepsBackups" . }}
wal-archiver: {port: 9089, variant: -archive, postgres: backup}
{{- end }}
{{- $sinks := list }}
{{- range $values.sinks }}
{{- if not (has (.slot | default (first $names)) $names) }}{{ fail (printf "sinks: %s names the slot %s, which is not in slots" .name .slot) }}{{ end }}
{{- $sinks = append $sinks .name }}
{{- end }}
{{- if ne (len $sinks) (len ($sinks | uniq)) }}{{ fail "sinks: two sinks have one name" }}{{ end }}
{{- range include "headrace.sinks" . | fromYamlArray }}
sink-{{ .name }}: {port: 9088, variant: -sinks, postgres: "", sink: {{ . | toJson }}}
{{- end }}
{{- end }}

{{- define "headrace.sparkRemote" -}}
{{- if .root.Values.spark.remote }}{{ .root.Values.spark.remote }}
{{- else if .root.Values.spark.enabled }}sc://{{ include "headrace.suite" . }}-spark:15002{{ end }}
{{- end }}
