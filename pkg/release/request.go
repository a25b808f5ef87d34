package release

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Request is what to deploy, and how.
type Request struct {
	// Namespace and Name are those of the release; Place computes them.
	Namespace, Name string
	// Resources are the files: a chart when there is a Chart.yaml, plain manifests otherwise.
	Resources []fleet.BundleResource
	// Options are those of the BundleDeployment.
	Options fleet.BundleDeploymentOptions
	// Values come over those in Options; they are from the Secret of a BundleDeployment.
	Values map[string]any
	// Labels are put on the history of the release; Owner.LabelsFor makes them.
	Labels map[string]string
	// ServiceAccountNamespace is where Options.ServiceAccount is: the agent's own.
	ServiceAccountNamespace string
	// HandOver are older releases of the same BundleDeployment, under other names: what they have, this one may take over. A
	// release that somebody else has under the new name, and what is of nobody, stay as they are.
	HandOver []Found
	// Recorded is the release that the hub has on record for this BundleDeployment, as Deployed prints it; empty when there is
	// none. Only this cluster's agent writes that record, so a release of this place that bears nobody's labels is its own:
	// one that an agent of another make deployed, which labels nothing.
	Recorded string
	// Correcting says that nothing is new and only what differs on the cluster is to be undone.
	Correcting bool
	// NoWait keeps the deployment from waiting until its resources are ready. An agent that deploys itself would wait for
	// its own end.
	NoWait bool
}

func (r Request) helm() fleet.HelmOptions {
	if r.Options.Helm == nil {
		return fleet.HelmOptions{}
	}
	return *r.Options.Helm
}

func (r Request) force() bool {
	return r.helm().Force || r.Correcting && r.Options.CorrectDrift != nil && r.Options.CorrectDrift.Force
}

// Deployed is a release that is on the cluster.
type Deployed struct {
	// Namespace, Name and Version identify the revision.
	Namespace, Name string
	Version         int
	// Labels are those of its history.
	Labels map[string]string
	// Objects are what it consists of, without hooks.
	Objects []Object
}

// String is how a status names it: "namespace/name:version".
func (d Deployed) String() string { return fmt.Sprintf("%s/%s:%d", d.Namespace, d.Name, d.Version) }

// Object is one object of a release, as it should be.
type Object struct {
	// Desired is the object as it was applied, with the marks by which Helm knows its owner.
	Desired *unstructured.Unstructured
	// Resource is how the API serves it.
	Resource schema.GroupVersionResource
}

// Options of a removal.
type Options struct {
	// KeepResources removes the history only.
	KeepResources bool
	// DeleteNamespace removes the namespace of the release with it, unless it is one that Kubernetes made or the agent's,
	// or another Helm release is in it.
	DeleteNamespace bool
	// DeleteCRDs removes the CustomResourceDefinitions that came with the chart apart from its templates.
	DeleteCRDs bool
	// ServiceAccount removes in the place of the client's own identity, when set, as long as it has the rights to.
	ServiceAccount, ServiceAccountNamespace string
	// Agent and Deployment are whose release it is, as in AgentLabel and DeploymentLabel. Of a release that somebody else has
	// taken over since, only the own part of the history is removed. When both are empty, whose it is does not matter.
	Agent, Deployment string
}

// Times of one operation of Helm.
const (
	// hookTimeout bounds a hook when the options give no time.
	hookTimeout = 5 * time.Minute
	// history is how many revisions are kept when the options do not say.
	history = 5
)

func (r Request) timeout() time.Duration {
	if seconds := r.helm().TimeoutSeconds; seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	return hookTimeout
}

func (r Request) waits() bool { return !r.NoWait && (r.helm().TimeoutSeconds > 0 || r.helm().Atomic) }

// Bound is how long the deployment may take because of what its options ask for: to wait, and to wait again for what is
// undone.
func (r Request) Bound() time.Duration { return 2 * r.timeout() }
