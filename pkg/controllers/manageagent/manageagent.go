// Package manageagent keeps, for every Cluster whose agent has registered, the Bundle by which the agent updates itself: the
// agent deploys this Bundle, and with it its own Deployment.
package manageagent

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/content"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/credentialstatus"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// AgentBundles keeps the Bundles of agents. It contributes condition Reconciled to the status of a Cluster. The controller of
// Clusters calls it after the import: the Bundle moves to another namespace of the member only when the import has done so.
type AgentBundles struct {
	*app.Context
	bundles   fleetcontrollers.BundleCache
	requests  credentialstatus.Requests
	manifests *manifests
	written   *expectations.Expectations
	created   *expectations.Expectations // Bundles that the cache may not contain yet
	moved     sync.Map                   // the last move of each Bundle that got another namespace, by the key of its Cluster
}

// moveInterval is the minimum time between two changes of the namespace of a Bundle that follow an agent's report. Each change creates a Content, and
// the agent is deployed again.
const moveInterval = time.Minute

// Register watches the Bundles of agents, to repair them, and the configuration.
func Register(_ context.Context, c *app.Context) *AgentBundles {
	clusters, bundles := c.Fleet.Cluster(), c.Fleet.Bundle()
	enqueue.OnDamage(bundles, clusters, c.RepairDelay(), clusterOf)
	c.Config.OnChange(func(before, after config.Hub) {
		if !reflect.DeepEqual(forAgents(before), forAgents(after)) {
			enqueue.All(clusters.Cache(), clusters, nil)
		}
	})
	return &AgentBundles{
		Context:   c,
		bundles:   bundles.Cache(),
		requests:  c.Fleet.ClusterRegistration().Cache(),
		manifests: newManifests(),
		written:   expectations.New(c.Clock),
		created:   expectations.New(c.Clock),
	}
}

// clusterOf is the Cluster of an agent's Bundle.
func clusterOf(bundle *fleet.Bundle) []types.NamespacedName {
	name := agentspec.ClusterOfBundle(bundle)
	if name == "" {
		return nil
	}
	return []types.NamespacedName{{Namespace: bundle.Namespace, Name: name}}
}

// Forget drops the state of a deleted Cluster.
func (a *AgentBundles) Forget(key string) { a.moved.Delete(key) }

