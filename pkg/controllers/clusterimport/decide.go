package clusterimport

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/internal/credentialstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// facts are the inputs of importReason in addition to the Cluster itself.
type facts struct {
	agentNamespace string // the namespace in which the agent should run
	tokenGone      bool   // the import token, with which the agent registers, does not exist
	servedByBundle bool   // the agent's Bundle delivers new settings to the agent
	manifestHash   string // of the settings with which the agent should run
	registrationID string // the result of the function registrationID
	agentLost      bool   // another Cluster's import replaced the agent, and either no Cluster has it any more, or isChangedByPerson is true
}

// importReason compares the Cluster with its last import. It returns why another import is required, for the log, or "" if none is. The caller
// also imports if the address, CA, TLS mode or comparison interval that the agent gets has changed: see isInstalledWith.
func importReason(cluster *fleet.Cluster, f facts) string {
	status := cluster.Status
	switch {
	case status.AgentDeployedGeneration == nil:
		return "no agent was installed yet"
	case !status.AgentMigrated || !status.CattleNamespaceMigrated || !status.AgentNamespaceMigrated:
		return "an older version installed the agent"
	case isRedeployed(cluster):
		return "spec.redeployAgentGeneration changed"
	case settingsRequireImport(cluster, f):
		return "the agent's settings changed"
	case credentialInvalid(status.Import, f.registrationID):
		return "the agent's credential is invalid"
	case status.Import != nil && status.Agent.LastSeen.IsZero() && f.tokenGone:
		return "the agent did not register before its token expired"
	case namespaceChanged(cluster, f.agentNamespace):
		return "the agent's namespace changed"
	case f.agentLost:
		return "the import of another Cluster had replaced the agent"
	case status.AgentConfigChanged:
		return "status.agentConfigChanged is true"
	}
	return ""
}

// isRedeployed reports whether a person has asked for another registration since the last import, or no import has installed an agent yet.
func isRedeployed(cluster *fleet.Cluster) bool {
	deployed := cluster.Status.AgentDeployedGeneration
	return deployed == nil || *deployed != cluster.Spec.RedeployAgentGeneration
}

// settingsRequireImport reports whether new settings can only be delivered by an import. A connected agent receives them with
// its Bundle, except the scheduling customization, whose objects are not in the Bundle. A disconnected agent is installed once
// more even if its Bundle already has these settings, or has had others since the last import: settings of its Bundle may prevent it from starting.
func settingsRequireImport(cluster *fleet.Cluster, f facts) bool {
	wanted, installed := agentspec.WantedSettings(cluster.Spec), agentspec.InstalledSettings(cluster.Status)
	if f.servedByBundle {
		return !wanted.SameScheduling(installed)
	}
	return wanted != installed || manifestChanged(cluster, f.manifestHash)
}

// manifestChanged compares with the manifest of the last import. Fleet's hub does not record it; then only a disconnected agent
// counts as changed.
func manifestChanged(cluster *fleet.Cluster, wanted string) bool {
	last := cluster.Status.Import
	if last == nil || last.ManifestHash == wanted {
		return false
	}
	return last.ManifestHash != "" || agentspec.Disconnected(cluster)
}

// credentialInvalid reports whether the ID has a cause, the text after the slash, for which no import has asked the agent to register
// again.
func credentialInvalid(last *fleet.ImportStatus, registrationID string) bool {
	return strings.Contains(registrationID, "/") && (last == nil || last.RegistrationID != registrationID)
}

// namespaceChanged compares with the namespace of the last import. Fleet's hub does not record it; then the namespace that the
// agent reported counts, and only if the Cluster names a namespace.
func namespaceChanged(cluster *fleet.Cluster, agentNamespace string) bool {
	if last := cluster.Status.Import; last != nil {
		return last.AgentNamespace != agentNamespace
	}
	reported := cluster.Status.Agent.Namespace
	return cluster.Spec.AgentNamespace != "" && reported != "" && reported != agentNamespace
}

// hubInfo is the information about the hub that an import gives to the agent.
type hubInfo struct {
	apiServerURL  string
	apiServerCA   []byte
	tlsMode       config.TLSMode
	gcInterval    metav1.Duration
	urlFromSecret bool
	caFromSecret  bool
}

// decideHubInfo takes URL and CA each from the kubeconfig Secret if it has the key, otherwise from the hub's configuration.
func decideHubInfo(hub config.Hub, secret map[string][]byte) (hubInfo, *failure) {
	info := hubInfo{
		apiServerURL: hub.APIServerURL,
		apiServerCA:  hub.APIServerCA,
		tlsMode:      hub.TLSMode(),
		gcInterval:   hub.GarbageCollectionInterval,
	}
	caSource := "the hub's configuration (ConfigMap " + registration.HubConfigMap + ")"
	if url := string(secret[registration.KubeconfigAPIServerURL]); url != "" {
		info.apiServerURL, info.urlFromSecret = url, true
	}
	if ca := secret[registration.KubeconfigAPIServerCA]; len(ca) > 0 {
		info.apiServerCA, info.caFromSecret, caSource = ca, true, "the kubeconfig Secret"
	}
	problem := config.CheckServerURL(strings.TrimSpace(info.apiServerURL))
	switch {
	case info.apiServerURL == "":
		return hubInfo{}, failuref(fleet.ReasonAPIServerURLMissing,
			"the address at which agents reach the hub is not configured; set apiServerURL in the hub's configuration (ConfigMap %s) or in the kubeconfig Secret",
			registration.HubConfigMap)
	case info.urlFromSecret && problem != "": // an invalid configuration is not applied
		return hubInfo{}, failuref(fleet.ReasonAPIServerURLInvalid, "apiServerURL in the kubeconfig Secret is unusable: %s; correct it, or remove the key to use the hub's configuration", problem)
	case len(info.apiServerCA) > 0 && !registration.IsCABundle(info.apiServerCA):
		return hubInfo{}, failuref(fleet.ReasonAPIServerCAInvalid, "apiServerCA is not a PEM certificate; correct it in %s", caSource)
	}
	return info, nil
}

