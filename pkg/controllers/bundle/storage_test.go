package bundle

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
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

func (s *stage) storageProblem(b *fleet.Bundle) *problem {
	return storageProblem(s.storageLimits(keyOf(b), s.matching(b)))
}

// withOneAgentBundle returns the names of two Clusters whose agents' Bundles would have the same name: it is shortened, with a hash of 20 bits.
func withOneAgentBundle() (one, other string) {
	seen := map[string]string{}
	for n := 0; ; n++ {
		other = fmt.Sprintf("%s-%d", strings.Repeat("c", 60), n)
		name := registration.AgentBundleName(other)
		if one, found := seen[name]; found {
			return one, other
		}
		seen[name] = other
	}
}

// hasStored fills the workspace up to its limit.
func (s *stage) hasStored() {
	sizes := s.sizes.of("ws")
	sizes.counted.Do(func() {})
	sizes.set("cluster-of-another", map[string]int64{"all": 1 << 20}, time.Time{})
}

// hasOfFleet puts a BundleDeployment of Fleet's hub, which has no size, into the cache and on the API server.
func (s *stage) hasOfFleet(t *testing.T, b *fleet.Bundle, cluster *fleet.Cluster) {
	t.Helper()
	d := deployed(t, b, cluster)
	s.live[keyOf(d).String()] = d.DeepCopy()
	s.has(t, d)
	values, err := planOf(b).variant(t.Context(), []int{0}, cluster)
	require.NoError(t, err)
	if len(values.values) > 0 {
		secret := valuesSecret(string(values.values), string(values.values))
		secret.Namespace = d.Namespace
		s.hasSecret(t, secret)
	}
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
		p := s.plans.of(t.Context(), b)
		v, err := p.variant(t.Context(), []int{0}, cluster)
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
			assert.Equal(t, fleet.ReasonWorkspaceLimitReached, s.storageProblem(b).reason)
			assert.Nil(t, storageProblem(s.storageLimits(appKey, nil)), "of Clusters that it no longer targets")

			t.Run("after a restart", func(t *testing.T) {
				s.sizes = storedBytes{}
				assert.Equal(t, 0, s.deploysTo(t, b, 10))
			})
			t.Run("what is deployed may shrink", func(t *testing.T) {
				smaller := everywhereOfSize(field, 50<<10)
				smaller.Generation = 2
				assert.Equal(t, 10, s.deploysTo(t, smaller, 10))
				assert.Nil(t, s.storageProblem(b))
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
	t.Run("those of an agent, of which there is one for each Cluster", func(t *testing.T) {
		s := limited(t, 10)
		for i := range 10 {
			cluster := clusterNamed(fmt.Sprint("c-", i))
			b := everywhereOfSize("options", 7<<10)
			b.Name, b.Annotations = registration.AgentBundleName(cluster.Name), manageAgent
			b.Spec.Targets = []fleet.BundleTarget{{ClusterName: cluster.Name}}
			s.has(t, b)
			_, out := s.reconcile(t, cluster)
			require.NoError(t, out.Err)
			assert.Contains(t, strings.Join(s.taken(), "\n"), "create cluster-ws-"+cluster.Name)
		}
	})
	t.Run("a BundleDeployment that does not exist, because the Bundle is that of the agent of another Cluster with a long name", func(t *testing.T) {
		s := limited(t, 0)
		one, other := withOneAgentBundle()
		s.has(t, clusterNamed(one), clusterNamed(other))
		b := everywhereOfSize("values", 200<<10)
		b.Name, b.Annotations = registration.AgentBundleName(one), manageAgent
		b.Spec.Targets = []fleet.BundleTarget{{ClusterName: one}, {ClusterSelector: &metav1.LabelSelector{}}}
		s.has(t, b)
		s.reconcile(t, clusterNamed(other))
		assert.NotContains(t, strings.Join(s.taken(), "\n"), "create cluster-ws-")
		s.reconcile(t, clusterNamed(one))
		assert.Contains(t, strings.Join(s.taken(), "\n"), "create cluster-ws-")
		assert.Positive(t, s.sizes.of("ws").sum(), "it counts, because it is large")
	})
	t.Run("a name that another owner has", func(t *testing.T) {
		s, b := limited(t, 10), everywhereOfSize("values", 200<<10)
		for i := range 8 {
			foreign := deployed(t, b, clusterNamed(fmt.Sprint("c-", i)))
			foreign.Labels = nil
			s.has(t, foreign)
			_, out := s.reconcile(t, clusterNamed(fmt.Sprint("c-", i)))
			assert.NotEqual(t, fleet.ReasonWorkspaceLimitReached, out.Reason)
		}
		s.has(t, b)
		for i := range 8 {
			_, out := s.reconcile(t, clusterNamed(fmt.Sprint("c-", i)))
			assert.Equal(t, fleet.ReasonNameConflict, out.Reason)
		}
		s.taken()
		s.reconcile(t, clusterNamed("c-8"))
		assert.Contains(t, strings.Join(s.taken(), "\n"), "create cluster-ws-c-8")
	})
}

// Each BundleDeployment in the caches of the hub has the labels of its Bundle.
func TestTooManyLabels(t *testing.T) {
	s, b := newStage(t), targetingAlice()
	require.Nil(t, s.plans.of(t.Context(), b).problem)
	b = b.DeepCopy() // of the same generation
	b.Labels = map[string]string{}
	for i := range 300 {
		b.Labels[fmt.Sprint("label-", i)] = strings.Repeat("x", 60)
	}
	require.NotNil(t, s.plans.of(t.Context(), b).problem)
	assert.Equal(t, fleet.ReasonBundleInvalid, s.plans.of(t.Context(), b).problem.reason)
	assert.Contains(t, s.plans.of(t.Context(), b).problem.message, "metadata.labels has 20590 bytes; each BundleDeployment has the labels of its Bundle, and they may have 16384")
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
			assert.Contains(t, out.Message, "Secret cred, which Bundle ws/app names in downstreamResources, takes 303 kB for each Cluster")
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
	assert.NotEmpty(t, s.sizes.counts, "the Clusters still exist")
	s.lost(t, clusterNamed("c-0"))
	s.lost(t, clusterNamed("c-1"))
	s.Forget("ws/c-0")
	s.Forget("ws/c-1")
	assert.Empty(t, s.sizes.counts)
}

// At the limit, what is stored already may change.
func TestWorkspaceLimitAllowsSmallChanges(t *testing.T) {
	for name, change := range map[string]func(*fleet.Bundle, *fleet.Cluster){
		"the removal of the Cluster": func(_ *fleet.Bundle, c *fleet.Cluster) {
			c.Annotations = map[string]string{fleet.KeepWorkloadsAnnotation: fleet.KeepWorkloadsValue}
		},
		"a pause":      func(b *fleet.Bundle, _ *fleet.Cluster) { b.Spec.Paused = true },
		"another text": func(b *fleet.Bundle, _ *fleet.Cluster) { b.Spec.TargetNamespace = "another" },
	} {
		for _, field := range []string{"options", "values", "target"} {
			for _, ofFleet := range []bool{false, true} {
				t.Run(fmt.Sprint(name, ", ", field, ", of Fleet: ", ofFleet), func(t *testing.T) {
					s, b, cluster := limited(t, 1), everywhereOfSize(field, 100<<10), clusterNamed("c-0")
					if ofFleet {
						s.hasOfFleet(t, b, cluster)
					} else {
						assert.Equal(t, 1, s.deploysTo(t, b, 1))
					}
					s.hasStored()
					b = b.DeepCopy()
					b.Generation = 2
					change(b, cluster)
					s.has(t, b)
					s.taken()
					_, out := s.reconcile(t, cluster)
					require.NoError(t, out.Err)
					assert.NotEqual(t, fleet.ReasonWorkspaceLimitReached, out.Reason, out.Message)
					assert.Contains(t, strings.Join(s.taken(), "\n"), "patch cluster-ws-c-0")
				})
			}
		}
	}
	t.Run("many of them are not allowed", func(t *testing.T) {
		s, b := limited(t, 1), everywhereOfSize("options", 100<<10)
		s.deploysTo(t, b, 1)
		s.hasStored()
		refused := 0
		for n := range 5 {
			b = everywhereOfSize("options", 100<<10+(n+1)*6<<10)
			b.Generation = int64(n + 2)
			old, err := s.deploymentCache.Get(registration.ClusterNamespace("ws", "c-0"), "app")
			require.NoError(t, err)
			s.has(t, b)
			if _, out := s.reconcile(t, clusterNamed("c-0")); out.Reason == fleet.ReasonWorkspaceLimitReached {
				refused++
				continue
			}
			v, err := s.plans.of(t.Context(), b).variant(t.Context(), []int{0}, clusterNamed("c-0"))
			require.NoError(t, err)
			s.has(t, withSize(deployed(t, b, clusterNamed("c-0")), s.plans.of(t.Context(), b).wantedSize(v, false, old)))
		}
		assert.Equal(t, 4, refused)
	})
	t.Run("what of Fleet's hub grows much is refused", func(t *testing.T) {
		s, b, cluster := limited(t, 1), everywhereOfSize("values", 100<<10), clusterNamed("c-0")
		s.hasOfFleet(t, b, cluster)
		s.hasStored()
		b = everywhereOfSize("values", 200<<10)
		b.Generation = 2
		s.has(t, b)
		_, out := s.reconcile(t, cluster)
		assert.Equal(t, fleet.ReasonWorkspaceLimitReached, out.Reason)
	})
}

// A move from Fleet's hub writes no BundleDeployment again. What that hub has stored counts nevertheless.
func TestWorkspaceLimitCountsThoseOfFleet(t *testing.T) {
	s, b := limited(t, 10), everywhereOfSize("values", 200<<10)
	for i := range 9 {
		s.hasOfFleet(t, b, clusterNamed(fmt.Sprint("c-", i)))
	}
	s.errors = map[string]error{"get cluster-": errInternal} // nothing is read for its size
	assert.Equal(t, 0, s.deploysTo(t, b, 10), "the last has none")
	assert.Equal(t, []string{"c-9"}, slices.Collect(func(yield func(string) bool) {
		for cluster := range s.storageLimits(appKey, s.matching(b)) {
			yield(cluster.Name)
		}
	}))
	assert.Greater(t, s.sizes.of("ws").total, int64(9*400<<10))
}

// The limit keeps no agent from a copy that Fleet's hub has made.
func TestWorkspaceLimitOfCopiesOfFleet(t *testing.T) {
	old, large := strings.Repeat("o", 30<<10), strings.Repeat("x", 300<<10)
	copied := func(annotation, content string) *corev1.Secret {
		secret := copyOf(annotation, content)
		if annotation == "" {
			secret.Annotations = nil
		}
		return secret
	}
	for name, row := range map[string]struct {
		source, target *corev1.Secret
		isRefused      bool
	}{
		"the same content":            {credential("ws", "5", old), copied("", old), false},
		"a little more":               {credential("ws", "5", old+"more"), copied("", old), false},
		"much more":                   {credential("ws", "5", large), copied("", old), true},
		"our copy without a size":     {credential("ws", "6", old+"more"), copied("1 source/5", old), false},
		"our copy with a little more": {credential("ws", "6", old+"more"), copied("1 source/5 30728", old), false},
		"our copy with much more":     {credential("ws", "6", large), copied("1 source/5 30728", old), true},
		"the source does not exist":   {nil, copied("", old), false},
	} {
		t.Run(name, func(t *testing.T) {
			s := limited(t, 0)
			b := copying("Secret", "cred")
			s.has(t, clusterNamed("alice"), b, deployed(t, b))
			for _, secret := range []*corev1.Secret{row.source, row.target} {
				if secret != nil {
					s.hasSecret(t, secret)
				}
			}
			s.hasStored()
			_, out := s.reconcile(t, clusterNamed("alice"))
			assert.Equal(t, row.isRefused, out.Reason == fleet.ReasonWorkspaceLimitReached, out.Message)
			assert.Equal(t, []string{"cred"}, s.rights.secrets[0], "the agent goes on reading it")
		})
	}
	t.Run("the agent may not read an object of somebody else", func(t *testing.T) {
		s := limited(t, 0)
		b := copying("Secret", "cred")
		s.has(t, clusterNamed("alice"), b, deployed(t, b))
		s.hasSecret(t, credential("ws", "5", large))
		s.hasSecret(t, credential(home, "9", large))
		s.hasStored()
		_, out := s.reconcile(t, clusterNamed("alice"))
		assert.Equal(t, fleet.ReasonWorkspaceLimitReached, out.Reason)
		assert.Empty(t, s.rights.secrets[0])
	})
}

func TestCopies_sizeOf(t *testing.T) {
	s, source := newStage(t), copySource{kind: configMapKind, name: "settings"}
	size := func(of int64) {
		t.Helper()
		got, err := s.copies.sizeOf(t.Context(), source, home)
		require.NoError(t, err)
		assert.Equal(t, of, got)
		assert.Equal(t, of > 0, s.copies.exists(t.Context(), source, home))
	}
	size(0)
	configMap := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: home, Name: "settings"},
		Data:       map[string]string{"a": "12"}, BinaryData: map[string][]byte{"b": []byte("345")},
	}
	require.NoError(t, s.ConfigMapMetadata.GetStore().Add(&metav1.PartialObjectMetadata{ObjectMeta: configMap.ObjectMeta}))
	size(0) // deleted
	require.NoError(t, s.kubernetes.Tracker().Add(configMap))
	size(0) // of somebody else
	configMap.OwnerReferences = copyOf("", "").OwnerReferences
	require.NoError(t, s.kubernetes.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), configMap, home))
	size(copyOverhead + 7)
	for range freeOwners + 1 {
		configMap.OwnerReferences = append(configMap.OwnerReferences, metav1.OwnerReference{Name: "another"})
	}
	require.NoError(t, s.kubernetes.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), configMap, home))
	size(copyOverhead + 2*ownerSize + 7)
}

