package v1alpha1

// Reasons are part of the API: scripts and agents compare them. docs/reasons.md explains them, with what to do.

// Reasons of several conditions.
const (
	// ReasonError (False): an error without a reason of its own, mostly an answer of the hub's API server; the message has it. The hub or the
	// agent retries. Wrangler's status handlers write the same reason.
	ReasonError = "Error"
	// ReasonDownstreamMissing (False): a Secret or ConfigMap that a Bundle names in downstreamResources, helmOpOptions or contentsId does not exist.
	ReasonDownstreamMissing = "DownstreamResourceMissing"
	// ReasonNameConflict (False): an object that the hub must create exists already and does not belong to the hub.
	ReasonNameConflict = "NameConflict"
	// ReasonWaitingForCredential (Unknown): Kubernetes has not issued the token of a ServiceAccount yet.
	ReasonWaitingForCredential = "WaitingForCredential"
)

// Reasons of the conditions Granted and Registered.
const (
	// ReasonGranted (True): the answer Secret exists and the agent may read it.
	ReasonGranted = "Granted"
	// ReasonWaitingForCluster (Unknown): the Cluster the request belongs to has no namespace yet.
	ReasonWaitingForCluster = "WaitingForCluster"
	// ReasonSuperseded (False): a newer request of the same agent was granted instead.
	ReasonSuperseded = "Superseded"
	// ReasonRegistered (True): the agent has sent a heartbeat.
	ReasonRegistered = "Registered"
	// ReasonWaitingForAgent (Unknown): the agent has not sent a heartbeat yet.
	ReasonWaitingForAgent = "WaitingForAgent"
)

// Reasons of the condition Ready of a ClusterRegistrationToken.
const (
	// ReasonTokenReady (True): the Secret with the values exists.
	ReasonTokenReady = "TokenReady"
	// ReasonTTLRequired (False): the hub refuses tokens without a ttl.
	ReasonTTLRequired = "TTLRequired"
	// ReasonTokenInvalid (False): a field of the spec cannot be decoded, so the token grants nothing until that is corrected. On a request: the API
	// server refuses a Cluster with the labels of the token.
	ReasonTokenInvalid = "TokenInvalid"
)

// Reasons of the condition PoliciesInForce of a ClusterRegistrationToken, which has PolicyMissing as well.
const (
	// ReasonPoliciesInForce (True): the API server has all admission policies that it can have.
	ReasonPoliciesInForce = "PoliciesInForce"
	// ReasonPoliciesNotServed (False): the API server is too old for admission policies.
	ReasonPoliciesNotServed = "PoliciesNotServed"
)

// Reasons of the condition WithinLimits of a ClusterRegistrationToken.
const (
	// ReasonWithinLimits (True): its requests have not reached the limits of the hub.
	ReasonWithinLimits = "WithinLimits"
	// ReasonLimitReached (False): too many requests of the token, or of its namespace, wait or have led to no connected agent.
	ReasonLimitReached = "LimitReached"
)

// ReasonRequestsAccepted (True) is the reason of the condition RequestsAccepted of a ClusterRegistrationToken: no request that names it is
// refused. While the condition is False, it has the reason of the refused request.
const ReasonRequestsAccepted = "RequestsAccepted"

// Reasons of the condition LabelsLimited of a ClusterRegistrationToken.
const (
	// ReasonLabelsLimited (True): agents choose no labels, only those with allowed keys, or only one agent can register.
	ReasonLabelsLimited = "LabelsLimited"
	// ReasonAgentLabelsAccepted (False): each holder of the token can choose any label that selects Clusters.
	ReasonAgentLabelsAccepted = "AgentLabelsAccepted"
)

// Reasons of the conditions Granted and Registered while a request cannot be granted.
const (
	// ReasonClientIDEmpty: the request has no clientID.
	ReasonClientIDEmpty = "ClientIDEmpty"
	// ReasonClientIDTooLong: the clientID is longer than the hub accepts.
	ReasonClientIDTooLong = "ClientIDTooLong"
	// ReasonTooLarge: the labels or annotations of the request take too much of the hub's memory. On a Cluster it is the reason of Ready.
	ReasonTooLarge = "TooLarge"
	// ReasonClientIDAmbiguous: several Clusters of the namespace have this clientID, so the hub cannot choose one.
	ReasonClientIDAmbiguous = "ClientIDAmbiguous"
	// ReasonClusterNameTaken: a Cluster with the name that a new one would get exists and has another clientID.
	ReasonClusterNameTaken = "ClusterNameTaken"
	// ReasonClusterDeleting: the Cluster is being deleted; the hub decides on the request when it is gone.
	ReasonClusterDeleting = "ClusterDeleting"
	// ReasonTokenNotFound: the ClusterRegistrationToken that the request names does not exist, no longer exists, or was created after the request.
	ReasonTokenNotFound = "TokenNotFound"
	// ReasonTokenUnknown: the request names no token and the hub cannot tell which one was used.
	ReasonTokenUnknown = "TokenUnknown"
	// ReasonCredentialRevoked: the ServiceAccount of a granted request was deleted, or the request itself, and then the agent is disconnected. The
	// agent must register again.
	ReasonCredentialRevoked = "CredentialRevoked"
)

