package check

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/muster-fleet/muster/pkg/admission"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/crds"
)

const (
	categoryHub        = "Hub"
	categoryCluster    = "Cluster on the hub"
	categoryImport     = "Kubeconfig of the import"
	categoryAgent      = "Agent on the member"
	categoryToken      = "Registration token"
	categoryWay        = "Connection from the agent to the hub"
	categoryConnection = "Registration and heartbeat"
)

// beforeHeartbeat are the checks of everything between the start of the agent and its first heartbeat.
var beforeHeartbeat = []string{
	"hub-writes", "hub-rights", "hub-runs", "cluster-not-quarantined", "import-secret", "import-kubeconfig", "import-self-contained", "import-address", "import-reaches", "import-rights",
	"member-api", "agent-namespace", "agent-deployment", "agent-pod", "agent-scheduled", "agent-image", "agent-runs", "agent-secret", "agent-config",
	"agent-credential", "agent-cluster", "agent-credential-lives", "agent-bootstrap", "agent-token", "token-exists", "token-ready", "token-lives", "token-uses", "token-rights",
	"way-probe", "way-address", "way-dns", "way-proxy", "way-tcp", "way-tls", "way-server", "way-clock", "way-authenticated", "way-authorised",
	"request-arrived", "request-granted", "cluster-imported",
}

// registerAgain is the remedy for an agent whose credential the hub rejects. A request with a token that is not only for this Cluster would be
// refused with ClientIDInUse.
const registerAgain = "if the hub has a kubeconfig of the member, it registers the agent again by itself; " + registerWithToken

// registerNow is the remedy for an agent that has lost its credential, which the hub cannot see. A hub with a kubeconfig would register it again only
// when the credential expires.
const registerNow = "if the hub has a kubeconfig of the member, run `muster rotate CLUSTER`; " + registerWithToken

const registerWithToken = "otherwise run " +
	"`muster token create --cluster CLUSTER --usage-limit 1 --ttl 1h -o values | muster join - --kubeconfig MEMBER`, " +
	"with --agent-namespace if the agent is not in cattle-fleet-system"

// installAgent is the remedy for a member without an agent, of which the hub has no kubeconfig.
const installAgent = "install the chart fleet-agent with the values of a token, or import the cluster"

// newToken is the remedy for a registration token that cannot be used any more.
const newToken = "create a new token with `muster token create NAME`, and register with its values; if the hub has the Cluster, add `--cluster CLUSTER`: " +
	"the request of another token would be refused with ClientIDInUse"

// Table returns all checks, in the order in which a registration depends on them.
func Table() []Check { return slices.Clone(table) }

func hasCluster(k *knowledge) bool       { return k.cluster != nil }
func isImport(k *knowledge) bool         { return k.cluster != nil && k.cluster.Spec.KubeConfigSecret != "" }
func hasKubeconfig(k *knowledge) bool    { return k.kubeconfig != nil }
func hasImportConfig(k *knowledge) bool  { return k.importConfig != nil }
func hasToken(k *knowledge) bool         { return k.token != nil }
func hasAddress(k *knowledge) bool       { return k.access != nil }
func hasHubCredential(k *knowledge) bool { return k.connection != nil && k.access.Token != "" }

