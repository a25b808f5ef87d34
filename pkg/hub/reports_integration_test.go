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

	"github.com/muster-fleet/muster/internal/testenv/withkinds"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
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

// Without the admission policies, agents write as much as the API server permits. The caches keep a small part, of the first list and
// of each event.
func TestCachesOfLargeReports(t *testing.T) {
	const reports, limit = 24, 8 << 20 // a third of the reports, with the clients and connections
	plane := withkinds.Shared(t)
	clients, err := versioned.NewForConfig(plane.RESTConfig())
	require.NoError(t, err)
	core := clients.FleetV1alpha1()
	write := func(ctx context.Context, n int) {
		name := fmt.Sprint("bd-", n)
		_, err := core.BundleDeployments(metav1.NamespaceDefault).Create(ctx, &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		require.NoError(t, err)
		patch, err := json.Marshal(map[string]any{"status": report(n)})
		require.NoError(t, err)
		_, err = core.BundleDeployments(metav1.NamespaceDefault).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		require.NoError(t, err)
	}
	for n := range reports {
		write(t.Context(), n)
	}
	heap := func() int {
		runtime.GC()
		runtime.GC() // the first one only empties pools and queues finalizers
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return int(stats.HeapAlloc)
	}

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	c, err := newCaches(ctx, hubConfig(plane.RESTConfig()), Options{SystemNamespace: "system", Clock: clocktesting.NewFakeClock(time.Now())})
	require.NoError(t, err)
	before := heap()
	require.NoError(t, c.fill(ctx))
	informer, err := c.own.SharedCacheFactory().ForKind(fleet.SchemeGroupVersion.WithKind(bundleDeploymentKind))
	require.NoError(t, err)
	assert.Len(t, informer.GetStore().List(), reports)
	assert.Less(t, heap()-before, limit, "of the list")

	for n := range reports {
		write(t.Context(), reports+n)
	}
	require.Eventually(t, func() bool {
		item, exists, _ := informer.GetStore().GetByKey(fmt.Sprint(metav1.NamespaceDefault, "/bd-", 2*reports-1))
		return exists && item.(*fleet.BundleDeployment).Status.Release != ""
	}, time.Minute, 20*time.Millisecond)
	assert.Less(t, heap()-before, limit, "of the events")
	runtime.KeepAlive(c)
}