// A workspace has as many empty Secrets as a quota permits, and each Bundle may name a thousand of them for each Cluster.
func TestWorkspaceLimitOfCopies_empty(t *testing.T) {
	const sources, clusters, room = 100, 10, 1 << 20 / copyOverhead
	s := limited(t, clusters)
	b := everywhere()
	for i := range sources {
		source := credential("ws", "5", "")
		source.Name, source.Data = fmt.Sprintf("e-%03d", i), nil
		s.hasSecret(t, source)
		b.Spec.DownstreamResources = append(b.Spec.DownstreamResources, fleet.DownstreamResource{Kind: "Secret", Name: source.Name})
	}
	s.has(t, b)
	pass := func(cluster *fleet.Cluster) (out result.Result, read, created int) {
		_, out = s.reconcile(t, cluster)
		for _, line := range s.taken() {
			switch {
			case strings.HasPrefix(line, "get Secret ws/"):
				read++
			case strings.HasPrefix(line, "create Secret"):
				created++
			}
		}
		return out, read, created
	}
	made := 0
	for i := range clusters {
		cluster := clusterNamed(fmt.Sprint("c-", i))
		s.has(t, deployed(t, b, cluster))
		out, read, created := pass(cluster)
		made += created
		assert.Equal(t, created, read, "the hub reads no source for which there is no room")
		assert.Equal(t, created < sources, out.Reason == fleet.ReasonWorkspaceLimitReached, out.Message)
	}
	assert.Equal(t, room, made)
	require.NotNil(t, s.storageProblem(b))
	assert.Contains(t, s.storageProblem(b).message, "Secret e-0")
	assert.Contains(t, s.storageProblem(b).message, "takes at least 2 kB for each Cluster")

	copies, err := s.kubernetes.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for i := range copies.Items {
		if copies.Items[i].Namespace != "ws" {
			s.showSecret(t, &copies.Items[i])
		}
	}
	s.sizes = storedBytes{}
	_, _, created := pass(clusterNamed("c-9"))
	assert.Zero(t, created, "after a restart")
}

