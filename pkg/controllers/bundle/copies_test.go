package bundle

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/muster-fleet/muster/internal/testenv/heap"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

func credential(namespace, version, password string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "cred", UID: "source", ResourceVersion: version},
		Type:       corev1.SecretTypeOpaque, Data: map[string][]byte{"password": []byte(password)},
	}
}

// copyOf returns the copy of a credential for the BundleDeployment app.
func copyOf(annotation, password string) *corev1.Secret {
	secret := credential(home, "9", password)
	secret.UID = "copy"
	secret.Annotations = map[string]string{"muster.fleet.cattle.io/copied-from": annotation}
	secret.OwnerReferences = valuesSecret("", "").OwnerReferences
	return secret
}

func copying(kind, name string) *fleet.Bundle {
	b := targetingAlice()
	b.Spec.DownstreamResources = []fleet.DownstreamResource{{Kind: kind, Name: name}}
	return b
}

func TestReconcileCopies(t *testing.T) {
	foreign, own := credential(home, "9", "x"), credential("ws", "5", "x")
	own.Type = "fleet.cattle.io/cluster-registration-values"
	ofType := func(secretType corev1.SecretType) *corev1.Secret {
		secret := credential("ws", "6", "two")
		secret.Type = secretType
		return secret
	}
	fleetCopy := copyOf("", "one")
	fleetCopy.Annotations = nil
	orphaned := copyOf("4 source/5 11", "one")
	orphaned.OwnerReferences[0].UID = "of-an-earlier-app"
	for name, row := range map[string]struct {
		source     *corev1.Secret
		target     *corev1.Secret
		generation int64 // of the BundleDeployment before
		requests   []string
		copied     *corev1.Secret
		after      int64
		readable   []string
		reason     string
	}{
		"the first copy": {
			source: credential("ws", "5", "one"), requests: []string{"get Secret", "create Secret", "patch"},
			copied: copyOf("1 source/5 11", "one"), after: 1, readable: []string{"cred"},
		},
		"nothing changed: no request": {
			source: credential("ws", "5", "one"), target: copyOf("4 source/5 11", "one"), generation: 4,
			copied: copyOf("4 source/5 11", "one"), after: 4, readable: []string{"cred"},
		},
		"a copy without a size: no request": {
			source: credential("ws", "5", "one"), target: copyOf("4 source/5", "one"), generation: 4,
			copied: copyOf("4 source/5", "one"), after: 4, readable: []string{"cred"},
		},
		"other content: another generation": {
			source: credential("ws", "6", "two"), target: copyOf("4 source/5 11", "one"), generation: 4,
			requests: []string{"get Secret", "create Secret", "get Secret", "update Secret", "patch"}, copied: copyOf("5 source/6 11", "two"), after: 5, readable: []string{"cred"},
		},
		"other content, and a BundleDeployment from before the last change": {
			source: credential("ws", "6", "two"), target: copyOf("5 source/5 11", "one"), generation: 4,
			requests: []string{"get Secret", "create Secret", "get Secret", "update Secret", "patch"}, copied: copyOf("6 source/6 11", "two"), after: 6, readable: []string{"cred"},
		},
		"another version of the same content: the same generation": {
			source: credential("ws", "6", "one"), target: copyOf("4 source/5 11", "one"), generation: 4,
			requests: []string{"get Secret", "create Secret", "get Secret", "update Secret"}, copied: copyOf("4 source/6 11", "one"), after: 4, readable: []string{"cred"},
		},
		"the hub ended between copy and patch": {
			source: credential("ws", "6", "two"), target: copyOf("5 source/6 11", "two"), generation: 4,
			requests: []string{"patch"}, copied: copyOf("5 source/6 11", "two"), after: 5, readable: []string{"cred"},
		},
		"a copy of Fleet's hub: taken over with its generation": {
			source: credential("ws", "5", "one"), target: fleetCopy, generation: 4,
			requests: []string{"get Secret", "create Secret", "get Secret", "update Secret"}, copied: copyOf("4 source/5 11", "one"), after: 4, readable: []string{"cred"},
		},
		"a copy of Fleet's hub without a generation": {
			source: credential("ws", "5", "one"), target: fleetCopy,
			requests: []string{"get Secret", "create Secret", "get Secret", "update Secret", "patch"}, copied: copyOf("1 source/5 11", "one"), after: 1, readable: []string{"cred"},
		},
		"a copy of Fleet's hub with other content": {
			source: credential("ws", "6", "two"), target: fleetCopy, generation: 4,
			requests: []string{"get Secret", "create Secret", "get Secret", "update Secret", "patch"}, copied: copyOf("5 source/6 11", "two"), after: 5, readable: []string{"cred"},
		},
		"a copy of an earlier BundleDeployment": {
			source: credential("ws", "5", "one"), target: orphaned, generation: 4,
			requests: []string{"get Secret", "create Secret", "get Secret", "update Secret"}, copied: copyOf("4 source/5 11", "one"), after: 4, readable: []string{"cred"},
		},
		"an object of somebody else: neither changed nor readable": {
			source: credential("ws", "5", "one"), target: foreign,
			requests: []string{"get Secret", "create Secret", "get Secret", "get Secret"}, copied: foreign, reason: fleet.ReasonNameConflict,
		},
		"a Secret of the hub: not copied": {source: own, requests: []string{"get Secret"}, reason: fleet.ReasonNameConflict},
		"a bootstrap token: not copied":   {source: ofType(corev1.SecretTypeBootstrapToken), requests: []string{"get Secret"}, reason: fleet.ReasonNameConflict},
		"a source that was recreated as a ServiceAccount token: the copy stays": {
			source: ofType(corev1.SecretTypeServiceAccountToken), target: copyOf("4 source/5 11", "one"), generation: 4,
			requests: []string{"get Secret"}, copied: copyOf("4 source/5 11", "one"), after: 4, readable: []string{"cred"}, reason: fleet.ReasonNameConflict,
		},
		"no source": {reason: fleet.ReasonDownstreamMissing},
		"the source is deleted: the copy stays": {
			target: copyOf("4 source/5 11", "one"), generation: 4, copied: copyOf("4 source/5 11", "one"), after: 4, readable: []string{"cred"}, reason: fleet.ReasonDownstreamMissing,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			existing := deployed(t, copying("Secret", "cred"))
			existing.Spec.DownstreamResourcesGeneration = row.generation
			s.has(t, clusterNamed("alice"), copying("Secret", "cred"), existing)
			for _, secret := range []*corev1.Secret{row.source, row.target} {
				if secret != nil {
					s.hasSecret(t, secret.DeepCopy())
				}
			}
			_, out := s.reconcile(t, clusterNamed("alice"))
			patched := ""
			if len(s.log) > 0 {
				patched = s.log[len(s.log)-1]
			}
			assert.Equal(t, row.requests, s.requests())
			if row.after != row.generation {
				assert.Contains(t, patched, `"/spec/downstreamResourcesGeneration","value":`+string('0'+rune(row.after))+"}")
			}
			assert.Equal(t, row.readable, s.rights.secrets[0])
			if row.reason != "" {
				assert.Equal(t, row.reason, out.Reason)
			}
			object, err := s.kubernetes.Tracker().Get(corev1.SchemeGroupVersion.WithResource("secrets"), home, "cred")
			if row.copied == nil {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			live := object.(*corev1.Secret)
			assert.Equal(t, []any{row.copied.Data, row.copied.Annotations, row.copied.OwnerReferences}, []any{live.Data, live.Annotations, live.OwnerReferences})
		})
	}
}

