package release

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Labels of the Secrets in which Helm keeps a release. They are all an agent knows about its releases after a restart, and
// all a hub knows that has to remove them.
const (
	// AgentLabel holds the namespace of the agent: agents of two hubs on one member never have the same one, while their
	// clusters may well have the same name.
	AgentLabel = labelPrefix + "agent-namespace"
	// ClusterLabel holds the Cluster the agent is of, as the name of its namespace on the hub.
	ClusterLabel = labelPrefix + "cluster"
	// DeploymentLabel holds the BundleDeployment, shortened to the length of a label.
	DeploymentLabel = labelPrefix + "bundle-deployment"
	// DeploymentIDLabel holds a digest of the deployment ID that this revision deployed.
	DeploymentIDLabel = labelPrefix + "deployment-id"
	// ServiceAccountLabel holds the ServiceAccount that deployed, when it was not the agent's own.
	ServiceAccountLabel = labelPrefix + "service-account"

	keepResourcesLabel   = labelPrefix + "keep-resources"
	deleteNamespaceLabel = labelPrefix + "delete-namespace"
	deleteCRDsLabel      = labelPrefix + "delete-crds"

	labelPrefix = "muster.fleet.cattle.io/"
	labelTrue   = "true"
	// labelGone is how Helm is told that a label of the last revision is not one of the next.
	labelGone = "null"
)

// Owner is the agent that makes releases.
type Owner struct {
	// Namespace is the agent's on the member.
	Namespace string
	// ClusterNamespace and ClusterName are the Cluster on the hub.
	ClusterNamespace, ClusterName string
}

// Labels are on all releases of the agent.
func (o Owner) Labels() map[string]string {
	return map[string]string{
		AgentLabel:   registration.LabelValue(o.Namespace),
		ClusterLabel: registration.ClusterNamespace(o.ClusterNamespace, o.ClusterName),
	}
}

// Selector finds all releases of the agent.
func (o Owner) Selector() labels.Selector { return labels.SelectorFromSet(o.Labels()) }

// LabelsFor are on the releases of one BundleDeployment.
func (o Owner) LabelsFor(bundleDeployment, deploymentID string) map[string]string {
	all := o.Labels()
	all[DeploymentLabel] = registration.LabelValue(bundleDeployment)
	all[DeploymentIDLabel] = DeploymentIDValue(deploymentID)
	return all
}

// DeploymentIDValue is the value of DeploymentIDLabel.
func DeploymentIDValue(deploymentID string) string {
	sum := sha256.Sum256([]byte(deploymentID))
	return hex.EncodeToString(sum[:20])
}

// optionLabels keep what the removal of a release has to know.
func optionLabels(o fleet.BundleDeploymentOptions) map[string]string {
	flag := func(set bool) string {
		if set {
			return labelTrue
		}
		return labelGone
	}
	account := o.ServiceAccount
	if account == "" {
		account = labelGone
	}
	return map[string]string{
		keepResourcesLabel:   flag(o.KeepResources),
		deleteNamespaceLabel: flag(o.DeleteNamespace),
		deleteCRDsLabel:      flag(o.DeleteCRDResources),
		ServiceAccountLabel:  account,
	}
}

// OptionsFrom are the Options of a removal, from the labels of the release.
func OptionsFrom(l map[string]string) Options {
	return Options{
		KeepResources:           l[keepResourcesLabel] == labelTrue,
		DeleteNamespace:         l[deleteNamespaceLabel] == labelTrue,
		DeleteCRDs:              l[deleteCRDsLabel] == labelTrue,
		ServiceAccount:          l[ServiceAccountLabel],
		ServiceAccountNamespace: l[AgentLabel],
		Agent:                   l[AgentLabel],
		Deployment:              l[DeploymentLabel],
	}
}

// present leaves out what Helm would take for a label to remove; an installation has none to remove.
func present(l map[string]string) map[string]string {
	kept := map[string]string{}
	for key, value := range l {
		if value != labelGone && !strings.ContainsAny(value, "\n") {
			kept[key] = value
		}
	}
	return kept
}
