// Package registration is the protocol of cluster registration as pure functions: names, hashes, keys, and the decision
// about each request. It uses no client, no clock and no I/O; other packages carry out its decisions.
package registration

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Names of objects on the hub and on a member that both the hub and agents know.
const (
	// HubLease is the Lease in the system namespace that a running hub holds. Fleet's agentmanagement, which the hub replaces, uses the same Lease.
	HubLease = "fleet-agentmanagement-lock"
	// HubConfigMap is the ConfigMap in the system namespace that configures the hub, under ConfigKey.
	HubConfigMap = "fleet-controller"
	// AgentConfigMap is the ConfigMap beside the agent that configures it, under ConfigKey.
	AgentConfigMap = "fleet-agent"
	// ConfigKey is the data key of both ConfigMaps; its value is JSON or YAML.
	ConfigKey = "config"

	// HubName is the name of the hub's Deployment in the system namespace.
	HubName = "fleet-controller"
	// AgentName is the name of the agent's Deployment, ServiceAccount, credential Secret and leader election Lease on a member.
	AgentName = "fleet-agent"
	// BootstrapSecret is the Secret on a member with which an agent registers. The agent deletes it once the credential that it got
	// in exchange has worked.
	BootstrapSecret = "fleet-agent-bootstrap"
	// CredentialSecret is the Secret on a member that keeps the credential of a registered agent.
	CredentialSecret = "fleet-agent"

	// DefaultSystemNamespace is the default namespace of hub and agent.
	DefaultSystemNamespace = "cattle-fleet-system"

	// ClusterRoleBundleDeployment lets an agent read its BundleDeployments and report their status, and read the Secrets and
	// ConfigMaps beside them; the hub binds it for each agent in the cluster namespace if Fleet's own controllers create the
	// BundleDeployments. Otherwise the hub binds ClusterRoleAgent.
	ClusterRoleBundleDeployment = "fleet-bundle-deployment"
	// ClusterRoleContent lets agents read a Content by its name. A ClusterRoleBinding of this name binds it once, for all of them.
	ClusterRoleContent = "fleet-content"
	// ClusterRoleAgent lets an agent read its BundleDeployments and report their status; the hub binds it for each agent in the
	// cluster namespace. An agent that renews its credential has its own Role instead, AgentRoleName.
	ClusterRoleAgent = "fleet-agent-bundle-deployment"
	// ClusterRoleClusternet lets the ServiceAccounts of tokens and of Clusternet agents create ClusterRegistrationRequests. It exists only
	// on a hub that serves Clusternet agents.
	ClusterRoleClusternet = "fleet-clusternet-registration"
	// ClusterRoleAudience is the parameter of the admission policy with the same name: it has no rules, and the annotation
	// fleet.AudiencesAnnotation. It exists only where the API server serves no mutating policies.
	ClusterRoleAudience = "fleet-agent-token-audience"
	// RoleDeploymentSecrets is the Role and RoleBinding, in the cluster namespace, that let the agents of a Cluster read, by name,
	// the Secrets with the Helm values of their BundleDeployments, and the copies of the Secrets and ConfigMaps that these name in
	// downstreamResources. It exists while there are such objects.
	RoleDeploymentSecrets = "fleet-deployment-secrets"
)

// Keys of Secret BootstrapSecret. The chart fleet-agent takes values of the same names.
const (
	BootstrapAPIServerURL = "apiServerURL"
	BootstrapAPIServerCA  = "apiServerCA"
	// BootstrapWorkspace is the namespace of the Clusters. On the wire it is called the cluster's namespace; what this project calls
	// the cluster namespace is CredentialDeploymentNamespace there.
	BootstrapWorkspace                   = "clusterNamespace"
	BootstrapToken                       = "token"
	BootstrapTokenName                   = "tokenName"
	BootstrapSystemRegistrationNamespace = "systemRegistrationNamespace"
	// BootstrapRegistrationKey makes an agent register again when its value changes. The hub sets it to
	// "<digest>/<redeployAgentGeneration>"; the digest covers everything that invalidates an earlier registration. The agent
	// stores the value of its registration under the same key of Secret CredentialSecret, and compares the two. If the key is
	// absent, as from other hubs and charts, the agent keeps a credential that works.
	BootstrapRegistrationKey = "registration"
)