// A BundleDeployment that cannot be updated keeps the right to read its copies, and its Secret of Helm values.
func TestReconcileCopies_withoutContent(t *testing.T) {
	s := newStage(t)
	before := copying("Secret", "cred")
	before.Spec.Helm = &fleet.HelmOptions{Values: &fleet.GenericMap{Data: map[string]any{"a": 1}}}
	changed := before.DeepCopy()
	changed.Generation, changed.Spec.Resources[0].Content = 2, "other"
	existing := deployed(t, before)
	existing.Spec.DownstreamResourcesGeneration = 4
	s.has(t, clusterNamed("alice"), changed, existing)
	source := credential("ws", "6", "two")
	s.hasSecret(t, source)
	s.hasSecret(t, copyOf("4 source/5 11", "one"))
	s.errors = map[string]error{"create Content": errInternal}
	_, out := s.reconcile(t, clusterNamed("alice"))
	require.ErrorContains(t, out.Err, errInternal.Error())
	assert.Equal(t, []string{"app", "cred"}, s.rights.secrets[0])
	assert.Equal(t, `patch `+atHome+` [{"op":"replace","path":"/metadata/resourceVersion","value":"5"},`+
		`{"op":"add","path":"/spec/downstreamResourcesGeneration","value":5}]`, s.log[len(s.log)-1])
}

