package bundle

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// everywhereOfSize returns a Bundle for all Clusters, with so many bytes in a field that each BundleDeployment has.
func everywhereOfSize(field string, size int) *fleet.Bundle {
	b, text := everywhere(), strings.Repeat("x", size)
	switch field {
	case "options":
		b.Spec.NamespaceAnnotations = map[string]string{"a": text}
	case "values":
		b.Spec.Helm = &fleet.HelmOptions{Values: &fleet.GenericMap{Data: map[string]any{"a": text}}}
	case "target":
		b.Spec.Targets[0].NamespaceAnnotations = map[string]string{"a": text}
	case "dependsOn":
		b.Spec.DependsOn = []fleet.BundleRef{{Name: text}, {Name: text}}
	}
	return b
}

// limited returns a stage with a limit of 1 MiB and the Clusters c-0, c-1 and so on.
func limited(t *testing.T, clusters int) *stage {
	s := newStage(t)
	s.Config = config.NewStore(config.Hub{Bundles: config.Bundles{WorkspaceLimitMiB: 1}})
	for i := range clusters {
		s.has(t, clusterNamed(fmt.Sprint("c-", i)))
	}
	return s
}

// deploysTo reconciles the Clusters, one after the other, and returns how many of them got a BundleDeployment of a Bundle. The cache
// receives what the hub writes.
func (s *stage) deploysTo(t *testing.T, b *fleet.Bundle, clusters int) (made int) {
	t.Helper()
	s.has(t, b)
	for i := range clusters {
		cluster := clusterNamed(fmt.Sprint("c-", i))
		s.reconcile(t, cluster)
		if !slices.ContainsFunc(s.taken(), func(line string) bool {
			return strings.HasPrefix(line, "create cluster-") || strings.HasPrefix(line, "patch cluster-")
		}) {
			continue
		}
		made++
		p := s.plans.of(b)
		v, err := p.variant([]int{0}, cluster)
		require.NoError(t, err)
		s.has(t, withSize(deployed(t, b, cluster), p.wantedSize(v, false, nil)))
		s.reconcile(t, cluster)
		assert.Empty(t, slices.DeleteFunc(s.taken(), func(line string) bool { return !strings.Contains(line, " cluster-") }), "nothing is written again")
	}
	return made
}

// A user writes a Bundle once, and the hub stores it for each Cluster.
func TestWorkspaceLimit(t *testing.T) {
	for _, field := range []string{"options", "values", "target", "dependsOn"} {
		t.Run(field, func(t *testing.T) {
			s := limited(t, 10)
			b := everywhereOfSize(field, 100<<10) // 200 kB as it is stored
			assert.Equal(t, 5, s.deploysTo(t, b, 10))

			_, out := s.reconcile(t, clusterNamed("c-9"))
			assert.Equal(t, fleet.ReasonWorkspaceLimitReached, out.Reason)
			assert.Contains(t, out.Message, "what Bundle ws/app has in options and Helm values takes 201 kB for each Cluster")
			assert.Contains(t, out.Message, "more than 1 MiB; make it smaller, select fewer Clusters, or raise bundles.workspaceLimitMiB of the hub")
			assert.Contains(t, s.shown(b), "Cluster ws/c-9: what Bundle ws/app has in options")
			assert.Equal(t, fleet.ReasonWorkspaceLimitReached, limitProblem(s.limitedClusters(appKey), s.matching(b)).reason)
			assert.Nil(t, limitProblem(s.limitedClusters(appKey), nil), "of Clusters that it no longer targets")

			t.Run("after a restart", func(t *testing.T) {
				s.sizes = storedBytes{}
				assert.Equal(t, 0, s.deploysTo(t, b, 10))
			})
			t.Run("what is deployed may shrink", func(t *testing.T) {
				smaller := everywhereOfSize(field, 50<<10)
				smaller.Generation = 2
				assert.Equal(t, 10, s.deploysTo(t, smaller, 10))
				assert.Nil(t, limitProblem(s.limitedClusters(appKey), s.matching(b)))
			})
			t.Run("and not grow", func(t *testing.T) {
				larger := everywhereOfSize(field, 400<<10)
				larger.Generation = 3
				s.reconcile(t, clusterNamed("c-0"))
				assert.Equal(t, 0, s.deploysTo(t, larger, 10))
			})
		})
	}
}

