//go:build !race

// The race detector needs memory of its own for each object, so its build measures something else.

package bundle

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv/heap"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// A tenant may make the hub write a megabyte of different values for each Cluster.
func TestMemoryOfHelmValues(t *testing.T) {
	const secrets, size, limit = 64, 1 << 20, 1024
	s := newStage(t)
	before := heap.InUse()
	for i := range secrets {
		values := bytes.Repeat([]byte{byte(i)}, size)
		s.values.remember(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i), ResourceVersion: "1"}}, helmValues{current: values, staged: values})
	}
	each := (heap.InUse() - before) / secrets
	t.Logf("%d bytes", each)
	assert.Less(t, each, limit, "bytes for the values of each BundleDeployment")
	runtime.KeepAlive(s)
}

// A tenant writes Bundles whose options are large and differ for each set of targets that a Cluster matches. The memory of the plans of one
// workspace is bounded, and the caches for another workspace stay.
func TestMemoryOfAWorkspace(t *testing.T) {
	sample.Long(t)
	const bundles, targets, size, limit = 6, 6, 128 << 10, 24 << 20
	s := newStage(t)
	other := targetingAlice()
	other.Namespace, other.Spec.DownstreamResources = "other", []fleet.DownstreamResource{{Kind: "Secret", Name: "s"}}
	first, err := s.plans.of(t.Context(), other).variant(t.Context(), []int{0}, clusterNamed("alice"))
	require.NoError(t, err)

	before := heap.InUse()
	for i := range bundles {
		b := bundleWith(func(spec *fleet.BundleSpec) {
			spec.TargetCustomizationMode = allMatches
			spec.NamespaceAnnotations = map[string]string{"large": strings.Repeat("x", size)}
			spec.Targets = make([]fleet.BundleTarget, targets)
		})
		b.Name = fmt.Sprint("large-", i)
		for combination := range 1 << targets {
			var chosen []int
			for target := range targets {
				if combination&(1<<target) != 0 {
					chosen = append(chosen, target)
				}
			}
			_, err := s.plans.of(t.Context(), b).variant(t.Context(), chosen, clusterNamed("alice"))
			require.NoError(t, err)
		}
	}
	kept := heap.InUse() - before
	t.Logf("%d bytes", kept)
	assert.Less(t, kept, limit, "bytes for the Bundles of one workspace")

	again, err := s.plans.of(t.Context(), other).variant(t.Context(), []int{0}, clusterNamed("alice"))
	require.NoError(t, err)
	assert.Same(t, &first.options.DownstreamResources[0], &again.options.DownstreamResources[0], "what is kept for another workspace")
	runtime.KeepAlive(s)
}

// Each Cluster has a Bundle of its own for its agent, so the state of the Deployer for a Bundle is in memory ten thousand times.
func TestMemoryOfABundle(t *testing.T) {
	const bundles = 2000
	for name, test := range map[string]struct {
		annotations map[string]string
		limit       int
	}{
		"of a user":   {limit: 2600},
		"of an agent": {annotations: map[string]string{apply.LabelID: registration.SetIDManageAgent}, limit: 400},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			cached := make([]*fleet.Bundle, bundles) // the plans share their specs
			for i := range cached {
				b, cluster := targetingAlice(), fmt.Sprint("cluster-", i)
				b.Name, b.Annotations, b.Spec.Targets[0].ClusterName = registration.AgentBundleName(cluster), test.annotations, cluster
				cached[i] = b
			}
			before := heap.InUse()
			for _, b := range cached {
				cluster := b.Spec.Targets[0].ClusterName
				p := s.plans.of(t.Context(), b)
				_, err := p.variant(t.Context(), []int{0}, clusterNamed(cluster))
				require.NoError(t, err)
				s.enqueueAffected(b, p, s.matching(b))
				delete(s.changedAt, keyOf(b)) // as updateStatus does
			}
			each := (heap.InUse() - before) / bundles
			t.Logf("%d bytes", each)
			assert.Less(t, each, test.limit, "bytes for each Bundle")
			runtime.KeepAlive(s)
			runtime.KeepAlive(cached)
		})
	}
}
