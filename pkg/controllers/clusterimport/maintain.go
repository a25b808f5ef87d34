package clusterimport

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/muster-fleet/muster/pkg/agentmanifest"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/release"
)

// maintain copies image pull Secrets that changed since the import, and removes the agents in earlier namespaces after the first heartbeat of
// the new agent.
func (i *Importer) maintain(ctx context.Context, hub config.Hub, cluster *fleet.Cluster, secretVersion string) result.Result {
	last := cluster.Status.Import
	pull, out := i.pullSecrets(ctx, hub, cluster)
	switch {
	case out.IsStalled() && hasAllPullSecrets(hub, cluster): // a Secret is missing and may be created again: the copies stay as they are
	case !out.IsDone():
		return out
	case pull.hash != last.PullSecretsHash:
		return i.copyPullSecrets(ctx, hub, cluster, secretVersion, pull)
	}
	install := callKey{nameOf(cluster), installing}
	switch {
	case len(last.StaleAgentNamespaces) == 0:
		if !i.calls.last(install).state.isPending() {
			i.calls.drop(install)
		}
		return imported()
	case cluster.Status.Agent.LastSeen.IsZero() || cluster.Status.Agent.Namespace != last.AgentNamespace:
		return imported()
	}
	return i.removeStaleAgents(ctx, hub, cluster, secretVersion)
}

func hasAllPullSecrets(hub config.Hub, cluster *fleet.Cluster) bool {
	names, _ := agentspec.PullSecrets(hub, cluster)
	return !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(cluster.Status.Import.PullSecrets, name) })
}

// copyPullSecrets copies the image pull Secrets to the member, and nothing else.
func (i *Importer) copyPullSecrets(ctx context.Context, hub config.Hub, cluster *fleet.Cluster, secretVersion string, pull pullSecrets) result.Result {
	member, out := i.clientForInstalled(ctx, hub, cluster, secretVersion)
	if member == nil {
		return out
	}
	namespace := agentspec.Namespace(i.Context, cluster)
	leftovers := i.pullSecretLeftovers(hub, cluster)
	key, inputs := callKey{nameOf(cluster), installing}, fmt.Sprintf("%s/pull-secrets/%s/%d", member.fingerprint, pull.hash, len(leftovers))
	call := i.calls.reserve(key, inputs)
	if call.state == preparing {
		copies, out := i.pullSecretCopies(ctx, pull.names, namespace)
		if !out.IsDone() {
			return out
		}
		objects := append([]runtime.Object{namespaceObject(namespace)}, copies...)
		if err := label(objects, cluster.Spec.AgentNamespace); err != nil {
			return result.Retry(fleet.ReasonError, err)
		}
		plan := &installPlan{agent: agentIn(cluster, namespace, i.SystemNamespace), leftovers: leftovers}
		i.calls.begin(key, i.installCall(member, cluster, plan, objects))
	}
	if out, failed := call.failed(i.Clock.Now()); failed {
		return out
	}
	if call.state == ended {
		changed := cluster.Status.Import.DeepCopy()
		changed.PullSecrets, changed.PullSecretsHash = pull.names, pull.hash
		cluster.Status.Import = changed
	}
	return imported()
}

// removeStaleAgents removes the agents that earlier imports installed in other namespaces.
func (i *Importer) removeStaleAgents(ctx context.Context, hub config.Hub, cluster *fleet.Cluster, secretVersion string) result.Result {
	member, out := i.clientForInstalled(ctx, hub, cluster, secretVersion)
	if member == nil {
		return out
	}
	last := cluster.Status.Import
	key := callKey{nameOf(cluster), removing}
	call := i.calls.reserve(key, member.fingerprint+"/"+strings.Join(last.StaleAgentNamespaces, ","))
	if call.state == preparing {
		i.calls.begin(key, func(ctx context.Context) *failure {
			return i.calls.onMember(ctx, member, cluster.Namespace, i.calls.members.shared, func(ctx context.Context) *failure {
				agent, err := member.asAgent(last.AgentNamespace)
				if err != nil {
					return failuref(fleet.ReasonError, "%s", err)
				}
				for _, namespace := range last.StaleAgentNamespaces {
					if problem := agent.removeStaleAgent(ctx, cluster, agentIn(cluster, namespace, i.SystemNamespace), last); problem != nil {
						return problem
					}
				}
				return nil
			})
		})
	}
	if out, failed := call.failed(i.Clock.Now()); failed {
		return out
	}
	if call.state == ended {
		i.calls.drop(key)
		changed := last.DeepCopy()
		changed.StaleAgentNamespaces = nil
		cluster.Status.Import = changed
	}
	return imported()
}

