package bundle

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// bundleSecret is the Secret with the values of Bundle ws/app.
func bundleSecret(data map[string]string) *corev1.Secret {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "app", UID: "uid-of-values", ResourceVersion: "7"},
		Type:       "fleet.cattle.io/bundle-values/v1alpha1", Data: map[string][]byte{},
	}
	for key, text := range data {
		secret.Data[key] = []byte(text)
	}
	return secret
}

// withSecret returns a Bundle whose values are in the Secret.
func withSecret(secret *corev1.Secret) *fleet.Bundle {
	b := targetingAlice()
	b.Spec.ValuesHash = hashOfData(secret)
	b.Spec.Targets[0].Name = "east"
	return b
}

// The digest is that of the JSON of the data, whose keys are sorted and whose values are encoded in base64.
func TestBundleValues_hash(t *testing.T) {
	secret := bundleSecret(map[string]string{"values.yaml": `{"key":"value"}`, "east": "{}"})
	text, err := json.Marshal(secret.Data)
	require.NoError(t, err)
	require.Equal(t, `{"east":"e30=","values.yaml":"eyJrZXkiOiJ2YWx1ZSJ9"}`, string(text)) //nolint:testifylint // the digest is of these bytes
	assert.Equal(t, "c9383ce04a61581d77c20489b37ccc5691319bc95b31887fcdf87887a3ff0c74", hashOfData(secret))
}

func TestBundleValues(t *testing.T) {
	s := newStage(t)
	secret := bundleSecret(map[string]string{"values.yaml": "a: 1\nb: {c: 2}\n", "east": `{"b":{"c":3}}`, "west": "b: 4"})
	require.NoError(t, s.kubernetes.Tracker().Add(secret))
	b := withSecret(secret)
	v, err := s.plans.of(t.Context(), b).variant(t.Context(), []int{0}, clusterNamed("alice"))
	require.NoError(t, err)
	assert.JSONEq(t, `{"a":1,"b":{"c":3}}`, string(v.values))

	inSpec := targetingAlice()
	inSpec.Spec.Helm = &fleet.HelmOptions{Values: &fleet.GenericMap{Data: map[string]any{"a": 1, "b": map[string]any{"c": 2}}}}
	inSpec.Spec.Targets[0].Helm = &fleet.HelmOptions{Values: &fleet.GenericMap{Data: map[string]any{"b": map[string]any{"c": 3}}}}
	same, err := planOf(inSpec).variant(t.Context(), []int{0}, clusterNamed("alice"))
	require.NoError(t, err)
	assert.Equal(t, same.deploymentID, v.deploymentID)
	assert.Equal(t, same.values, v.values)
	assert.Nil(t, b.Spec.Helm, "the object in the cache")
	s.plans.of(t.Context(), b)
	assert.Equal(t, []string{"get Secret ws/app"}, s.log, "once for a generation")
}

func TestBundleValues_problems(t *testing.T) {
	good := bundleSecret(map[string]string{"values.yaml": "a: 1"})
	otherType := bundleSecret(map[string]string{"values.yaml": "a: 1"})
	otherType.Type = corev1.SecretTypeOpaque
	for name, row := range map[string]struct {
		secret *corev1.Secret
		says   string
	}{
		"none":         {nil, "does not exist"},
		"another type": {otherType, "has another type than fleet.cattle.io/bundle-values/v1alpha1"},
		"other values": {bundleSecret(map[string]string{"values.yaml": "a: 2"}), "has other values"},
	} {
		s := newStage(t)
		if row.secret != nil {
			require.NoError(t, s.kubernetes.Tracker().Add(row.secret))
		}
		p := s.plans.of(t.Context(), withSecret(good))
		require.NotNil(t, p.problem, name)
		assert.Equal(t, fleet.ReasonValuesMissing, p.problem.reason, name)
		assert.Contains(t, p.problem.message, "Secret ws/app with the Helm values of spec.valuesHash "+row.says, name)
		assert.NotEmpty(t, p.targets, "%s: the targets are known, so that nothing counts as untargeted", name)
	}
	half := "a: [" + strings.Repeat("1,", maxValueNodes/2) + "1]"
	for name, row := range map[string]struct {
		data map[string]string
		says string
	}{
		"a list":         {map[string]string{"east": "[1, 2]"}, "has invalid values in key east: it is not a YAML object"},
		"an alias":       {map[string]string{"east": "a: &x 1\nb: *x"}, "has invalid values in key east: line 2 has a YAML alias"},
		"no YAML":        {map[string]string{"east": "a: ["}, "has invalid values in key east: it is not a YAML object"},
		"too many nodes": {map[string]string{"east": half, "values.yaml": half}, "has YAML that has more than 50000 nodes"},
	} {
		s, secret := newStage(t), bundleSecret(row.data)
		require.NoError(t, s.kubernetes.Tracker().Add(secret))
		p := s.plans.of(t.Context(), withSecret(secret))
		require.NotNil(t, p.problem, name)
		assert.Contains(t, p.problem.message, row.says, name)
	}
}

