{{/*
A value as text. --set image.tag=20261122 gives a number, and a number from the stored values of a release would be printed as
2.0261122e+07. A null is an empty text.
*/}}
{{- define "fleet-agent.text" -}}
{{- kindIs "string" . | ternary . (kindIs "invalid" . | ternary "" (toJson .)) -}}
{{- end -}}

{{/* The reference of the agent's image. A hub gives the whole reference, which includes the private registry of the cluster. */}}
{{- define "fleet-agent.image" -}}
{{- if .Values.internal.managed -}}
{{- .Values.internal.image -}}
{{- else -}}
{{- with ((.Values.global).cattle).systemDefaultRegistry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- .Values.image.repository }}:{{ include "fleet-agent.text" .Values.image.tag -}}
{{- with .Values.image.digest }}@{{ . }}{{ end -}}
{{- end -}}
{{- end -}}

{{/*
The labels that Kubernetes recommends, as a map. The agents that a hub installs do not have them: their
version would change objects at each upgrade of the hub.
*/}}
{{- define "fleet-agent.objectLabels" -}}
{{- $labels := dict -}}
{{- if not .Values.internal.managed -}}
{{- $labels = dict
    "app.kubernetes.io/name" "fleet-agent"
    "app.kubernetes.io/instance" .Release.Name
    "app.kubernetes.io/part-of" "muster"
    "app.kubernetes.io/managed-by" .Release.Service
    "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimAll "-_.") -}}
{{- end -}}
{{- toJson $labels -}}
{{- end -}}

{{/*
apiServerCA as PEM; it may be given as PEM or as base64 of PEM. PEM is not changed: agent and hub compare it with the CA that they
had before.
*/}}
{{- define "fleet-agent.apiServerCA" -}}
{{- $ca := .Values.apiServerCA | default "" -}}
{{- if and $ca (not (contains "-----BEGIN" $ca)) -}}
{{- $ca = b64dec (nospace $ca) -}}
{{- end -}}
{{- if and (trim $ca) (not (contains "-----BEGIN CERTIFICATE-----" $ca)) -}}
{{- fail "apiServerCA holds no certificate: give the CA of the hub's API server as PEM (--set-file apiServerCA=ca.pem) or as base64 of PEM (certificate-authority-data of a kubeconfig), or leave it empty when a well-known authority signed the hub's certificate" -}}
{{- end -}}
{{- if contains "PRIVATE KEY-----" $ca -}}
{{- fail "apiServerCA contains a private key, which must not leave its owner: give the certificate alone" -}}
{{- end -}}
{{- $ca -}}
{{- end -}}

{{/* A map of labels as text. */}}
{{- define "fleet-agent.labels" -}}
{{- $labels := dict -}}
{{- range $key, $value := . -}}
{{- $_ := set $labels $key (include "fleet-agent.text" $value) -}}
{{- end -}}
{{- toJson $labels -}}
{{- end -}}

{{/* "true" unless the value is false: a switch that is not set is on. */}}
{{- define "fleet-agent.on" -}}
{{- if or (kindIs "invalid" .) . -}}true{{- end -}}
{{- end -}}

{{/* The number of replicas; 1 if it is not set. */}}
{{- define "fleet-agent.replicas" -}}
{{- $replicas := (.Values.agent).replicas -}}
{{- kindIs "invalid" $replicas | ternary 1 $replicas -}}
{{- end -}}

{{/* "true" if the pods have probes. With hostNetwork they have none: another program of the node may use the port. */}}
{{- define "fleet-agent.probed" -}}
{{- if not (.Values.fleetAgent).hostNetwork }}{{ include "fleet-agent.on" ((.Values.fleetAgent).probes).enabled }}{{ end -}}
{{- end -}}

{{/* By default, replicas are spread over the nodes: on one node they would fail together. */}}
{{- define "fleet-agent.topologySpreadConstraints" -}}
{{- $given := (.Values.fleetAgent).topologySpreadConstraints -}}
{{- if not (kindIs "invalid" $given) -}}
{{- with $given }}{{ toYaml . }}{{ end -}}
{{- else if gt (include "fleet-agent.replicas" . | int) 1 -}}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      app: fleet-agent
{{- end -}}
{{- end -}}

{{/* The hub uses another name. So it can take over the agent while this ClusterRole still belongs to the release. */}}
{{- define "fleet-agent.clusterRole" -}}
{{- .Values.internal.managed | ternary .Values.internal.clusterRole "fleet-agent-system-fleet-agent-role" -}}
{{- end -}}

{{- define "fleet-agent.clusterRoleBinding" -}}
{{- .Values.internal.managed | ternary .Values.internal.clusterRoleBinding "fleet-agent-system-fleet-agent-role-binding" -}}
{{- end -}}

{{/*
The environment. Its order must not change: that would change the pod template, and restart the agents of all clusters.
*/}}
{{- define "fleet-agent.env" -}}
{{- $workers := ((.Values.agent).reconciler).workers | default dict -}}
{{- $election := .Values.leaderElection | default dict -}}
- name: BUNDLEDEPLOYMENT_RECONCILER_WORKERS
  value: {{ include "fleet-agent.text" $workers.bundledeployment | toJson }}
- name: DRIFT_RECONCILER_WORKERS
  value: {{ include "fleet-agent.text" $workers.drift | toJson }}
- name: NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- if .Values.internal.managed }}
- name: AGENT_SCOPE
  value: {{ .Values.internal.scope | default "" | toJson }}