// A BundleDeployment whose Bundle cannot be deployed any more gets changed copies.
func TestReconcileCopies_ofARefusedBundle(t *testing.T) {
	for name, change := range map[string]func(*fleet.Bundle){
		"too large": func(b *fleet.Bundle) { b.Spec = fleet.BundleSpec{Targets: []fleet.BundleTarget{{}}, TooLarge: true} },
		"invalid":   func(b *fleet.Bundle) { b.Spec.TargetCustomizationMode = "Some" },
		"too many sources": func(b *fleet.Bundle) {
			for i := range maxSources {
				b.Spec.DownstreamResources = append(b.Spec.DownstreamResources, fleet.DownstreamResource{Kind: "Secret", Name: fmt.Sprint(i)})
			}
		},
		"larger than the limit": func(b *fleet.Bundle) {
			b.Spec.NamespaceAnnotations = map[string]string{"a": strings.Repeat("x", 1<<20)}
		},
		"a template that fails": func(b *fleet.Bundle) {
			b.Spec.Helm = &fleet.HelmOptions{Values: &fleet.GenericMap{Data: map[string]any{"a": "${ .ClusterLabels.none }"}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			before := copying("Secret", "cred")
			before.Spec.Helm = &fleet.HelmOptions{Values: &fleet.GenericMap{Data: map[string]any{"a": 1}}}
			s.Config = config.NewStore(config.Hub{Bundles: config.Bundles{WorkspaceLimitMiB: 1}})
			existing := withSize(deployed(t, before), 2*maxSmall)
			existing.Spec.DownstreamResourcesGeneration = 4
			refused := before.DeepCopy()
			refused.Generation = 2
			change(refused)
			s.has(t, clusterNamed("alice"), clusterNamed("bob"), refused, existing)
			source := credential("ws", "6", "two")
			s.hasSecret(t, source)
			s.hasSecret(t, copyOf("4 source/5 11", "one"))

			s.copyEvents(secretKind).OnUpdate(
				&metav1.PartialObjectMetadata{ObjectMeta: credential("ws", "5", "").ObjectMeta}, &metav1.PartialObjectMetadata{ObjectMeta: source.ObjectMeta},
			)
			assert.Equal(t, []string{"enqueue Cluster alice in 0s"}, s.takenByPass(t))
			cluster, _ := s.reconcile(t, clusterNamed("alice"))
			require.NotEmpty(t, s.log)
			assert.Equal(t, `patch `+atHome+` [{"op":"replace","path":"/metadata/resourceVersion","value":"5"},`+
				`{"op":"add","path":"/spec/downstreamResourcesGeneration","value":5}]`, s.log[len(s.log)-1])
			assert.Equal(t, []string{"get Secret", "create Secret", "get Secret", "update Secret", "patch"}, s.requests())
			assert.Equal(t, []string{"app", "cred"}, s.rights.secrets[0])
			assert.Equal(t, "0/1", cluster.Status.Display.ReadyBundles)
		})
	}
}

// A BundleDeployment that waits in a rollout, or whose Bundle became invalid, names the sources of an earlier Bundle.
func TestCopyEvents_ofAnEarlierBundle(t *testing.T) {
	other := copying("Secret", "other")
	invalid := copying("Secret", "other")
	invalid.Spec.TargetCustomizationMode = "Some"
	for name, b := range map[string]*fleet.Bundle{"it waits": other, "the Bundle is invalid": invalid, "the Bundle is gone": nil} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.has(t, clusterNamed("alice"), clusterNamed("bob"), deployed(t, copying("Secret", "cred")))
			if b != nil {
				s.has(t, b)
			}
			before, after := credential("ws", "5", "one"), credential("ws", "6", "two")
			s.hasSecret(t, before)
			s.hasSecret(t, copyOf("4 source/5 11", "one"))
			update := func(before, after *corev1.Secret) {
				s.copyEvents(secretKind).OnUpdate(&metav1.PartialObjectMetadata{ObjectMeta: before.ObjectMeta}, &metav1.PartialObjectMetadata{ObjectMeta: after.ObjectMeta})
			}
			update(credential("ws", "4", ""), before)
			assert.Empty(t, s.takenByPass(t), "the copy is of this version")
			s.showSecret(t, after)
			update(before, after)
			assert.Equal(t, []string{"enqueue Cluster alice in 0s"}, s.takenByPass(t))

			recreated := credential("ws", "8", "three")
			recreated.UID = "another"
			s.showSecret(t, recreated)
			s.copyEvents(secretKind).OnDelete(&metav1.PartialObjectMetadata{ObjectMeta: after.ObjectMeta})
			s.copyEvents(secretKind).OnAdd(&metav1.PartialObjectMetadata{ObjectMeta: recreated.ObjectMeta}, false)
			assert.Equal(t, []string{"enqueue Cluster alice in 0s"}, s.takenByPass(t))
		})
	}
}

