package v1alpha1

// Reasons are part of the API: scripts and agents compare them. What each means for a person, and what to do, is in
// docs/reasons.md.

// Reasons of several conditions.
const (
	// ReasonError (False): the hub's API server answered with an error; the pass is repeated. Wrangler's status handlers
	// write the same word.
	ReasonError = "Error"
	// ReasonNameConflict (False): an object the hub has to make exists and is somebody else's.
	ReasonNameConflict = "NameConflict"
	// ReasonWaitingForCredential (Unknown): Kubernetes has not issued the token of a ServiceAccount yet.
	ReasonWaitingForCredential = "WaitingForCredential"
)

// Reasons of the conditions Granted and Registered.
const (
	// ReasonGranted (True): the credential Secret is there and the agent may read it.
	ReasonGranted = "Granted"
	// ReasonWaitingForCluster (Unknown): the Cluster the request belongs to has no namespace yet.
	ReasonWaitingForCluster = "WaitingForCluster"
	// ReasonSuperseded (False): a newer request of the same agent was granted instead.
	ReasonSuperseded = "Superseded"
	// ReasonRegistered (True): the agent has checked in.
	ReasonRegistered = "Registered"
	// ReasonWaitingForAgent (Unknown): the agent has not checked in yet.
	ReasonWaitingForAgent = "WaitingForAgent"
)

// Reasons of the condition Ready of a ClusterRegistrationToken.
const (
	// ReasonTokenReady (True): the Secret with the values is there.
	ReasonTokenReady = "TokenReady"
	// ReasonTTLRequired (False): the hub refuses tokens without a ttl.
	ReasonTTLRequired = "TTLRequired"
	// ReasonPoliciesInForce (True): the API server has all admission policies that it can have.
	ReasonPoliciesInForce = "PoliciesInForce"
	// ReasonPoliciesNotServed (False): the API server is too old for admission policies.
	ReasonPoliciesNotServed = "PoliciesNotServed"
)

// Reasons of the conditions Granted and Registered while a request cannot be granted.
const (
	// ReasonClientIDEmpty: the request names no identity.
	ReasonClientIDEmpty = "ClientIDEmpty"
	// ReasonClientIDTooLong: the identity exceeds what the hub accepts.
	ReasonClientIDTooLong = "ClientIDTooLong"
	// ReasonClientIDAmbiguous: several Clusters of the namespace have this identity, so that nobody can tell which is meant.
	ReasonClientIDAmbiguous = "ClientIDAmbiguous"
	// ReasonClusterNameTaken: the Cluster this identity would create exists and has another identity.
	ReasonClusterNameTaken = "ClusterNameTaken"
	// ReasonClusterDeleting: the Cluster is being deleted; the request is looked at again when it is gone.
	ReasonClusterDeleting = "ClusterDeleting"
	// ReasonTokenNotFound: the ClusterRegistrationToken named by the request does not exist (any more).
	ReasonTokenNotFound = "TokenNotFound"
	// ReasonTokenUnknown: the request names no token and the hub cannot tell which one was used.
	ReasonTokenUnknown = "TokenUnknown"
	// ReasonCredentialRevoked: the ServiceAccount behind a granted request was deleted; its agent has to register again.
	ReasonCredentialRevoked = "CredentialRevoked"
)

