{{/* Registry for all images, with its slash, or nothing. */}}
{{- define "fleet.registry" -}}
{{- with ((.Values.global).cattle).systemDefaultRegistry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- end -}}

{{/*
A value as text: --set image.tag=20261122 arrives as a number, and a number that went through a release's stored values would be
printed as 2.0261122e+07. Nothing said is no text.
*/}}
{{- define "fleet.text" -}}
{{- kindIs "string" . | ternary . (kindIs "invalid" . | ternary "" (toJson .)) -}}
{{- end -}}

{{/* The reference of an image: of dict "root" $ "image" .Values.image. */}}
{{- define "fleet.image" -}}
{{- printf "%s%s:%s" (include "fleet.registry" .root) .image.repository (include "fleet.text" .image.tag) -}}
{{- end -}}

{{/*
apiServerCA as PEM, whether it was given as PEM or as base64 of PEM. PEM stays byte for byte what it was: the hub
compares it with what the agents have, and a new line more would be delivered to every cluster.
*/}}
{{- define "fleet.apiServerCA" -}}
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

{{- define "fleet.resources" -}}
{{- $resources := .Values.resources | default dict -}}
{{- coalesce $resources.fleetController $resources.fleetAgentmanagement (pick $resources "requests" "limits") | toYaml -}}
{{- end -}}

{{/* "true" for a switch that is on unless somebody said false: a null counts as nothing said. */}}
{{- define "fleet.on" -}}
{{- if or (kindIs "invalid" .) . -}}true{{- end -}}
{{- end -}}

{{/* One or more; nothing said is one. */}}
{{- define "fleet.replicas" -}}
{{- $replicas := (.Values.controller).replicas -}}
{{- kindIs "invalid" $replicas | ternary 1 $replicas -}}
{{- end -}}

{{/*
The hub's part of extraLabels or extraAnnotations: what is written there, and below the name of its component, which wins.
The parts of other components are maps too.
*/}}
{{- define "fleet.extra" -}}
{{- $all := . | default dict -}}
{{- $extra := dict -}}
{{- range $key, $value := merge dict ($all.fleetController | default dict) $all -}}
{{- if not (kindIs "map" $value) }}{{ $_ := set $extra $key $value }}{{ end -}}
{{- end -}}
{{- include "fleet.labels" $extra -}}
{{- end -}}

{{/* Several replicas on one node would go down together. */}}
{{- define "fleet.topologySpreadConstraints" -}}
{{- if not (kindIs "invalid" .Values.topologySpreadConstraints) -}}
{{- with .Values.topologySpreadConstraints }}{{ toYaml . }}{{ end -}}
{{- else if gt (include "fleet.replicas" . | int) 1 -}}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      app: fleet-controller
{{- end -}}
{{- end -}}

{{/* A map of labels as text. */}}
{{- define "fleet.labels" -}}
{{- $labels := dict -}}
{{- range $key, $value := . -}}
{{- $_ := set $labels $key (include "fleet.text" $value) -}}
{{- end -}}
{{- toJson $labels -}}
{{- end -}}

{{/* The configuration of the hub. It is watched: a change needs no restart. */}}
{{- define "fleet.config" -}}
{{- $bootstrap := .Values.bootstrap | default dict -}}
{{- $workers := ((.Values.agent).reconciler).workers | default dict -}}
{{- $config := dict
    "agentImage" (include "fleet.image" (dict "root" . "image" .Values.agentImage))
    "agentImagePullPolicy" (.Values.agentImage.imagePullPolicy | default "")
    "systemDefaultRegistry" (((.Values.global).cattle).systemDefaultRegistry | default "" | trimSuffix "/")
    "apiServerURL" (.Values.apiServerURL | default "")
    "apiServerCA" (include "fleet.apiServerCA" . | b64enc)
    "agentTLSMode" (.Values.agentTLSMode | default "system-store")
    "ignoreClusterRegistrationLabels" (.Values.ignoreClusterRegistrationLabels | default false)
    "agentWorkers" (dict
      "bundledeployment" (include "fleet.text" $workers.bundledeployment)
      "drift" (include "fleet.text" $workers.drift))
    "bootstrap" (dict
      "namespace" ($bootstrap.namespace | default "")
      "agentNamespace" ($bootstrap.agentNamespace | default "")
      "localAgentDisabled" ($bootstrap.localAgentDisabled | default false)
      "clusterLabels" (include "fleet.labels" $bootstrap.clusterLabels | fromJson)
      "repo" ($bootstrap.repo | default "")
      "secret" ($bootstrap.secret | default "")
      "paths" ($bootstrap.paths | default "")
      "branch" ($bootstrap.branch | default ""))
-}}
{{/* An empty duration would not parse; absent means the default. */}}
{{- range $key := list "agentCheckinInterval" "garbageCollectionInterval" "gitClientTimeout" -}}
{{- with index $.Values $key }}{{ $_ := set $config $key . }}{{ end -}}
{{- end -}}
{{- with .Values.agentMissedCheckins }}{{ $_ := set $config "agentMissedCheckins" (int .) }}{{ end -}}
{{- with ((.Values.global).cattle).imagePullSecrets }}{{ $_ := set $config "imagePullSecrets" . }}{{ end -}}
{{- $registration := dict -}}
{{- range $key, $value := .Values.registration | default dict -}}
{{- with $value }}{{ $_ := set $registration $key . }}{{ end -}}
{{- end -}}
{{- with $registration }}{{ $_ := set $config "registration" . }}{{ end -}}
{{- toPrettyJson $config -}}
{{- end -}}

