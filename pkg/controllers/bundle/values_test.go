package bundle

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
)

func TestHelmValuesHash(t *testing.T) {
	for _, row := range []struct{ current, staged, want string }{
		{"", "", ""},
		{`{"key":"value"}`, "", "e43abcf3375244839c012f9633f95862d232a95b00d5bc7348b3098b9fed7f32"},
		{`{"key":"value"}`, `{"key":"value"}`, "3e595e3b9aececead659294e162b71ffeb4390a932d57dcad86b5974a515a77e"},
		{`{"key":"value"}`, `{"newkey":"value"}`, "01c44d8a446abccb870503db292e07cb2b8da135b6fec52b21048bdab8c84a7c"},
	} {
		assert.Equal(t, row.want, helmValues{current: []byte(row.current), staged: []byte(row.staged)}.hash())
	}
}

// withValues returns a Bundle with one Helm value, to the Cluster alice.
func withValues(value any) *fleet.Bundle {
	b := targetingAlice()
	b.Spec.Helm = &fleet.HelmOptions{Values: &fleet.GenericMap{Data: map[string]any{"v": value}}}
	return b
}

// valuesSecret returns the Secret of a BundleDeployment.
func valuesSecret(current, staged string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: home, Name: "app", UID: "uid-of-secret", ResourceVersion: "3",
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(&fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Name: "app", UID: "uid-of-app"}}, deploymentKind)},
		},
		Type: "fleet.cattle.io/bundle-deployment/v1alpha1",
		Data: map[string][]byte{"values": []byte(current), "stagedValues": []byte(staged)},
	}
}

// hasSecret puts a Secret into the API server and its metadata into the cache.
func (s *stage) hasSecret(t *testing.T, secret *corev1.Secret) {
	t.Helper()
	require.NoError(t, s.kubernetes.Tracker().Add(secret))
	s.showSecret(t, secret)
}

func (s *stage) showSecret(t *testing.T, secret *corev1.Secret) {
	t.Helper()
	cached := &metav1.PartialObjectMetadata{ObjectMeta: *secret.ObjectMeta.DeepCopy()}
	cached.Annotations, cached.OwnerReferences = CopyAnnotations(secret), nil // as the caches of the hub have it
	require.NoError(t, s.Deployer.SecretMetadata.GetStore().Add(cached))
}

// liveSecret returns the Secret as the API server has it, nil if there is none.
func (s *stage) liveSecret(t *testing.T) *corev1.Secret {
	t.Helper()
	object, err := s.kubernetes.Tracker().Get(corev1.SchemeGroupVersion.WithResource("secrets"), home, "app")
	if err != nil {
		return nil
	}
	return object.(*corev1.Secret)
}

// requests returns the requests since the last call, in their order and without their bodies.
func (s *stage) requests() (verbs []string) {
	for _, line := range s.log {
		if !strings.HasPrefix(line, "enqueue") && !strings.HasPrefix(line, "create Content") {
			verbs = append(verbs, strings.Join(strings.Fields(line)[:2], " "))
		}
	}
	s.log = nil
	for i := range verbs {
		verbs[i] = strings.TrimSuffix(verbs[i], " "+atHome)
	}
	return verbs
}

