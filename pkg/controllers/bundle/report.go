package bundle

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/agentrole"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/internal/rollup"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Reporter writes a summary of the BundleDeployments that Fleet's own controllers create into the status of their Cluster. A hub that runs
// beside those controllers uses it in place of the Deployer. It writes exactly what Fleet's own Cluster controller writes, so that the two
// agree if both work on a Cluster. There is one exception: that controller counts a GitRepo or HelmOp only if it exists, and the Reporter
// reads neither kind.
type Reporter struct {
	*app.Context
	clusters        enqueue.Enqueuer
	clusterCache    fleetcontrollers.ClusterCache
	deploymentCache fleetcontrollers.BundleDeploymentCache
	roles           roles
}

// RegisterReporter registers the Reporter. It watches BundleDeployments.
func RegisterReporter(c *app.Context) *Reporter {
	clusters, deployments := c.Fleet.Cluster(), c.Fleet.BundleDeployment()
	r := &Reporter{Context: c, clusters: clusters, clusterCache: clusters.Cache(), deploymentCache: deployments.Cache(), roles: agentrole.NewReadRights(c)}
	clustersByClusterNamespace.AddTo(r.clusterCache)
	_, _ = deployments.Informer().AddEventHandler(r.deploymentEvents()) // fails only for an informer that was stopped
	return r
}

// deploymentEvents enqueues the Cluster of a BundleDeployment that changes the status of the Cluster.
func (r *Reporter) deploymentEvents() enqueue.EventHandler[*fleet.BundleDeployment] {
	enqueueCluster := func(deployment *fleet.BundleDeployment) {
		enqueueClusterOf(deployment.Namespace, r.clusterCache, r.clusters, r.StatusDelay())
	}
	return enqueue.EventHandler[*fleet.BundleDeployment]{
		Added: func(deployment *fleet.BundleDeployment, atStart bool) {
			if !atStart { // at its start the hub enqueues all Clusters
				enqueueCluster(deployment)
			}
		},
		Changed: func(before, after *fleet.BundleDeployment) {
			if changesStatus(before, after) || before.Labels[fleet.RepoLabel] != after.Labels[fleet.RepoLabel] ||
				before.Labels[fleet.HelmOpLabel] != after.Labels[fleet.HelmOpLabel] {
				enqueueCluster(after)
			}
		},
		Deleted: enqueueCluster,
	}
}

// Reconcile sets summary, resource counts, display and the counts of GitRepos and HelmOps, and returns condition Ready without a
// reason, as Fleet's controller writes it.
func (r *Reporter) Reconcile(ctx context.Context, cluster *fleet.Cluster) result.Result {
	if cluster.Spec.Quarantined { // a hub that made the BundleDeployments before may have given its agent this right
		if err := r.roles.AllowObjects(ctx, cluster, nil, nil); err != nil {
			return result.Retry(fleet.ReasonError, err)
		}
	}
	all, err := r.deploymentCache.List(registration.ClusterNamespace(cluster.Namespace, cluster.Name), labels.Everything())
	if err != nil {
		return result.Retry(fleet.ReasonError, err)
	}
	var made []*fleet.BundleDeployment
	for _, deployment := range all {
		if deployment.Labels[fleet.BundleNamespaceLabel] != "" {
			made = append(made, deployment)
		}
	}
	slices.SortFunc(made, func(a, b *fleet.BundleDeployment) int { return strings.Compare(a.Name, b.Name) })
	rollup.ReportDeployments(&cluster.Status, made)

	var summary fleet.BundleSummary
	for _, deployment := range made {
		state := fleetstatus.BundleState(deployment.Spec, deployment.Status)
		rollup.AddSummary(&summary, fleetSummary(deployment, state))
	}
	cluster.Status.Summary = summary
	if summary.Ready == summary.DesiredReady {
		return result.Done("", "")
	}
	return result.Stalled("", rollup.FleetMessage("Bundle", summary)).WithoutEvent()
}

// fleetSummary returns the summary of one BundleDeployment, as Fleet's controllers compute it.
func fleetSummary(deployment *fleet.BundleDeployment, state fleet.BundleState) (s fleet.BundleSummary) {
	rollup.Count(&s, state, 1)
	if state == fleet.Ready {
		return s
	}
	entry := rollup.NonReady(deployment.Name, deployment, state)
	entry.Message = ""
	conditions := fleetstatus.Shorten(deployment.Status).Conditions
	for _, conditionType := range []string{fleet.ConditionDeployed, fleet.ConditionInstalled, fleet.ConditionMonitored} {
		// Ignore the report of an agent about the objects of an earlier deployment.
		if conditionType != fleet.ConditionDeployed && deployment.Spec.DeploymentID != deployment.Status.AppliedDeploymentID {
			continue
		}
		if c := fleetstatus.Condition(conditions, conditionType); c.Status == corev1.ConditionFalse {
			entry.Message = c.Message
			break
		}
	}
	s.NonReadyResources = []fleet.NonReadyResource{entry}
	return s
}

// Forget implements cluster.SubReconciler; the Reporter keeps nothing in memory.
func (r *Reporter) Forget(string) {}