func TestWorkspaceLimitDoesNotCount(t *testing.T) {
	t.Run("small BundleDeployments", func(t *testing.T) {
		s := limited(t, 100)
		assert.Equal(t, 100, s.deploysTo(t, everywhereOfSize("options", 7<<10), 100))
	})
	t.Run("those of an earlier version that stay", func(t *testing.T) {
		s, b := limited(t, 10), everywhereOfSize("values", 200<<10)
		for i := range 10 {
			s.has(t, deployed(t, b, clusterNamed(fmt.Sprint("c-", i))))
		}
		s.deploysTo(t, b, 10)
		assert.Nil(t, limitProblem(s.limitedClusters(appKey), s.matching(b)))
	})
}

// Each BundleDeployment in the caches of the hub has the labels of its Bundle.
func TestTooManyLabels(t *testing.T) {
	s, b := newStage(t), toAlice()
	require.Nil(t, s.plans.of(b).problem)
	b = b.DeepCopy() // of the same generation
	b.Labels = map[string]string{}
	for i := range 300 {
		b.Labels[fmt.Sprint("label-", i)] = strings.Repeat("x", 60)
	}
	require.NotNil(t, s.plans.of(b).problem)
	assert.Equal(t, fleet.ReasonBundleInvalid, s.plans.of(b).problem.reason)
	assert.Contains(t, s.plans.of(b).problem.message, "metadata.labels has 20590 bytes; each BundleDeployment has the labels of its Bundle, and they may have 16384")
}

// The hub copies a Secret that a user writes once to each Cluster.
func TestWorkspaceLimitOfCopies(t *testing.T) {
	s := limited(t, 10)
	source := credential("ws", "5", strings.Repeat("x", 300<<10))
	s.hasSecret(t, source)
	b := copying("Secret", "cred")
	b.Spec.Targets = []fleet.BundleTarget{{ClusterSelector: &metav1.LabelSelector{}}}
	s.has(t, b)
	copied := 0
	for i := range 10 {
		cluster := clusterNamed(fmt.Sprint("c-", i))
		_, out := s.reconcile(t, cluster)
		s.has(t, deployed(t, b, cluster))
		namespace := registration.ClusterNamespace("ws", cluster.Name)
		object, err := s.kubernetes.Tracker().Get(corev1.SchemeGroupVersion.WithResource("secrets"), namespace, "cred")
		if err != nil {
			assert.Equal(t, fleet.ReasonWorkspaceLimitReached, out.Reason)
			assert.Contains(t, out.Message, "Secret cred, which Bundle ws/app names in downstreamResources, takes 301 kB for each Cluster")
			continue
		}
		s.showSecret(t, object.(*corev1.Secret))
		copied++
	}
	assert.Equal(t, 3, copied)
	s.sizes = storedBytes{}
	s.taken()
	s.reconcile(t, clusterNamed("c-9"))
	assert.NotContains(t, s.requests(), "create Secret", "after a restart")
}

// What a pass has counted and not written does not count for ever.
func TestWorkspaceLimitAfterFailures(t *testing.T) {
	s := limited(t, 2)
	s.errors = map[string]error{"create cluster-": errInternal}
	b := everywhereOfSize("values", 200<<10)
	s.has(t, b)
	for range 10 {
		s.reconcile(t, clusterNamed("c-0"))
	}
	s.errors = nil
	assert.Equal(t, 2, s.deploysTo(t, b, 2))
	s.Forget("ws/c-0")
	s.Forget("ws/c-1")
	assert.Empty(t, s.sizes.workspaces)
}