- name: CHECKIN_INTERVAL
  value: {{ .Values.internal.checkinInterval | toJson }}
{{- end }}
- name: CATTLE_ELECTION_LEASE_DURATION
  value: {{ $election.leaseDuration | default "30s" | toJson }}
- name: CATTLE_ELECTION_RETRY_PERIOD
  value: {{ $election.retryPeriod | default "10s" | toJson }}
- name: CATTLE_ELECTION_RENEW_DEADLINE
  value: {{ $election.renewDeadline | default "25s" | toJson }}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- if .Values.internal.managed }}
- name: CREDENTIAL_LIFETIME
  value: {{ .Values.internal.credentialLifetime | toJson }}
{{- end }}
{{- if include "fleet-agent.probed" . }}
- name: FLEET_HEALTH_BIND_ADDRESS
  value: ":8081"
{{- end }}
{{- if ((.Values.fleetAgent).metrics).enabled }}
- name: FLEET_METRICS_BIND_ADDRESS
  value: ":8080"
{{- end }}
{{- if eq (.Values.logFormat | default "text") "json" }}
- name: FLEET_LOG_FORMAT
  value: json
{{- end }}
{{- if .Values.proxy }}
- name: HTTP_PROXY
  value: {{ .Values.proxy | toJson }}
- name: HTTPS_PROXY
  value: {{ .Values.proxy | toJson }}
- name: NO_PROXY
  value: {{ .Values.noProxy | default "" | toJson }}
{{- end }}
{{- with (.Values.fleetAgent).extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "fleet-agent.tolerations" -}}
{{- if .Values.internal.managed }}
- key: node.cloudprovider.kubernetes.io/uninitialized
  operator: Equal
  value: "true"
  effect: NoSchedule
{{- end }}
- key: cattle.io/os
  operator: Equal
  value: linux
  effect: NoSchedule
{{- with (.Values.fleetAgent).tolerations }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* A given affinity replaces the default, even if it is empty. */}}
{{- define "fleet-agent.affinity" -}}
{{- $affinity := (.Values.fleetAgent).affinity -}}
{{- if not (kindIs "invalid" $affinity) -}}
{{- toYaml $affinity -}}
{{- else -}}
nodeAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 1
      preference:
        matchExpressions:
          - key: fleet.cattle.io/agent
            operator: In
            values: ["true"]
{{- end -}}
{{- end -}}
