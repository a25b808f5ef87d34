package v1alpha1

// Condition types of a Cluster. For all of them True is good. A condition that is absent says that its writer has not
// looked at the Cluster yet.
const (
	// ConditionProcessed is True after a pass over the Cluster without an error, and False with the error as message. The
	// hub and fleet-controller both write it.
	ConditionProcessed = "Processed"

	// ConditionImported is True when the last attempt to install the agent with a kubeconfig succeeded, also when there
	// was nothing to do. False says why the cluster cannot be imported; the attempt is repeated.
	ConditionImported = "Imported"

	// ConditionRegistered is True once an agent of the cluster was granted its credential. It is Unknown, with a reason,
	// while the hub waits for something, and False only when a registration was refused, because management servers show
	// a cluster with a False condition as broken.
	ConditionRegistered = "Registered"

	// ConditionConnected is True while heartbeats of the agent arrive in time, False from the moment the grace after the
	// last one ran out, and Unknown before the first.
	ConditionConnected = "Connected"

	// ConditionReconciled is True after the agent's settings were turned into its Bundle without an error, and False with
	// the error as message.
	ConditionReconciled = "Reconciled"

	// ConditionReady is True when all Bundles of the Cluster are ready; otherwise its message lists those that are not.
	// fleet-controller writes it.
	//
	// On a ClusterRegistrationToken, where the hub writes it, it is True while the token can be used: its Secret holds
	// working values. It is Unknown while the hub waits for something, and False when the token cannot become usable
	// without a change.
	ConditionReady = "Ready"
)

// Condition types of a ClusterRegistration. True is good.
const (
	// ConditionGranted is True once the agent may fetch its credential; status.granted says the same. It is Unknown, with
	// a reason, while the hub waits for something, and False when the request was refused, which is final: the agent has
	// to create a new request.
	ConditionGranted = "Granted"
)

// Reasons of conditions. They are part of the API: scripts and agents compare them. Each names the conditions it occurs
// in and the status they then have.
const (
	// ReasonError (any condition, False): the last pass failed, the message has the error, and the pass is repeated.
	// Wrangler's status handlers write the same word.
	ReasonError = "Error"

	// ReasonImported (Imported, True): the agent was installed, or there was nothing to do.
	ReasonImported = "Imported"
	// ReasonWaitingForKubeconfig (Imported, Unknown): the Secret that spec.kubeConfigSecret names does not exist.
	ReasonWaitingForKubeconfig = "WaitingForKubeconfig"
	// ReasonWaitingForToken (Imported, Unknown): the registration token of the Cluster cannot be used yet.
	ReasonWaitingForToken = "WaitingForToken"
	// ReasonKubeconfigInvalid (Imported, False): the kubeconfig Secret holds nothing the hub can use.
	ReasonKubeconfigInvalid = "KubeconfigInvalid"
	// ReasonUnreachable (Imported, False): the API server of the cluster did not answer.
	ReasonUnreachable = "Unreachable"

	// ReasonRegistered (Registered, True): an agent was granted its credential.
	ReasonRegistered = "Registered"
	// ReasonWaitingForAgent (Registered, Unknown): no agent of the cluster has asked to be registered yet.
	ReasonWaitingForAgent = "WaitingForAgent"

	// ReasonHeartbeat (Connected, True): the agent's heartbeats arrive in time.
	ReasonHeartbeat = "Heartbeat"
	// ReasonHeartbeatMissed (Connected, False): the grace after the agent's last heartbeat ran out.
	ReasonHeartbeatMissed = "HeartbeatMissed"
	// ReasonNeverSeen (Connected, Unknown): the agent has not sent a heartbeat yet.
	ReasonNeverSeen = "NeverSeen"

	// ReasonGranted (Granted, True): the credential Secret is there and the agent may read it.
	ReasonGranted = "Granted"
	// ReasonWaitingForCluster (Granted, Unknown): the Cluster the request belongs to is not ready for an agent yet.
	ReasonWaitingForCluster = "WaitingForCluster"
	// ReasonWaitingForCredential (Granted, Unknown): the token of the agent's ServiceAccount is not issued yet.
	ReasonWaitingForCredential = "WaitingForCredential"
	// ReasonWaitingForApproval (Granted, Unknown): a person has to approve the request.
	ReasonWaitingForApproval = "WaitingForApproval"
	// ReasonRefused (Granted, False; Registered, False): the request may not have what it asks for; the message says why.
	ReasonRefused = "Refused"
	// ReasonInvalidRequest (Granted, False): the request lacks something every request needs, such as a clientID.
	ReasonInvalidRequest = "InvalidRequest"
	// ReasonSuperseded (Granted, False): a newer request of the same agent was granted instead.
	ReasonSuperseded = "Superseded"
	// ReasonNameConflict (Granted, False; Ready, False): an object the hub has to make exists and is somebody else's.
	ReasonNameConflict = "NameConflict"

	// ReasonTokenReady (Ready of a ClusterRegistrationToken, True): the token can be used.
	ReasonTokenReady = "TokenReady"
	// ReasonTokenExpired (Ready of a ClusterRegistrationToken, False): the token's time is over; it is being deleted.
	ReasonTokenExpired = "TokenExpired"
	// ReasonTTLRequired (Ready of a ClusterRegistrationToken, False): the hub is configured to refuse tokens without a
	// ttl.
	ReasonTTLRequired = "TTLRequired"
)