// ValuesKey is the only key of a ClusterRegistrationToken's Secret: a values file for the chart fleet-agent. Secret BootstrapSecret may have the
// same document under this key, instead of the keys above.
const ValuesKey = "values"

// Keys of the answer Secret, AnswerSecretName, with which the hub grants one ClusterRegistration. It has neither URL nor CA: the agent
// keeps the ones it registered with.
const (
	CredentialToken               = "token"
	CredentialDeploymentNamespace = "deploymentNamespace"
	CredentialWorkspace           = "clusterNamespace"
	CredentialClusterName         = "clusterName"
	CredentialSystemNamespace     = "systemNamespace"
)

// Keys of the answer Secret with which the hub refuses a request. It has neither a token nor any of the keys above. The hub creates
// it only for agents that send RenewalAnnotation: other agents would use it as a credential. A later approval replaces it with one
// that grants the request, so the agent keeps polling at a long interval.
const (
	// RefusalReason is a reason of condition Granted.
	RefusalReason = "refusalReason"
	// RefusalMessage explains to people the error and its remedy.
	RefusalMessage = "refusalMessage"
)

// CredentialKubeconfig is the key of Secret CredentialSecret that holds the kubeconfig for the hub; the Secret also has
// the keys CredentialDeploymentNamespace, CredentialWorkspace and CredentialClusterName.
const CredentialKubeconfig = "kubeconfig"

// LocalCluster and LocalSecret are the Cluster of the hub's own cluster and its kubeconfig Secret, in the namespace that the
// configuration sets. BootstrapAccount is the ServiceAccount of the chart, in the system namespace, with which the hub installs
// the agent there.
const (
	LocalCluster     = "local"
	LocalSecret      = "local-cluster"
	BootstrapAccount = "fleet-controller-bootstrap"
)

// Keys of a kubeconfig Secret, which a person or a management server creates to import a cluster.
const (
	KubeconfigValue        = "value"
	KubeconfigAPIServerURL = "apiServerURL"
	KubeconfigAPIServerCA  = "apiServerCA"
)

// RenewalAnnotation is "true" on the ClusterRegistration of an agent that can renew its credential, so that the hub may
// issue a short-lived one. Other agents get a long-lived credential.
const RenewalAnnotation = "muster.fleet.cattle.io/credential-renewal"

// Renews reports whether the agent that sent the request renews its credential. Other agents get one that is valid for ten
// years, or that does not expire if the API server limits lifetimes.
func Renews(request *fleet.ClusterRegistration) bool {
	return request.Annotations[RenewalAnnotation] == "true"
}

// LeaseAnnotation is "true" on the ClusterRegistration of an agent that can send its heartbeats to a Lease. The hub creates a Lease only for
// such an agent, and names it in CredentialLease.
const LeaseAnnotation = "muster.fleet.cattle.io/heartbeat-lease"

// UsesLease reports whether the agent that sent the request sends its heartbeats to a Lease in the cluster namespace. Other agents write
// the status of their Cluster.
func UsesLease(request *fleet.ClusterRegistration) bool {
	return Renews(request) && request.Annotations[LeaseAnnotation] == "true"
}

// CredentialLease is the key of the answer Secret, and of Secret CredentialSecret, with the name of the agent's Lease; absent if the
// agent has none. The Lease has the name of the ServiceAccount whose agent may write it.
const CredentialLease = "heartbeatLease"

// Annotations that an agent writes to its Lease.
const (
	// LeaseReport has status.agent of the Cluster as JSON, without the fields that change with each heartbeat.
	LeaseReport = "muster.fleet.cattle.io/agent-report"
	// LeaseProof names a new ClusterRegistration of the same agent: the proof of possession.
	LeaseProof = "muster.fleet.cattle.io/possession-proof"
	// LeaseCredential is the credential ID of the token with which the agent works. LeasePolicy lets an agent write only the ID of the token with
	// which it sends the request.
	LeaseCredential = "muster.fleet.cattle.io/credential-id"
)