// Reconcile creates, repairs or deletes the Bundle of a Cluster's agent.
func (a *AgentBundles) Reconcile(ctx context.Context, cluster *fleet.Cluster) result.Result {
	if problem := a.Config.Problem(); problem != "" {
		return result.Stalled(fleet.ReasonConfigInvalid, problem).In(a.RecheckDelay())
	}
	existing, err := a.bundles.Get(cluster.Namespace, registration.AgentBundleName(cluster.Name))
	if apierrors.IsNotFound(err) {
		existing = nil
	} else if err != nil {
		return result.Retry(fleet.ReasonError, err)
	}

	if reason, message := agentspec.WhyUnmanaged(a.Config.Get(), cluster); reason != "" {
		if existing != nil && agentspec.IsBundleOfOther(existing, cluster.Name) {
			existing = nil
		}
		if err := a.delete(ctx, cluster, existing); err != nil {
			return result.Retry(fleet.ReasonError, err)
		}
		if reason == fleet.ReasonManagedElsewhere && fleetstatus.Condition(cluster.Status.Conditions, fleet.ConditionReconciled).Status == "" {
			return result.Skip() // condition Processed reports it
		}
		return result.Done(reason, message)
	}
	if cluster.Spec.Quarantined {
		return result.Skip() // the agent gets nothing; condition Registered shows the reason
	}

	namespace, out := a.agentNamespace(cluster, existing != nil)
	if !out.IsDone() {
		return out
	}
	namespace, moveDelay := a.limitMoves(cluster, namespace)
	if err := agentspec.CheckSize(cluster.Spec); err != nil {
		return settingsInvalid(err)
	}
	options := agentspec.Options(a.Context, cluster, registration.ManagedGeneration(cluster.Spec.RedeployAgentGeneration))
	options.Namespace = namespace
	inputs := manifestInputs{Agent: options}
	if cluster.Spec.KubeConfigSecret == "" {
		// Without a kubeconfig the hub cannot create the PriorityClass, and a Pod that names a missing one does not start. Such
		// an agent gets the address of the hub only from its Bundle.
		inputs.Agent.PriorityClassName = ""
		hub := forAgents(a.Config.Get())
		inputs.Hub = &hub
	}
	made, err := a.manifests.render(inputs)
	switch {
	case errors.Is(err, agentspec.ErrBadCA):
		return result.Stalled(fleet.ReasonAPIServerCAInvalid, err.Error())
	case err != nil:
		return settingsInvalid(err)
	}
	wanted := newBundle(cluster, namespace, made)
	if !a.DisableBundles {
		wanted.Finalizers = []string{fleet.BundleFinalizer}
	}

	key := wanted.Namespace + "/" + wanted.Name
	isNew := false // this hub has created the Bundle, and the event has not arrived
	switch {
	case existing != nil:
		a.created.Observed(key)
		out = a.repair(ctx, cluster, existing, wanted)
	case a.created.IsExpected(key):
		out, isNew = result.Done("", ""), true
	default:
		if out, isNew = a.create(ctx, cluster, wanted); out.IsDone() {
			a.created.Expect(key)
		}
	}
	if !out.IsDone() {
		return out
	}

	// The status records the settings that the agent received last. It receives those in its Bundle only while it is connected and
	// applies its Bundle, or if it cannot be imported.
	if cluster.Spec.KubeConfigSecret == "" || agentspec.ServedByBundle(a.Config.Get(), cluster) {
		installed := agentspec.InstalledSettings(cluster.Status)
		if settings := agentspec.WantedSettings(cluster.Spec).WithSchedulingOf(installed); settings != installed {
			settings.Record(&cluster.Status)
		}
	}
	// The condition becomes True together with the first heartbeat, to save a status write for each Cluster.
	reported := fleetstatus.Condition(cluster.Status.Conditions, fleet.ConditionReconciled).Reason == fleet.ReasonReconciled
	if out = result.Done(fleet.ReasonReconciled, withoutEffect(cluster.Spec)); cluster.Status.Agent.LastSeen.IsZero() && !reported {
		out = result.Wait(fleet.ReasonWaitingForAgent, "the agent's Bundle exists, and waits for the first heartbeat of the agent")
	}
	if moveDelay > 0 {
		out = out.In(moveDelay)
	}
	if isNew {
		out = out.In(expectations.Timeout) // it may be deleted before the cache contains it
		if cluster.Spec.KubeConfigSecret == "" && !a.DisableBundles {
			// The event of the Bundle enqueues the Cluster, to deploy it. After an import the status is not delayed, because it records what was installed.
			out = out.WithStatusLater()
		}
	}
	return out
}

// withoutEffect names the settings that do not reach an agent which a person installed.
func withoutEffect(spec fleet.ClusterSpec) string {
	if c := spec.AgentSchedulingCustomization; spec.KubeConfigSecret == "" && c != nil && (c.PriorityClass != nil || c.PodDisruptionBudget != nil) {
		return "spec.agentSchedulingCustomization has no effect, because a person installed the agent"
	}
	return ""
}

func settingsInvalid(err error) result.Result {
	return result.Stalled(fleet.ReasonSettingsInvalid, fmt.Sprintf("the hub cannot create a valid Bundle for the agent with these settings: %s", err))
}

// forAgents is the part of the configuration that Bundles of agents depend on.
func forAgents(hub config.Hub) config.Hub {
	return config.Hub{
		AgentImage:                hub.AgentImage,
		AgentImagePullPolicy:      hub.AgentImagePullPolicy,
		SystemDefaultRegistry:     hub.SystemDefaultRegistry,
		AgentCheckinInterval:      hub.AgentCheckinInterval,
		ManageAgent:               hub.ManageAgent,
		APIServerURL:              hub.APIServerURL,
		APIServerCA:               hub.APIServerCA,
		AgentTLSMode:              hub.TLSMode(),
		AgentWorkers:              hub.AgentWorkers,
		ImagePullSecrets:          hub.ImagePullSecrets,
		ImagePullSecretWorkspaces: hub.ImagePullSecretWorkspaces,
	}
}

func waitingForAgent() result.Result {
	return result.Wait(fleet.ReasonWaitingForAgent, "the agent's Bundle is created when the agent has registered")
}