// TestReconcileDownloads deploys charts and artifacts that the agent downloads. The agent reads a copy of the Secret with the credentials for the
// server, which is not a downstream resource. No Content is stored.
func TestReconcileDownloads(t *testing.T) {
	artifact := "s-" + strings.Repeat("a", 61)
	for name, row := range map[string]struct {
		source     string
		change     func(*fleet.BundleSpec)
		id         string // the first part of the deployment ID
		secretType corev1.SecretType
	}{
		"a HelmOp": {"cred", func(s *fleet.BundleSpec) {
			s.HelmOpOptions = &fleet.GenericMap{Data: map[string]any{"helmOpSecretName": "cred"}}
			s.Helm = &fleet.HelmOptions{Chart: "c", Version: "1.2.3"}
		}, "", registration.SecretTypeHelmOp},
		"an OCI artifact": {artifact, func(s *fleet.BundleSpec) { s.ContentsID = artifact }, artifact, registration.SecretTypeOCI},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			b := targetingAlice()
			b.Spec.Resources = nil
			b.Labels = map[string]string{fleet.ContentNameLabel: "s-of-another-workspace"}
			row.change(&b.Spec)
			source := credential("ws", "5", "one")
			source.Name = row.source
			s.has(t, clusterNamed("alice"), b)
			s.hasSecret(t, source)
			s.reconcile(t, clusterNamed("alice"))
			assert.Equal(t, []string{"create", "get Secret", "create Secret"}, s.requests())
			d := deployed(t, b)
			assert.Equal(t, row.id, contentOf(d.Spec.DeploymentID))
			assert.NotContains(t, d.Labels, fleet.ContentNameLabel)
			assert.Equal(t, row.id != "", d.Spec.OCIContents)
			assert.Equal(t, b.Spec.HelmOpOptions, d.Spec.HelmChartOptions)
			assert.Equal(t, []string{row.source}, s.rights.secrets[0])
			object, err := s.kubernetes.Tracker().Get(corev1.SchemeGroupVersion.WithResource("secrets"), home, row.source)
			require.NoError(t, err)
			live := object.(*corev1.Secret)
			assert.Equal(t, row.secretType, live.Type)
			assert.Equal(t, source.Data, live.Data)
			assert.Equal(t, map[string]string{"fleet.cattle.io/bundle-internal-secret": "true"}, live.Labels)
		})
	}
}

