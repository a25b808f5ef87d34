package admission_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/admission"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/transport"
)

// creatorObjects are the policies and bindings that record the creators of requests.
func creatorObjects(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	found := slices.DeleteFunc(objects(t, "v1"), func(p *unstructured.Unstructured) bool { return p.GetName() != admission.CreatorPolicy })
	require.Len(t, found, 4)
	return found
}

func (s *scene) install() {
	s.Helper()
	require.NoError(s, admission.Install(s.Context(), s.admin.dynamic, objects(s.T, "v1")))
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

func TestMonitor(t *testing.T) {
	s := newScene(t)
	s.needsMutating()
	s.remove()
	var changes atomic.Int64
	m, err := admission.New(admission.Options{RESTConfig: s.plane.RESTConfig(), Namespace: s.namespace})
	require.NoError(t, err)
	m.OnChange(func() { changes.Add(1) })
	ctx, stop := context.WithCancel(context.Background())
	m.Start(ctx)
	defer func() { stop(); m.Wait() }()
	m.WaitUntilKnown(t.Context())
	require.False(t, m.State().InForce())
	assert.Contains(t, m.State().Missing, "MutatingAdmissionPolicy fleet-registration-creator is missing")
	assert.Contains(t, m.State().Missing, "admissionPolicies.enabled=true")
	require.Eventually(t, func() bool { return changes.Load() == 1 }, patience, poll, "the reason is known now")

	before := time.Now().Truncate(time.Second)
	s.install()
	s.eventually(m, true)
	since := m.State().Since
	assert.True(t, since.After(before), "%s is before %s", since, before)
	assert.Empty(t, m.State().Missing)
	require.Eventually(t, func() bool { return changes.Load() > 0 }, patience, poll)

	for _, policy := range creatorObjects(t) { // deleted and created again
		seen := changes.Load()
		before := m.State().Since
		client := s.admin.dynamic.Resource(admission.Resource(policy))
		require.NoError(t, client.Delete(t.Context(), policy.GetName(), metav1.DeleteOptions{}))
		s.eventually(m, false)
		assert.Contains(t, m.State().Missing, policy.GetKind()+" "+policy.GetName()+" is missing")
		require.Eventually(t, func() bool { return changes.Load() > seen }, patience, poll)

		_, err := client.Create(t.Context(), policy, metav1.CreateOptions{})
		require.NoError(t, err)
		s.eventually(m, true)
		since := m.State().Since
		assert.False(t, since.Before(before), "the creators of requests in between are not proved")
	}
	for kind, change := range map[string]string{
		admission.KindMutating:          `{"spec":{"matchConstraints":{"objectSelector":{"matchLabels":{"a":"b"}}}}}`,
		admission.KindMutatingBinding:   `{"spec":{"matchResources":{"namespaceSelector":{"matchLabels":{"a":"b"}}}}}`,
		admission.KindValidating:        `{"spec":{"failurePolicy":"Ignore"}}`,
		admission.KindValidatingBinding: `{"spec":{"validationActions":["Warn"]}}`,
	} {
		s.patchCreator(kind, change)
		s.eventually(m, false)
		assert.Contains(t, m.State().Missing, kind+" fleet-registration-creator differs from the one of this hub")
		s.install()
		s.eventually(m, true)
	}
	s.patchCreator(admission.KindMutating, `{"metadata":{"labels":{"fleet.cattle.io/managed":null}}}`)
	s.eventually(m, false) // without the label it is not watched, so its deletion would not be noticed
	s.install()
	s.eventually(m, true)
}

func TestMonitor_startLogsNoPassingState(t *testing.T) {
	s := newScene(t)
	s.needsMutating()
	s.remove()
	log := &bytes.Buffer{}
	logrus.SetOutput(log)
	defer logrus.SetOutput(os.Stderr)
	m, err := admission.New(admission.Options{RESTConfig: s.plane.RESTConfig(), Namespace: s.namespace, Install: true})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	m.Start(ctx)
	s.eventually(m, true)
	stop()
	m.Wait()
	assert.Contains(t, log.String(), "are in force")
	assert.NotContains(t, log.String(), "not in force")
}

func TestMonitorThatInstalls(t *testing.T) {
	sample.Long(t)
	s := newScene(t)
	s.needsMutating()
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

func TestInstall(t *testing.T) {
	s := newScene(t)
	s.needsMutating()
	s.inForce()
	s.patchCreator(admission.KindMutating, `{"metadata":{"labels":{"app.kubernetes.io/managed-by":"Helm"},"annotations":{"meta.helm.sh/release-name":"fleet"}}}`)
	client := s.admin.dynamic.Resource(admission.Resource(objects(t, "v1")[0]))
	before, err := client.Get(t.Context(), admission.CreatorPolicy, metav1.GetOptions{})
	require.NoError(t, err)
	s.install()
	after, err := client.Get(t.Context(), admission.CreatorPolicy, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, before.GetResourceVersion(), after.GetResourceVersion(), "a right policy is not written")

	s.patchCreator(admission.KindMutating, `{"spec":{"failurePolicy":"Ignore"}}`)
	s.install()
	after, err = client.Get(t.Context(), admission.CreatorPolicy, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "Helm", after.GetLabels()["app.kubernetes.io/managed-by"])
	assert.Equal(t, "fleet", after.GetAnnotations()["meta.helm.sh/release-name"])
	assert.Equal(t, "Fail", after.Object["spec"].(map[string]any)["failurePolicy"])
}

// The objects alone prove little: an API server may not apply them yet. It may also apply the validating policy before the mutating one; that
// refusal does not mean that the hub lacks a right.
func TestProbe_whileOnlyTheValidatingPolicyIsApplied(t *testing.T) {
	sample.Long(t)
	s := newScene(t)
	s.needsMutating()
	s.inForce()
	require.NoError(t, s.admin.kubernetes.AdmissionregistrationV1().MutatingAdmissionPolicies().Delete(t.Context(), admission.CreatorPolicy, metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		err := admission.Probe(t.Context(), s.admin.fleet.ClusterRegistrations(s.namespace))
		return errors.Is(err, admission.ErrNotApplied) && strings.Contains(err.Error(), "denied request")
	}, patience, poll)
	s.install()
	s.inForce()
}

func TestMonitorProbes(t *testing.T) {
	sample.Long(t)
	s := newScene(t)
	s.needsMutating()
	s.inForce()
	t.Run("policies that are not applied: not in force, and probed again", func(t *testing.T) {
		wire := &wire{}
		wire.believe.Store(true)
		m := s.monitor(false, wire.tap)
		m.WaitUntilKnown(t.Context())
		require.Eventually(t, func() bool { return wire.probes.Load() >= 3 }, patience, poll)
		assert.False(t, m.State().InForce())
		assert.Contains(t, m.State().Missing, "does not apply the policies yet")
		wire.believe.Store(false)
		s.eventually(m, true)
	})
	t.Run("policies that are applied: probed once, without a trace", func(t *testing.T) {
		wire := &wire{}
		s.eventually(s.monitor(false, wire.tap), true)
		assert.Equal(t, int64(1), wire.probes.Load())
		left, err := s.admin.fleet.ClusterRegistrations(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, request := range left.Items {
			assert.NotContains(t, request.Name, "probe")
			assert.NotEqual(t, s.namespace, request.Namespace)
		}
	})
}

// For some seconds after a kind was created, and after its own start, an API server refuses objects as unavailable where a mutating policy
// selects them.
func TestMonitorWaitsForTheSchemaOfAKind(t *testing.T) {
	sample.Long(t)
	t.Run("the kind is new", func(t *testing.T) { testMonitorWaitsForTheSchema(t, 0) })
	t.Run("the API server has just started", func(t *testing.T) { testMonitorWaitsForTheSchema(t, time.Hour) })
}

// The policies have the given age when the Monitor starts.
func testMonitorWaitsForTheSchema(t *testing.T, age time.Duration) {
	t.Helper()
	s := newScene(t)
	s.needsMutating()
	s.remove()
	s.install()
	policy, err := s.admin.kubernetes.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Get(t.Context(), admission.CreatorPolicy, metav1.GetOptions{})
	require.NoError(t, err)
	wire, clock := &wire{}, clocktesting.NewFakeClock(policy.CreationTimestamp.Add(age))
	wire.unavailable.Store(true)
	m := s.monitor(false, wire.tap, func(o *admission.Options) { o.Clock = clock })
	var before int64
	for range 2 { // at once, and after 8 s
		require.Eventually(t, func() bool { return wire.probes.Load() > before && clock.HasWaiters() }, patience, poll)
		assert.Contains(t, m.State().Missing, "not known yet", "no reason for a warning")
		before = wire.probes.Load()
		clock.Step(8 * time.Second)
	}
	require.Eventually(t, func() bool { return strings.Contains(m.State().Missing, "trying the admission policies in a dry run") }, patience, poll)
	wire.unavailable.Store(false)
	require.Eventually(t, func() bool {
		clock.Step(time.Minute)
		return m.State().InForce()
	}, patience, poll)
}

func TestMonitorWithoutRights(t *testing.T) {
	s := newScene(t)
	s.needsMutating()
	s.inForce()
	poor := s.account(s.namespace, "hub", rule("fleet.cattle.io", "clusterregistrations", "create"))
	clock := clocktesting.NewFakeClock(time.Now())
	m := s.monitor(false, func(o *admission.Options) { o.RESTConfig, o.Clock = poor.config, clock })
	m.WaitUntilKnown(t.Context())
	require.False(t, m.State().InForce())
	assert.Contains(t, m.State().Missing, "the rights that the chart fleet gives it")

	s.allowEverywhere("hub-watches-"+s.namespace, s.namespace, "hub", rule("admissionregistration.k8s.io", "*", "list", "watch"))
	require.Eventually(t, func() bool { // the new rights are noticed after a while
		clock.Step(time.Hour)
		return m.State().InForce()
	}, patience, poll, m.State().Missing)

	m = s.monitor(true, func(o *admission.Options) { o.RESTConfig = poor.config })
	s.eventually(m, true) // it uses the policies that it may not install
	s.remove(admission.KindMutating)
	s.eventually(m, false)
	assert.Contains(t, m.State().Missing, "is missing")
	assert.Contains(t, m.State().Missing, "forbidden")
}

// The API server is one before 1.36, or pretends to be one.
func TestMonitorOfAPIServerWithoutMutatingPolicies(t *testing.T) {
	sample.Long(t)
	s := newScene(t)
	s.remove()
	installs, stop := s.start(true, (&wire{hide: []string{"v1", "v1beta1"}}).tap)
	defer stop()
	installs.WaitUntilKnown(t.Context())
	s.eventually(installs, true)
	assert.Contains(t, installs.State().NotRecorded, "serves no MutatingAdmissionPolicies")
	policies := s.admin.kubernetes.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	_, err := policies.Get(t.Context(), admission.TokenPolicy, metav1.GetOptions{})
	require.NoError(t, err, "agents are limited nevertheless")
	_, err = policies.Get(t.Context(), admission.CreatorPolicy, metav1.GetOptions{})
	require.Error(t, err, "it would refuse every request")
	_, err = s.importer().fleet.ClusterRegistrations(s.namespace).Create(t.Context(), s.request(nil), metav1.CreateOptions{})
	require.NoError(t, err)

	// The validating policies are watched: their deletion is reported, and corrected where the hub installs them.
	require.NoError(t, policies.Delete(t.Context(), admission.StatusPolicy, metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		_, err := policies.Get(t.Context(), admission.StatusPolicy, metav1.GetOptions{})
		return err == nil
	}, patience, poll)
	stop()
	s.remove()
	var changes atomic.Int64
	watches := s.monitor(false, (&wire{hide: []string{"v1", "v1beta1"}}).tap)
	watches.OnChange(func() { changes.Add(1) })
	require.NoError(t, admission.Install(t.Context(), s.admin.dynamic, objects(t, "")))
	s.eventuallyLacks(watches, "", "")
	assert.True(t, watches.State().Policies[admission.PolicyRef{Kind: admission.KindValidating, Name: admission.StatusPolicy}])
	assert.NotContains(t, watches.State().Policies, admission.PolicyRef{Kind: admission.KindMutating, Name: admission.CreatorPolicy}, "it cannot have this one")
	s.eventually(watches, true)
	seen := changes.Load()
	require.NoError(t, policies.Delete(t.Context(), admission.StatusPolicy, metav1.DeleteOptions{}))
	s.eventuallyLacks(watches, fleet.ReasonPolicyMissing, "ValidatingAdmissionPolicy fleet-agent-status is missing")
	assert.False(t, watches.State().Policies[admission.PolicyRef{Kind: admission.KindValidating, Name: admission.StatusPolicy}])
	require.Eventually(t, func() bool { return changes.Load() > seen }, patience, poll)
	s.eventually(watches, true) // what proves the origin is another policy
	require.NoError(t, policies.Delete(t.Context(), admission.RegistrationTokenPolicy, metav1.DeleteOptions{}))
	s.eventually(watches, false)
	assert.Contains(t, watches.State().Missing, "ValidatingAdmissionPolicy fleet-registration-token is missing")
}

// After an upgrade of the API server the watches continue, so the Monitor asks again which kinds are served.
func TestMonitorOfAPIServerThatIsUpgraded(t *testing.T) {
	s := newScene(t)
	s.needsMutating()
	s.inForce()
	wire := &wire{hide: []string{"v1", "v1beta1"}}
	clock := clocktesting.NewFakeClock(time.Now())
	m := s.monitor(false, wire.tap, func(o *admission.Options) { o.Clock = clock })
	require.NoError(t, admission.Install(t.Context(), s.admin.dynamic, objects(t, "")))
	require.Eventually(t, func() bool {
		clock.Step(time.Second) // for the next try, if the API server did not apply the policies yet
		return m.State().InForce() && strings.Contains(m.State().NotRecorded, "serves no MutatingAdmissionPolicies")
	}, patience, poll, m.State().Missing)
	wire.upgraded.Store(true)
	require.Eventually(t, func() bool {
		clock.Step(time.Hour)
		return m.State().InForce() && m.State().NotRecorded == ""
	}, patience, poll, m.State().Missing)
}

// MutatingAdmissionPolicies are turned off, and later on again. The policies that need them, and those that take their place, must not stay.
func TestMonitorThatInstallsWhereMutatingPoliciesAreTurnedOff(t *testing.T) {
	sample.Long(t)
	s := newScene(t)
	s.needsMutating()
	s.inForce()
	requests := s.importer().fleet.ClusterRegistrations(s.namespace)
	policies := s.admin.kubernetes.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	bindings := s.admin.kubernetes.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	requireOnly := func(stays, goes string) {
		t.Helper()
		_, err := policies.Get(t.Context(), stays, metav1.GetOptions{})
		require.NoError(t, err)
		_, err = policies.Get(t.Context(), goes, metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
		_, err = bindings.Get(t.Context(), goes, metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
	}
	s.remove(admission.KindMutating, admission.KindMutatingBinding)
	m, stop := s.start(true, (&wire{hide: []string{"v1", "v1beta1"}}).tap)
	s.eventually(m, true)
	requireOnly(admission.RegistrationTokenPolicy, admission.CreatorPolicy)
	require.Eventually(t, func() bool { // when the API server no longer applies the removed policy
		_, err := requests.Create(t.Context(), s.request(nil), metav1.CreateOptions{})
		return err == nil
	}, patience, poll)
	stop()

	m, stop = s.start(true)
	defer stop()
	s.eventuallyLacks(m, "", "")
	s.eventually(m, true)
	requireOnly(admission.CreatorPolicy, admission.RegistrationTokenPolicy)
}

func TestMonitorOfAPIServerWithoutPolicies(t *testing.T) {
	s := newScene(t)
	wire := &wire{hide: []string{"v1", "v1beta1"}}
	wire.hideAll.Store(true)
	m := s.monitor(true, wire.tap)
	m.WaitUntilKnown(t.Context())
	assert.False(t, m.State().InForce())
	assert.Contains(t, m.State().Missing, "serves no ValidatingAdmissionPolicies in version v1")
	s.eventuallyLacks(m, fleet.ReasonPoliciesNotServed, "agents may write the whole status")
}

func TestMonitorOfAPIServerThatServesOnlyTheBeta(t *testing.T) {
	sample.Long(t)
	t.Parallel()
	newScene(t).needsMutating()
	plane, err := controlplane.Start(t.Context(), controlplane.Options{
		Name:          "beta",
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

	// The watch comes back after a restart of the API server.
	watching := s.monitor(false)
	s.eventually(watching, true)
	require.NoError(t, plane.StopAPIServer())
	require.NoError(t, plane.StartAPIServer(t.Context()))
	var noticed atomic.Bool // the other Monitor installs the policy again at once
	watching.OnChange(func() {
		if !watching.State().InForce() {
			noticed.Store(true)
		}
	})
	deleted := false
	require.Eventually(t, func() bool { // a watch that is not back yet misses a policy that is absent for a moment
		if deleted && noticed.Load() {
			return true
		}
		if !deleted {
			noticed.Store(false)
		}
		err := s.admin.kubernetes.AdmissionregistrationV1().MutatingAdmissionPolicies().Delete(t.Context(), admission.CreatorPolicy, metav1.DeleteOptions{})
		deleted = deleted || err == nil
		return false
	}, patience, poll)
	s.eventually(watching, true)
}

// wire is between a Monitor and its API server.
type wire struct {
	hide     []string    // versions in which no MutatingAdmissionPolicies are offered
	hideAll  atomic.Bool // no policies are offered in these versions
	upgraded atomic.Bool // nothing is hidden any longer
	believe  atomic.Bool // the creator that a request claims is kept
	// unavailable refuses the requests of probes.
	unavailable atomic.Bool
	probes      atomic.Int64
	beta        atomic.Int64 // requests about policies in v1beta1
}

func (w *wire) tap(o *admission.Options) {
	o.RESTConfig = rest.CopyConfig(o.RESTConfig)
	o.RESTConfig.Wrap(transport.Sender(w.send).Wrap)
}

func (w *wire) send(next http.RoundTripper, req *http.Request) (*http.Response, error) {
	if strings.Contains(req.URL.Path, "/v1beta1/mutating") {
		w.beta.Add(1)
	}
	answer, err := next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if req.Method == http.MethodPost && req.URL.Query().Get("dryRun") == metav1.DryRunAll {
		w.probes.Add(1)
		if w.unavailable.Load() {
			_ = answer.Body.Close()
			answer.StatusCode, answer.Body = http.StatusServiceUnavailable, http.NoBody
			return answer, nil
		}
		if w.believe.Load() {
			return altered(answer, func(o map[string]any) {
				_ = unstructured.SetNestedField(o, "nobody at all", "metadata", "annotations", fleet.CreatorAnnotation)
			})
		}
	}
	for _, version := range w.hide {
		if req.URL.Path == "/apis/"+admission.Group+"/"+version && answer.StatusCode == http.StatusOK && !w.upgraded.Load() {
			return altered(answer, func(o map[string]any) {
				o["resources"] = slices.DeleteFunc(o["resources"].([]any), func(resource any) bool {
					return w.hideAll.Load() || strings.HasPrefix(resource.(map[string]any)["kind"].(string), "Mutating")
				})
			})
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