// agentNamespace is the namespace of the member for which the Bundle is created. The result is not done while there is no agent
// that could deploy the Bundle, or while the agent runs in another namespace than the Cluster wants.
func (a *AgentBundles) agentNamespace(cluster *fleet.Cluster, hasBundle bool) (string, result.Result) {
	status := cluster.Status
	if cluster.Spec.KubeConfigSecret == "" {
		// The agent registered by itself. Its heartbeat reports the namespace in which it was installed, the only one that contains
		// its objects.
		namespace := status.Agent.Namespace
		if namespace == "" {
			return "", waitingForAgent()
		}
		if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
			return "", result.Stalled(fleet.ReasonSettingsInvalid, fmt.Sprintf(
				"the agent reports that it runs in namespace %q, which is not a valid name: %s", namespace, strings.Join(problems, "; ")))
		}
		return namespace, result.Done("", "")
	}

	if !hasBundle && status.Agent.LastSeen.IsZero() {
		requests, err := credentialstatus.Of(a.requests, cluster)
		switch {
		case err != nil:
			return "", result.Retry(fleet.ReasonError, err)
		case !requests.Granted:
			return "", waitingForAgent()
		}
	}
	wanted := agentspec.Namespace(a.Context, cluster)
	var installed string
	switch {
	case status.Import != nil:
		installed = status.Import.AgentNamespace
	case status.AgentDeployedGeneration == nil:
		// not installed
	case status.Agent.Namespace != "":
		installed = status.Agent.Namespace // Fleet's hub installed the agent
	default:
		installed = wanted
	}
	if installed != wanted {
		return "", result.Wait(fleet.ReasonWaitingForImport, "the agent's Bundle is created when the agent is installed in namespace "+wanted)
	}
	return wanted, result.Done("", "")
}

// move is the last change of the namespace of an agent's Bundle.
type move struct {
	namespace string
	at        time.Time
}

// limitMoves returns the namespace for the Bundle. If the last change was too recent, that is the earlier namespace, and delay is the time after
// which the Bundle may get the reported one. There is no limit for an agent that the hub has imported: users who may write the Cluster choose its
// namespace.
func (a *AgentBundles) limitMoves(cluster *fleet.Cluster, reported string) (namespace string, delay time.Duration) {
	found, _ := a.moved.Load(index.Key(cluster.Namespace, cluster.Name))
	last, _ := found.(move)
	if cluster.Spec.KubeConfigSecret != "" || last.namespace == "" || last.namespace == reported {
		return reported, 0
	}
	if delay = last.at.Add(moveInterval).Sub(a.Clock.Now()); delay <= 0 {
		return reported, 0
	}
	return last.namespace, delay
}

// recordMove records that the hub has changed the namespace of a Bundle.
func (a *AgentBundles) recordMove(cluster *fleet.Cluster, namespace string) {
	key := index.Key(cluster.Namespace, cluster.Name)
	found, _ := a.moved.Load(key)
	if last, _ := found.(move); last.namespace != namespace { // otherwise a user has changed it
		a.moved.Store(key, move{namespace, a.Clock.Now()})
	}
}

// newBundle is the Bundle of a Cluster's agent. The Cluster is not its owner: a foreground deletion of the Cluster would delete the Bundle first,
// and the agent could no longer uninstall itself. The controller of Clusters deletes the Bundle by its name.
func newBundle(cluster *fleet.Cluster, agentNamespace string, made agentManifest) *fleet.Bundle {
	return &fleet.Bundle{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   cluster.Namespace,
			Name:        registration.AgentBundleName(cluster.Name),
			Annotations: map[string]string{apply.LabelID: registration.SetIDManageAgent},
		},
		Spec: fleet.BundleSpec{
			BundleDeploymentOptions: fleet.BundleDeploymentOptions{
				DefaultNamespace: agentNamespace,
				Helm:             &fleet.HelmOptions{TakeOwnership: true},
			},
			Resources:       made.resources(),
			ResourcesDigest: made.digest,
			Targets: []fleet.BundleTarget{{
				ClusterName: cluster.Name,
				ClusterSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
					Key: fleet.NonManagedAgentLabel, Operator: metav1.LabelSelectorOpDoesNotExist,
				}}},
			}},
		},
	}
}

// create creates the Bundle. If it exists and is not in the cache, its event is late or another client has created it.
func (a *AgentBundles) create(ctx context.Context, cluster *fleet.Cluster, wanted *fleet.Bundle) (out result.Result, isNew bool) {
	client := a.FleetClient.Bundles(wanted.Namespace)
	made, err := client.Create(ctx, wanted, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		existing, err := client.Get(ctx, wanted.Name, metav1.GetOptions{})
		if err != nil {
			return result.Retry(fleet.ReasonError, fmt.Errorf("reading Bundle %s/%s: %w", wanted.Namespace, wanted.Name, err)), false
		}
		return a.repair(ctx, cluster, existing, wanted), false
	} else if err != nil {
		return result.Retry(fleet.ReasonError, fmt.Errorf("creating Bundle %s/%s: %w", wanted.Namespace, wanted.Name, err)), false
	}
	a.written.Wrote(made)
	return result.Done("", ""), true
}

