{{/* The registry of all images, with a slash; empty if none is set. */}}
{{- define "fleet.registry" -}}
{{- with ((.Values.global).cattle).systemDefaultRegistry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- end -}}

{{/*
A value as text. --set image.tag=20261122 gives a number, and a number from the stored values of a release would be printed as
2.0261122e+07. A null is an empty text.
*/}}
{{- define "fleet.text" -}}
{{- kindIs "string" . | ternary . (kindIs "invalid" . | ternary "" (toJson .)) -}}
{{- end -}}

{{/* The reference of an image. Argument: dict "root" $ "image" .Values.image. With a digest, nodes ignore the tag. */}}
{{- define "fleet.image" -}}
{{- printf "%s%s:%s" (include "fleet.registry" .root) .image.repository (include "fleet.text" .image.tag) -}}
{{- with .image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{/*
The labels that Kubernetes recommends, as a map. A tag may be longer than the value of a label, and may begin and end with other characters.
*/}}
{{- define "fleet.recommendedLabels" -}}
{{- dict
    "app.kubernetes.io/name" "fleet-controller"
    "app.kubernetes.io/instance" .Release.Name
    "app.kubernetes.io/part-of" "muster"
    "app.kubernetes.io/managed-by" .Release.Service
    "app.kubernetes.io/version" (include "fleet.text" .Values.image.tag | trunc 63 | trimAll "-_.")
    "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimAll "-_.") | toJson -}}
{{- end -}}

{{/* The labels of an object of the hub, as YAML. */}}
{{- define "fleet.objectLabels" -}}
{{- merge (dict "app" "fleet-controller") (include "fleet.recommendedLabels" . | fromJson) | toYaml -}}
{{- end -}}

{{/*
apiServerCA as PEM; it may be given as PEM or as base64 of PEM. PEM is not changed: the hub compares it with the CA that the agents
have, and delivers every difference to all clusters, even one more line end.
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

{{/*
Requests and limits of the hub. The defaults are not in values.yaml: Helm would merge them with the user's values, and a request above the
default limit would make the Deployment invalid.
*/}}
{{- define "fleet.resources" -}}
{{- $resources := .Values.resources | default dict -}}
{{- $default := dict "requests" (dict "memory" "128Mi") "limits" (dict "memory" "2Gi") -}}
{{- coalesce $resources.fleetController $resources.fleetAgentmanagement (pick $resources "requests" "limits") $default | toYaml -}}
{{- end -}}

{{/* "true" unless the value is false: a switch that is not set is on. */}}
{{- define "fleet.on" -}}
{{- if or (kindIs "invalid" .) . -}}true{{- end -}}
{{- end -}}

{{/* "true" if Fleet's own controllers reconcile Bundles. */}}
{{- define "fleet.disableBundles" -}}
{{- if or .Values.disableBundles (has "fleet-bundles" (include "fleet.ownProcesses" . | splitList " ")) -}}true{{- end -}}
{{- end -}}

{{/* The Deployments of Fleet's own controllers, with a space between two. */}}
{{- define "fleet.ownProcesses" -}}
{{- $own := .Values.fleetControllers | default dict -}}
{{- if $own.enabled -}}
{{- if include "fleet.on" $own.bundles }}fleet-bundles {{ end }}gitjob helmops
{{- end -}}
{{- end -}}

{{/* The number of replicas; 1 if it is not set. */}}
{{- define "fleet.replicas" -}}
{{- $replicas := (.Values.controller).replicas -}}
{{- kindIs "invalid" $replicas | ternary 1 $replicas -}}
{{- end -}}

{{/*
The hub's part of extraLabels or extraAnnotations: all values that are not maps, overridden by the values below fleetController. The other
maps are for other components.
*/}}
{{- define "fleet.extra" -}}
{{- $all := . | default dict -}}
{{- $extra := dict -}}
{{- range $key, $value := merge dict ($all.fleetController | default dict) $all -}}
{{- if not (kindIs "map" $value) }}{{ $_ := set $extra $key $value }}{{ end -}}
{{- end -}}
{{- include "fleet.labels" $extra -}}
{{- end -}}

{{/* By default, replicas are spread over the nodes: on one node they would fail together. */}}
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

{{/* The configuration of the hub, which watches it. */}}
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
{{/* Without the key, the default applies; an empty duration cannot be parsed. */}}
{{- range $key := list "agentCheckinInterval" "agentLastSeenInterval" "agentRemovalTimeout" "garbageCollectionInterval" "gitClientTimeout" -}}
{{- with index $.Values $key }}{{ $_ := set $config $key . }}{{ end -}}
{{- end -}}
{{- with .Values.agentMissedCheckins }}{{ $_ := set $config "agentMissedCheckins" (int .) }}{{ end -}}
{{- with ((.Values.global).cattle).imagePullSecrets }}{{ $_ := set $config "imagePullSecrets" . }}{{ end -}}
{{- with .Values.imagePullSecretWorkspaces }}{{ $_ := set $config "imagePullSecretWorkspaces" . }}{{ end -}}
{{- $registration := dict -}}
{{- range $key, $value := .Values.registration | default dict -}}
{{- with $value }}{{ $_ := set $registration $key . }}{{ end -}}
{{- end -}}
{{- with $registration.limits -}}
{{- $limits := dict -}}
{{- range $key, $value := . }}{{ $_ := set $limits $key (int $value) }}{{ end -}}
{{- $_ := set $registration "limits" $limits -}}
{{- end -}}
{{- with $registration }}{{ $_ := set $config "registration" . }}{{ end -}}
{{- if (.Values.clusternet).enabled -}}
{{- $clusternet := dict -}}
{{- range $key := list "bootstrapTokens" "reentryNamespaces" -}}
{{- with index $.Values.clusternet $key }}{{ $_ := set $clusternet $key . }}{{ end -}}
{{- end -}}
{{- with $clusternet }}{{ $_ := set $config "clusternet" . }}{{ end -}}
{{- end -}}
{{- $members := dict -}}
{{- range $key, $value := .Values.members | default dict -}}
{{- with $value }}{{ $_ := set $members $key . }}{{ end -}}
{{- end -}}
{{- with $members }}{{ $_ := set $config "members" . }}{{ end -}}
{{- $bundles := dict -}}
{{- range $key, $value := .Values.bundles | default dict -}}
{{- if not (kindIs "invalid" $value) }}{{ $_ := set $bundles $key (int $value) }}{{ end -}}
{{- end -}}
{{- with $bundles }}{{ $_ := set $config "bundles" . }}{{ end -}}
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
# The annotation fleet.cattle.io/version of the ConfigMap: a hub does not apply the configuration of another version of the chart.
- name: FLEET_CONFIG_VERSION
  value: {{ include "fleet.text" .Values.image.tag | toJson }}
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
{{- if (.Values.metrics).fleetNames }}
- name: FLEET_METRICS
  value: "true"
{{- end }}
{{- if include "fleet.on" (.Values.probes).enabled }}
- name: FLEET_HEALTH_BIND_ADDRESS
  value: ":8081"
{{- end }}
{{- if not (include "fleet.on" ((.Values.agent).probes).enabled) }}
- name: FLEET_DISABLE_AGENT_PROBES
  value: "true"
{{- end }}
{{- if ((.Values.agent).metrics).enabled }}
- name: FLEET_AGENT_METRICS
  value: "true"
{{- end }}
{{- if include "fleet.disableBundles" . }}
- name: FLEET_DISABLE_BUNDLES
  value: "true"
{{- end }}
{{- if (.Values.clusternet).enabled }}
- name: FLEET_CLUSTERNET
  value: "true"
{{- end }}
{{- if eq (.Values.logFormat | default "text") "json" }}
- name: FLEET_LOG_FORMAT
  value: json
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

{{/* "true" where Helm knows the kinds of a cluster. helm template knows only versions, and the kinds that --api-versions names. */}}
{{- define "fleet.knowsKinds" -}}
{{- if .Capabilities.APIVersions.Has "v1/Namespace" -}}true{{- end -}}
{{- end -}}

{{/* The minor version of Kubernetes: of the cluster, or of --kube-version. */}}
{{- define "fleet.kubeMinor" -}}
{{- regexReplaceAll "^v?1\\.([0-9]+).*" .Capabilities.KubeVersion.Version "${1}" -}}
{{- end -}}

{{/* "true" where FlowSchemas are served in version v1, as Kubernetes 1.29 and later do. */}}
{{- define "fleet.flowControl" -}}
{{- if and (.Capabilities.APIVersions.Has "flowcontrol.apiserver.k8s.io/v1") (ge (include "fleet.kubeMinor" . | atoi) 29) -}}true{{- end -}}
{{- end -}}

{{/* The namespace of the credentials, as the hub derives it from its own. */}}
{{- define "fleet.registrationNamespace" -}}
{{- $derived := .Release.Namespace | replace "-system" "-clusters-system" -}}
{{- eq $derived .Release.Namespace | ternary (printf "%s-clusters-system" $derived) $derived -}}
{{- end -}}

{{/* "true" where ValidatingAdmissionPolicies are served in version v1, as Kubernetes 1.30 and later do. */}}
{{- define "fleet.validatingPolicies" -}}
{{- $known := .Capabilities.APIVersions -}}
{{- if $known.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicyBinding" -}}true
{{- else if and (not (include "fleet.knowsKinds" .)) (ge (include "fleet.kubeMinor" . | atoi) 30) -}}true
{{- end -}}
{{- end -}}

{{/*
The version in which the API server serves MutatingAdmissionPolicies; empty if it serves none. Kubernetes 1.36 and later serve them by
default. For helm template and an older version, --api-versions states that they are turned on.
*/}}
{{- define "fleet.mutatingPolicies" -}}
{{- $group := "admissionregistration.k8s.io" -}}
{{- $known := .Capabilities.APIVersions -}}
{{- if $known.Has (printf "%s/v1/MutatingAdmissionPolicy" $group) -}}{{ $group }}/v1
{{- else if $known.Has (printf "%s/v1beta1/MutatingAdmissionPolicy" $group) -}}{{ $group }}/v1beta1
{{- else if $known.Has (printf "%s/v1alpha1/MutatingAdmissionPolicy" $group) -}}{{ $group }}/v1alpha1
{{- else if and (not (include "fleet.knowsKinds" .)) (ge (include "fleet.kubeMinor" . | atoi) 36) -}}{{ $group }}/v1
{{- end -}}
{{- end -}}

{{/*
The API server stores the managers of an object's fields with the object, in a list without a limit: each server-side apply can add a manager.
An object that already has more managers than the limit may be written, but gets no more.
*/}}
{{- define "fleet.fewManagers" -}}
- expression: >-
    size(object.metadata.?managedFields.orValue([])) <= 20 ||
    size(object.metadata.?managedFields.orValue([])) <= size(oldObject.metadata.?managedFields.orValue([]))
  reason: Forbidden
  message: an agent may write an object only while its metadata.managedFields has at most 20 managers
{{- end -}}

{{/*
An agent that may write the metadata can also write a list of managers of any size. The time of format grows with the size times the depth, so
the depth is checked first.
*/}}
{{- define "fleet.smallManagers" -}}
- expression: >-
    size(object.metadata.?managedFields.orValue([])) <= 20 &&
    object.metadata.?managedFields.orValue([]).map(m, has(m.fieldsV1) ? dyn(m.fieldsV1) : dyn({})).all(a,
    size(a) <= 300 && a.map(key, a[key]).all(b, size(b) <= 300 && b.map(key, b[key]).all(c, size(c) <= 300 && c.map(key, c[key]).all(d,
    size(d) <= 300 && d.map(key, d[key]).all(e, size(e) == 0))))) &&
    size('%s'.format([object.metadata.?managedFields.orValue([]).map(m, has(m.fieldsV1) ? dyn(m.fieldsV1) : dyn({}))])) <= 65536
  reason: Forbidden
  message: an object may be written only while its metadata.managedFields has at most 20 managers, with fields of 65536 characters
{{- end -}}

{{/*
The condition for requests of agents: their ServiceAccounts are in the cluster namespaces. The name of such a namespace ends in twelve
hexadecimal digits, or in five or six if it was shortened to 63 characters.
*/}}
{{- define "fleet.fromAgent" -}}
- name: from-an-agent
  expression: >-
    has(request.userInfo.groups) && request.userInfo.groups.exists(group,
    group.matches('^system:serviceaccounts:cluster-(.+-[0-9a-f]{12}|.{49}-[0-9a-f]{5}|.{48}-[0-9a-f]{6})$'))
{{- end -}}