var table = []Check{
	{
		ID: "hub-api", Category: categoryHub, on: onHub, run: hubAPI,
		Says: "the hub's API server answers",
		Hint: "check --kubeconfig and --context, the network to this address, and whether your credential is valid; if it answers slowly or not in time, look at " +
			"`kubectl get --raw '/readyz?verbose'` and at docs/operations.md#priority-of-api-requests",
	},
	{
		ID: "hub-kinds", Category: categoryHub, on: onHub, run: hubKinds, Needs: []string{"hub-api"},
		Says: "the API server serves the kinds of a hub",
		Hint: "install the chart fleet-crd, or check that the kubeconfig is for the hub",
	},
	{
		ID: "hub-fields", Category: categoryHub, on: onHub, run: hubFields, Needs: []string{"hub-kinds"},
		Says: "the API server stores quarantines and the limits of registration tokens",
		Hint: crds.SpecRemedy,
	},
	{
		ID: "hub-writes", Category: categoryHub, on: onHub, run: hubWrites, Needs: []string{"hub-kinds"},
		Says: "no webhook or policy refuses what the hub writes",
		Hint: "repair the server of the webhook that the message names, have the webhook or the policy omit the namespaces and the kinds of the hub, or delete it; " +
			"`kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations,validatingadmissionpolicies` lists them",
	},
	{
		ID: "hub-rights", Category: categoryHub, on: onHub, run: hubRightsGranted, Needs: []string{"hub-kinds"},
		Says: "the ServiceAccount of the hub has its rights",
		Hint: "restore ClusterRole fleet-controller, the Role of this name in the namespace of the hub, and their bindings, which `helm upgrade` of the chart fleet does; " +
			"the hub then continues within a minute",
	},
	{
		ID: "hub-runs", Category: categoryHub, on: onHub, run: hubRuns, Needs: []string{"hub-kinds"}, ExplainedBy: []string{"hub-writes", "hub-rights"},
		Says: "a hub holds its Lease and renews it",
		Hint: "start the Deployment fleet-controller, and look at its pods and its log",
	},
	{
		ID: "hub-config", Category: categoryHub, on: onHub, run: hubConfig, Needs: []string{"hub-kinds"},
		Says: "the configuration of the hub is valid",
		Hint: "correct the values of the chart fleet, or key config of the ConfigMap; until then what is invalid has no effect, and a hub that runs keeps its previous configuration",
	},
	{
		ID: "hub-policies", Category: categoryHub, on: onHub, run: hubPolicies, Needs: []string{"hub-kinds"},
		Says: "the admission policies are in force",
		Hint: admission.Remedy,
	},
	{
		ID: "fleet-requests", Category: categoryHub, on: onHub | onFleet, run: fleetRequests, Needs: []string{"hub-kinds"},
		Says: "no registration request waits or is refused",
		Hint: "`muster requests -A -o wide` shows the reasons; pass the name and the namespace of a request to muster check to find the cause",
	},
	{
		ID: "fleet-clusters", Category: categoryHub, on: onHub | onFleet, run: fleetClusters, Needs: []string{"hub-kinds"},
		Says: "all Clusters are registered and send heartbeats",
		Hint: "`muster clusters -A` lists them; pass the name and the namespace of a Cluster to muster check to find the cause",
	},
	{
		ID: "fleet-bundles", Category: categoryHub, on: onHub | onFleet, run: fleetBundles, Needs: []string{"hub-kinds"},
		Says: "the Bundles of all Clusters are ready, and no Bundle has a fault itself",
		Hint: "`muster clusters -A --not-ready -o wide` lists the Clusters with the Bundles; `muster describe CLUSTER` shows the error of each Bundle; " +
			"`kubectl describe bundles.fleet.cattle.io` shows the fault of a Bundle in condition Ready, whose reasons docs/reasons.md#bundle explains",
	},
	{
		ID: "cluster-exists", Category: categoryCluster, on: onHub | onCluster, run: clusterExists, Needs: []string{"hub-kinds"},
		Says: "the hub has the Cluster, or a request about it",
		Hint: "`muster clusters -A` and `muster requests -A` list all; if the agent has never reached the hub, pass --member-kubeconfig or run fleetagent check in its pod; " +
			"of a Cluster that is being deleted, follow the reason of the condition Processed in docs/reasons.md",
	},
	{
		ID: "cluster-processed", Category: categoryCluster, on: onHub | onCluster, when: hasCluster, run: clusterProcessed,
		Needs: []string{"cluster-exists"}, ExplainedBy: []string{"hub-runs"},
		Says: "the hub has processed the Cluster",
		Hint: "follow the reason of the condition Processed in docs/reasons.md#cluster",
	},
	{
		ID: "cluster-not-quarantined", Category: categoryCluster, on: onHub | onCluster, when: hasCluster, run: clusterNotQuarantined,
		Needs: []string{"cluster-exists"},
		Says:  "the Cluster is not quarantined",
		Hint: "find out who quarantined it and why; `muster release CLUSTER` ends the quarantine and restores the rights of the credential: " +
			"if it may be stolen, run `muster revoke --yes CLUSTER` first",
	},
	{
		ID: "import-secret", Category: categoryImport, on: onHub | onCluster, when: isImport, run: importSecret, Needs: []string{"cluster-exists"},
		Says: "the Secret with the kubeconfig exists and may be used",
		Hint: "create the Secret that spec.kubeConfigSecret names, in the namespace of the Cluster; if it is in another namespace, add the namespace of " +
			"the Cluster to its annotation " + fleet.KubeconfigAllowedAnnotation,
	},
	{
		ID: "import-kubeconfig", Category: categoryImport, on: onHub | onCluster, when: hasKubeconfig, run: importKubeconfig, Needs: []string{"import-secret"},
		Says: "the Secret contains a kubeconfig",
		Hint: "store the output of `kubectl config view --raw --minify --flatten` under the key value",
	},
	{
		ID: "import-self-contained", Category: categoryImport, on: onHub | onCluster, when: hasKubeconfig, run: importSelfContained,
		Needs: []string{"import-kubeconfig"},
		Says:  "the kubeconfig contains its credential and runs no program",
		Hint:  "create a kubeconfig with the token of a ServiceAccount, and embed files with `kubectl config view --raw --flatten`",
	},
	{
		ID: "import-address", Category: categoryImport, on: onHub | onCluster, when: hasImportConfig, run: importAddress, Needs: []string{"import-self-contained"},
		Says: "the kubeconfig has an address that the hub can reach",
		Hint: "set the server of the kubeconfig to an address of the member in the hub's network, or allow the address with members.allowedCIDRs of the chart fleet",
	},
	{
		ID: "import-reaches", Category: categoryImport, on: onHub | onCluster, when: hasImportConfig, run: importReaches, Needs: []string{"import-address"},
		Says: "the member answers with this kubeconfig",
		Hint: "correct the server, the CA or the credential in the kubeconfig, or start the member; this check connects from this machine",
	},
	{
		ID: "import-rights", Category: categoryImport, on: onHub | onCluster, when: hasImportConfig, run: importRights, Needs: []string{"import-reaches"},
		Says: "the user of the kubeconfig may install the agent",
		Hint: "renew the credential, or bind its user to ClusterRole cluster-admin on the member; if a webhook of the member prevents the answer, " +
			"repair its server, or delete the webhook",
	},
	{
		ID: "member-api", Category: categoryAgent, on: onMember, run: memberAPI,
		Says: "the member's API server answers",
		Hint: "check the kubeconfig of the member, the network to it, and whether your credential is valid",
	},
	{
		ID: "agent-namespace", Category: categoryAgent, on: onMember, run: agentNamespace, Needs: []string{"member-api"}, ExplainedBy: []string{"import-rights"},
		Says: "the namespace of the agent exists",
		Hint: "if the hub has a kubeconfig of the member, `muster rotate CLUSTER` has it install the agent again; otherwise " + installAgent,
	},
	{
		ID: "agent-deployment", Category: categoryAgent, on: onMember, run: agentDeployment, Needs: []string{"agent-namespace"},
		Says: "the Deployment of the agent exists and can create pods",
		Hint: "set its replicas, or remove the quota or policy that refuses its pods; if it does not exist and the hub has a kubeconfig of the member, " +
			"`muster rotate CLUSTER` has the hub install the agent again; otherwise " + installAgent,
	},
	{
		ID: "agent-pod", Category: categoryAgent, on: onMember, run: agentPod, Needs: []string{"agent-deployment"},
		Says: "the agent has a pod",
		Hint: "look at the events of the ReplicaSet and at the controller manager of the member",
	},
	{
		ID: "agent-scheduled", Category: categoryAgent, on: onMember, run: agentScheduled, Needs: []string{"agent-pod"},
		Says: "the pod of the agent is on a node",
		Hint: "free resources, add a node, or set the tolerations and the node selector of the agent",
	},
	{
		ID: "agent-image", Category: categoryAgent, on: onMember, run: agentImage, Needs: []string{"agent-scheduled"},
		Says: "the image of the agent can be pulled",
		Hint: "correct agentImage, systemDefaultRegistry or imagePullSecrets of the chart fleet, or let the nodes reach the registry",
	},
	{
		ID: "agent-runs", Category: categoryAgent, on: onMember, run: agentRuns, Needs: []string{"agent-image"},
		Says: "the container of the agent runs",
		Hint: "look at the log of the pod, also with --previous, and at its events",
	},
	{
		ID: "agent-secret", Category: categoryAgent, on: onMember, run: agentSecret,
		Needs: []string{"agent-namespace"}, ExplainedBy: []string{"agent-deployment"},
		Says: "the agent has a credential, or a token to register with",
		Hint: registerNow,
	},
	{
		ID: "agent-config", Category: categoryAgent, on: onMember, run: agentConfig, Needs: []string{"agent-namespace"},
		Says: "the configuration of the agent is valid",
		Hint: "correct key config of ConfigMap fleet-agent",
	},
	{
		ID: "agent-credential", Category: categoryAgent, on: onMember, run: agentCredential, Needs: []string{"agent-secret"},
		Says: "the credential of the agent is readable",
		Hint: "delete Secret fleet-agent; " + registerNow,
	},
	{
		ID: "agent-cluster", Category: categoryAgent, on: onMember, when: hasCluster, run: agentCluster, Needs: []string{"agent-credential"},
		Says: "the agent on the member belongs to the Cluster",
		Hint: "the member was registered again as another Cluster: delete one of the two, or set another spec.agentNamespace. If the other Cluster was imported, " +
			"the hub installs the agent of this one again after that, with its kubeconfig; " + registerWithToken,
	},
	{
		ID: "agent-credential-lives", Category: categoryAgent, on: onMember, run: agentCredentialLives, Needs: []string{"agent-credential"},
		Says: "the credential of the agent has not expired and is renewed",
		Hint: "look for CredentialExpiring in the events of the Deployment; after the expiry, " + registerAgain,
	},
	{
		ID: "agent-bootstrap", Category: categoryAgent, on: onMember, run: agentBootstrap, Needs: []string{"agent-secret"},
		Says: "the values to register with are complete",
		Hint: "create Secret fleet-agent-bootstrap again from the values of the token",
	},
	{
		ID: "agent-token", Category: categoryAgent, on: onMember, run: agentToken, Needs: []string{"agent-bootstrap"},
		Says: "the registration token of the agent has not expired",
		Hint: newToken,
	},
	{
		ID: "token-exists", Category: categoryToken, on: onHub | onToken, run: tokenExists, Needs: []string{"hub-kinds"},
		ExplainedBy: []string{"agent-token", "cluster-exists"},
		Says:        "the registration token exists on the hub",
		Hint:        newToken,
	},
	{
		ID: "token-ready", Category: categoryToken, on: onHub | onToken, when: hasToken, run: tokenReady,
		Needs: []string{"token-exists"}, ExplainedBy: []string{"hub-runs"},
		Says: "the registration token is ready",
		Hint: "follow the reason of the condition Ready in docs/reasons.md#clusterregistrationtoken",
	},
	{
		ID: "token-lives", Category: categoryToken, on: onHub | onToken, when: hasToken, run: tokenLives, Needs: []string{"token-exists"},
		Says: "the registration token has not expired",
		Hint: newToken,
	},
	{
		ID: "token-uses", Category: categoryToken, on: onHub | onToken, when: hasToken, run: tokenUses, Needs: []string{"token-exists"},
		Says: "the registration token has uses left",
		Hint: "raise spec.usageLimit of the token, or " + newToken,
	},
	{
		ID: "token-rights", Category: categoryToken, on: onHub | onToken, when: hasToken, run: tokenRights,
		Needs: []string{"token-ready"}, ExplainedBy: []string{"hub-runs"},
		Says: "the registration token has its rights in the workspace",
		Hint: "look at condition Ready of the token and the log of the hub, which restores the Role and RoleBinding of the token within seconds",
	},
	{
		ID: "way-probe", Category: categoryWay, on: onMember, run: wayProbe, Needs: []string{"agent-deployment"}, ExplainedBy: []string{"agent-image"},
		Says: "the Job of --probe runs the checks of this section on the member",
		Hint: "correct what prevents the pods of the namespace from starting, or run fleetagent check in the pod of the agent",
	},
	{
		ID: "way-address", Category: categoryWay, on: anywhere, run: wayAddress, ExplainedBy: []string{"hub-config"},
		Says: "agents have a usable address of the hub",
		Hint: "set apiServerURL and apiServerCA of the chart fleet to an address that members can reach; an agent with an older address keeps it until it can switch",
	},
	{
		ID: "way-dns", Category: categoryWay, on: anywhere, when: hasAddress, run: wayDNS, Needs: []string{"way-address"},
		Says: "the host name of the hub can be resolved",
		Hint: "correct apiServerURL, or the DNS of this machine; a member may use another DNS: run the check there as well",
	},
	{
		ID: "way-proxy", Category: categoryWay, on: anywhere, when: hasAddress, run: wayProxy, Needs: []string{"way-address"},
		Says: "the proxy lets connections to the hub through",
		Hint: "correct HTTPS_PROXY, have the proxy allow the address of the hub, or name the address in NO_PROXY",
	},
	{
		ID: "way-tcp", Category: categoryWay, on: anywhere, when: hasAddress, run: wayTCP, Needs: []string{"way-dns"},
		Says: "a connection to the hub is accepted",
		Hint: "correct apiServerURL, start the server at that address, or open the firewall; without --probe, this check connects from this machine",
	},
	{
		ID: "way-tls", Category: categoryWay, on: anywhere, when: hasAddress, run: wayTLS, Needs: []string{"way-tcp", "way-proxy"},
		Says: "the certificate of the hub is trusted and names the address",
		Hint: "set apiServerCA to the CA that signed the certificate, use a name that the certificate contains, or set agentTLSMode; if the handshake did not complete, a firewall or " +
			"proxy ends the connection, or large packets are lost (MTU)",
	},
	{
		ID: "way-server", Category: categoryWay, on: anywhere, run: wayServer, Needs: []string{"way-tls"},
		Says: "a Kubernetes API server answers at the address",
		Hint: "correct apiServerURL, or the proxy or load balancer in front of the API server",
	},
	{
		ID: "way-clock", Category: categoryWay, on: onMember, run: wayClock, Needs: []string{"way-server", "member-api"},
		Says: "the clocks of member and hub agree",
		Hint: "let both sides synchronize their clocks with NTP",
	},
	{
		ID: "way-authenticated", Category: categoryWay, on: onMember, when: hasHubCredential, run: wayAuthenticated, Needs: []string{"way-server"},
		ExplainedBy: []string{"agent-credential-lives", "agent-token", "token-exists", "token-lives", "token-ready"},
		Says:        "the hub accepts the token of the agent",
		Hint:        registerAgain,
	},
	{
		ID: "way-authorised", Category: categoryWay, on: onMember, when: hasHubCredential, run: wayAuthorised, Needs: []string{"way-authenticated"},
		ExplainedBy: []string{"token-rights", "cluster-not-quarantined", "agent-cluster"},
		Says:        "the agent has its rights on the hub",
		Hint:        "look at the Roles and RoleBindings of the agent in that namespace of the hub; the hub restores its own",
	},
	{
		ID: "cluster-imported", Category: categoryConnection, on: onHub | onCluster, when: hasCluster, run: clusterImported, Needs: []string{"cluster-processed"},
		ExplainedBy: []string{
			"agent-cluster",
			"hub-runs", "hub-config", "import-secret", "import-kubeconfig", "import-self-contained", "import-address", "import-reaches", "import-rights", "way-address",
		},
		Says: "the hub has installed the agent",
		Hint: "follow the reason of the condition Imported in docs/reasons.md#cluster",
	},
	{
		ID: "request-arrived", Category: categoryConnection, on: onHub | onMember | onCluster, run: requestArrived,
		Needs: []string{"hub-kinds"}, ExplainedBy: beforeHeartbeat,
		Says: "a request of the agent has arrived on the hub",
		Hint: "check the name and --namespace, and the log of the agent",
	},
	{
		ID: "request-granted", Category: categoryConnection, on: onHub | onCluster, run: requestGranted, Needs: []string{"cluster-exists"},
		ExplainedBy: []string{"hub-runs", "cluster-not-quarantined", "token-exists", "token-lives", "token-uses"},
		Says:        "the hub has granted the request of the agent",
		Hint:        "follow the reason in docs/reasons.md#clusterregistration; `muster describe CLUSTER` names the commands that decide about a request that waits for approval",
	},
	{
		ID: "cluster-registered", Category: categoryConnection, on: onHub | onCluster, when: hasCluster, run: clusterRegistered,
		Needs: []string{"cluster-processed"}, ExplainedBy: beforeHeartbeat,
		Says: "the agent is registered",
		Hint: "follow the reason of the condition Registered in docs/reasons.md#cluster; without a connection to the member, run fleetagent check in the agent's pod",
	},
	{
		ID: "cluster-heartbeat", Category: categoryConnection, on: onHub | onCluster, run: clusterHeartbeat,
		Needs: []string{"cluster-registered"}, ExplainedBy: beforeHeartbeat,
		Says: "the last heartbeat of the agent is recent",
		Hint: "look at the agent's pod and log on the member: pass --member-kubeconfig, or run fleetagent check in the agent's pod",
	},
	{
		ID: "cluster-credential", Category: categoryConnection, on: onHub | onCluster, run: clusterCredential,
		Needs: []string{"cluster-registered"}, ExplainedBy: beforeHeartbeat,
		Says: "the credential of the agent has not expired",
		Hint: registerAgain,
	},
	{
		ID: "cluster-deploys", Category: categoryConnection, on: onHub | onCluster, run: clusterDeploys,
		Needs: []string{"cluster-registered"},
		Says:  "the agent deploys",
		Hint:  "correct what the message names on the member; the agent tries again by itself",
	},
	{
		ID: "cluster-bundles", Category: categoryConnection, on: onHub | onCluster, when: hasCluster, run: clusterBundles,
		Needs: []string{"cluster-registered"}, ExplainedBy: append(slices.Clone(beforeHeartbeat), "cluster-heartbeat"),
		Says: "the Bundles of the Cluster are ready",
		Hint: "`muster describe CLUSTER` shows the error of each Bundle; correct the Bundle, or the member",
	},
	{
		ID: "cluster-versions", Category: categoryConnection, on: onHub | onCluster, run: clusterVersions, Needs: []string{"cluster-exists"},
		Says: "agent and muster have the same version",
		Hint: "wait until the hub has upgraded the agent, or use muster in the version of the hub",
	},
}

// short formats a duration like kubectl.
func short(d time.Duration) string { return duration.HumanDuration(max(0, d)) }