// Reasons of the conditions Granted and Registered that guard identities.
const (
	// ReasonClientIDInUse (False): the identity is that of a Cluster whose agent has registered, and the request proves
	// neither that it comes from that agent nor that it was made with the token of that Cluster, nor was it approved.
	ReasonClientIDInUse = "ClientIDInUse"
	// ReasonWaitingForApproval (Unknown): the token, or the hub's configuration, wants a person to decide.
	ReasonWaitingForApproval = "WaitingForApproval"
	// ReasonApproved (True): a person, or the hub's policy, has approved the request.
	ReasonApproved = "Approved"
	// ReasonDenied (False): a person, or the hub's policy, has denied the request.
	ReasonDenied = "Denied"
	// ReasonCountingUse (Unknown): the use of the token is being written down.
	ReasonCountingUse = "CountingUse"
	// ReasonTokenUsedUp (False): the token has registered as many clusters as it may.
	ReasonTokenUsedUp = "TokenUsedUp"
	// ReasonClientIDNotAllowed (False): the token is not for this identity.
	ReasonClientIDNotAllowed = "ClientIDNotAllowed"
	// ReasonTokenMismatch (False): the request was not created with the token it names.
	ReasonTokenMismatch = "TokenMismatch"
	// ReasonPoliciesRequired (False): the hub registers nobody while its admission policies are not in force.
	ReasonPoliciesRequired = "PoliciesRequired"
	// ReasonLongLivedRefused (False): the agent cannot renew a credential, and the hub gives out no other kind.
	ReasonLongLivedRefused = "LongLivedRefused"
	// ReasonQuarantined (False): a person has cut the agent off.
	ReasonQuarantined = "Quarantined"
	// ReasonCredentialExpired (False): the agent was away until its credential had come to its end.
	ReasonCredentialExpired = "CredentialExpired"
	// ReasonCloneDetected (False): two agents use the identity of the cluster at the same time.
	ReasonCloneDetected = "CloneDetected"
)

// Reasons of the condition OriginProved.
const (
	// ReasonOriginProved (True): the API server recorded who created the request.
	ReasonOriginProved = "OriginProved"
	// ReasonPolicyMissing (False): the admission policies that record it are not in force on the hub's API server. On a
	// ClusterRegistrationToken: some of the policies are not.
	ReasonPolicyMissing = "PolicyMissing"
	// ReasonOriginUnknown (False): the request was created before the policies were in force.
	ReasonOriginUnknown = "OriginUnknown"
)

// Reasons of the condition Processed.
const (
	// ReasonProcessed: the Cluster has its namespace and its status is current.
	ReasonProcessed = "Processed"
	// ReasonManagedElsewhere: the label fleet.cattle.io/cluster-management hands the Cluster to another controller.
	ReasonManagedElsewhere = "ManagedElsewhere"
	// ReasonNamespaceDeleting (Unknown): an earlier namespace of the same name is still being deleted.
	ReasonNamespaceDeleting = "NamespaceDeleting"
	// ReasonInvalidName (False): the name of the Cluster gives an invalid name of its namespace.
	ReasonInvalidName = "InvalidName"
)

// Reasons of the condition Imported.
const (
	// ReasonImported (True): the agent is installed.
	ReasonImported = "Imported"
	// ReasonWaitingForKubeconfig (Unknown): the Secret that spec.kubeConfigSecret names does not exist.
	ReasonWaitingForKubeconfig = "WaitingForKubeconfig"
	// ReasonWaitingForToken (Unknown): the token the agent is to register with cannot be used half a minute after it was made.
	ReasonWaitingForToken = "WaitingForToken"
	// ReasonKubeconfigInvalid (False): the kubeconfig Secret contains no kubeconfig that the hub can use.
	ReasonKubeconfigInvalid = "KubeconfigInvalid"
	// ReasonUnreachable (False): the member does not answer.
	ReasonUnreachable = "Unreachable"
	// ReasonAgentInitiated: the Cluster has no kubeconfig Secret; its agent registers by itself.
	ReasonAgentInitiated = "AgentInitiated"
	// ReasonImporting (Unknown): the hub installs the agent, or is about to.
	ReasonImporting = "Importing"
	// ReasonLocalAgentDisabled: the configuration says that the hub's own cluster has no agent.
	ReasonLocalAgentDisabled = "LocalAgentDisabled"
	// ReasonAPIServerURLMissing (False): neither the configuration nor the kubeconfig Secret contains the URL of the hub.
	ReasonAPIServerURLMissing = "APIServerURLMissing"
	// ReasonAPIServerCAInvalid (False): the configured CA of the hub contains no certificate.
	ReasonAPIServerCAInvalid = "APIServerCAInvalid"
	// ReasonKubeconfigNotAllowed: the Secret is in a namespace the Cluster may not take a kubeconfig from.
	ReasonKubeconfigNotAllowed = "KubeconfigNotAllowed"
	// ReasonCertificateUntrusted: the member's API server shows a certificate that the kubeconfig's CA did not sign.
	ReasonCertificateUntrusted = "CertificateUntrusted"
	// ReasonUnauthorized: the member refuses the kubeconfig's credential.
	ReasonUnauthorized = "Unauthorized"
	// ReasonForbidden (False): the user of the kubeconfig lacks rights on the member that an import needs.
	ReasonForbidden = "Forbidden"
	// ReasonMemberError (False): the member answered with an error; the hub retries.
	ReasonMemberError = "MemberError"
	// ReasonSettingsInvalid: the Cluster's agent settings contradict each other.
	ReasonSettingsInvalid = "SettingsInvalid"
	// ReasonPullSecretMissing: an image pull Secret that the configuration names does not exist on the hub.
	ReasonPullSecretMissing = "PullSecretMissing"
)

