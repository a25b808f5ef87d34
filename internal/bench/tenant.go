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
// server stays fast. Then it measures the same while the tenant also has hostile members.
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
	plain, err := i.besideTenant(ctx, "beside", few, func(ctx context.Context, _ int) (end func(context.Context) error, err error) {
		return func(context.Context) error { return nil }, sim.Pause(ctx, i.Window) // the tenant changes its objects for a while
	})
	if err != nil {
		return nil, err
	}
	a, b := plain.alone.Quantile(.5), plain.beside.Quantile(.5)
	i.logf("%d imports: p50 %s alone, %s beside the changes of a tenant", few, a, b)
	rows := []figures.Figure{
		figures.Seconds("tenant/alone-p50", fmt.Sprintf("%d imports: p50", few), a),
		figures.Seconds("tenant/beside-p50", fmt.Sprintf("%d imports beside a tenant who changes labels, selectors and a Secret: p50", few), b),
		figures.Quotient("tenant/ratio", "the same, divided by that without the changes", b.Seconds(), a.Seconds()),
		figures.Bytes("tenant/memory", "largest growth of the memory of the hub while the tenant changes its objects", plain.grown),
	}

	api, err := sim.Connect(ctx, i.Config, systemNamespace, tenantWorkspace)
	if err != nil {
		return rows, err
	}
	members, err := sim.NewImports(ctx, api)
	if err != nil {
		return rows, err
	}
	hostile, err := i.besideTenant(ctx, "hostile", few, func(ctx context.Context, round int) (end func(context.Context) error, err error) {
		return i.provoke(ctx, api, members, fmt.Sprintf("hostile-%d", round))
	})
	if err != nil {
		return rows, err
	}
	a, b = hostile.alone.Quantile(.5), hostile.beside.Quantile(.5)
	i.logf("%d imports: p50 %s alone, %s beside the same tenant with %d hostile members", few, a, b, i.Hostile)
	return append(rows,
		figures.Seconds("tenant/hostile-p50", fmt.Sprintf("%d imports beside the same tenant, who also has %d hostile members: p50", few, i.Hostile), b),
		figures.Quotient("tenant/hostile-ratio", "the same, divided by that of imports alone between these rounds", b.Seconds(), a.Seconds()),
		// The hub has not yet returned to the system all memory that the rounds without hostile members took.
		figures.Bytes("tenant/hostile-memory", "growth of the memory of the hub meanwhile, since before all rounds", hostile.most-plain.least),
	), nil
}

// rounds are the results of imports alone and beside the tenant.
type rounds struct {
	alone, beside figures.Samples
	// least is the least memory of the quiet hub between the rounds, and most the largest while the tenant is active. grown is the largest growth in one
	// round.
	least, most, grown int64
}

// besideTenant imports a member alone, and then while the tenant is active, in alternating rounds, because the speed of a machine changes. In each round,
// begin starts what the tenant does beside its changes, and end ends it.
func (i *importing) besideTenant(
	ctx context.Context, name string, count int, begin func(ctx context.Context, round int) (end func(context.Context) error, err error),
) (all rounds, err error) {
	const alternations = 3
	all.least = math.MaxInt64
	for round := range alternations {
		if _, err := i.awaitQuiet(ctx); err != nil { // until the hub has created the objects for the Clusters of the tenant, or removed them
			return all, err
		}
		took, err := i.importMember(ctx, fmt.Sprintf("%s-alone-%d", name, round), count)
		if err != nil {
			return all, err
		}
		all.alone = append(all.alone, took...)
		if _, err := i.awaitQuiet(ctx); err != nil {
			return all, err
		}
		before, err := residentMemory(i.hub.pid())
		if err != nil {
			return all, err
		}
		took, most, err := i.importBesideTenant(ctx, fmt.Sprintf("%s-%d", name, round), count, func(ctx context.Context) (func(context.Context) error, error) {
			return begin(ctx, round)
		})
		if err != nil {
			return all, err
		}
		all.beside = append(all.beside, took...)
		all.least, all.most, all.grown = min(all.least, before), max(all.most, most), max(all.grown, most-before)
	}
	return all, nil
}

// importBesideTenant imports a member while the tenant changes its objects, and returns the largest memory of the hub.
func (i *importing) importBesideTenant(
	ctx context.Context, name string, count int, begin func(context.Context) (end func(context.Context) error, err error),
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
		end, err := begin(ctx)
		if err != nil {
			return err
		}
		took, err = i.importMember(ctx, name, count)
		return errors.Join(err, end(ctx))
	})
	return took, most, group.Wait()
}

// provoke imports the hostile members of the tenant, and deletes the Clusters of a quarter of them when their imports have begun. It returns when the
// hub has begun to remove them. Its result waits until the hub has done that, and deletes the others.
func (i *importing) provoke(ctx context.Context, api *sim.API, members *sim.Imports, prefix string) (end func(context.Context) error, err error) {
	name := func(n int) string { return fmt.Sprintf("%s-%d", prefix, n) }
	workspace, err := hostile.New(api.Workspace, name)
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
	kubeconfigs := make([][]byte, i.Hostile)
	for n := range kubeconfigs {
		if kubeconfigs[n], err = pki.Kubeconfig("hostile", fmt.Sprintf("%s/m%d", server.URL, n), ca, &clientcmdapi.AuthInfo{Token: "t"}); err != nil {
			return nil, err
		}
	}
	remove := func(ctx context.Context, first, count int) error {
		return sim.InParallel(count, i.InFlight, func(n int) error {
			return api.Fleet.Clusters(api.Workspace).Delete(ctx, name(first+n), metav1.DeleteOptions{})
		})
	}
	before, err := i.clusterCount(ctx, api.Workspace)
	if err != nil {
		return nil, err
	}
	if err := members.Create(ctx, prefix, i.Hostile, i.InFlight, func(n int) []byte { return kubeconfigs[n] }); err != nil {
		return nil, err
	}
	err = sim.Await(ctx, "the imports of the hostile members to begin", func(context.Context) (bool, error) { return workspace.Imports() == i.Hostile, nil })
	if err != nil {
		return nil, err
	}
	leaving := i.Hostile / 4
	if err := remove(ctx, 0, leaving); err != nil {
		return nil, err
	}
	err = sim.Await(ctx, "the removals of the hostile members to begin", func(context.Context) (bool, error) { return workspace.Removals() == leaving, nil })
	if err != nil {
		return nil, err
	}
	i.logf("%d requests to hostile members are open before the other imports", workspace.Open())
	return func(ctx context.Context) error {
		defer stop()
		i.logf("%d requests to hostile members are open after them", workspace.Open())
		if err := i.awaitClusters(ctx, api.Workspace, before+i.Hostile-leaving); err != nil {
			return err
		}
		workspace.End()
		if err := remove(ctx, leaving, i.Hostile-leaving); err != nil {
			return err
		}
		return i.awaitClusters(ctx, api.Workspace, before)
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