func TestReconcileValues(t *testing.T) {
	s := newStage(t)
	alice := clusterNamed("alice")
	s.has(t, alice, withValues("one"))
	s.reconcile(t, alice)
	created := s.log[1]
	assert.Equal(t, []string{"create", "create Secret", "patch"}, s.requests(), "the BundleDeployment owns the Secret, and waits for it")
	assert.Equal(t, "create "+atHome, created)
	assert.Equal(t, [][]string{{"app"}}, s.rights.secrets)
	secret := s.liveSecret(t)
	require.NotNil(t, secret)
	assert.Equal(t, valuesSecret(`{"v":"one"}`, `{"v":"one"}`).Data, secret.Data)
	assert.Equal(t, valuesSecret("", "").Type, secret.Type)
	assert.Empty(t, secret.Labels)

	s.reconcile(t, alice)
	assert.Empty(t, s.requests(), "the caches show none of it yet")
	assert.Equal(t, []string{"app"}, s.rights.secrets[1], "the agent may go on reading it")

	s = newStage(t)
	s.has(t, alice, withValues("one"), deployed(t, withValues("one")))
	s.hasSecret(t, valuesSecret(`{"v":"one"}`, `{"v":"one"}`))
	s.reconcile(t, alice)
	assert.Empty(t, s.requests(), "another hub has written it: the digest shows that")

	changed := withValues("two")
	changed.Generation = 2
	s.has(t, changed)
	s.reconcile(t, alice)
	assert.Equal(t, []string{"get Secret", "update Secret", "patch"}, s.requests(), "the Secret before the digest")
	assert.Equal(t, valuesSecret(`{"v":"two"}`, `{"v":"two"}`).Data, s.liveSecret(t).Data)

	s.has(t, deployed(t, changed))
	s.reconcile(t, alice)
	assert.Empty(t, s.requests(), "the cache may show the version before")

	removed := targetingAlice()
	removed.Generation = 3
	s.has(t, removed)
	s.reconcile(t, alice)
	assert.Equal(t, []string{"delete Secret", "patch"}, s.requests())
	assert.Nil(t, s.liveSecret(t))
	assert.Nil(t, s.rights.secrets[len(s.rights.secrets)-1])
}

// Older versions of Fleet wrote the values into the options.
func TestReconcileValuesOfOlderFleet(t *testing.T) {
	for name, paused := range map[string]bool{"deployed": false, "paused": true} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			before := withValues("one")
			b := withValues("one")
			if paused { // and changed meanwhile
				b = withValues("two")
				b.Spec.Paused = true
			}
			existing := isReady(deployed(t, before))
			existing.Spec.ValuesHash = ""
			existing.Spec.Options.Helm, existing.Spec.StagedOptions.Helm = before.Spec.Helm, before.Spec.Helm
			s.has(t, clusterNamed("alice"), b, existing)
			s.reconcile(t, clusterNamed("alice"))
			patch := s.log[len(s.log)-1]
			assert.Equal(t, []string{"create Secret", "patch"}, s.requests())
			assert.NotContains(t, patch, `"/spec/deploymentID"`, "nothing is deployed again")
			assert.NotContains(t, patch, `"v":`)
			want := valuesSecret(`{"v":"one"}`, `{"v":"one"}`)
			if paused {
				want = valuesSecret(`{"v":"one"}`, `{"v":"two"}`)
			}
			assert.Equal(t, want.Data, s.liveSecret(t).Data)
		})
	}
}

func TestReconcileValuesWhilePaused(t *testing.T) {
	paused := withValues("two")
	paused.Spec.Paused, paused.Generation = true, 2
	for name, row := range map[string]struct {
		secret  *corev1.Secret
		current string
		want    []string
	}{
		"the values that are deployed stay":   {valuesSecret(`{"v":"one"}`, `{"v":"one"}`), `{"v":"one"}`, []string{"get Secret", "get Secret", "update Secret", "patch"}},
		"the Secret is lost: nothing to keep": {nil, "", []string{"get Secret", "create Secret", "patch"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.has(t, clusterNamed("alice"), paused, isReady(deployed(t, withValues("one"))))
			if row.secret != nil {
				s.hasSecret(t, row.secret)
			}
			s.reconcile(t, clusterNamed("alice"))
			patch := s.log[len(s.log)-1]
			assert.Equal(t, row.want, s.requests())
			assert.Equal(t, valuesSecret(row.current, `{"v":"two"}`).Data, s.liveSecret(t).Data)

			written := s.liveSecret(t)
			s.showSecret(t, written)
			s.reconcile(t, clusterNamed("alice"))
			assert.Equal(t, []string{patch}, s.log, "the cache does not show the patch; the hub knows the Secret, and does not read it again")
			s.requests()

			changed := written.DeepCopy()
			changed.ResourceVersion, changed.Data["stagedValues"] = "9", []byte(`{"v":"three"}`)
			require.NoError(t, s.kubernetes.Tracker().Update(corev1.SchemeGroupVersion.WithResource("secrets"), changed, home))
			s.showSecret(t, changed)
			s.reconcile(t, clusterNamed("alice"))
			assert.Equal(t, "get Secret", s.requests()[0], "somebody else has changed the Secret")
		})
	}
}

