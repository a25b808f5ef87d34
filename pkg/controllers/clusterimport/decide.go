package clusterimport

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/registration"
)

// facts is what a decision about an import needs to know beside the Cluster itself.
type facts struct {
	agentNamespace  string // wanted
	tokenGone       bool   // the token the agent was given to register with is there no more
	served          bool   // new settings reach the agent by its Bundle
	manifest        string // digest of how the agent is to be run
	registrationFor string // what the agent's registration is to be made for
}

// whyImport says what on the Cluster itself asks for an import, or "". What its Secret and the hub's configuration ask for
// is for delivered to say.
func whyImport(cluster *fleet.Cluster, f facts) string {
	status := cluster.Status
	if why := whyInstall(cluster); why != "" {
		return why
	}
	switch {
	case status.AgentConfigChanged, settingsAskFor(cluster, f):
		return "the agent's settings changed"
	case void(status.Import, f.registrationFor):
		return "the agent's credential is void"
	case status.Import != nil && status.Agent.LastSeen.IsZero() && f.tokenGone:
		return "the agent did not register while its token was good"
	case moved(cluster, f.agentNamespace):
		return "the agent's namespace changed"
	}
	return ""
}

// whyInstall says why there is no agent that a person would be content with.
func whyInstall(cluster *fleet.Cluster) string {
	status := cluster.Status
	switch {
	case status.AgentDeployedGeneration == nil:
		return "no agent was installed yet"
	case !status.AgentMigrated || !status.CattleNamespaceMigrated || !status.AgentNamespaceMigrated:
		return "an older release installed the agent"
	case *status.AgentDeployedGeneration != cluster.Spec.RedeployAgentGeneration:
		return "spec.redeployAgentGeneration changed"
	}
	return ""
}

// settingsAskFor says whether only an import can deliver the settings. An agent that takes its Bundle and is heard of gets
// them from there, all but the scheduling customisation. One that is not heard of is installed as it should be, once, even
// if its Bundle said the same before: perhaps it was that Bundle which keeps it from starting.
func settingsAskFor(cluster *fleet.Cluster, f facts) bool {
	wanted, installed := agentspec.WantedSettings(cluster.Spec), agentspec.InstalledSettings(cluster.Status)
	if f.served {
		return !wanted.SameScheduling(installed)
	}
	return wanted != installed || manifestDiffers(cluster, f.manifest)
}

// manifestDiffers compares with how the last import installed the agent. Where that was of a release that did not note it,
// only an agent that is not heard of any more is thought to be installed otherwise.
func manifestDiffers(cluster *fleet.Cluster, wanted string) bool {
	last := cluster.Status.Import
	if last == nil || last.ManifestHash == wanted {
		return false
	}
	return last.ManifestHash != "" || agentspec.Disconnected(cluster)
}

// void says whether the agent was told of a registration whose credential is void by now.
func void(last *fleet.ImportStatus, registrationFor string) bool {
	return strings.Contains(registrationFor, "/") && (last == nil || last.RegistrationOf != registrationFor)
}

// moved compares with where the agent was installed. Other releases do not note that; there, what the agent reports counts,
// and only where the Cluster asks for a namespace.
func moved(cluster *fleet.Cluster, agentNamespace string) bool {
	if last := cluster.Status.Import; last != nil {
		return last.AgentNamespace != agentNamespace
	}
	reported := cluster.Status.Agent.Namespace
	return cluster.Spec.AgentNamespace != "" && reported != "" && reported != agentNamespace
}

// seen says whether the last import, or the last look, was at the same Secret and settings.
func seen(last *fleet.ImportStatus, secretVersion, settings string) bool {
	return last != nil && last.KubeConfigSecretVersion == secretVersion && last.SettingsHash == settings
}

// delivery is what an agent is told about its hub.
type delivery struct {
	apiServerURL  string
	apiServerCA   []byte
	tlsMode       config.TLSMode
	gcInterval    metav1.Duration
	urlFromSecret bool
	caFromSecret  bool
}

// decideDelivery takes each of URL and CA from the kubeconfig Secret, where it has them, else from the configuration.
func decideDelivery(hub config.Hub, secret map[string][]byte) (delivery, *failure) {
	d := delivery{
		apiServerURL: hub.APIServerURL,
		apiServerCA:  hub.APIServerCA,
		tlsMode:      hub.TLSMode(),
		gcInterval:   hub.GarbageCollectionInterval,
	}
	if url := string(secret[registration.KubeconfigAPIServerURL]); url != "" {
		d.apiServerURL, d.urlFromSecret = url, true
	}
	if ca := secret[registration.KubeconfigAPIServerCA]; len(ca) > 0 {
		d.apiServerCA, d.caFromSecret = ca, true
	}
	switch {
	case d.apiServerURL == "":
		return delivery{}, failed(fleet.ReasonAPIServerURLMissing,
			"nobody says where the agent reaches the hub; set apiServerURL in the hub's configuration (ConfigMap %s) or in the kubeconfig Secret",
			registration.HubConfigMap)
	case len(d.apiServerCA) > 0 && !agentspec.IsCertificate(d.apiServerCA):
		return delivery{}, failed(fleet.ReasonAPIServerCAInvalid,
			"apiServerCA is no PEM certificate; correct it in %s", d.caSource())
	}
	return d, nil
}

func (d delivery) caSource() string {
	if d.caFromSecret {
		return "the kubeconfig Secret"
	}
	return "the hub's configuration (ConfigMap " + registration.HubConfigMap + ")"
}

// delivered says whether the agent was told just this.
func delivered(status fleet.ClusterStatus, d delivery) bool {
	return sameWay(status, d) &&
		status.AgentTLSMode == string(d.tlsMode) &&
		sameInterval(status.GarbageCollectionInterval, d.gcInterval)
}

// sameWay says whether the agent was told this URL and CA. An empty CA was recorded in two ways by different releases.
func sameWay(status fleet.ClusterStatus, d delivery) bool {
	return status.APIServerURL == d.apiServerURL &&
		(status.APIServerCAHash == registration.CAHash(d.apiServerCA) || len(d.apiServerCA) == 0 && status.APIServerCAHash == emptyCAHash)
}

// emptyCAHash is the hash of a CA that is there and empty.
const emptyCAHash = "106eab90d1bb9f41a6bc937ccb191f4ff67809fffb93ce4a6e81822d"

func sameInterval(last *metav1.Duration, wanted metav1.Duration) bool {
	if last == nil {
		return wanted.Duration == 0
	}
	return last.Duration == wanted.Duration
}

// settingsHash is of the settings of the hub that agents are installed with and told about.
func settingsHash(hub config.Hub) string {
	hash, err := registration.StatusHash([]any{hub.APIServerURL, hub.APIServerCA, hub.TLSMode(), hub.GarbageCollectionInterval.Duration})
	if err != nil {
		panic(fmt.Sprintf("strings always marshal: %v", err))
	}
	return hash
}