// Each BundleDeployment that names a source owns the copy.
func TestWorkspaceLimitOfCopies_owners(t *testing.T) {
	s := limited(t, 1)
	s.hasSecret(t, credential("ws", "5", "x"))
	cluster := clusterNamed("c-0")
	add := func(number int) {
		t.Helper()
		b := copying("Secret", "cred")
		b.Name = fmt.Sprint("app-", number)
		b.Spec.Targets = []fleet.BundleTarget{{ClusterSelector: &metav1.LabelSelector{}}}
		d := deployed(t, b, cluster)
		s.has(t, b, d)
	}
	pass := func() (result.Result, *corev1.Secret) {
		t.Helper()
		_, out := s.reconcile(t, cluster)
		object, err := s.kubernetes.Tracker().Get(corev1.SchemeGroupVersion.WithResource("secrets"), registration.ClusterNamespace("ws", "c-0"), "cred")
		require.NoError(t, err)
		s.showSecret(t, object.(*corev1.Secret))
		return out, object.(*corev1.Secret)
	}
	add(1)
	_, copied := pass()
	assert.Len(t, copied.OwnerReferences, 1)
	s.hasStored()
	for i := range freeOwners - 1 {
		add(i + 2)
	}
	out, copied := pass()
	assert.NotEqual(t, fleet.ReasonWorkspaceLimitReached, out.Reason, "a few more owners do not count")
	assert.Len(t, copied.OwnerReferences, freeOwners)
	add(9)
	out, copied = pass()
	assert.Equal(t, fleet.ReasonWorkspaceLimitReached, out.Reason)
	assert.Len(t, copied.OwnerReferences, freeOwners)
	assert.Equal(t, []string{"cred"}, s.rights.secrets[len(s.rights.secrets)-1], "the agent goes on reading it")

	s.sizes.of("ws").set("cluster-of-another", nil, time.Time{})
	_, copied = pass()
	assert.Len(t, copied.OwnerReferences, freeOwners+1)
	pass()
	assert.Equal(t, copyOverhead+ownerSize+contentSize(copied.Data, nil), s.sizes.of("ws").sum())
}