// Reasons of the conditions Granted, Approved and Registered that decide who may have an identity. CredentialExpired and CloneDetected are
// reasons of Registered only.
const (
	// ReasonClientIDInUse (False): the clientID belongs to a Cluster that another agent holds, see Terms in docs/architecture.md. The request does
	// not prove that it comes from that agent or was created with the token of that Cluster, and nobody has approved it. Or the request names
	// no token and is for a long-lived credential, and too many of that kind are granted with this clientID.
	ReasonClientIDInUse = "ClientIDInUse"
	// ReasonWaitingForApproval (Unknown): the token, or the hub's configuration, requires that a person decides.
	ReasonWaitingForApproval = "WaitingForApproval"
	// ReasonApproved (True): a person, or the hub's policy, has approved the request.
	ReasonApproved = "Approved"
	// ReasonDenied (False): a person, or the hub's policy, has denied the request.
	ReasonDenied = "Denied"
	// ReasonCountingUse (Unknown): the hub is recording the use of the token in its status.
	ReasonCountingUse = "CountingUse"
	// ReasonTooManyWaiting (False): as many requests of the token or the namespace wait already as the hub keeps.
	ReasonTooManyWaiting = "TooManyWaiting"
	// ReasonTooManyUnconnected (Unknown): the request is granted when agents have connected that registered earlier with the token or
	// in the namespace.
	ReasonTooManyUnconnected = "TooManyUnconnected"
	// ReasonTokenUsedUp (False): the token has granted as many requests as its usageLimit permits.
	ReasonTokenUsedUp = "TokenUsedUp"
	// ReasonClientIDNotAllowed (False): the token is restricted to other clientIDs.
	ReasonClientIDNotAllowed = "ClientIDNotAllowed"
	// ReasonTokenMismatch (False): the request was not created with the token it names.
	ReasonTokenMismatch = "TokenMismatch"
	// ReasonPoliciesRequired (False): the hub refuses registrations while its admission policies are not in force.
	ReasonPoliciesRequired = "PoliciesRequired"
	// ReasonLongLivedRefused (False): the agent does not renew its credential, and the token, the hub's configuration or the earlier
	// registration of the Cluster requires that.
	ReasonLongLivedRefused = "LongLivedRefused"
	// ReasonQuarantined (False): a person has withdrawn the rights of the agent with spec.quarantined.
	ReasonQuarantined = "Quarantined"
	// ReasonCredentialExpired (False): the credential expired while the agent sent no heartbeats.
	ReasonCredentialExpired = "CredentialExpired"
	// ReasonCloneDetected (False): two agents use the identity of the cluster at the same time.
	ReasonCloneDetected = "CloneDetected"
)

// Reasons of the condition ReleasesManaged of a Cluster.
const (
	// ReasonReleasesManaged (True): the agent keeps no release without a BundleDeployment.
	ReasonReleasesManaged = "ReleasesManaged"
	// ReasonBundlesMissing (False): the agent keeps releases whose Bundles the hub does not have, because it was restored from a backup or is
	// not the hub that deployed them.
	ReasonBundlesMissing = "BundlesMissing"
)

// Reasons of the condition OriginProved.
const (
	// ReasonOriginProved (True): the API server recorded who created the request, or checked that the creator may register with the token
	// that the request names.
	ReasonOriginProved = "OriginProved"
	// ReasonPolicyMissing (False): the admission policies that prove the origin are not in force on the hub's API server. On a
	// ClusterRegistrationToken: some admission policies of the hub are not in force.
	ReasonPolicyMissing = "PolicyMissing"
	// ReasonOriginUnknown (False): the request was created before the policies were in force, or it names no token and the API server
	// records no creators.
	ReasonOriginUnknown = "OriginUnknown"
)

