// Package registration is the protocol of cluster registration as pure functions: names, hashes, keys, and what to do
// next. It knows no client, no clock and no I/O; the other packages carry out what it decides.
package registration

// Names of objects on the hub and on a member that both sides of the wire know.
const (
	// HubConfigMap is the ConfigMap in the system namespace that configures the hub, under ConfigKey.
	HubConfigMap = "fleet-controller"
	// AgentConfigMap is the ConfigMap beside the agent that configures it, under ConfigKey.
	AgentConfigMap = "fleet-agent"
	// ConfigKey is the data key of both ConfigMaps; its value is JSON or YAML.
	ConfigKey = "config"

	// AgentName is the name of the agent's Deployment, ServiceAccount, Lease and credential Secret on a member.
	AgentName = "fleet-agent"
	// BootstrapSecret is the Secret on a member with which an agent registers; the agent deletes it once the credential
	// it was exchanged for has worked.
	BootstrapSecret = "fleet-agent-bootstrap"
	// CredentialSecret is the Secret on a member that keeps the credential of a registered agent.
	CredentialSecret = "fleet-agent"

	// DefaultSystemNamespace is where hub and agent live unless told otherwise.
	DefaultSystemNamespace = "cattle-fleet-system"

	// ClusterRoleBundleDeployment lets an agent read its BundleDeployments and report their status, and read the Secrets and
	// ConfigMaps beside them; it is bound for each agent, in the cluster namespace, where Fleet's own controllers make the
	// BundleDeployments. Otherwise that is ClusterRoleAgent.
	ClusterRoleBundleDeployment = "fleet-bundle-deployment"
	// ClusterRoleContent lets an agent read every Content, where Fleet's own controllers make the BundleDeployments. Otherwise
	// each Cluster has a ClusterRole of its own, ContentRoleName.
	ClusterRoleContent = "fleet-content"
	// ClusterRoleAgent lets an agent read its BundleDeployments and report their status; it is bound for each agent, in the
	// cluster namespace. One that renews its credential has a Role of its own instead, AgentRoleName, which says so.
	ClusterRoleAgent = "fleet-agent-bundle-deployment"
)

// Keys of Secret BootstrapSecret. The chart fleet-agent takes values of the same names.
const (
	BootstrapAPIServerURL                = "apiServerURL"
	BootstrapAPIServerCA                 = "apiServerCA"
	BootstrapClusterNamespace            = "clusterNamespace"
	BootstrapToken                       = "token"
	BootstrapTokenName                   = "tokenName"
	BootstrapSystemRegistrationNamespace = "systemRegistrationNamespace"
	// BootstrapRegistration tells an agent to register anew: the hub sets it to "<digest>/<redeployAgentGeneration>", where
	// the digest is of what makes an earlier registration useless. The agent keeps the value it registered with under the
	// same key of Secret CredentialSecret, and registers again when the two differ. Absent, as from hubs and charts that do
	// not know it, the agent keeps a credential that works.
	BootstrapRegistration = "registration"
	// BootstrapValues may hold all of the above as one YAML document instead.
	BootstrapValues = "values"
)

// ValuesKey is the only key of a ClusterRegistrationToken's Secret: a values file for the chart fleet-agent.
const ValuesKey = "values"

// Keys of the credential Secret the hub makes for one ClusterRegistration. The hub sends neither URL nor CA: the agent
// keeps the ones it registered with.
const (
	CredentialToken               = "token"
	CredentialDeploymentNamespace = "deploymentNamespace"
	CredentialClusterNamespace    = "clusterNamespace"
	CredentialClusterName         = "clusterName"
	CredentialSystemNamespace     = "systemNamespace"
)

// Keys of the Secret by which the hub refuses a request for good. It has the name and the type of the credential Secret the
// agent looks for, and neither a token nor any of the keys above. Only an agent that sends RenewalAnnotation is answered so:
// others would take it for a credential. A later decision replaces it by the credential Secret, so it is worth another look,
// now and then.
const (
	// RefusalReason is a reason of condition Granted.
	RefusalReason = "refusalReason"
	// RefusalMessage is for people: what is wrong, and what may be done.
	RefusalMessage = "refusalMessage"
)

// CredentialKubeconfig is the key of Secret CredentialSecret that holds the kubeconfig for the hub; the Secret also has
// the keys CredentialDeploymentNamespace, CredentialClusterNamespace and CredentialClusterName.
const CredentialKubeconfig = "kubeconfig"

// Names under which the hub registers its own cluster, in the namespace that its configuration says, and the ServiceAccount in
// the system namespace, made by the chart, as which it installs the agent there.
const (
	LocalCluster     = "local"
	LocalSecret      = "local-cluster"
	BootstrapAccount = "fleet-controller-bootstrap"
)

// Keys of a kubeconfig Secret that a person or a management server makes to have a cluster imported.
const (
	KubeconfigValue        = "value"
	KubeconfigAPIServerURL = "apiServerURL"
	KubeconfigAPIServerCA  = "apiServerCA"
)

// RenewalAnnotation is "true" on the ClusterRegistration of an agent that can renew its credential, so that the hub may
// give it a short-lived one. Agents that do not say so get a long-lived one.
const RenewalAnnotation = "muster.fleet.cattle.io/credential-renewal"

// PendingSecret is the Secret on a member in which an agent keeps the request it is waiting for, so that a restart
// continues it instead of creating another.
const PendingSecret = "fleet-agent-pending"

// Types of Secrets the hub makes.
const (
	SecretTypeCredential = "fleet.cattle.io/agent-credential"
	SecretTypeValues     = "fleet.cattle.io/cluster-registration-values"
)

// SetIDAgentBootstrap is the object set (wrangler's apply) of what the hub installs on a member. Agents know its hash.
const SetIDAgentBootstrap = "fleet-agent-bootstrap"

// SetIDManageAgent says, as annotation objectset.rio.cattle.io/id of a Bundle, that it is the one of a Cluster's agent.
const SetIDManageAgent = "fleet-manage-agent"

// AgentHubConfigMap is a ConfigMap beside the agent, in the agent's Bundle, that says where its hub is now. It has the keys
// BootstrapAPIServerURL, BootstrapAPIServerCA (PEM) and AgentHubTLSMode. An agent tries what is new in it before it gives
// up what works.
const (
	AgentHubConfigMap = "fleet-agent-hub"
	AgentHubTLSMode   = "agentTLSMode"
)

// GenerationEnv is the environment variable of the agent's container whose change restarts it.
const GenerationEnv = "GENERATION"

// FieldManager is the server-side apply manager of what hub and agent deploy on a member: under one name each of them can
// take over, and take back, what the other applied.
const FieldManager = "muster"
