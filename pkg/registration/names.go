package registration

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/rancher/wrangler/v3/pkg/name"
)

const (
	keyHashInput  = 100 // bytes of the key that count, as for Fleet's hubs and Rancher
	keyHashLength = 12
	secretNameMax = 63
)

// KeyHash shortens a key (a clientID, "namespace::name") to 12 hexadecimal digits. Fleet's hubs and Rancher use the same function. Only
// the first 100 bytes count, so two long keys may share a hash: callers that find an object by hash must compare the whole key.
func KeyHash(key string) string {
	if len(key) > keyHashInput {
		key = key[:keyHashInput]
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])[:keyHashLength]
}

// ClusterNamespace is the namespace on the hub that holds the agent's ServiceAccount, most of its rights, its Lease and the BundleDeployments of one
// Cluster. The answer Secret is in the registration namespace. It is always computed, never read from a status an agent might have written. In the
// readable part dashes replace dots, which a namespace name cannot contain; the hash uses the unchanged name.
func ClusterNamespace(namespace, cluster string) string {
	readable := strings.ReplaceAll(cluster, ".", "-")
	return name.SafeConcatName("cluster", namespace, readable, KeyHash(namespace+"::"+cluster))
}

// ClusterName is the name of the Cluster that the hub creates for a new clientID.
func ClusterName(clientID string) string {
	return name.SafeConcatName("cluster", KeyHash(clientID))
}

// AnswerSecretName is the name of the Secret in the registration namespace with the answer to one ClusterRegistration: the
// credential, or a refusal. clientRandom makes it unguessable. The two parts are joined without a separator, so ("ab","c")
// and ("a","bc") share a name: the hub compares the request recorded on the Secret before it writes.
func AnswerSecretName(clientID, clientRandom string) string {
	sum := sha256.Sum256([]byte(clientID + clientRandom))
	return ("c-" + hex.EncodeToString(sum[:]))[:secretNameMax]
}

// SystemRegistrationNamespace is the namespace of the answer Secrets, derived from the hub's own namespace:
// "cattle-fleet-system" has "cattle-fleet-clusters-system".
func SystemRegistrationNamespace(systemNamespace string) string {
	derived := strings.ReplaceAll(systemNamespace, "-system", "-clusters-system")
	if derived == systemNamespace {
		return systemNamespace + "-clusters-system"
	}
	return derived
}

// TokenServiceAccount is the ServiceAccount, in the token's namespace, whose token registers clusters.
func TokenServiceAccount(token, uid string) string { return name.SafeConcatName(token, uid) }

// RequestServiceAccount is the ServiceAccount, in the cluster namespace, whose token the registered agent holds.
func RequestServiceAccount(request, uid string) string { return name.SafeConcatName(request, uid) }

// RequestPrefix begins the names of the ClusterRegistrations of agents.
const RequestPrefix = "request-"

const requestDigestLength = 16 // 80 bits

// RequestName is the name of the ClusterRegistration of an agent. The agent proves possession for that name before it sends the request, so
// the name is a digest of clientRandom, which nobody else knows until then: only that agent can create a request that has both.
func RequestName(clientRandom string) string {
	sum := sha256.Sum256([]byte("ClusterRegistration\x00" + clientRandom))
	return RequestPrefix + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:requestDigestLength]
}

// isDerivedFromOtherRandom reports whether the name of a request is the digest of another clientRandom. Fleet's agents use random names of another
// length.
func isDerivedFromOtherRandom(name, clientRandom string) bool {
	digest, found := strings.CutPrefix(name, RequestPrefix)
	return found && len(digest) == requestDigestLength && name != RequestName(clientRandom)
}

// TokenRoleName is the Role of a token's ServiceAccount.
func TokenRoleName(serviceAccount string) string { return name.SafeConcatName(serviceAccount, "role") }

// TokenRoleBindingName binds TokenRoleName to its ServiceAccount.
func TokenRoleBindingName(serviceAccount string) string {
	return name.SafeConcatName(serviceAccount, "to", "role")
}