// A BundleDeployment stays while the values are missing, and is updated when the Secret has them.
func TestReconcile_bundleValues(t *testing.T) {
	s, alice := newStage(t), clusterNamed("alice")
	secret := bundleSecret(map[string]string{"values.yaml": "a: 1"})
	b := withSecret(secret)
	before := deployed(t, targetingAlice())
	s.has(t, alice, b, before)
	s.handle(t, b)
	s.log = nil
	s.reconcile(t, alice)
	assert.Empty(t, s.requests(), "no BundleDeployment is written or deleted, and the Secret is read once")

	require.NoError(t, s.kubernetes.Tracker().Add(secret))
	s.secretEvents().OnAdd(&metav1.PartialObjectMetadata{ObjectMeta: secret.ObjectMeta}, false)
	assert.Equal(t, []string{"enqueue Bundle app in 1s"}, s.taken())
	s.handle(t, b)
	assert.Contains(t, s.taken(), "enqueue Cluster alice in 0s")
	s.reconcile(t, alice)
	assert.Equal(t, `{"a":1}`, string(s.liveSecret(t).Data["values"]))

	// A Bundle that has its values in its spec has nothing to do with a Secret of its name.
	s.has(t, targetingAlice())
	s.log = nil
	s.secretEvents().OnAdd(&metav1.PartialObjectMetadata{ObjectMeta: secret.ObjectMeta}, false)
	assert.Empty(t, s.log)
}

// A temporary error is no problem of the Bundle: the pass is repeated.
func TestOnBundle_valuesNotReadable(t *testing.T) {
	s := newStage(t)
	secret := bundleSecret(map[string]string{"values.yaml": "a: 1"})
	require.NoError(t, s.kubernetes.Tracker().Add(secret))
	s.errors = map[string]error{"get Secret ws/app": errors.New("etcd is slow")}
	b := withSecret(secret)
	b.Finalizers = []string{fleet.BundleFinalizer}
	_, err := s.onBundle("ws/app", b)
	require.ErrorContains(t, err, "reading Secret ws/app with the Helm values: etcd is slow")
	s.errors = nil
	assert.Nil(t, s.plans.of(t.Context(), b).problem)
}

// A Bundle can have thousands of targets of one name: the values are in memory once.
func TestBundleValues_sharedByTargets(t *testing.T) {
	s, secret := newStage(t), bundleSecret(map[string]string{"east": "a: 1"})
	require.NoError(t, s.kubernetes.Tracker().Add(secret))
	b := withSecret(secret)
	b.Spec.Targets = append(b.Spec.Targets, b.Spec.Targets[0])
	complete, problem, err := s.plans.values.addTo(t.Context(), b)
	require.NoError(t, err)
	require.Nil(t, problem)
	assert.Same(t, complete.Spec.Targets[0].Helm.Values, complete.Spec.Targets[1].Helm.Values)
}

// A pass over a Cluster that cannot read the values is repeated: no event of the Bundle would do that.
func TestReconcile_bundleValuesNotReadable(t *testing.T) {
	s, alice := newStage(t), clusterNamed("alice")
	secret := bundleSecret(map[string]string{"values.yaml": "a: 1"})
	require.NoError(t, s.kubernetes.Tracker().Add(secret))
	s.has(t, alice, withSecret(secret), deployed(t, targetingAlice()))
	s.errors = map[string]error{"get Secret ws/app": errors.New("etcd is slow")}
	_, out := s.reconcile(t, alice)
	require.ErrorContains(t, out.Err, "etcd is slow")
	assert.Equal(t, []string{"get Secret ws/app"}, s.taken())

	// Another Bundle is deployed meanwhile, and a Cluster that the Bundle does not target has no error.
	s = newStage(t)
	s.errors = map[string]error{"get Secret ws/app": errors.New("etcd is slow")}
	other := bundleWith(func(s *fleet.BundleSpec) { s.Targets = []fleet.BundleTarget{{ClusterName: "alice"}} })
	other.Name, other.UID = "other", "uid-of-other"
	elsewhere := withSecret(secret)
	elsewhere.Spec.Targets = []fleet.BundleTarget{{ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "none"}}}}
	s.has(t, alice, elsewhere, other)
	_, out = s.reconcile(t, alice)
	require.NoError(t, out.Err)
	assert.Contains(t, strings.Join(s.taken(), "\n"), "create "+home+"/other")
}

// The pass over the Bundle has seen the values before and after, and only a pass over a Cluster has found the Secret without them.
func TestReconcile_bundleValuesMissingForAMoment(t *testing.T) {
	s, alice := newStage(t), clusterNamed("alice")
	secret := bundleSecret(map[string]string{"values.yaml": "a: 1"})
	require.NoError(t, s.kubernetes.Tracker().Add(secret))
	b := withSecret(secret)
	s.has(t, alice, b)
	s.handle(t, b)
	s.plans.forget(keyOf(b))
	require.NoError(t, s.kubernetes.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("secrets"), "ws", "app"))
	_, out := s.reconcile(t, alice)
	require.NoError(t, out.Err)
	require.NoError(t, s.kubernetes.Tracker().Add(secret))
	s.plans.forget(keyOf(b))
	s.taken()
	s.handle(t, b)
	assert.Contains(t, s.taken(), "enqueue Cluster alice in 0s")
}