// removeStaleAgent removes the agent from a namespace that it has left. Its own Helm release is not uninstalled, because some of
// the release's objects, such as the namespace's default ServiceAccount, must stay. The Namespace stays too. An agent of another Cluster
// stays: this hub or another one may have installed it there since, even while this call waited for the end of the earlier agent.
func (m *memberClient) removeStaleAgent(ctx context.Context, cluster *fleet.Cluster, id agentID, last *fleet.ImportStatus) *failure {
	namespace, ended := id.namespace, false
	isOfOther := func() (bool, *failure) {
		agent, err := m.installedAgent(ctx, namespace)
		if err != nil {
			return false, diagnose(m.server, "removing the agent from its earlier namespace: checking which Cluster it belongs to", err)
		}
		return agent.exists && !agent.belongsTo(cluster), nil
	}
	foreign, problem := isOfOther()
	if problem == nil && !foreign {
		ended, problem = m.stopAgent(ctx, namespace, stopTimeout)
	}
	if problem != nil {
		return problem
	}
	// This comes before removeAll deletes the history key of the earlier agent. The releases are labelled with their Cluster, so it does not matter whose
	// agent is in the namespace now.
	if err := m.relabelReleases(ctx, cluster, namespace, last.AgentNamespace); err != nil {
		return diagnose(m.server, "removing the earlier agent's labels from its Helm releases", err)
	}
	if foreign, problem := isOfOther(); problem != nil || foreign {
		return problem
	}
	// The import has left a PriorityClass that it does not require, while the Deployment of this agent named it.
	objects := agentObjects(namespace, !requiresPriorityClass(cluster), last.PullSecrets)
	if problem := m.removeStopped(ctx, id, ended, stopTimeout, objects, "removing the agent's earlier"); problem != nil {
		return problem
	}

	_, name := release.Place(registration.AgentBundleName(cluster.Name), fleet.BundleDeploymentOptions{DefaultNamespace: namespace})
	secrets, err := m.resource("Secret", namespace)
	if err == nil {
		err = secrets.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: labels.Set{"owner": "helm", "name": name}.String()})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return diagnose(m.server, "removing the history of the agent's earlier Helm release", err)
	}
	return nil
}

// relabelReleases transfers the Helm releases of the agent in namespace from to the agent in namespace to. Agents find their
// releases by labels that contain the agent's namespace, because agents of two hubs may run on one member. Revisions that the earlier agent
// has signed are signed for the later one, which would otherwise deploy them again.
func (m *memberClient) relabelReleases(ctx context.Context, cluster *fleet.Cluster, from, to string) error {
	before := release.Owner{Namespace: from, Workspace: cluster.Namespace, ClusterName: cluster.Name}
	after := release.Owner{Namespace: to, Workspace: cluster.Namespace, ClusterName: cluster.Name}
	earlierKey, err := m.historyKey(ctx, from)
	if err != nil {
		return err
	}
	laterKey, err := m.historyKey(ctx, to)
	if err != nil {
		return err
	}
	all, err := m.resource("Secret", metav1.NamespaceAll)
	if err != nil {
		return err
	}
	own, kept := registration.LabelValue(registration.AgentBundleName(cluster.Name)), registration.KeptDeployments(earlierKey)
	// One revision for each response: several may together be larger than the hub accepts.
	for page := (metav1.ListOptions{LabelSelector: before.Selector().String(), Limit: 1}); ; {
		revisions, err := all.List(ctx, page)
		if err != nil {
			return err
		}
		for _, revision := range revisions.Items {
			deployment := revision.GetLabels()[release.DeploymentLabel]
			if revision.GetNamespace() == from && deployment == own {
				continue // a revision of the earlier agent itself, which is deleted
			}
			if kept.Has(deployment) {
				continue // only the Secret of the earlier agent records that this release is kept: the later agent would uninstall it
			}
			if err := m.relabelRevision(ctx, &revision, after, earlierKey, laterKey); err != nil {
				return err
			}
		}
		if page.Continue = revisions.GetContinue(); page.Continue == "" {
			return nil
		}
	}
}