// repair patches the fields of the Bundle that the hub sets. Other fields, such as a pause, stay.
func (a *AgentBundles) repair(ctx context.Context, cluster *fleet.Cluster, existing, wanted *fleet.Bundle) result.Result {
	switch {
	case agentspec.IsBundleOfOther(existing, cluster.Name):
		return result.Stalled(fleet.ReasonNameConflict, fmt.Sprintf(
			"Bundle %s/%s belongs to the agent of Cluster %s: the names of both Clusters are shortened to the same name of a Bundle; remove one of the Clusters with "+
				"muster remove --keep-workloads, and register it under a shorter name",
			existing.Namespace, existing.Name, agentspec.ClusterOfBundle(existing))).In(a.RecheckDelay())
	case !agentspec.IsAgentBundle(existing):
		return result.Stalled(fleet.ReasonNameConflict, fmt.Sprintf(
			"Bundle %s/%s exists and does not belong to an agent; delete it and create it under another name: without keepResources, the agents uninstall its releases", existing.Namespace, existing.Name)).In(a.RecheckDelay())
	case existing.DeletionTimestamp != nil:
		return result.Wait(fleet.ReasonBundleDeleting, fmt.Sprintf("waiting for the deletion of Bundle %s/%s before the hub creates it again", existing.Namespace, existing.Name))
	case existing.Spec.TooLarge:
		return result.Stalled(fleet.ReasonError, fmt.Sprintf(
			"the spec of Bundle %s/%s is too large; delete the Bundle, and the hub creates it again", existing.Namespace, existing.Name))
	case existing.Spec.MetadataTooLarge:
		return result.Stalled(fleet.ReasonError, fmt.Sprintf("Bundle %s/%s cannot be corrected: %s", existing.Namespace, existing.Name, registration.MetadataTooLarge))
	case a.written.IsStale(existing):
		return result.Done("", "")
	}

	// The Bundle has this manifest, or gets it now. An earlier pass may have written it without recording that: its answer or its status was lost.
	agentspec.RecordDelivery(cluster, agentspec.ManifestHash(agentspec.Options(a.Context, cluster, "")))
	spec := map[string]any{}
	if existing.Spec.DefaultNamespace != wanted.Spec.DefaultNamespace {
		spec["defaultNamespace"] = wanted.Spec.DefaultNamespace
	}
	if existing.Spec.Helm == nil || !existing.Spec.Helm.TakeOwnership {
		spec["helm"] = map[string]any{"takeOwnership": true}
	}
	if _, sum, err := content.DigestOf(existing.Spec); err != nil || sum != wanted.Spec.ResourcesDigest {
		spec["resources"] = wanted.Spec.Resources
	}
	if !equality.Semantic.DeepEqual(existing.Spec.Targets, wanted.Spec.Targets) {
		spec["targets"] = wanted.Spec.Targets
	}
	if len(spec) == 0 {
		return result.Done("", "")
	}
	patch := map[string]any{"metadata": map[string]any{"resourceVersion": existing.ResourceVersion}, "spec": spec}
	latest, err := writes.Merge(ctx, a.FleetClient.Bundles(existing.Namespace), existing, patch)
	if err != nil {
		return result.Retry(fleet.ReasonError, fmt.Errorf("updating the agent's Bundle: %w", err))
	}
	if spec["defaultNamespace"] != nil {
		a.recordMove(cluster, wanted.Spec.DefaultNamespace)
	}
	a.written.Wrote(latest)
	return result.Done("", "")
}

// delete deletes the Bundle of an agent that the hub no longer manages. The agent keeps running as it is. It is told before: an agent whose
// BundleDeployment disappears otherwise stops uninstalling releases.
func (a *AgentBundles) delete(ctx context.Context, cluster *fleet.Cluster, existing *fleet.Bundle) error {
	if existing == nil || !agentspec.IsAgentBundle(existing) || existing.DeletionTimestamp != nil {
		return nil
	}
	namespace := registration.ClusterNamespace(cluster.Namespace, cluster.Name)
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"true"}}}`, fleet.UnmanagedAnnotation)
	_, err := a.FleetClient.BundleDeployments(namespace).Patch(ctx, existing.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reporting in BundleDeployment %s/%s that the agent is no longer managed: %w", namespace, existing.Name, err)
	}
	err = a.FleetClient.Bundles(existing.Namespace).Delete(ctx, existing.Name, writes.IfUID(existing))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting Bundle %s/%s: %w", existing.Namespace, existing.Name, err)
	}
	return nil
}