// LeasePolicy is the admission policy that limits what an agent may write to its Lease. Agents recognize its refusals.
const LeasePolicy = "fleet-agent-lease"

// PendingSecret is the Secret on a member in which an agent stores its pending request, so that after a restart it continues
// that request instead of creating another.
const PendingSecret = "fleet-agent-pending"

// HistoryKeySecret is the Secret on a member with the key by which the agent recognizes the Helm revisions that it has stored.
const HistoryKeySecret = "fleet-agent-history"

// KeptAnnotation is the annotation of Secret HistoryKeySecret with the BundleDeployments whose releases the agent keeps although the hub does not
// have them, because it was restored from a backup. The names are shortened to the length of a label, and separated by spaces.
const KeptAnnotation = "muster.fleet.cattle.io/kept-bundle-deployments"

// KeptDeployments returns the names in KeptAnnotation.
func KeptDeployments(historyKey *corev1.Secret) sets.Set[string] {
	return sets.New(strings.Fields(historyKey.Annotations[KeptAnnotation])...)
}

// HelmNamespaceAnnotation is where Helm records the namespace of the release to which an object belongs.
const HelmNamespaceAnnotation = "meta.helm.sh/release-namespace"

// Types of the Secrets that the hub creates.
const (
	// SecretTypeAnswer is the type of each answer Secret: one with a credential, and one with a refusal.
	SecretTypeAnswer = "fleet.cattle.io/agent-credential"
	SecretTypeValues = "fleet.cattle.io/cluster-registration-values"
	// SecretTypeBundleValues is the type of the Secret with the Helm values of a Bundle, and with its name.
	SecretTypeBundleValues = "fleet.cattle.io/bundle-values/v1alpha1"
	// SecretTypeHelmValues is the type of the Secret with the Helm values of a BundleDeployment, and with its name.
	SecretTypeHelmValues = "fleet.cattle.io/bundle-deployment/v1alpha1"
	// SecretTypeOCI and SecretTypeHelmOp are the types of Secrets with the credentials for an OCI artifact and for a chart that agents download.
	SecretTypeOCI    = "fleet.cattle.io/bundle-oci-storage/v1alpha1"
	SecretTypeHelmOp = "fleet.cattle.io/bundle-helmops-access/v1alpha1"
)

// IsCopiedType reports whether Secrets of a type may be copied for a Bundle to the cluster namespace and to the member. To Kubernetes and
// to Helm a Secret of one of the other types is more than data: it is a valid credential, or the history of a release.
func IsCopiedType(secretType string) bool {
	switch secretType {
	case "bootstrap.kubernetes.io/token", "kubernetes.io/service-account-token", "helm.sh/release.v1":
		return false
	}
	return true
}

// setIDAgentBootstrap is the ID of the object set (wrangler's apply) that the hub installs on a member. Agents recognise its hash.
const setIDAgentBootstrap = "fleet-agent-bootstrap"

// SetIDManageAgent is the value of annotation objectset.rio.cattle.io/id on the Bundle of a Cluster's agent.
const SetIDManageAgent = "fleet-manage-agent"

// AgentHubConfigMap is a ConfigMap beside the agent with the current address of its hub, under the keys BootstrapAPIServerURL,
// BootstrapAPIServerCA (PEM) and AgentHubTLSMode. Only the Bundle of an agent that a person has installed contains it: on the member of an
// imported agent, the hub changes the address itself. The agent tests a changed address before it gives up the one that works.
const (
	AgentHubConfigMap = "fleet-agent-hub"
	AgentHubTLSMode   = "agentTLSMode"
)

// GenerationEnv is the environment variable of the agent's container whose change restarts it.
const GenerationEnv = "GENERATION"

// FieldManager is the server-side apply manager for the agent's own objects, and for the Namespaces, Secrets and copies beside releases. Hub and agent
// share the name, so that each can take over objects that the other applied. The objects of a release have another one, objectManager in pkg/release.
const FieldManager = "muster"