func TestReconcileValuesOfAClusterThatWaits(t *testing.T) {
	s := newStage(t)
	alice, after := clusterNamed("alice"), withValues("two")
	after.Generation, after.Spec.RolloutStrategy = 2, &fleet.RolloutStrategy{MaxUnavailable: number("1")}
	s.has(t, alice, after, isReady(deployed(t, withValues("one"))))
	cluster, out := s.reconcile(t, alice)
	require.ErrorContains(t, out.Err, "Secret "+home+"/app with the deployed Helm values is missing")
	assert.Equal(t, []string{"get Secret"}, s.requests(), "the agent keeps what is deployed")
	assert.Equal(t, "1/1", cluster.Status.Display.ReadyBundles)

	s.hasSecret(t, valuesSecret(`{"v":"one"}`, `{"v":"one"}`))
	_, out = s.reconcile(t, alice)
	require.NoError(t, out.Err)
	assert.Equal(t, valuesSecret(`{"v":"one"}`, `{"v":"two"}`).Data, s.liveSecret(t).Data)

	s.handle(t, after)
	require.NoError(t, s.kubernetes.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("secrets"), home, "app"))
	s.values.forget(key{Namespace: home, Name: "app"})
	require.NoError(t, s.Deployer.SecretMetadata.GetStore().Delete(&metav1.PartialObjectMetadata{ObjectMeta: valuesSecret("", "").ObjectMeta}))
	_, out = s.reconcile(t, alice)
	require.NoError(t, out.Err)
	assert.Equal(t, valuesSecret(`{"v":"two"}`, `{"v":"two"}`).Data, s.liveSecret(t).Data, "it may have the new version")
}

func TestReconcileValuesRepairs(t *testing.T) {
	tampered, foreign, unowned := valuesSecret(`{"v":"bad"}`, `{"v":"one"}`), valuesSecret("", ""), valuesSecret(`{"v":"one"}`, `{"v":"one"}`)
	foreign.Type, unowned.OwnerReferences[0].UID = corev1.SecretTypeOpaque, "of-an-earlier-app"
	for name, row := range map[string]struct {
		secret *corev1.Secret
		live   []string
		reason string
	}{
		"deleted":                        {nil, []string{"create Secret"}, ""},
		"changed":                        {tampered, []string{"get Secret", "update Secret"}, ""},
		"of an earlier BundleDeployment": {unowned, []string{"get Secret", "update Secret"}, ""},
		"changed to what it was":         {valuesSecret(`{"v":"one"}`, `{"v":"one"}`), []string{"get Secret"}, ""},
		"of another type: left as it is": {foreign, []string{"get Secret"}, fleet.ReasonNameConflict},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.has(t, clusterNamed("alice"), withValues("one"), isReady(deployed(t, withValues("one"))))
			handler := s.secretEvents()
			if row.secret == nil {
				handler.OnDelete(&metav1.PartialObjectMetadata{ObjectMeta: valuesSecret("", "").ObjectMeta})
			} else {
				s.hasSecret(t, row.secret)
				before, after := &metav1.PartialObjectMetadata{ObjectMeta: row.secret.ObjectMeta}, &metav1.PartialObjectMetadata{ObjectMeta: row.secret.ObjectMeta}
				before.ResourceVersion = "2"
				handler.OnUpdate(before, after)
			}
			assert.Equal(t, []string{"enqueue Cluster alice in 0s"}, s.taken())
			_, out := s.reconcile(t, clusterNamed("alice"))
			assert.Equal(t, row.live, s.requests())
			if row.reason != "" {
				assert.Equal(t, row.reason, out.Reason)
				return
			}
			assert.Equal(t, valuesSecret(`{"v":"one"}`, `{"v":"one"}`).Data, s.liveSecret(t).Data)
			assert.EqualValues(t, "uid-of-app", s.liveSecret(t).OwnerReferences[0].UID)
			s.reconcile(t, clusterNamed("alice"))
			assert.Empty(t, s.requests())
		})
	}
}