{{/* Environment of the hub. */}}
{{- define "fleet.env" -}}
{{- $election := .Values.leaderElection | default dict -}}
{{- $agentElection := (.Values.agent).leaderElection | default dict -}}
{{- $agentReplicas := (.Values.agent).replicas -}}
- name: NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: CATTLE_ELECTION_LEASE_DURATION
  value: {{ $election.leaseDuration | default "8s" | toJson }}
- name: CATTLE_ELECTION_RETRY_PERIOD
  value: {{ $election.retryPeriod | default "2s" | toJson }}
- name: CATTLE_ELECTION_RENEW_DEADLINE
  value: {{ $election.renewDeadline | default "6s" | toJson }}
- name: FLEET_AGENT_REPLICA_COUNT
  value: {{ kindIs "invalid" $agentReplicas | ternary 1 $agentReplicas | toString | quote }}
- name: FLEET_AGENT_ELECTION_LEASE_DURATION
  value: {{ $agentElection.leaseDuration | default "30s" | toJson }}
- name: FLEET_AGENT_ELECTION_RETRY_PERIOD
  value: {{ $agentElection.retryPeriod | default "10s" | toJson }}
- name: FLEET_AGENT_ELECTION_RENEW_DEADLINE
  value: {{ $agentElection.renewDeadline | default "25s" | toJson }}
- name: FLEET_LEAVE_ADMISSION_POLICIES
  value: "true"
- name: FLEET_REGISTRATION_TOKEN_TTL_REQUIRED
  value: {{ ((.Values.controller).registrationTokenTTL).required | default false | toString | quote }}
{{- if include "fleet.on" (.Values.metrics).enabled }}
- name: FLEET_METRICS_BIND_ADDRESS
  value: ":8080"
{{- end }}
{{- if include "fleet.on" (.Values.probes).enabled }}
- name: FLEET_HEALTH_BIND_ADDRESS
  value: ":8081"
{{- end }}
{{- if not (include "fleet.on" ((.Values.agent).probes).enabled) }}
- name: FLEET_DISABLE_AGENT_PROBES
  value: "true"
{{- end }}
{{- if .Values.disableBundles }}
- name: FLEET_DISABLE_BUNDLES
  value: "true"
{{- end }}
{{- if .Values.propagateDebugSettingsToAgents }}
- name: FLEET_PROPAGATE_DEBUG_SETTINGS_TO_AGENTS
  value: "true"
{{- end }}
{{- if .Values.disableSecurityContext }}
- name: FLEET_DEBUG_DISABLE_SECURITY_CONTEXT
  value: "true"
{{- end }}
{{- if .Values.proxy }}
- name: HTTP_PROXY
  value: {{ .Values.proxy | toJson }}
- name: HTTPS_PROXY
  value: {{ .Values.proxy | toJson }}
- name: NO_PROXY
  value: {{ .Values.noProxy | default "" | toJson }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
The version in which the API server serves MutatingAdmissionPolicies, or nothing. Without a cluster, as for helm template, it
is taken for a new one: only a cluster tells the kinds beside the versions.
*/}}
{{- define "fleet.mutatingPolicies" -}}
{{- $group := "admissionregistration.k8s.io" -}}
{{- $known := .Capabilities.APIVersions -}}
{{- if $known.Has (printf "%s/v1/MutatingAdmissionPolicy" $group) -}}{{ $group }}/v1
{{- else if $known.Has (printf "%s/v1beta1/MutatingAdmissionPolicy" $group) -}}{{ $group }}/v1beta1
{{- else if not ($known.Has "v1/Namespace") -}}{{ $group }}/v1
{{- end -}}
{{- end -}}

{{/*
A request of an agent: of a ServiceAccount of a cluster's namespace, whose name ends in twelve hexadecimal digits, or in five
or six where it was too long and was cut to 63 characters.
*/}}
{{- define "fleet.fromAgent" -}}
- name: from-an-agent
  expression: >-
    has(request.userInfo.groups) && request.userInfo.groups.exists(group,
    group.matches('^system:serviceaccounts:cluster-(.+-[0-9a-f]{12}|.{49}-[0-9a-f]{5}|.{48}-[0-9a-f]{6})$'))
{{- end -}}
