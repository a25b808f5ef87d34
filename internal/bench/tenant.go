package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/bench/sim"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

const (
	tenantWorkspace = "bench-tenant"
	tenantClusters  = 50
	tenantGroups    = 100
	tenantBundles   = 10
	tenantTargets   = 1000 // of each Bundle, as many as the hub evaluates
)

// tenant measures a few imports alone, and then the same number while a tenant changes the labels of Clusters, the selectors of ClusterGroups
// and a Secret of another workspace, in which it takes long to find what depends on them. It sends 30 changes in a second, so that the API
// server is not what it slows down.
func tenant(ctx context.Context, o Options) ([]figures.Figure, error) {
	i, err := newImporting(ctx, o)
	if err != nil {
		return nil, err
	}
	defer i.close()
	if err := i.createTenant(ctx); err != nil {
		return nil, err
	}
	if _, err := i.quiet(ctx); err != nil {
		return nil, err
	}
	few := min(20, o.Imports)
	alone, err := i.importMember(ctx, "alone", few)
	if err != nil {
		return nil, err
	}
	if _, err := i.quiet(ctx); err != nil {
		return nil, err
	}
	before, err := i.resident()
	if err != nil {
		return nil, err
	}

	var beside figures.Samples
	sent, most := 0, before
	changing, stop := context.WithCancel(ctx)
	defer stop()
	group, _ := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		sent, most, err = i.changeTenant(changing)
		return err
	})
	group.Go(func() (err error) {
		defer stop()
		if err := sim.Pause(ctx, o.Window); err != nil { // the tenant changes its objects for a while before
			return err
		}
		beside, err = i.importMember(ctx, "beside", few)
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	a, b := alone.Quantile(.5), beside.Quantile(.5)
	i.logf("%d imports: p50 %s alone, %s beside %d changes of a tenant", few, a, b, sent)
	return []figures.Figure{
		figures.Seconds("tenant/alone-p50", fmt.Sprintf("%d imports: p50", few), a),
		figures.Seconds("tenant/beside-p50", fmt.Sprintf("%d imports beside a tenant who changes labels, selectors and a Secret: p50", few), b),
		figures.Quotient("tenant/ratio", "the same, divided by that without the changes", b.Seconds(), a.Seconds()),
		figures.Bytes("tenant/memory", "memory that the hub takes more, at most, while the tenant changes its objects", max(0, most-before)),
	}, nil
}

// createTenant creates a workspace in which each Bundle has as many targets as may be, none of which matches a Cluster, and each ClusterGroup
// selects all Clusters.
func (i *importing) createTenant(ctx context.Context) error {
	meta := func(format string, n int) metav1.ObjectMeta { return metav1.ObjectMeta{Name: fmt.Sprintf(format, n)} }
	_, errNamespace := i.Core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tenantWorkspace}}, metav1.CreateOptions{})
	_, errSecret := i.Core.CoreV1().Secrets(tenantWorkspace).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "copied"}}, metav1.CreateOptions{})
	targets := make([]fleet.BundleTarget, tenantTargets)
	for n := range targets {
		targets[n].ClusterGroupSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"of": "none"}}
	}
	return errors.Join(errNamespace, errSecret, sim.InParallel(tenantGroups, i.InFlight, func(n int) error {
		_, err := i.Fleet.ClusterGroups(tenantWorkspace).Create(ctx, &fleet.ClusterGroup{
			ObjectMeta: meta("group-%d", n), Spec: fleet.ClusterGroupSpec{Selector: &metav1.LabelSelector{}},
		}, metav1.CreateOptions{})
		return err
	}), sim.InParallel(tenantBundles, i.InFlight, func(n int) error {
		_, err := i.Fleet.Bundles(tenantWorkspace).Create(ctx, &fleet.Bundle{ObjectMeta: meta("bundle-%d", n), Spec: fleet.BundleSpec{
			BundleDeploymentOptions: fleet.BundleDeploymentOptions{DownstreamResources: []fleet.DownstreamResource{{Kind: "Secret", Name: "copied"}}},
			Targets:                 targets,
		}}, metav1.CreateOptions{})
		return err
	}), sim.InParallel(tenantClusters, i.InFlight, func(n int) error {
		_, err := i.Fleet.Clusters(tenantWorkspace).Create(ctx, &fleet.Cluster{ObjectMeta: meta("cluster-%d", n)}, metav1.CreateOptions{})
		return err
	}))
}

// changeTenant changes a Cluster, a ClusterGroup or the Secret every 33 milliseconds until ctx ends. It returns the number of changes, and the
// largest memory of the hub meanwhile.
func (i *importing) changeTenant(ctx context.Context) (sent int, most int64, err error) {
	for ; sim.Pause(ctx, 33*time.Millisecond) == nil; sent++ {
		send := context.WithoutCancel(ctx)
		switch labels := fmt.Sprintf(`{"change":"%d"}`, sent); sent % 3 {
		case 0:
			patch := []byte(`{"metadata":{"labels":` + labels + `}}`)
			_, err = i.Fleet.Clusters(tenantWorkspace).Patch(send, fmt.Sprintf("cluster-%d", sent%tenantClusters), types.MergePatchType, patch, metav1.PatchOptions{})
		case 1:
			patch := []byte(`{"spec":{"selector":{"matchExpressions":[{"key":"x","operator":"NotIn","values":["` + fmt.Sprint(sent) + `"]}]}}}`)
			_, err = i.Fleet.ClusterGroups(tenantWorkspace).Patch(send, fmt.Sprintf("group-%d", sent%tenantGroups), types.MergePatchType, patch, metav1.PatchOptions{})
		default:
			patch := []byte(`{"metadata":{"labels":` + labels + `}}`)
			_, err = i.Core.CoreV1().Secrets(tenantWorkspace).Patch(send, "copied", types.MergePatchType, patch, metav1.PatchOptions{})
		}
		if err != nil {
			return sent, most, err
		}
		now, err := i.resident()
		if err != nil {
			return sent, most, err
		}
		most = max(most, now)
	}
	return sent, most, nil
}

// resident returns the current resident memory of the hub.
func (i *importing) resident() (sum int64, err error) {
	for _, pid := range i.hub.pids() {
		memory, err := residentMemory(pid)
		if err != nil {
			return 0, err
		}
		sum += memory
	}
	return sum, nil
}