func TestReconcileValuesErrors(t *testing.T) {
	for name, row := range map[string]struct {
		exists bool
		errors map[string]error
		rights error
		want   []string
		next   []string // after the error
	}{
		"the Secret cannot be created": {
			errors: map[string]error{"create Secret": errInternal}, want: []string{"create", "create Secret"}, next: []string{"create Secret", "patch"},
		},
		"the Secret cannot be changed: the agent keeps the values it has": {
			exists: true, errors: map[string]error{"update Secret": errInternal}, want: []string{"get Secret", "update Secret"},
			next: []string{"get Secret", "update Secret", "patch"},
		},
		"the right cannot be granted": {
			exists: true, rights: errors.New("no"), want: []string{"get Secret", "update Secret"}, next: []string{"patch"},
		},
		"the BundleDeployment cannot be patched": {
			exists: true, errors: map[string]error{"patch": errInternal}, want: []string{"get Secret", "update Secret", "patch"}, next: []string{"patch"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			changed := withValues("two")
			changed.Generation = 2
			s.has(t, clusterNamed("alice"), changed)
			if row.exists {
				s.has(t, deployed(t, withValues("one")))
				s.hasSecret(t, valuesSecret(`{"v":"one"}`, `{"v":"one"}`))
			}
			s.errors, s.rights.secretsErr = row.errors, row.rights
			cluster, out := s.reconcile(t, clusterNamed("alice"))
			require.Error(t, out.Err)
			assert.Equal(t, "0/1", cluster.Status.Display.ReadyBundles)
			assert.Equal(t, row.want, s.requests())

			s.errors, s.rights.secretsErr = nil, nil
			if !row.exists { // the cache shows what was created
				waiting := deployed(t, changed)
				waiting.Spec.ValuesHash, waiting.Spec.WaitingForValues = "", true
				s.has(t, waiting)
				s.clock.Step(expectations.Timeout)
			}
			_, out = s.reconcile(t, clusterNamed("alice"))
			require.NoError(t, out.Err)
			assert.Equal(t, row.next, s.requests())
			assert.Equal(t, valuesSecret(`{"v":"two"}`, `{"v":"two"}`).Data, s.liveSecret(t).Data)
		})
	}
}

func TestReconcileValuesBeforeTheCacheShowsThem(t *testing.T) {
	for name, foreign := range map[string]bool{"a Secret of the hub: readable": false, "a Secret of somebody else: not readable": true} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.has(t, clusterNamed("alice"), withValues("one"))
			readable := []string{"app"}
			if foreign {
				theirs := valuesSecret("", "")
				theirs.Type = corev1.SecretTypeOpaque
				require.NoError(t, s.kubernetes.Tracker().Add(theirs))
				readable = nil
			}
			for range 2 { // in the second pass the BundleDeployment is created, and the cache does not show it
				s.reconcile(t, clusterNamed("alice"))
			}
			require.Len(t, s.rights.secrets, 2)
			assert.Equal(t, readable, s.rights.secrets[1])
		})
	}
}

func TestSecretEventsOfOthers(t *testing.T) {
	s := newStage(t)
	s.has(t, clusterNamed("alice"), deployed(t, targetingAlice()))
	secret := &metav1.PartialObjectMetadata{ObjectMeta: valuesSecret("", "").ObjectMeta}
	after := secret.DeepCopy()
	after.ResourceVersion = "4"
	handler := s.secretEvents()
	handler.OnUpdate(secret, after)
	handler.OnDelete(secret)
	assert.Empty(t, s.taken())
}
