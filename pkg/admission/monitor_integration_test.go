package admission_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/pkg/admission"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// creatorObjects are those without which nobody knows who creates a request.
func creatorObjects(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	var found []*unstructured.Unstructured
	for _, policy := range objects(t, "v1") {
		if policy.GetName() == admission.CreatorPolicy {
			found = append(found, policy)
		}
	}
	require.Len(t, found, 4)
	return found
}

func TestThePoliciesAreInForceOnceTheyAreInstalled(t *testing.T) {
	s := newScene(t)
	s.remove()
	watching := s.monitor(false)
	watching.Settle(t.Context())
	_, ok := watching.InForce()
	require.False(t, ok)
	assert.Contains(t, watching.Missing(), "MutatingAdmissionPolicy fleet-registration-creator is missing")
	assert.Contains(t, watching.Missing(), "admissionPolicies.enabled=true")

	before := time.Now().Truncate(time.Second)
	require.NoError(t, admission.Install(t.Context(), s.admin.dynamic, objects(t, "v1")))
	s.eventually(watching, true)
	since, _ := watching.InForce()
	assert.True(t, since.After(before), "%s is before %s", since, before)
	assert.Empty(t, watching.Missing())
}

func TestAPolicyThatGoesAndComesBackIsNoticed(t *testing.T) {
	s := newScene(t)
	s.inForce()
	watching := s.monitor(false)
	s.eventually(watching, true)
	for _, policy := range creatorObjects(t) {
		before, _ := watching.InForce()
		client := s.admin.dynamic.Resource(admission.Resource(policy))
		require.NoError(t, client.Delete(t.Context(), policy.GetName(), metav1.DeleteOptions{}))
		s.eventually(watching, false)
		assert.Contains(t, watching.Missing(), policy.GetKind()+" "+policy.GetName()+" is missing")

		_, err := client.Create(t.Context(), policy, metav1.CreateOptions{})
		require.NoError(t, err)
		s.eventually(watching, true)
		since, _ := watching.InForce()
		assert.False(t, since.Before(before), "what came in between has no proof")
	}
}

func TestAPolicyThatIsChangedIsNoticed(t *testing.T) {
	s := newScene(t)
	s.inForce()
	watching := s.monitor(false)
	for kind, change := range map[string]string{
		admission.KindMutating:          `{"spec":{"matchConstraints":{"objectSelector":{"matchLabels":{"a":"b"}}}}}`,
		admission.KindMutatingBinding:   `{"spec":{"matchResources":{"namespaceSelector":{"matchLabels":{"a":"b"}}}}}`,
		admission.KindValidating:        `{"spec":{"failurePolicy":"Ignore"}}`,
		admission.KindValidatingBinding: `{"spec":{"validationActions":["Warn"]}}`,
	} {
		s.eventually(watching, true)
		s.patchCreator(kind, change)
		s.eventually(watching, false)
		assert.Contains(t, watching.Missing(), kind+" fleet-registration-creator is not as this hub knows it")
		require.NoError(t, admission.Install(t.Context(), s.admin.dynamic, objects(t, "v1")))
	}
	s.eventually(watching, true)
	s.patchCreator(admission.KindMutating, `{"metadata":{"labels":{"fleet.cattle.io/managed":null}}}`)
	s.eventually(watching, false) // it is not watched any more, so nobody would notice its end
	require.NoError(t, admission.Install(t.Context(), s.admin.dynamic, objects(t, "v1")))
	s.eventually(watching, true)
}