// Reasons of the condition Processed.
const (
	// ReasonProcessed: the Cluster has its namespace and its status is current.
	ReasonProcessed = "Processed"
	// ReasonManagedElsewhere: the label fleet.cattle.io/cluster-management assigns the Cluster to another controller.
	ReasonManagedElsewhere = "ManagedElsewhere"
	// ReasonNamespaceDeleting (Unknown): an earlier namespace of the same name is still being deleted.
	ReasonNamespaceDeleting = "NamespaceDeleting"
	// ReasonInvalidName (False): the name of the cluster namespace, computed from the name of the Cluster, is invalid.
	ReasonInvalidName = "InvalidName"
)

// Reasons of the condition Imported.
const (
	// ReasonImported (True): the agent is installed.
	ReasonImported = "Imported"
	// ReasonWaitingForKubeconfig (Unknown): the Secret that spec.kubeConfigSecret names does not exist.
	ReasonWaitingForKubeconfig = "WaitingForKubeconfig"
	// ReasonWaitingForToken (Unknown): 30 seconds after its creation, the token with which the agent will register is not usable yet.
	ReasonWaitingForToken = "WaitingForToken"
	// ReasonKubeconfigInvalid (False): the kubeconfig Secret contains no kubeconfig that the hub can use.
	ReasonKubeconfigInvalid = "KubeconfigInvalid"
	// ReasonUnreachable (False): the member does not answer.
	ReasonUnreachable = "Unreachable"
	// ReasonAgentInitiated: the Cluster has no kubeconfig Secret; its agent registers by itself.
	ReasonAgentInitiated = "AgentInitiated"
	// ReasonImporting (Unknown): the hub installs the agent, or is about to.
	ReasonImporting = "Importing"
	// ReasonLocalAgentDisabled: the configuration disables the agent of the hub's own cluster.
	ReasonLocalAgentDisabled = "LocalAgentDisabled"
	// ReasonAPIServerURLMissing (False): neither the configuration nor the kubeconfig Secret contains the URL of the hub.
	ReasonAPIServerURLMissing = "APIServerURLMissing"
	// ReasonAPIServerURLInvalid (False): the URL of the hub in the kubeconfig Secret is unusable.
	ReasonAPIServerURLInvalid = "APIServerURLInvalid"
	// ReasonAPIServerCAInvalid (False): the configured CA of the hub contains no certificate.
	ReasonAPIServerCAInvalid = "APIServerCAInvalid"
	// ReasonAddressNotAllowed (False): the kubeconfig leads to an address, or through a proxy, that the hub's configuration does not
	// allow.
	ReasonAddressNotAllowed = "AddressNotAllowed"
	// ReasonKubeconfigNotAllowed: the Secret is in a namespace from which the Cluster may not use a kubeconfig.
	ReasonKubeconfigNotAllowed = "KubeconfigNotAllowed"
	// ReasonKubeconfigInUse: another Cluster uses the same kubeconfig Secret, or has imported the same member with another one, and has its agent in
	// the same namespace of the member.
	ReasonKubeconfigInUse = "KubeconfigInUse"
	// ReasonCertificateUntrusted: the certificate of the member's API server is not signed by the CA in the kubeconfig, is valid for another
	// name, or has expired.
	ReasonCertificateUntrusted = "CertificateUntrusted"
	// ReasonUnauthorized: the member rejects the credential in the kubeconfig.
	ReasonUnauthorized = "Unauthorized"
	// ReasonForbidden (False): the user of the kubeconfig lacks rights on the member that an import needs.
	ReasonForbidden = "Forbidden"
	// ReasonMemberError (False): the member answered with an error; the hub retries.
	ReasonMemberError = "MemberError"
	// ReasonSettingsInvalid: the Cluster's agent settings contradict each other, or are too large.
	ReasonSettingsInvalid = "SettingsInvalid"
	// ReasonConfigInvalid: the hub started while its configuration was invalid or deleted, and changes no agent until that is corrected. Requests
	// and tokens wait.
	ReasonConfigInvalid = "ConfigInvalid"
	// ReasonPullSecretMissing: an image pull Secret that the configuration names does not exist on the hub.
	ReasonPullSecretMissing = "PullSecretMissing"
)

// Reasons of the condition Reconciled.
const (
	// ReasonReconciled (True): the Bundle of the agent contains the settings.
	ReasonReconciled = "Reconciled"
	// ReasonAgentNotManaged (True): the configuration or a label of the Cluster says that its agent gets no Bundle.
	ReasonAgentNotManaged = "AgentNotManaged"
	// ReasonWaitingForImport (Unknown): the agent must be installed before the hub creates its Bundle.
	ReasonWaitingForImport = "WaitingForImport"
	// ReasonBundleDeleting (Unknown): the Bundle is being deleted; the hub creates it again. It is also a reason of Ready of a Bundle (False): the
	// Bundle is being deleted, and finalizers of other programs keep its BundleDeployments.
	ReasonBundleDeleting = "BundleDeleting"
)