// relabelRevision gives a revision the labels of its later owner. If it is signed with the earlier key, it gets a signature with the later one.
func (m *memberClient) relabelRevision(
	ctx context.Context, revision *unstructured.Unstructured, owner release.Owner, earlierKey, laterKey *corev1.Secret,
) error {
	secrets, err := m.resource("Secret", revision.GetNamespace())
	if err != nil {
		return err
	}
	stored := &corev1.Secret{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(revision.Object, stored); err != nil {
		return err
	}
	metadata := map[string]any{"labels": owner.Labels()}
	if signature := release.MoveSignature(stored, earlierKey, laterKey); signature != nil {
		metadata["annotations"] = signature
	}
	patch, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
	if err != nil {
		return err
	}
	_, err = secrets.Patch(ctx, revision.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: registration.FieldManager})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// historyKey returns the Secret with which the agent in a namespace signs its revisions; it is empty if the agent has none.
func (m *memberClient) historyKey(ctx context.Context, namespace string) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	secrets, err := m.resource("Secret", namespace)
	if err != nil {
		return nil, err
	}
	found, err := secrets.Get(ctx, registration.HistoryKeySecret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return secret, nil
	}
	if err != nil {
		return nil, err
	}
	return secret, runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, secret)
}

// bundleRecheck is how often the agent's BundleDeployment is looked up while the local agent is being removed.
const bundleRecheck = time.Second

// removeLocalAgent removes the agent of the hub's own cluster when the configuration disables it.
func (i *Importer) removeLocalAgent(ctx context.Context, hub config.Hub, cluster *fleet.Cluster) result.Result {
	disabled := result.Done(fleet.ReasonLocalAgentDisabled, "bootstrap.localAgentDisabled is true in the configuration of the hub")
	if cluster.Status.AgentDeployedGeneration == nil {
		return disabled
	}

	// Wait until the BundleDeployment is gone, from which the agent would deploy itself again.
	namespace, name := registration.ClusterNamespace(cluster.Namespace, cluster.Name), registration.AgentBundleName(cluster.Name)
	_, err := i.FleetClient.BundleDeployments(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil:
		return result.Wait(fleet.ReasonImporting, fmt.Sprintf(
			"removing the agent of the hub's own cluster: waiting for the deletion of BundleDeployment %s/%s, from which the agent would be deployed again",
			namespace, name)).In(bundleRecheck)
	case !apierrors.IsNotFound(err):
		return result.Retry(fleet.ReasonError, fmt.Errorf("looking for BundleDeployment %s/%s: %w", namespace, name, err))
	}

	member, out := i.clientForInstalled(ctx, hub, cluster, i.kubeconfigVersion(cluster))
	if member == nil {
		return out
	}
	// The UID of Namespace kube-system identifies a cluster: if the kubeconfig leads to another cluster, its agent must stay.
	system, err := i.Kubernetes.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return result.Retry(fleet.ReasonError, err)
	}
	key, agentNamespace := callKey{nameOf(cluster), removing}, i.lastNamespace(cluster)
	objects := agentObjects(agentNamespace, requiresPriorityClass(cluster), nil)
	call := i.calls.reserve(key, "disable/"+member.fingerprint+"/"+agentNamespace)
	if call.state == preparing {
		i.calls.begin(key, func(ctx context.Context) *failure {
			defer member.close()
			if problem := member.requireCluster(ctx, string(system.UID)); problem != nil {
				return problem
			}
			ended, problem := member.stopAgent(ctx, agentNamespace, stopTimeout)
			if problem != nil {
				return problem
			}
			return member.removeStopped(ctx, agentIn(cluster, agentNamespace, i.SystemNamespace), ended, stopTimeout, objects, "removing the agent's")
		})
	}
	if out, failed := call.failed(i.Clock.Now()); failed {
		return out
	}
	if call.state != ended {
		return result.Wait(fleet.ReasonImporting, "removing the agent of the hub's own cluster")
	}
	i.calls.drop(key)
	status := &cluster.Status
	status.Agent, status.AgentDeployedGeneration, status.AgentConfigChanged, status.Import = fleet.AgentStatus{}, nil, false, nil
	return disabled
}

