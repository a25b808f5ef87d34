package v1alpha1

// Condition types of a Cluster. True is the good state of all of them. If a condition is absent, its writer has not
// reconciled the Cluster yet.
const (
	// ConditionProcessed is True while the Cluster has its namespace and its status is current. Fleet's own controllers
	// write it too if they run beside the hub.
	ConditionProcessed = "Processed"

	// ConditionImported is True when the last attempt to install the agent with a kubeconfig succeeded or had no
	// work to do. If False, its message gives the error. The hub repeats a failed attempt; the message says "retrying" if that may help
	// although nobody acts.
	ConditionImported = "Imported"

	// ConditionRegistered is True once the agent of the cluster has registered and sent a heartbeat. It is Unknown, with a
	// reason, while the hub waits for that, and False if a registration was refused, if the agent is quarantined or has a clone, or
	// if its credential was revoked or has expired: management servers show a cluster with a False condition as broken.
	ConditionRegistered = "Registered"

	// ConditionConnected is True while the agent's last heartbeat is younger than the hub's grace period, and False
	// afterwards. It is Unknown until the first heartbeat, and after a start of the hub while an agent without an earlier
	// True or False may still send one.
	ConditionConnected = "Connected"

	// ConditionReconciled is only about the Bundle of the agent: it is True after the agent's settings were turned into that Bundle without an error,
	// and False with the error as message. It is Unknown until the first heartbeat of the agent.
	ConditionReconciled = "Reconciled"

	// ConditionReady is True when all Bundles of the Cluster are ready; otherwise its message lists those that are not.
	// With disableBundles the hub writes what Fleet's own Cluster controller writes. It is never Unknown, which management servers show as an error.
	//
	// On a Bundle, where the hub writes it, it is True when the Bundle is ready on all Clusters its targets match; otherwise
	// its message lists some of the other Clusters, or the error that prevents the deployment.
	//
	// On a ClusterRegistrationToken, where the hub writes it, it is True while the token can be used: its Secret holds
	// working values. It is Unknown while the hub waits, and False if the token cannot become usable without a
	// change.
	ConditionReady = "Ready"
)

// ConditionReleasesManaged exists on a Cluster since its agent first reported status.agent.keptReleases. It is False while the agent keeps
// releases for which the hub has no BundleDeployment, because the hub was restored from a backup or is not the hub that deployed them, and
// True afterwards.
const ConditionReleasesManaged = "ReleasesManaged"

// Condition types of a ClusterRegistration. True is good.
const (
	// ConditionGranted is True once the agent may fetch its credential; status.granted says the same. It is Unknown, with
	// a reason, while the hub waits, and False while the request is refused; a change of the object in the message may
	// still lead to a grant. It is also False for a granted request whose ServiceAccount was deleted; status.granted stays true.
	ConditionGranted = "Granted"

	// ConditionApproved exists if a request needs an approval: Unknown until the decision, then True or False.
	ConditionApproved = "Approved"

	// ConditionOriginProved is True if the API server recorded the ServiceAccount of the token as the creator of the request, or checked
	// that the creator may register with the token. It is False if another user created it, and the request is then refused unless a
	// person approves it. It is also False if the API server did neither, and the hub then relies on the token alone.
	ConditionOriginProved = "OriginProved"
)

// ConditionPoliciesInForce exists on a ClusterRegistrationToken since the hub first found that its API server lacks an admission policy
// that it could have, or can have none. It is False while the API server lacks one, and True afterwards.
const ConditionPoliciesInForce = "PoliciesInForce"

// ConditionWithinLimits exists on a ClusterRegistrationToken since its requests, or those of its namespace, first reached one of the
// limits of the hub (registration.limits). It is False while the limit is reached, and True afterwards.
const ConditionWithinLimits = "WithinLimits"

// ConditionRequestsAccepted exists on a ClusterRegistrationToken since the hub first refused a request that names the token. It is False,
// with the reason of the newest refusal, until that request is deleted, granted or replaced by one that is granted, and True afterwards.
const ConditionRequestsAccepted = "RequestsAccepted"

// ConditionLabelsLimited exists on a ClusterRegistrationToken since the hub first found that several agents may register with it and
// choose any label for their Clusters. It is False while they may, and True afterwards.
const ConditionLabelsLimited = "LabelsLimited"

// Condition types of a BundleDeployment, all written by the agent. True is good.
const (
	// ConditionInstalled is True once the resources were installed, even if they have changed since.
	ConditionInstalled = "Installed"
	// ConditionDeployed is True while the last deployment matches spec.deploymentID, and the Bundles that it depends on are ready.
	ConditionDeployed = "Deployed"
	// ConditionMonitored is True while the agent watches the deployed objects. It is False if the agent cannot compare them, or could not undo
	// a change, remove what a failed attempt left, or label the namespace.
	ConditionMonitored = "Monitored"
)

// ConditionFarewell is True, on the BundleDeployment of an agent's own Bundle, once the agent has uninstalled its
// releases; it removes its own objects next. The agent writes the condition, and the hub waits for it.
const ConditionFarewell = "Farewell"
