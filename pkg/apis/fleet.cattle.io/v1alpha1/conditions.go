package v1alpha1

// Condition types of a Cluster. For all of them True is good. A condition that is absent says that its writer has not
// looked at the Cluster yet.
const (
	// ConditionProcessed is True while the Cluster has its namespace and its status is current. Fleet's own controllers
	// write it too, where they run beside the hub.
	ConditionProcessed = "Processed"

	// ConditionImported is True when the last attempt to install the agent with a kubeconfig succeeded, also when there
	// was nothing to do. False says why the cluster cannot be imported; the attempt is repeated.
	ConditionImported = "Imported"

	// ConditionRegistered is True once the agent of the cluster has registered and checked in. It is Unknown, with a
	// reason, while the hub waits for that, and False only when a registration was refused, because management servers
	// show a cluster with a False condition as broken.
	ConditionRegistered = "Registered"

	// ConditionConnected is True while the agent's last heartbeat is younger than the grace the hub gives it, and False
	// from the moment that ends. It is Unknown until the first heartbeat.
	ConditionConnected = "Connected"

	// ConditionReconciled is True after the agent's settings were turned into its Bundle without an error, and False with
	// the error as message.
	ConditionReconciled = "Reconciled"

	// ConditionReady is True when all Bundles of the Cluster are ready; otherwise its message lists those that are not.
	// The hub writes it, unless it was told to leave Bundles to Fleet's own controllers. It is never Unknown, which management
	// servers show as an error.
	//
	// On a Bundle, where the hub writes it, it is True when the Bundle is ready on all Clusters its targets match; otherwise
	// its message lists some of those where it is not, or says what keeps it from being deployed at all.
	//
	// On a ClusterRegistrationToken, where the hub writes it, it is True while the token can be used: its Secret holds
	// working values. It is Unknown while the hub waits for something, and False when the token cannot become usable
	// without a change.
	ConditionReady = "Ready"
)

// Condition types of a ClusterRegistration. True is good.
const (
	// ConditionGranted is True once the agent may fetch its credential; status.granted says the same. It is Unknown, with
	// a reason, while the hub waits for something, and False while the request is refused; what the message names may
	// still change that. A granted request whose ServiceAccount was deleted is False too, and stays granted in its status.
	ConditionGranted = "Granted"

	// ConditionApproved is there where a request needs an approval: Unknown until somebody decides, then True or False.
	ConditionApproved = "Approved"

	// ConditionOriginProved is True when the API server itself has recorded that the holder of the token created the request.
	// It is False, with the reason, when it was somebody else, and the request is then refused unless it is approved; or when
	// the hub has nothing but the request's own word for it, and believes it only as far as the token goes.
	ConditionOriginProved = "OriginProved"
)

// Condition types of a BundleDeployment, all written by the agent. True is good.
const (
	// ConditionInstalled is True once the resources were installed, whatever became of them since.
	ConditionInstalled = "Installed"
	// ConditionDeployed is True while what was deployed last is what spec.deploymentID asks for.
	ConditionDeployed = "Deployed"
	// ConditionMonitored is True while the agent watches what it deployed.
	ConditionMonitored = "Monitored"
)

// ConditionFarewell is True, on the BundleDeployment of an agent's own Bundle, once an agent that was asked to leave has
// removed all it deployed; its own objects follow. The agent writes it, the hub waits for it.
const ConditionFarewell = "Farewell"