// The status of each Bundle that names a refused copy reports it, as long as it is refused.
func TestWorkspaceLimitOfCopiesInBundles(t *testing.T) {
	s := limited(t, 1)
	s.hasStored()
	s.hasSecret(t, credential("ws", "5", strings.Repeat("x", 300<<10)))
	one, two := copying("Secret", "cred"), copying("Secret", "cred")
	two.Name = "two"
	for _, b := range []*fleet.Bundle{one, two} {
		b.Spec.Targets = []fleet.BundleTarget{{ClusterSelector: &metav1.LabelSelector{}}}
		d := deployed(t, b, clusterNamed("c-0"))
		s.has(t, b, d)
	}
	s.reconcile(t, clusterNamed("c-0"))
	assert.Contains(t, s.taken(), "enqueue Bundle two in 1s")
	for _, b := range []*fleet.Bundle{one, two} {
		require.NotNil(t, s.storageProblem(b))
		assert.Contains(t, s.storageProblem(b).message, "Secret cred, which Bundle ws/"+b.Name+" names in downstreamResources, takes at least 2 kB for each Cluster, "+
			"and the BundleDeployments and copies of this workspace would take more than 1 MiB")
	}
	s.reconcile(t, clusterNamed("c-0"))
	assert.NotContains(t, s.taken(), "enqueue Bundle two in 1s", "nothing has changed")
	s.sizes.of("ws").set("cluster-of-another", nil, time.Time{})
	s.reconcile(t, clusterNamed("c-0"))
	assert.Nil(t, s.storageProblem(one))
	assert.Nil(t, s.storageProblem(two))
}

