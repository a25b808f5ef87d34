package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/muster-fleet/muster/internal/testenv/heap"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/internal/testenv/withkinds"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/content"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
)

// report is a status of a megabyte, whose texts differ from those of other reports.
func report(n int) fleet.BundleDeploymentStatus {
	text := fmt.Sprint(n) + strings.Repeat("0123456789abcdef", 200<<10/16)
	return fleet.BundleDeploymentStatus{
		Release:        text,
		Display:        fleet.BundleDeploymentDisplay{Deployed: "d" + text},
		ModifiedStatus: []fleet.ModifiedStatus{{Name: "n" + text, Patch: "p" + text}},
		NonReadyStatus: []fleet.NonReadyStatus{{Name: "n" + text, Summary: fleet.ResourceSummary{Message: []string{"m" + text}}}},
	}
}

// largeSpec has options of 1.2 megabytes, in which the texts differ from those of other specs.
func largeSpec(n int) fleet.BundleDeploymentSpec {
	text := fmt.Sprint(n) + strings.Repeat("0123456789abcdef", 300<<10/16)
	options := fleet.BundleDeploymentOptions{
		NamespaceAnnotations: map[string]string{"large": text}, Diff: &fleet.DiffOptions{ComparePatches: []fleet.ComparePatch{{Name: "n" + text}}},
	}
	return fleet.BundleDeploymentSpec{Options: options, StagedOptions: options}
}

// largeBundle has resources of a megabyte.
func largeBundle(n int) *fleet.Bundle {
	return &fleet.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("large-", n)},
		Spec:       fleet.BundleSpec{Resources: []fleet.BundleResource{{Name: "a.yaml", Content: fmt.Sprint(n) + strings.Repeat("0123456789abcdef", 1<<20/16)}}},
	}
}

// Tenants and, without the admission policies, agents write as much as the API server permits. The caches keep a small part, of the first
// list and of each event.
func TestCachesOfLargeReports(t *testing.T) {
	sample.Long(t)
	const reports, limit = 8, 14 << 20 // of 21 MiB; the clients, connections and their buffers take 10 MiB
	plane := withkinds.Shared(t)
	clients, err := versioned.NewForConfig(plane.RESTConfig())
	require.NoError(t, err)
	core := clients.FleetV1alpha1()
	write := func(ctx context.Context, n int) {
		_, err := core.Bundles(metav1.NamespaceDefault).Create(ctx, largeBundle(n), metav1.CreateOptions{})
		require.NoError(t, err)
		name := fmt.Sprint("bd-", n)
		_, err = core.BundleDeployments(metav1.NamespaceDefault).Create(ctx, &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: largeSpec(n)}, metav1.CreateOptions{})
		require.NoError(t, err)
		// An object has both only without the other: the API server stores 1.5 MiB.
		patch, err := json.Marshal(map[string]any{"status": report(n)})
		require.NoError(t, err)
		reported := fmt.Sprint("reported-", n)
		_, err = core.BundleDeployments(metav1.NamespaceDefault).Create(ctx, &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Name: reported}}, metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = core.BundleDeployments(metav1.NamespaceDefault).Patch(ctx, reported, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		require.NoError(t, err)
	}
	for n := range reports {
		write(t.Context(), n)
	}

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	c, err := newCaches(ctx, hubConfig(plane.RESTConfig()), Options{SystemNamespace: "system", Clock: clocktesting.NewFakeClock(time.Now())})
	require.NoError(t, err)
	before := heap.InUse()
	require.NoError(t, c.fill(ctx))
	informer, err := c.own.SharedCacheFactory().ForKind(fleet.SchemeGroupVersion.WithKind(bundleDeploymentKind))
	require.NoError(t, err)
	assert.Len(t, informer.GetStore().List(), 2*reports)
	bundles, err := c.own.SharedCacheFactory().ForKind(fleet.SchemeGroupVersion.WithKind(bundleKind))
	require.NoError(t, err)
	assert.Len(t, bundles.GetStore().List(), reports)
	assert.Less(t, heap.InUse()-before, limit, "of the list")

	for n := range reports {
		write(t.Context(), reports+n)
	}
	require.Eventually(t, func() bool {
		item, exists, _ := informer.GetStore().GetByKey(fmt.Sprint(metav1.NamespaceDefault, "/reported-", 2*reports-1))
		return exists && item.(*fleet.BundleDeployment).Status.Release != ""
	}, time.Minute, 20*time.Millisecond)
	assert.Len(t, bundles.GetStore().List(), 2*reports)
	assert.Less(t, heap.InUse()-before, limit, "of the events")
	for _, cached := range bundles.GetStore().List() {
		b := cached.(*fleet.Bundle)
		live, err := core.Bundles(b.Namespace).Get(t.Context(), b.Name, metav1.GetOptions{})
		require.NoError(t, err)
		name, sum, err := content.Digest(live.Spec.Resources)
		require.NoError(t, err)
		cachedName, cachedSum, err := content.DigestOf(b.Spec)
		require.NoError(t, err)
		assert.Equal(t, name+sum, cachedName+cachedSum)
	}
	runtime.KeepAlive(c)
}