// requireCluster fails unless Namespace kube-system of the member has this UID.
func (m *memberClient) requireCluster(ctx context.Context, uid string) *failure {
	namespaces, err := m.resource("Namespace", "")
	if err != nil {
		return failuref(fleet.ReasonError, "%s", err)
	}
	found, err := namespaces.Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return diagnose(m.server, "checking which cluster this is", err)
	}
	if string(found.GetUID()) != uid {
		return failuref(fleet.ReasonKubeconfigInvalid,
			"the kubeconfig of the hub's own cluster leads to another cluster at %s, whose agent is not removed; correct Secret %s in the namespace of the Cluster",
			m.server, registration.LocalSecret)
	}
	return nil
}

// stopTimeout is how long to wait for the agent's Pods to end: their termination grace period, and time for the node to report.
// A Pod on a dead node never ends, and is not running either.
const stopTimeout = 35 * time.Second

// removeStopped deletes the objects of an agent after stopAgent, whose result is ended, has waited for timeout. An agent that had not ended can create
// some of the objects again until it has lost its rights. So the hub then deletes all but those by which it recognizes the agent, waits again, for a
// quarter of the time, and deletes all of them. It stops if a bootstrap Secret shows that an import has installed an agent meanwhile.
func (m *memberClient) removeStopped(
	ctx context.Context, agent agentID, ended bool, timeout time.Duration, objects []agentmanifest.OwnedObject, messagePrefix string,
) *failure {
	if !ended {
		others := slices.DeleteFunc(slices.Clone(objects), agentmanifest.OwnedObject.ShowsCluster)
		if problem := m.removeAll(ctx, agent, others, messagePrefix); problem != nil {
			return problem
		}
		if _, problem := m.stopAgent(ctx, agent.namespace, timeout/4); problem != nil {
			return problem
		}
		installed, err := m.installedAgent(ctx, agent.namespace)
		if err != nil {
			return diagnose(m.server, messagePrefix+" objects: checking whether another agent is installed", err)
		}
		if installed.bootstrap != nil {
			return nil
		}
	}
	return m.removeAll(ctx, agent, objects, messagePrefix)
}

// stopAgent deletes the agent's Deployment and waits until its Pods have ended, or timeout has passed. An agent that is deploying its own Bundle
// at this time would create the removed objects again, and the Deployment; the caller deletes the Deployment once more afterwards.
func (m *memberClient) stopAgent(ctx context.Context, namespace string, timeout time.Duration) (ended bool, problem *failure) {
	if err := m.remove(ctx, "Deployment", namespace, registration.AgentName); err != nil {
		return false, diagnose(m.server, "removing the agent's Deployment "+registration.AgentName, err)
	}
	ended, err := m.havePodsEnded(ctx, namespace)
	if err != nil {
		return false, diagnose(m.server, "removing the agent's Pods: listing them", err)
	} else if ended {
		return true, nil
	}
	err = wait.PollUntilContextTimeout(ctx, time.Second, timeout, false, func(ctx context.Context) (bool, error) {
		ended, _ := m.havePodsEnded(ctx, namespace) // a request that fails is repeated
		return ended, nil
	})
	if err != nil { // the time is over
		logrus.Infof("The hub no longer waits for the end of the agent's Pods in namespace %s at %s", namespace, m.server)
	}
	return err == nil, nil
}

// podMetadata asks for the metadata of the Pods in a list. A whole Pod may be large, and each list would then take the workspace's turn for large
// responses, and keep it until the next list.
const podMetadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// havePodsEnded reports whether no Pod of the agent is left in the namespace.
func (m *memberClient) havePodsEnded(ctx context.Context, namespace string) (bool, error) {
	// The label is that of agents of all versions. One Pod suffices, and of a list with more pages the first one.
	body, err := bodyOf(m.rest.Get().AbsPath("/api/v1/namespaces", namespace, "pods").Param("labelSelector", "app="+registration.AgentName).
		Param("limit", "1").SetHeader("Accept", podMetadata).Do(ctx))
	if err != nil {
		return false, err
	}
	var found metav1.PartialObjectMetadataList
	if json.Unmarshal(body, &found) != nil {
		return false, errNotKubernetes
	}
	return len(found.Items) == 0 && found.Continue == "", nil
}

// lastNamespace returns the namespace in which the agent was last installed.
func (i *Importer) lastNamespace(cluster *fleet.Cluster) string {
	if last := cluster.Status.Import; last != nil {
		return last.AgentNamespace
	}
	if reported := cluster.Status.Agent.Namespace; reported != "" {
		return reported
	}
	return agentspec.Namespace(i.Context, cluster)
}