// A Bundle reports the limit only as long as it is the reason.
func TestWorkspaceLimitNoLongerReported(t *testing.T) {
	for name, change := range map[string]func(*fleet.Bundle, *fleet.Cluster){
		"invalid": func(b *fleet.Bundle, _ *fleet.Cluster) { b.Spec.TargetCustomizationMode = "invalid" },
		"a template": func(b *fleet.Bundle, _ *fleet.Cluster) {
			b.Spec.Helm = &fleet.HelmOptions{TemplateValues: map[string]string{"a": "${ fail }"}}
		},
		"quarantined": func(_ *fleet.Bundle, c *fleet.Cluster) { c.Spec.Quarantined = true },
	} {
		t.Run(name, func(t *testing.T) {
			s, b, cluster := limited(t, 1), everywhereOfSize("options", 100<<10), clusterNamed("c-0")
			s.hasStored()
			s.has(t, b)
			s.reconcile(t, cluster)
			require.NotNil(t, s.storageProblem(b))
			b = b.DeepCopy()
			b.Generation = 2
			change(b, cluster)
			s.has(t, b, cluster)
			s.reconcile(t, cluster)
			assert.Empty(t, s.storageLimits(appKey, s.matching(b)))
		})
	}
}

// A workspace is counted once, also if nothing fits into its limit, and does not wait for another one.
func TestStoredBytes(t *testing.T) {
	s := limited(t, 2)
	assert.Equal(t, 0, s.deploysTo(t, everywhereOfSize("values", 600<<10), 2))
	sizes := s.sizes.find("ws")
	require.NotNil(t, sizes)
	sizes.counted.Do(func() { t.Error("it is counted again") })

	s.sizes.of("slow").mu.Lock()
	defer s.sizes.of("slow").mu.Unlock()
	assert.True(t, s.sizes.of("other").reserve("cluster-x", "all", 1, 0, 1, noon))
}