// Reasons of the condition Reconciled.
const (
	// ReasonReconciled (True): the Bundle of the agent contains the settings.
	ReasonReconciled = "Reconciled"
	// ReasonAgentNotManaged (True): the configuration or a label of the Cluster says that its agent gets no Bundle.
	ReasonAgentNotManaged = "AgentNotManaged"
	// ReasonWaitingForImport (Unknown): the agent has to be installed before its Bundle may follow.
	ReasonWaitingForImport = "WaitingForImport"
	// ReasonBundleDeleting (Unknown): the Bundle is being deleted; the hub creates it again.
	ReasonBundleDeleting = "BundleDeleting"
)

// Reasons of the condition Connected, which has WaitingForAgent as well.
const (
	// ReasonConnected (True): the agent checks in.
	ReasonConnected = "Connected"
	// ReasonDisconnected (False): the agent has missed more heartbeats than it may. On an event of a deleted Cluster: its agent was
	// not connected and could not be asked to uninstall itself.
	ReasonDisconnected = "Disconnected"
	// ReasonWaitingForHeartbeat (Unknown): the last heartbeat was before the start of this hub; the agent has one grace period for
	// the next one.
	ReasonWaitingForHeartbeat = "WaitingForHeartbeat"
)

// Reasons of the condition Processed of a Cluster that is being deleted, and of events about what its member keeps.
const (
	// ReasonFarewell (Unknown): the agent and its Helm releases are being removed from the member.
	ReasonFarewell = "Farewell"
	// ReasonFarewellTimeout (event): the grace period ended before they were removed.
	ReasonFarewellTimeout = "FarewellTimeout"
	// ReasonAgentUnaware (event): the agent is of a version that cannot be asked to uninstall itself.
	ReasonAgentUnaware = "AgentUnaware"
)

// Reasons of the condition Ready of a Cluster and of a Bundle. It is never Unknown, which management servers show as an
// error.
const (
	// ReasonAllReady (True): all that is to be deployed is ready.
	ReasonAllReady = "AllReady"
	// ReasonNoClusters (True): the targets of the Bundle match no Cluster, or only quarantined ones.
	ReasonNoClusters = "NoClusters"
	// ReasonNotReady (False): something is not ready (yet), or paused, or differs from what was deployed.
	ReasonNotReady = "NotReady"
	// ReasonDeployFailed (False): an agent reports that deploying failed.
	ReasonDeployFailed = "DeployFailed"
	// ReasonUnsupported (False): the Bundle has fields that this hub does not support; the message names them.
	ReasonUnsupported = "Unsupported"
	// ReasonBundleInvalid (False): a field of the Bundle has an invalid value; the message names it.
	ReasonBundleInvalid = "BundleInvalid"
)

// Reasons of the conditions of a BundleDeployment, which its agent writes. As Fleet's own agents do, it gives no reason for what is
// True and ReasonError for what is False: Fleet's own hub shows the message of no other reason. Ready has ReasonNotReady while
// something waits.
const (
	// ReasonWaitApplied (Unknown): the agent has not deployed it yet.
	ReasonWaitApplied = "WaitApplied"
	// ReasonPaused (Unknown): nothing is changed while it is paused.
	ReasonPaused = "Paused"
	// ReasonFarewellFailed (False): something could not be removed yet.
	ReasonFarewellFailed = "FarewellFailed"
)