func (s *scene) patchCreator(kind, patch string) {
	s.Helper()
	for _, policy := range creatorObjects(s.T) {
		if policy.GetKind() == kind {
			_, err := s.admin.dynamic.Resource(admission.Resource(policy)).Patch(s.Context(), policy.GetName(), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			require.NoError(s, err)
		}
	}
}

func TestAHubThatInstallsPutsThePoliciesRight(t *testing.T) {
	s := newScene(t)
	s.remove()
	m := s.monitor(true)
	s.eventually(m, true)
	for _, policy := range objects(t, "v1") {
		client := s.admin.dynamic.Resource(admission.Resource(policy))
		require.NoError(t, client.Delete(t.Context(), policy.GetName(), metav1.DeleteOptions{}))
		require.Eventually(t, func() bool {
			_, err := client.Get(t.Context(), policy.GetName(), metav1.GetOptions{})
			return err == nil
		}, patience, poll, "%s %s", policy.GetKind(), policy.GetName())
	}
	s.patchCreator(admission.KindValidatingBinding, `{"spec":{"validationActions":["Audit"]}}`)
	require.Eventually(t, func() bool {
		binding, err := s.admin.kubernetes.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Get(t.Context(), admission.CreatorPolicy, metav1.GetOptions{})
		return err == nil && len(binding.Spec.ValidationActions) == 1 && binding.Spec.ValidationActions[0] == "Deny"
	}, patience, poll)
	s.eventually(m, true)
}

func TestAnInstallationLeavesAloneWhatIsRightAndWhoseItIs(t *testing.T) {
	s := newScene(t)
	s.inForce()
	s.patchCreator(admission.KindMutating, `{"metadata":{"labels":{"app.kubernetes.io/managed-by":"Helm"},"annotations":{"meta.helm.sh/release-name":"fleet"}}}`)
	client := s.admin.dynamic.Resource(admission.Resource(objects(t, "v1")[0]))
	before, err := client.Get(t.Context(), admission.CreatorPolicy, metav1.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, admission.Install(t.Context(), s.admin.dynamic, objects(t, "v1")))
	after, err := client.Get(t.Context(), admission.CreatorPolicy, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, before.GetResourceVersion(), after.GetResourceVersion())

	s.patchCreator(admission.KindMutating, `{"spec":{"failurePolicy":"Ignore"}}`)
	require.NoError(t, admission.Install(t.Context(), s.admin.dynamic, objects(t, "v1")))
	after, err = client.Get(t.Context(), admission.CreatorPolicy, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "Helm", after.GetLabels()["app.kubernetes.io/managed-by"])
	assert.Equal(t, "fleet", after.GetAnnotations()["meta.helm.sh/release-name"])
	assert.Equal(t, "Fail", after.Object["spec"].(map[string]any)["failurePolicy"])
}

func TestWhoListensHearsOfEachChange(t *testing.T) {
	s := newScene(t)
	s.remove()
	var heard atomic.Int64
	m, err := admission.New(admission.Options{RESTConfig: s.plane.RESTConfig(), Namespace: s.namespace})
	require.NoError(t, err)
	m.OnChange(func() { heard.Add(1) })
	ctx, stop := contextOf(t)
	m.Start(ctx)
	defer func() { stop(); m.Wait() }()
	m.Settle(t.Context())
	assert.Zero(t, heard.Load(), "nobody thought that they were in force")

	require.NoError(t, admission.Install(t.Context(), s.admin.dynamic, objects(t, "v1")))
	s.eventually(m, true)
	require.Eventually(t, func() bool { return heard.Load() > 0 }, patience, poll)
	so := heard.Load()
	s.remove(admission.KindValidating)
	s.eventually(m, false)
	require.Eventually(t, func() bool { return heard.Load() > so }, patience, poll)
	s.inForce()
}

func TestTheTryLeavesNothingBehind(t *testing.T) {
	s := newScene(t)
	s.inForce()
	wire := &wire{}
	m := s.monitor(false, wire.tap)
	s.eventually(m, true)
	assert.Equal(t, int64(1), wire.tries.Load(), "once for all, while nothing changes")
	left, err := s.admin.fleet.ClusterRegistrations(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, request := range left.Items {
		assert.NotContains(t, request.Name, "probe")
	}
	own, err := s.admin.fleet.ClusterRegistrations(s.namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Empty(t, own.Items)
}

// That the objects are there proves little: an API server may not apply them, or not yet.
func TestPoliciesThatAreNotAppliedAreNotInForce(t *testing.T) {
	s := newScene(t)
	s.inForce()
	wire := &wire{}
	wire.believe.Store(true)
	m := s.monitor(false, wire.tap)
	m.Settle(t.Context())
	require.Eventually(t, func() bool { return wire.tries.Load() >= 3 }, patience, poll, "it is tried again and again")
	_, ok := m.InForce()
	assert.False(t, ok)
	assert.Contains(t, m.Missing(), "does not apply the policies yet")
	wire.believe.Store(false)
	s.eventually(m, true)
}

func TestAHubWithoutRightsSaysWhichItNeeds(t *testing.T) {
	s := newScene(t)
	s.inForce()
	poor := s.account(s.namespace, "hub", rule("fleet.cattle.io", "clusterregistrations", "create"))
	clock := clocktesting.NewFakeClock(time.Now())
	m := s.monitor(false, func(o *admission.Options) { o.RESTConfig, o.Clock = poor.config, clock })
	m.Settle(t.Context())
	_, ok := m.InForce()
	require.False(t, ok)
	assert.Contains(t, m.Missing(), "the rights that the chart fleet gives it")

	// Rights that come are noticed after a while.
	s.allowEverywhere("hub-watches-"+s.namespace, s.namespace, "hub", rule("admissionregistration.k8s.io", "*", "list", "watch"))
	require.Eventually(t, func() bool {
		clock.Step(time.Hour)
		_, ok := m.InForce()
		return ok
	}, patience, poll, m.Missing())
}

func TestAHubThatMayNotInstallUsesWhatIsThere(t *testing.T) {
	s := newScene(t)
	s.inForce()
	poor := s.account(s.namespace, "hub", rule("fleet.cattle.io", "clusterregistrations", "create"))
	s.allowEverywhere("hub-watches-"+s.namespace, s.namespace, "hub", rule("admissionregistration.k8s.io", "*", "list", "watch"))
	m := s.monitor(true, func(o *admission.Options) { o.RESTConfig = poor.config })
	s.eventually(m, true)
	s.remove(admission.KindMutating)
	s.eventually(m, false)
	assert.Contains(t, m.Missing(), "is missing")
	assert.Contains(t, m.Missing(), "forbidden")
}

func TestAnAPIServerWithoutTheKindsSaysWhatToDo(t *testing.T) {
	s := newScene(t)
	s.remove()
	wire := &wire{hide: []string{"v1", "v1beta1"}}
	m := s.monitor(true, wire.tap)
	m.Settle(t.Context())
	_, ok := m.InForce()
	assert.False(t, ok)
	assert.Contains(t, m.Missing(), "--feature-gates=MutatingAdmissionPolicy=true")
	policies := s.admin.kubernetes.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	_, err := policies.Get(t.Context(), admission.TokenPolicy, metav1.GetOptions{})
	require.NoError(t, err, "agents are held to what is theirs all the same")
	_, err = policies.Get(t.Context(), admission.CreatorPolicy, metav1.GetOptions{})
	require.Error(t, err, "it would refuse every request")
	_, err = s.importer().fleet.ClusterRegistrations(s.namespace).Create(t.Context(), s.request(nil), metav1.CreateOptions{})
	require.NoError(t, err)
}

func TestAnAPIServerThatServesOnlyTheBetaIsEnough(t *testing.T) {
	plane, err := controlplane.Start(t.Context(), controlplane.Options{
		Name: "beta", ControllerManager: true,
		APIServerArgs: []string{"--runtime-config=admissionregistration.k8s.io/v1beta1=true", "--feature-gates=MutatingAdmissionPolicy=true"},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, plane.Stop()) })
	s := sceneOn(t, plane)
	wire := &wire{hide: []string{"v1"}}
	m := s.monitor(true, wire.tap)
	s.eventually(m, true)
	assert.Positive(t, wire.beta.Load())
	who := s.importer()
	created, err := who.fleet.ClusterRegistrations(s.namespace).Create(t.Context(), s.request(map[string]string{fleet.CreatorAnnotation: "a lie"}), metav1.CreateOptions{})
	require.NoError(t, err)
	assert.Equal(t, who.name, created.Annotations[fleet.CreatorAnnotation])

	// An API server that was away is watched again.
	watching := s.monitor(false)
	s.eventually(watching, true)
	require.NoError(t, plane.StopAPIServer())
	require.NoError(t, plane.StartAPIServer(t.Context()))
	require.Eventually(t, func() bool {
		return s.admin.kubernetes.AdmissionregistrationV1().MutatingAdmissionPolicies().Delete(t.Context(), admission.CreatorPolicy, metav1.DeleteOptions{}) == nil
	}, patience, poll)
	s.eventually(watching, false)
	s.eventually(watching, true) // the other one installs
}

// wire is between a Monitor and its API server.
type wire struct {
	hide    []string    // versions in which no MutatingAdmissionPolicies are offered
	believe atomic.Bool // that a request tells the truth about its creator
	tries   atomic.Int64
	beta    atomic.Int64 // requests about policies in v1beta1
}

func (w *wire) tap(o *admission.Options) {
	o.RESTConfig = rest.CopyConfig(o.RESTConfig)
	o.RESTConfig.Wrap(func(next http.RoundTripper) http.RoundTripper { return &tapped{w, next} })
}

type tapped struct {
	*wire
	next http.RoundTripper
}

func (t *tapped) RoundTrip(req *http.Request) (*http.Response, error) {
	if strings.Contains(req.URL.Path, "/v1beta1/mutating") {
		t.beta.Add(1)
	}
	answer, err := t.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if req.Method == http.MethodPost && req.URL.Query().Get("dryRun") == metav1.DryRunAll {
		t.tries.Add(1)
		if t.believe.Load() {
			return altered(answer, func(o map[string]any) {
				_ = unstructured.SetNestedField(o, "nobody at all", "metadata", "annotations", fleet.CreatorAnnotation)
			})
		}
	}
	for _, version := range t.hide {
		if req.URL.Path == "/apis/"+admission.Group+"/"+version && answer.StatusCode == http.StatusOK {
			return altered(answer, func(o map[string]any) { o["resources"] = []any{} })
		}
	}
	return answer, nil
}

func altered(answer *http.Response, change func(map[string]any)) (*http.Response, error) {
	defer func() { _ = answer.Body.Close() }()
	object := map[string]any{}
	if err := json.NewDecoder(answer.Body).Decode(&object); err != nil {
		return nil, err
	}
	change(object)
	data, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	answer.Header.Del("Content-Length")
	return answer, nil
}
