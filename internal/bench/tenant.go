package bench

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http/httptest"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/bench/sim"
	"github.com/muster-fleet/muster/internal/pki"
	"github.com/muster-fleet/muster/internal/testenv/hostile"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

const (
	tenantWorkspace = "tenant"
	tenantClusters  = 50
	tenantGroups    = 100
	tenantBundles   = 10
	tenantTargets   = 1000 // of each Bundle, as many as the hub evaluates
)

// tenant measures a few imports alone, and then the same number while a tenant changes the labels of Clusters, the selectors of ClusterGroups
// and a Secret of another workspace, in which the search for dependents takes long. It sends only 30 changes per second, so that the API
// server stays fast. Then it measures the same while the tenant also has members that refuse connections, and hostile ones.
//
// To import many Clusters and to delete some costs the API server as much as it costs the hub, whatever the members answer: each import takes eleven
// writes. That is work which every tenant may cause, and which API Priority and Fairness and quotas limit. So tenant/hostile-ratio compares hostile
// members with as many that refuse connections, and shows what their answers cost. tenant/hostile-alone-ratio compares with imports alone, and shows both.
func tenant(ctx context.Context, o Options) ([]figures.Figure, error) {
	i, err := newImporting(ctx, o)
	if err != nil {
		return nil, err
	}
	defer i.close()
	if err := i.createTenant(ctx, tenantWorkspace); err != nil {
		return nil, err
	}
	few := min(20, o.Imports)
	plain, err := i.besideTenant(ctx, "changes", few, func(ctx context.Context, _ string) (end func(context.Context) error, err error) {
		return func(context.Context) error { return nil }, sim.Pause(ctx, i.Window) // the tenant changes its objects for a while
	})
	if err != nil {
		return nil, err
	}
	changes := plain.beside[0]
	a, b := plain.alone.Quantile(.5), changes.took.Quantile(.5)
	i.logf("%d imports: p50 %s alone, %s beside the changes of a tenant", few, a, b)
	rows := []figures.Figure{
		figures.Seconds("tenant/alone-p50", fmt.Sprintf("%d imports: p50", few), a),
		figures.Seconds("tenant/beside-p50", fmt.Sprintf("%d imports beside a tenant who changes labels, selectors and a Secret: p50", few), b),
		figures.Quotient("tenant/ratio", "the same, divided by that without the changes", b.Seconds(), a.Seconds()),
		figures.Bytes("tenant/memory", "largest growth of the memory of the hub while the tenant changes its objects", changes.grown),
	}

	api, err := sim.Connect(ctx, i.Config, systemNamespace, tenantWorkspace)
	if err != nil {
		return rows, err
	}
	members, err := sim.NewImports(ctx, api)
	if err != nil {
		return rows, err
	}
	t := &tenantMembers{importing: i, api: api, members: members}
	full, err := i.besideTenant(ctx, "members", few, t.unreachable, t.hostile)
	if err != nil {
		return rows, err
	}
	a, b = full.alone.Quantile(.5), full.beside[0].took.Quantile(.5)
	c := full.beside[1].took.Quantile(.5)
	i.logf("%d imports: p50 %s alone, %s beside the same tenant with %d members that refuse connections, %s with %d hostile members", few, a, b, i.Hostile, c, i.Hostile)
	return append(rows,
		figures.Seconds("tenant/unreachable-p50", fmt.Sprintf("%d imports beside the same tenant, who also has %d members that refuse connections: p50", few, i.Hostile), b),
		figures.Seconds("tenant/hostile-p50", fmt.Sprintf("%d imports beside the same tenant, who also has %d hostile members: p50", few, i.Hostile), c),
		figures.Quotient("tenant/hostile-ratio", "the same, divided by that beside members that refuse connections", c.Seconds(), b.Seconds()),
		figures.Quotient("tenant/hostile-alone-ratio", "the same, divided by that of imports alone between these rounds", c.Seconds(), a.Seconds()),
		// The hub has not yet returned to the system all memory that the rounds without hostile members took.
		figures.Bytes("tenant/hostile-memory", "growth of the memory of the hub meanwhile, since before all rounds", full.beside[1].most-plain.least),
	), nil
}

// An activity is what the tenant does beside its changes. It begins in each round, in which its Clusters have the prefix, and returns how it ends.
type activity func(ctx context.Context, prefix string) (end func(context.Context) error, err error)

// rounds are the results of imports alone and beside the tenant.
type rounds struct {
	alone figures.Samples
	least int64 // the least memory of the quiet hub between the rounds
	// beside are the results beside the activities of the tenant.
	beside []besides
}

// besides are the results of the rounds with one activity.
type besides struct {
	took figures.Samples
	// most is the largest memory of the hub meanwhile, and grown the largest growth in one round.
	most, grown int64
}

