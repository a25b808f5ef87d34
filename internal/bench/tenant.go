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
	tenantClusters = 50
	tenantGroups   = 100
	tenantBundles  = 10
	tenantTargets  = 1000 // of each Bundle, as many as the hub evaluates
)

// tenant measures a few imports alone, and then the same number while a tenant changes the labels of Clusters, the selectors of ClusterGroups
// and a Secret of another workspace, in which the search for dependents takes long. It sends only 30 changes per second, so that the API
// server stays fast.
func tenant(ctx context.Context, o Options) ([]figures.Figure, error) {
	i, err := newImporting(ctx, o)
	if err != nil {
		return nil, err
	}
	defer i.close()
	other := "tenant"
	if err := i.createTenant(ctx, other); err != nil {
		return nil, err
	}
	if _, err := i.awaitQuiet(ctx); err != nil { // until the hub has created the objects for the Clusters of the tenant
		return nil, err
	}
	few := min(20, o.Imports)
	const rounds = 3 // alternating, because the speed of a machine changes
	var alone, beside figures.Samples
	var grown int64
	for round := range rounds {
		took, err := i.importMember(ctx, fmt.Sprintf("alone-%d", round), few)
		if err != nil {
			return nil, err
		}
		alone = append(alone, took...)
		took, more, err := i.importBesideTenant(ctx, other, fmt.Sprintf("beside-%d", round), few)
		if err != nil {
			return nil, err
		}
		beside, grown = append(beside, took...), max(grown, more)
	}
	a, b := alone.Quantile(.5), beside.Quantile(.5)
	i.logf("%d imports: p50 %s alone, %s beside the changes of a tenant", few, a, b)
	return []figures.Figure{
		figures.Seconds("tenant/alone-p50", fmt.Sprintf("%d imports: p50", few), a),
		figures.Seconds("tenant/beside-p50", fmt.Sprintf("%d imports beside a tenant who changes labels, selectors and a Secret: p50", few), b),
		figures.Quotient("tenant/ratio", "the same, divided by that without the changes", b.Seconds(), a.Seconds()),
		figures.Bytes("tenant/memory", "largest growth of the memory of the hub while the tenant changes its objects", grown),
	}, nil
}

// importBesideTenant imports a member while the tenant changes its objects, and returns the largest growth of the memory of the hub.
func (i *importing) importBesideTenant(ctx context.Context, other, name string, count int) (took figures.Samples, grown int64, err error) {
	if _, err := i.awaitQuiet(ctx); err != nil {
		return nil, 0, err
	}
	before, err := residentMemory(i.hub.pid())
	if err != nil {
		return nil, 0, err
	}
	changing, stop := context.WithCancel(ctx)
	defer stop()
	var most int64
	group, _ := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		most, err = i.changeTenant(changing, other)
		return err
	})
	group.Go(func() (err error) {
		defer stop()
		if err := sim.Pause(ctx, i.Window); err != nil { // the tenant has changed its objects for a while
			return err
		}
		took, err = i.importMember(ctx, name, count)
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, 0, err
	}
	_, err = i.awaitQuiet(ctx)
	return took, max(0, most-before), err
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