// CredentialReaderName is the Role and RoleBinding in the registration namespace that let the bootstrap identity read
// one answer Secret. It contains the UID of the request, because requests of two namespaces may have one name.
func CredentialReaderName(requestServiceAccount string) string {
	return name.SafeConcatName(requestServiceAccount, "creds")
}

// AgentBindingName is the RoleBinding, in the cluster namespace, that grants one agent ClusterRoleAgent. Its name differs from
// AgentRoleName because the role of a binding is immutable.
func AgentBindingName(requestServiceAccount string) string {
	return name.SafeConcatName(requestServiceAccount, "bundles")
}

// AgentRoleName is the Role and RoleBinding, in the cluster namespace, of one agent that renews its credential.
func AgentRoleName(requestServiceAccount string) string {
	return name.SafeConcatName(requestServiceAccount, "agent")
}

// ClusternetRequestName is the ClusterRegistration that the hub creates for a ClusterRegistrationRequest with this UID.
func ClusternetRequestName(uid string) string { return "clusternet-" + uid }

// ClusternetCreatorBinding is the ClusterRoleBinding that lets a ServiceAccount, of a token or of a Clusternet agent, create
// ClusterRegistrationRequests.
func ClusternetCreatorBinding(serviceAccount string) string {
	return name.SafeConcatName(serviceAccount, "clusternet")
}

// ClusternetReaderName is the ClusterRole and ClusterRoleBinding that let the creator of a ClusterRegistrationRequest read the answer.
func ClusternetReaderName(request string) string { return name.SafeConcatName("fleet", request) }

// ImportTokenName is the ClusterRegistrationToken that the hub creates to import a Cluster.
func ImportTokenName(cluster string) string { return name.SafeConcatName("import-token-" + cluster) }

// AgentBundleName is the Bundle that keeps the agent of a Cluster up to date.
func AgentBundleName(cluster string) string { return name.SafeConcatName(AgentName, cluster) }

// ServiceAccountTokenSecret is the Secret for a ServiceAccount's token if the API server issues no long-lived tokens.
func ServiceAccountTokenSecret(serviceAccount string) string { return serviceAccount + "-token" }

// AgentBootstrapSetID is the ID of the object set that the hub installs on a member. Agents recognise their own objects by its
// hash.
func AgentBootstrapSetID(agentNamespace string) string {
	if agentNamespace == "" {
		return setIDAgentBootstrap
	}
	return setIDAgentBootstrap + "-" + agentNamespace
}

// LabelValue shortens an object name to the 63 characters of a label value; object names have up to 253. Shorter names stay
// unchanged.
func LabelValue(objectName string) string { return name.SafeConcatName(objectName) }

// OwnedSetID is the object set ID of one owner. wrangler hashes set ID, owner name and owner namespace without
// separators between them, so two owners could share a hash, and one would prune the objects of the other. The hash of
// the owner's key in the ID prevents this.
func OwnedSetID(set, namespace, owner string) string {
	return set + "-" + KeyHash(namespace+"::"+owner)
}

const managedGeneration = "managed/"

// ManagedGeneration is the GENERATION of an agent that its Bundle manages. All Clusters have the same value, except those that a
// person redeployed, so that the Bundles of their agents can share one Content.
func ManagedGeneration(redeployAgentGeneration int64) string {
	return managedGeneration + strconv.FormatInt(redeployAgentGeneration, 10)
}

// IsManagedGeneration reports whether ManagedGeneration returned this GENERATION.
func IsManagedGeneration(generation string) bool {
	return strings.HasPrefix(generation, managedGeneration)
}

// Fields of log lines about one object. Their values are NAMESPACE/NAME, or NAME alone where the namespace is not known.
const (
	LogCluster          = "cluster"
	LogRequest          = "request"
	LogToken            = "token"
	LogBundleDeployment = "bundleDeployment"
)