// besideTenant imports a member alone, and then while the tenant is active, once with each of the activities, in alternating rounds, because the speed of a
// machine changes.
func (i *importing) besideTenant(ctx context.Context, name string, count int, activities ...activity) (all rounds, err error) {
	all = rounds{least: math.MaxInt64, beside: make([]besides, len(activities))}
	for round := range i.Rounds {
		if _, err := i.awaitQuiet(ctx); err != nil { // until the hub has created the objects for the Clusters of the tenant, or removed them
			return all, err
		}
		took, err := i.importMember(ctx, fmt.Sprintf("%s-alone-%d", name, round), count)
		if err != nil {
			return all, err
		}
		all.alone = append(all.alone, took...)
		for n, begin := range activities {
			if _, err := i.awaitQuiet(ctx); err != nil {
				return all, err
			}
			before, err := residentMemory(i.hub.pid())
			if err != nil {
				return all, err
			}
			prefix := fmt.Sprintf("%s-%d-%d", name, n, round)
			took, most, err := i.importBesideTenant(ctx, prefix, count, begin)
			if err != nil {
				return all, err
			}
			beside := &all.beside[n]
			beside.took = append(beside.took, took...)
			beside.most, beside.grown = max(beside.most, most), max(beside.grown, most-before)
			all.least = min(all.least, before)
		}
	}
	return all, nil
}

// importBesideTenant imports a member while the tenant changes its objects, and returns the largest memory of the hub.
func (i *importing) importBesideTenant(
	ctx context.Context, name string, count int, begin activity,
) (took figures.Samples, most int64, err error) {
	changing, stop := context.WithCancel(ctx)
	defer stop()
	var group errgroup.Group
	group.Go(func() (err error) {
		most, err = i.changeTenant(changing, tenantWorkspace)
		return err
	})
	group.Go(func() error {
		defer stop()
		end, err := begin(ctx, name)
		if err != nil {
			return err
		}
		took, err = i.importMember(ctx, name, count)
		return errors.Join(err, end(ctx))
	})
	return took, most, group.Wait()
}

// tenantMembers are the members that the tenant imports in each round. They are activities of it.
type tenantMembers struct {
	*importing
	api     *sim.API // of the workspace of the tenant
	members *sim.Imports
}

// unreachable imports members that refuse connections.
func (t *tenantMembers) unreachable(ctx context.Context, prefix string) (end func(context.Context) error, err error) {
	const refused = "https://127.0.0.1:1" // no program listens at this port
	kubeconfig, err := pki.Kubeconfig("unreachable", refused, t.plane.CA(), &clientcmdapi.AuthInfo{Token: "t"})
	if err != nil {
		return nil, err
	}
	each := func(wait func(context.Context, string) error) func(context.Context, int) error {
		return func(ctx context.Context, count int) error {
			return sim.InParallel(count, count, func(n int) error { return wait(ctx, fmt.Sprintf("%s-%d", prefix, n)) })
		}
	}
	return t.comeAndGo(ctx, prefix, func(int) []byte { return kubeconfig }, each(t.members.AwaitFailure), each(t.members.AwaitRemoval), func() {})
}

// hostile imports hostile members. They answer as API servers when the removals that it waits for have ended.
func (t *tenantMembers) hostile(ctx context.Context, prefix string) (end func(context.Context) error, err error) {
	workspace, err := hostile.New(t.api.Workspace, func(n int) string { return fmt.Sprintf("%s-%d", prefix, n) })
	if err != nil {
		return nil, err
	}
	workspace.Stalls = true
	server := httptest.NewUnstartedServer(workspace)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo) // the hub closes connections
	server.StartTLS()
	stop := func() {
		workspace.End()
		server.Close()
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()

	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	kubeconfigs := make([][]byte, t.Hostile)
	for n := range kubeconfigs {
		if kubeconfigs[n], err = pki.Kubeconfig("hostile", fmt.Sprintf("%s/m%d", server.URL, n), ca, &clientcmdapi.AuthInfo{Token: "t"}); err != nil {
			return nil, err
		}
	}
	reach := func(what string, number func() int) func(context.Context, int) error {
		return func(ctx context.Context, count int) error {
			return sim.Await(ctx, what, func(context.Context) (bool, error) { return number() == count, nil })
		}
	}
	leave, err := t.comeAndGo(ctx, prefix, func(n int) []byte { return kubeconfigs[n] },
		reach("the imports of the hostile members to begin", workspace.Imports), reach("the removals of the hostile members to begin", workspace.Removals), workspace.End)
	if err != nil {
		return nil, err
	}
	t.logf("%d requests to hostile members are open before the other imports", workspace.Open())
	return func(ctx context.Context) error {
		defer stop()
		t.logf("%d requests to hostile members are open after them", workspace.Open())
		return leave(ctx)
	}, nil
}