// isInstalledWith reports whether the last import delivered this hubInfo.
func isInstalledWith(status fleet.ClusterStatus, info hubInfo) bool {
	interval := metav1.Duration{}
	if status.GarbageCollectionInterval != nil {
		interval = *status.GarbageCollectionInterval
	}
	return sameEndpoint(status, info) && status.AgentTLSMode == string(info.tlsMode) && interval == info.gcInterval
}

// isRecorded reports whether an earlier pass has compared this version of the kubeconfig Secret and these settings with what is
// installed.
func isRecorded(last *fleet.ImportStatus, secretVersion, settings string) bool {
	return last != nil && last.KubeConfigSecretVersion == secretVersion && last.SettingsHash == settings
}

// hasSettings reports whether the last import delivered these settings, or is not recorded.
func hasSettings(last *fleet.ImportStatus, settings string) bool {
	return last == nil || last.SettingsHash == settings
}

// settingsHash is a digest of the hub's settings that an import delivers.
func settingsHash(hub config.Hub) string {
	hash, err := registration.StatusHash([]any{hub.APIServerURL, hub.APIServerCA, hub.TLSMode(), hub.GarbageCollectionInterval.Duration})
	if err != nil {
		panic(fmt.Sprintf("strings always marshal: %v", err))
	}
	return hash
}

// The agent registers again when the key of its registration changes. The key is a digest of the ID. (status.agent.registration is neither: it
// is the name of the agent's request.)
//
//	                 ID                                    key
//	value            "<UID of the Cluster>[/<cause>]"      "<digest of the ID>/<spec.redeployAgentGeneration>"
//	computed by      registrationID, withEndpointAsCause   registrationKey
//	installPlan      registrationID                        registrationKey
//	stored on hub    status.import.registrationOf          status.import.registration
//	stored on member -                                     key "registration" of the bootstrap Secret and of the credential
//	compared by      importReason: an import is required   the agent: it registers, and plan: the import deletes a credential without a key

// registrationID identifies the registration that the agent must have: "<UID of the Cluster>", or "<UID>/<cause>" after its
// credential became invalid. It stays the same until a new cause occurs, so that the end of a cause requires no import.
func registrationID(cluster *fleet.Cluster, s credentialstatus.Status, now time.Time) string {
	switch {
	case s.Revoked != nil:
		return withCause(cluster.UID, string(s.Revoked.UID))
	case s.LostRegistration(cluster): // the agent is not connected, and its granted request does not exist any more
		return withCause(cluster.UID, fmt.Sprintf("lost-%d", cluster.Status.Agent.LastSeen.Unix()))
	case credentialstatus.Expired(cluster, now):
		return withCause(cluster.UID, fmt.Sprintf("expired-%d", cluster.Status.Agent.CredentialExpires.Unix()))
	}
	if last := cluster.Status.Import; last != nil && strings.HasPrefix(last.RegistrationID, withCause(cluster.UID, "")) {
		return last.RegistrationID
	}
	return string(cluster.UID)
}

// withEndpointAsCause returns another ID, with the hub's new endpoint as its cause, for an agent of Fleet: it uses a new endpoint only if it
// registers again. It returns that other ID as well for the agent of Muster that this import has installed in its place, if the hub was killed
// before it recorded the import: with registrationID, that agent would register twice. Its GENERATION, which is the key of this ID, identifies that agent.
func withEndpointAsCause(info hubInfo, cluster *fleet.Cluster, registrationID string) string {
	agent := cluster.Status.Agent
	if agent.LastSeen.IsZero() || sameEndpoint(cluster.Status, info) {
		return registrationID
	}
	id := withCause(cluster.UID, endpointCause+digest(info.apiServerURL, registration.CAHash(info.apiServerCA)))
	if agentspec.IsOfFleet(agent) || agent.Generation == registrationKey(cluster, id) {
		return id
	}
	return registrationID
}

// endpointCause must not change: it is stored in the status of Clusters, whose agents would register again.
const endpointCause = "way-"

func withCause(uid types.UID, cause string) string { return string(uid) + "/" + cause }

// emptyCAHash is the hash that Fleet's hub records for a CA that is present and empty.
const emptyCAHash = "106eab90d1bb9f41a6bc937ccb191f4ff67809fffb93ce4a6e81822d"

// sameEndpoint reports whether the last import delivered this URL and CA.
func sameEndpoint(status fleet.ClusterStatus, info hubInfo) bool {
	return status.APIServerURL == info.apiServerURL &&
		(status.APIServerCAHash == registration.CAHash(info.apiServerCA) || len(info.apiServerCA) == 0 && status.APIServerCAHash == emptyCAHash)
}

// registrationKey is delivered to the agent, which registers when it holds a credential for another key. The key changes if the
// Cluster object is another one, a redeployment is requested, or the credential is invalid. It does not change with the hub's
// endpoint, because the agent keeps its credential then; withEndpointAsCause has the exception.
func registrationKey(cluster *fleet.Cluster, registrationID string) string {
	return fmt.Sprintf("%s/%d", digest(registrationID), cluster.Spec.RedeployAgentGeneration)
}

// digest covers all of its parts, unlike a KeyHash, which reads only the first hundred bytes; a URL may be longer.
func digest(parts ...any) string {
	const digits = 12
	hash, err := registration.StatusHash(parts)
	if err != nil {
		panic(fmt.Sprintf("strings always marshal: %v", err))
	}
	return hash[:digits]
}