// TestReconcileCopiesOnce names one Secret in downstreamResources of one Bundle and as the download credentials of another.
func TestReconcileCopiesOnce(t *testing.T) {
	downloading := bundleWith(func(spec *fleet.BundleSpec) {
		spec.Targets = targetingAlice().Spec.Targets
		spec.Resources, spec.HelmOpOptions = nil, &fleet.GenericMap{Data: map[string]any{"helmOpSecretName": "cred"}}
		spec.Helm = &fleet.HelmOptions{Chart: "c", Version: "1.2.3"}
	})
	downloading.Name = "charted"
	stage := func(t *testing.T) *stage {
		s := newStage(t)
		first, second := deployed(t, copying("Secret", "cred")), deployed(t, downloading)
		first.Spec.DownstreamResourcesGeneration = 4
		s.has(t, clusterNamed("alice"), copying("Secret", "cred"), downloading, first, second)
		s.hasSecret(t, credential("ws", "5", "one"))
		s.hasSecret(t, copyOf("4 source/5", "one"))
		return s
	}
	t.Run("the first Bundle gets the copy, the second one has a name conflict", func(t *testing.T) {
		s := stage(t)
		_, out := s.reconcile(t, clusterNamed("alice"))
		assert.Empty(t, s.requests(), "the copy does not change with every use")
		assert.Equal(t, fleet.ReasonNameConflict, out.Reason)
		assert.Contains(t, out.Message, "Secret ws/cred is named in downstreamResources and in helmOpOptions; name another Secret in one of them")
	})
	t.Run("one use ends: the copy stays", func(t *testing.T) {
		s := stage(t)
		public := downloading.DeepCopy()
		public.Generation++
		public.Spec.HelmOpOptions = &fleet.GenericMap{Data: map[string]any{"helmOpInsecureSkipTLSVerify": false}}
		s.has(t, public)
		_, out := s.reconcile(t, clusterNamed("alice"))
		require.NoError(t, out.Err)
		assert.NotContains(t, s.requests(), "delete Secret")
	})
}

// A copy for helmOpOptions has the type of a login, and a copy for downstreamResources that of the source.
func TestReconcileCopies_anotherField(t *testing.T) {
	login, named := targetingAlice(), copying("Secret", "cred")
	login.Spec.Resources, login.Spec.HelmOpOptions = nil, &fleet.GenericMap{Data: map[string]any{"helmOpSecretName": "cred"}}
	login.Spec.Helm = &fleet.HelmOptions{Chart: "c", Version: "1.2.3"}
	for name, row := range map[string]struct {
		before, after *fleet.Bundle
		want          corev1.SecretType
	}{
		"a login becomes a downstream resource": {login, named, corev1.SecretTypeOpaque},
		"a downstream resource becomes a login": {named, login, registration.SecretTypeHelmOp},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.hasSecret(t, credential("ws", "5", "one"))
			pass := func(b *fleet.Bundle) *corev1.Secret {
				s.has(t, clusterNamed("alice"), b, deployed(t, b))
				_, out := s.reconcile(t, clusterNamed("alice"))
				require.NoError(t, out.Err)
				object, err := s.kubernetes.Tracker().Get(corev1.SchemeGroupVersion.WithResource("secrets"), home, "cred")
				require.NoError(t, err)
				s.showSecret(t, object.(*corev1.Secret))
				return object.(*corev1.Secret)
			}
			pass(row.before.DeepCopy())
			after := row.after.DeepCopy()
			after.Generation = 2
			s.errors = map[string]error{"update Secret": apierrors.NewInvalid(schema.GroupKind{Kind: "Secret"}, "cred", nil)} // the type is immutable
			assert.Equal(t, row.want, pass(after).Type)
			s.taken()
			pass(after)
			assert.NotContains(t, strings.Join(s.taken(), "\n"), " Secret ", "nothing has changed")
		})
	}
}

func TestReconcileRecreatesCopies(t *testing.T) {
	s := newStage(t)
	source := credential("ws", "6", "one")
	source.Type = corev1.SecretTypeBasicAuth
	s.has(t, clusterNamed("alice"), copying("Secret", "cred"), deployed(t, copying("Secret", "cred")))
	s.hasSecret(t, source)
	s.hasSecret(t, copyOf("4 source/5", "one"))
	s.errors = map[string]error{"update Secret": apierrors.NewInvalid(schema.GroupKind{Kind: "Secret"}, "cred", nil)} // the type is immutable
	_, out := s.reconcile(t, clusterNamed("alice"))
	require.NoError(t, out.Err)
	assert.Equal(t, []string{"get Secret", "create Secret", "get Secret", "update Secret", "delete Secret", "create Secret", "patch"}, s.requests())
	object, err := s.kubernetes.Tracker().Get(corev1.SchemeGroupVersion.WithResource("secrets"), home, "cred")
	require.NoError(t, err)
	assert.Equal(t, corev1.SecretTypeBasicAuth, object.(*corev1.Secret).Type)
}