// comeAndGo imports members of the tenant, and deletes the Clusters of a quarter of them when their imports have begun. It returns when the hub has begun
// to remove them. Its result waits until the hub has done that, calls quit, and deletes the others.
func (t *tenantMembers) comeAndGo(
	ctx context.Context, prefix string, kubeconfig func(n int) []byte, awaitImports, awaitRemovals func(ctx context.Context, count int) error, quit func(),
) (end func(context.Context) error, err error) {
	remove := func(ctx context.Context, first, count int) error {
		return sim.InParallel(count, t.InFlight, func(n int) error {
			return t.api.Fleet.Clusters(t.api.Workspace).Delete(ctx, fmt.Sprintf("%s-%d", prefix, first+n), metav1.DeleteOptions{})
		})
	}
	before, err := t.clusterCount(ctx, t.api.Workspace)
	if err != nil {
		return nil, err
	}
	if err := t.members.Create(ctx, prefix, t.Hostile, t.InFlight, kubeconfig); err != nil {
		return nil, err
	}
	if err := awaitImports(ctx, t.Hostile); err != nil {
		return nil, err
	}
	leaving := t.Hostile / 4
	if err := remove(ctx, 0, leaving); err != nil {
		return nil, err
	}
	if err := awaitRemovals(ctx, leaving); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		if err := t.awaitClusters(ctx, t.api.Workspace, before+t.Hostile-leaving); err != nil {
			return err
		}
		quit()
		if err := remove(ctx, leaving, t.Hostile-leaving); err != nil {
			return err
		}
		return t.awaitClusters(ctx, t.api.Workspace, before)
	}, nil
}

// createTenant creates a workspace in which each Bundle has the largest number of targets, none of which matches a Cluster, and each
// ClusterGroup selects all Clusters.
func (i *importing) createTenant(ctx context.Context, other string) error {
	meta := func(format string, n int) metav1.ObjectMeta { return metav1.ObjectMeta{Name: fmt.Sprintf(format, n)} }
	_, errNamespace := i.Core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other}}, metav1.CreateOptions{})
	_, errSecret := i.Core.CoreV1().Secrets(other).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "copied"}}, metav1.CreateOptions{})
	targets := make([]fleet.BundleTarget, tenantTargets)
	for n := range targets {
		targets[n].ClusterGroupSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"of": "none"}}
	}
	return errors.Join(errNamespace, errSecret, sim.InParallel(tenantGroups, i.InFlight, func(n int) error {
		_, err := i.Fleet.ClusterGroups(other).Create(ctx, &fleet.ClusterGroup{
			ObjectMeta: meta("group-%d", n), Spec: fleet.ClusterGroupSpec{Selector: &metav1.LabelSelector{}},
		}, metav1.CreateOptions{})
		return err
	}), sim.InParallel(tenantBundles, i.InFlight, func(n int) error {
		_, err := i.Fleet.Bundles(other).Create(ctx, &fleet.Bundle{ObjectMeta: meta("bundle-%d", n), Spec: fleet.BundleSpec{
			BundleDeploymentOptions: fleet.BundleDeploymentOptions{DownstreamResources: []fleet.DownstreamResource{{Kind: "Secret", Name: "copied"}}},
			Targets:                 targets,
		}}, metav1.CreateOptions{})
		return err
	}), sim.InParallel(tenantClusters, i.InFlight, func(n int) error {
		_, err := i.Fleet.Clusters(other).Create(ctx, &fleet.Cluster{ObjectMeta: meta("cluster-%d", n)}, metav1.CreateOptions{})
		return err
	}))
}

// changeTenant changes a Cluster, a ClusterGroup or the Secret every 33 milliseconds until ctx ends, and returns the largest memory of the hub
// meanwhile.
func (i *importing) changeTenant(ctx context.Context, other string) (most int64, err error) {
	send := context.WithoutCancel(ctx)
	for n := 0; sim.Pause(ctx, 33*time.Millisecond) == nil; n++ {
		label := fmt.Appendf(nil, `{"metadata":{"labels":{"change":"%d"}}}`, n)
		switch n % 3 {
		case 0:
			_, err = i.Fleet.Clusters(other).Patch(send, fmt.Sprintf("cluster-%d", n%tenantClusters), types.MergePatchType, label, metav1.PatchOptions{})
		case 1:
			selector := fmt.Appendf(nil, `{"spec":{"selector":{"matchExpressions":[{"key":"x","operator":"NotIn","values":["%d"]}]}}}`, n)
			_, err = i.Fleet.ClusterGroups(other).Patch(send, fmt.Sprintf("group-%d", n%tenantGroups), types.MergePatchType, selector, metav1.PatchOptions{})
		default:
			_, err = i.Core.CoreV1().Secrets(other).Patch(send, "copied", types.MergePatchType, label, metav1.PatchOptions{})
		}
		if err != nil {
			return most, err
		}
		now, err := residentMemory(i.hub.pid())
		if err != nil {
			return most, err
		}
		most = max(most, now)
	}
	return most, nil
}