// A pass whose caches do not show yet what an earlier pass has written must not give these bytes to another Cluster.
func TestWorkspaceSizes_lateCache(t *testing.T) {
	const a, b, limit = "cluster-a", "cluster-b", 1000
	sizes := (&storedBytes{}).of("ws")
	require.True(t, sizes.reserve(a, "Bundle ws/large", 600, 0, limit, noon))
	total, stays := sizes.set(a, nil, noon.Add(-time.Second))
	assert.Equal(t, int64(600), total)
	assert.True(t, stays)
	assert.False(t, sizes.reserve(b, "Bundle ws/large", 600, 0, limit, noon))
	assert.True(t, sizes.reserve(a, "Bundle ws/large", 600, 0, limit, noon), "it is counted once")
	assert.False(t, sizes.reserve(a, "Secret other", 600, 0, limit, noon))

	total, stays = sizes.set(a, map[string]int64{"Bundle ws/large": 700}, noon.Add(-time.Second))
	assert.Equal(t, int64(700), total, "the caches show it")
	assert.False(t, stays)
	require.True(t, sizes.reserve(a, "Bundle ws/large", 800, 700, limit, noon))
	total, stays = sizes.set(a, nil, noon)
	assert.Zero(t, total, "it was reserved long ago, and is deleted")
	assert.False(t, stays)
	assert.True(t, sizes.reserve(b, "Bundle ws/large", 600, 0, limit, noon))
}

// A user who may write Bundles and Clusters has the hub make one BundleDeployment for each pair of them.
func TestSmallDeployments(t *testing.T) {
	s := limited(t, 3)
	b := everywhere()
	small := s.sizes.smallOf("ws")
	small.bytes, small.countedAt = freeBytes+1<<20-2*smallBytes(0), noon // the limit has room for two more
	assert.Equal(t, 2, s.deploysTo(t, b, 3))
	_, out := s.reconcile(t, clusterNamed("c-2"))
	assert.Equal(t, fleet.ReasonWorkspaceLimitReached, out.Reason)
	assert.Contains(t, out.Message, "no BundleDeployment is created for Bundle ws/app: the small ones of this workspace take more than 292 MiB")
	assert.Contains(t, out.Message, "bundles.workspaceLimitMiB")
	require.NotNil(t, s.storageProblem(b))
	assert.Equal(t, fleet.ReasonWorkspaceLimitReached, s.storageProblem(b).reason)
	assert.Contains(t, s.shown(b), "ErrApplied(1) [Cluster ws/c-2: no BundleDeployment is created")
	s.taken()

	agent := bundleWith(func(spec *fleet.BundleSpec) { spec.Targets = []fleet.BundleTarget{{ClusterName: "c-2"}} })
	agent.Name, agent.Annotations = registration.AgentBundleName("c-2"), manageAgent
	s.has(t, agent)
	s.reconcile(t, clusterNamed("c-2"))
	assert.Contains(t, s.taken(), "create "+registration.ClusterNamespace("ws", "c-2")+"/fleet-agent-c-2", "the agent of a Cluster needs its own")

	// What was deleted meanwhile is noticed when they are counted again.
	s.clock.Step(recountInterval)
	_, out = s.reconcile(t, clusterNamed("c-2"))
	assert.Equal(t, fleet.ReasonNotReady, out.Reason)
	assert.Nil(t, s.storageProblem(b))
	assert.Equal(t, 3*smallBytes(0), small.bytes)
}