// Reasons of the condition Connected, which has WaitingForAgent as well.
const (
	// ReasonConnected (True): the agent sends heartbeats.
	ReasonConnected = "Connected"
	// ReasonDisconnected (False): no heartbeat has arrived within the grace period. On an event of a deleted Cluster: its agent was
	// not connected and could not be asked to uninstall itself.
	ReasonDisconnected = "Disconnected"
	// ReasonWaitingForHeartbeat (Unknown): the last heartbeat was before the start of this hub; the agent has one grace period for
	// the next one.
	ReasonWaitingForHeartbeat = "WaitingForHeartbeat"
)

// Reasons of the condition Processed of a Cluster that is being deleted, and causes in the message of EventLeftOnMember.
const (
	// ReasonCheckingHandover (Unknown): the agent may be handed over to another Cluster; nothing is removed from the member yet. Its value does not
	// mean a takeover, which is what a standby of the hub does.
	ReasonCheckingHandover = "CheckingTakeover"
	// ReasonFarewell (Unknown): the agent and its Helm releases are being removed from the member.
	ReasonFarewell = "Farewell"
	// ReasonFarewellTimeout (EventLeftOnMember): the grace period ended before they were removed.
	ReasonFarewellTimeout = "FarewellTimeout"
	// ReasonAgentUnaware (EventLeftOnMember): the agent could not be asked to uninstall itself, because it is one of Fleet or has no BundleDeployment;
	// the hub did not find it or its releases on the member; or the hub cannot tell that the agent there is its own. The message says which.
	ReasonAgentUnaware = "AgentUnaware"
)

// Reasons of the condition Ready of a Cluster and of a Bundle. It is never Unknown, which management servers show as an
// error.
const (
	// ReasonAllReady (True): everything that is deployed is ready.
	ReasonAllReady = "AllReady"
	// ReasonNoClusters (True): the targets of the Bundle match no Cluster, or only quarantined ones.
	ReasonNoClusters = "NoClusters"
	// ReasonNotReady (False): something is not ready (yet), or paused, or differs from what was deployed.
	ReasonNotReady = "NotReady"
	// ReasonDeployFailed (False): an agent reports that deploying failed.
	ReasonDeployFailed = "DeployFailed"
	// ReasonValuesMissing (False): the Secret of the Bundle does not have the Helm values that spec.valuesHash stands for.
	ReasonValuesMissing = "ValuesMissing"
	// ReasonBundleInvalid (False): a field of the Bundle has an invalid value; the message names it.
	ReasonBundleInvalid = "BundleInvalid"
	// ReasonWorkspaceLimitReached (False): the hub does not store what the Bundle needs for a Cluster, because the large BundleDeployments and
	// copies of the workspace would take more than bundles.workspaceLimitMiB.
	ReasonWorkspaceLimitReached = "WorkspaceLimitReached"
	// ReasonDeploymentsStalled (False): the agent of the Cluster deploys nothing, for the reason in status.agent.deploymentsStalled.
	ReasonDeploymentsStalled = "DeploymentsStalled"
	// ReasonKindDeleted (False): a CustomResourceDefinition was deleted, so the hub removes nothing from the members because of the objects that are gone.
	ReasonKindDeleted = "KindDeleted"
)

// Reasons of the conditions of a BundleDeployment, which its agent writes. Like Fleet's own agents, it writes no reason for
// status True and ReasonError for status False: Fleet's own hub shows messages only with that reason. Ready has ReasonNotReady while
// another deployment than that of the BundleDeployment is on the cluster.
const (
	// ReasonWaitApplied (Unknown): the agent has not deployed it yet.
	ReasonWaitApplied = "WaitApplied"
	// ReasonPaused (Unknown): nothing is changed while it is paused.
	ReasonPaused = "Paused"
	// ReasonFarewellFailed (False): something could not be removed yet.
	ReasonFarewellFailed = "FarewellFailed"
)

// EventInvalidReport is the reason of the event about a Cluster whose agent has written something to its Lease that the hub does not copy to
// status.agent.
const EventInvalidReport = "InvalidReport"

// EventLeftOnMember is the reason of the event about a deleted Cluster on whose member objects may be left, because neither the agent nor the hub
// could remove them. Read its value as "left on the member": the member has not left.
const EventLeftOnMember = "MemberLeft"