func TestReconcileDeletesCopies(t *testing.T) {
	s := newStage(t)
	changed := targetingAlice()
	changed.Generation = 2
	s.has(t, clusterNamed("alice"), changed, deployed(t, copying("Secret", "cred")))
	s.hasSecret(t, copyOf("1 source/5", "one"))
	s.reconcile(t, clusterNamed("alice"))
	assert.Equal(t, []string{"delete Secret", "patch"}, s.requests())
	assert.Nil(t, s.rights.secrets[0])
}

func TestCopyEvents(t *testing.T) {
	s := newStage(t)
	s.has(t, clusterNamed("alice"), clusterNamed("bob"), copying("secret", "cred"))
	source, copied := &metav1.PartialObjectMetadata{ObjectMeta: credential("ws", "5", "").ObjectMeta}, &metav1.PartialObjectMetadata{ObjectMeta: copyOf("1 source/5", "").ObjectMeta}
	handler := s.copyEvents(secretKind)
	handler.OnAdd(source, true)
	assert.Empty(t, s.taken(), "at its start the hub enqueues all Clusters")
	handler.OnAdd(source, false)
	assert.Empty(t, s.takenByPass(t), "nothing is deployed with it")
	s.has(t, deployed(t, copying("secret", "cred")))
	handler.OnAdd(source, false)
	assert.Equal(t, []string{"enqueue Cluster alice in 0s"}, s.takenByPass(t))
	handler.OnDelete(copied)
	assert.Equal(t, []string{"enqueue Bundle * in 0s", "enqueue Cluster alice in 0s"}, s.taken())
	s.copyEvents(configMapKind).OnAdd(source, false)
	assert.Empty(t, s.takenByPass(t))
}

// The cache computes the sources of each Bundle while it holds its lock.
func TestSourcesOfBundle_manyTargets(t *testing.T) {
	const targets = 5000
	b := bundleWith(func(s *fleet.BundleSpec) {
		for range targets {
			s.Targets = append(s.Targets, fleet.BundleTarget{BundleDeploymentOptions: fleet.BundleDeploymentOptions{
				DownstreamResources: []fleet.DownstreamResource{{Kind: "Secret", Name: "cred"}},
			}})
		}
	})
	assert.Less(t, heap.Allocated(func() { assert.Len(t, sourcesOfBundle(b), targets) }), 10<<20, "the list is copied for each target")
}

// The index takes many times the memory of the list of sources, so a Bundle with more sources than allowed has no key in it.
func TestIndex_manySources(t *testing.T) {
	s := newStage(t)
	for n, want := range map[int]int{maxSources: 1, maxSources + 1: 0} {
		b := bundleWith(func(s *fleet.BundleSpec) {
			for i := range n {
				s.DownstreamResources = append(s.DownstreamResources, fleet.DownstreamResource{Kind: "Secret", Name: fmt.Sprint(i)})
			}
		})
		s.has(t, b)
		found, err := s.bundleCache.GetByIndex(bySource, sourceKey("ws", copySource{kind: secretKind, name: "7"}))
		require.NoError(t, err)
		assert.Len(t, found, want)
	}
}

// A BundleDeployment of Fleet's hub may name any number of Secrets and ConfigMaps, and each pass over the Cluster goes through all of them. To
// compare each with all others would take a minute.
func TestSourcesOf_many(t *testing.T) {
	deployment := &fleet.BundleDeployment{}
	for i := range 50_000 { // fit into 1.5 MB
		deployment.Spec.Options.DownstreamResources = append(deployment.Spec.Options.DownstreamResources, fleet.DownstreamResource{Kind: "secret", Name: fmt.Sprint(i)})
	}
	deployment.Spec.StagedOptions = deployment.Spec.Options
	assert.Len(t, sourcesOf(deployment), 50_000)
}