// Large BundleDeployments and copies share the limit with the small ones.
func TestSmallDeployments_andLarge(t *testing.T) {
	s := limited(t, 1)
	small := s.sizes.smallOf("ws")
	small.bytes, small.countedAt = freeBytes+1000<<10, noon
	assert.Zero(t, s.deploysTo(t, everywhereOfSize("options", 20<<10), 1))
	small.bytes = freeBytes + 900<<10
	assert.Equal(t, 1, s.deploysTo(t, everywhereOfSize("options", 20<<10), 1))

	s.sizes = storedBytes{} // a restart
	s.hasLarge(t, 1<<20)
	small = s.sizes.smallOf("ws")
	small.bytes, small.countedAt = freeBytes, noon
	other := everywhere()
	other.Name = "other"
	s.has(t, other)
	_, out := s.reconcile(t, clusterNamed("c-0"))
	assert.Equal(t, fleet.ReasonWorkspaceLimitReached, out.Reason, "the large ones take the limit")
}

// hasLarge puts a BundleDeployment of that size into the cache.
func (s *stage) hasLarge(t *testing.T, size int64) {
	t.Helper()
	b := everywhere()
	b.Name = "large"
	s.has(t, clusterNamed("large"), withSize(deployed(t, b, clusterNamed("large")), size))
}

// Of the BundleDeployments up to maxSmall the larger ones count their bytes.
func TestSmallDeployments_bytes(t *testing.T) {
	const size = 2 * 7 << 10 // as it is stored, without the rest of the options
	fill := func(s *stage, room int64) *smallCount {
		small := s.sizes.smallOf("ws")
		small.bytes, small.countedAt = freeBytes+1<<20-room, noon
		return small
	}
	t.Run("creation", func(t *testing.T) {
		s := limited(t, 10)
		fill(s, 5*smallBytes(size+200))
		assert.Equal(t, 5, s.deploysTo(t, everywhereOfSize("options", 7<<10), 10))
		_, out := s.reconcile(t, clusterNamed("c-9"))
		assert.Contains(t, out.Message, "what Bundle ws/app has in options and Helm values takes 15 kB for each Cluster")
	})
	t.Run("after a restart", func(t *testing.T) {
		s := limited(t, 10)
		require.Equal(t, 10, s.deploysTo(t, everywhereOfSize("options", 7<<10), 10))
		assert.Greater(t, s.countSmallDeployments("ws"), 10*smallBytes(size))
		s.sizes.smallOf("ws").bytes = 0
		assert.Equal(t, 0, s.deploysTo(t, everywhereOfSize("options", 7<<10), 10), "they are deployed")
		assert.Zero(t, s.sizes.smallOf("ws").bytes, "passes that write nothing count nothing")
	})
	t.Run("an update may shrink, and not grow much", func(t *testing.T) {
		s := limited(t, 2)
		require.Equal(t, 2, s.deploysTo(t, everywhereOfSize("options", 4<<10), 2))
		for generation, row := range []struct {
			size, made int
		}{{4<<10 + 100, 2}, {7 << 10, 0}, {2 << 10, 2}, {5 << 10, 0}} {
			fill(s, 0)
			b := everywhereOfSize("options", row.size)
			b.Generation = int64(generation + 2)
			assert.Equal(t, row.made, s.deploysTo(t, b, 2), row.size)
		}
		fill(s, smallBytes(20<<10))
		b := everywhereOfSize("options", 5<<10)
		b.Generation = 9
		assert.Equal(t, 2, s.deploysTo(t, b, 2), "there is room")
	})
	t.Run("what was large counts when it becomes small", func(t *testing.T) {
		s := limited(t, 1)
		require.Equal(t, 1, s.deploysTo(t, everywhereOfSize("options", 20<<10), 1))
		small := fill(s, 0)
		b := everywhereOfSize("options", 7<<10)
		b.Generation = 2
		assert.Equal(t, 1, s.deploysTo(t, b, 1))
		assert.Greater(t, small.bytes, int64(freeBytes+1<<20+size))
		s.reconcile(t, clusterNamed("c-0"))
		assert.Zero(t, s.sizes.of("ws").sum())
	})
	t.Run("what has no label yet may stay as large as it is", func(t *testing.T) {
		s, b := limited(t, 1), everywhereOfSize("values", 7<<10)
		s.hasOfFleet(t, b, clusterNamed("c-0"))
		small := fill(s, 0)
		s.has(t, b)
		s.reconcile(t, clusterNamed("c-0"))
		assert.Equal(t, int64(freeBytes+1<<20), small.bytes, "nothing is written")
		b = b.DeepCopy()
		b.Generation, b.Spec.TargetNamespace = 2, "another"
		s.has(t, b)
		s.taken()
		_, out := s.reconcile(t, clusterNamed("c-0"))
		assert.NotEqual(t, fleet.ReasonWorkspaceLimitReached, out.Reason, out.Message)
		assert.Contains(t, strings.Join(s.taken(), "\n"), `"muster.fleet.cattle.io/size":"14`)
	})
	t.Run("10,000 Clusters with 10 Bundles of 2 kB of options and values", func(t *testing.T) {
		limit := config.Bundles{}.WorkspaceLimit()
		assert.Less(t, 100_000*smallBytes(4<<10), freeBytes+limit)
		assert.LessOrEqual(t, 100_000*smallBytes(0), int64(freeBytes), "without values they are free")
	})
}

func TestPlan_wantedSize(t *testing.T) {
	for _, row := range []struct{ size, counted, want int64 }{
		{100, 0, 0},
		{unlabelledSize, 0, 0},
		{unlabelledSize + 2, 0, unlabelledSize + 2},
		{15 << 10, 0, 15 << 10},
		{15 << 10, 14 << 10, 14 << 10},
		{15 << 10, 8 << 10, 15 << 10},
		{100 << 10, 90 << 10, 90 << 10},
		{110 << 10, 90 << 10, 110 << 10},
		{100, 20 << 10, 0},
	} {
		existing := withSize(&fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{}}}, row.counted)
		assert.Equal(t, row.want, (&plan{}).wantedSize(variant{size: int(row.size / 2)}, false, existing), row)
	}
}

func TestSmallCount(t *testing.T) {
	var c smallCount
	counts, found := 0, int64(freeBytes-10)
	count := func() int64 { counts++; return found }
	limit := func(rest int64) func() int64 { return func() int64 { return rest } }
	assert.True(t, c.reserve(10, func() int64 { t.Error("nobody asks for the rest of the limit"); return 0 }, noon, count), "it does not count yet")
	assert.Zero(t, c.excess(noon, count))
	assert.True(t, c.reserve(5, limit(5), noon, count))
	assert.EqualValues(t, 5, c.excess(noon, count))
	assert.False(t, c.reserve(5, limit(5), noon.Add(recountInterval-1), count))
	assert.Equal(t, 1, counts)
	assert.True(t, c.reserve(15, limit(5), noon.Add(recountInterval), count), "others were deleted")
	assert.Equal(t, 2, counts)
	found = freeBytes + 3
	assert.EqualValues(t, 3, c.excess(noon.Add(2*recountInterval), count), "large ones need the number too")
}

// Clusters are listed only when all of them may be deleted: a workspace may have ten thousand.
func TestStoredBytes_forget(t *testing.T) {
	var s storedBytes
	left, calls := 1000, 0
	forget := func() {
		left--
		s.forget("ws", fmt.Sprint("cluster-", left), func() int { calls++; return left }, noon)
	}
	s.countsOf("ws")
	for range 999 {
		forget()
		assert.NotEmpty(t, s.counts)
	}
	forget()
	assert.Empty(t, s.counts)
	assert.Equal(t, 2, calls)
}
