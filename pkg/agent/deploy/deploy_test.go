package deploy

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	corefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"

	"github.com/muster-fleet/muster/internal/agenttest"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned/fake"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/release"
)

// recordedQueue records the delay of each key.
type recordedQueue struct {
	workqueue.TypedDelayingInterface[string]
	delays []time.Duration
}

func (q *recordedQueue) Add(string) { q.delays = append(q.delays, 0) }

func (q *recordedQueue) AddAfter(_ string, d time.Duration) { q.delays = append(q.delays, d) }

func (q *recordedQueue) last() time.Duration { return q.delays[len(q.delays)-1] }

// stoppedReconciler is a reconciler without workers and watches.
type stoppedReconciler struct {
	*reconciler
	clock *agenttest.Clock
	hub   *fake.Clientset
	queue *recordedQueue
	bd    *fleet.BundleDeployment
}

func newStoppedReconciler() *stoppedReconciler {
	bd := &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "cluster-ns", Name: "app", ResourceVersion: "5"}}
	bd.Spec.DeploymentID = "one"
	p := &stoppedReconciler{clock: agenttest.NewClock(time.Unix(1e9, 0)), hub: fake.NewSimpleClientset(bd), queue: &recordedQueue{}, bd: bd}
	c := Config{Hub: p.hub, Namespace: bd.Namespace, Clock: p.clock, Log: quiet()}.withDefaults()
	p.reconciler = &reconciler{
		Config: c, bundleDeploymentStore: cache.NewStore(cache.MetaNamespaceKeyFunc), states: newDeploymentStates(), queue: p.queue, drifts: &recordedQueue{}, index: newReleaseIndex(func(string) {}, func(releaseName) {}),
		objects: newObjectCache(context.Background(), nil, func(releaseName) {}), unknown: newUnknownLimiter(c),
	}
	_ = p.bundleDeploymentStore.Add(bd)
	return p
}

func quiet() logrus.FieldLogger {
	log := logrus.New()
	log.SetLevel(logrus.PanicLevel)
	return log
}

func TestReconcile_failedDeployment(t *testing.T) {
	p := newStoppedReconciler()
	state := p.states.get("app")
	p.failed("app", p.bd, state, deploy, assert.AnError)
	pause := p.queue.last()
	for _, step := range []time.Duration{0, 24 * time.Hour, -48 * time.Hour} {
		p.clock.StepWall(step)
		p.queue.delays = nil
		p.reconcile(t.Context(), "app") // an event came before the retry, and took its place in the queue
		assert.Equal(t, []time.Duration{pause}, p.queue.delays, "after the clock was set by %s", step)
	}
	assert.Equal(t, assert.AnError, state.attempts.failure)
}

func TestAttempts_endConflict(t *testing.T) {
	p := newStoppedReconciler()
	attempts, now := &p.states.get("app").attempts, p.clock.Now()
	attempts.failed(p.bd, &release.ConflictError{}, now, p.Timing)
	assert.Equal(t, now.Add(p.Timing.RetryMax), attempts.next(p.bd, p.Timing))

	attempts.endConflict()
	resolved := attempts.next(p.bd, p.Timing)
	assert.True(t, resolved.After(now) && resolved.Before(now.Add(p.Timing.RetryMax)), "%s after %s", resolved, now)
	attempts.endConflict()
	assert.Equal(t, resolved, attempts.next(p.bd, p.Timing))
	for range 20 { // it seems to end again and again
		attempts.failed(p.bd, &release.ConflictError{}, now, p.Timing)
		attempts.endConflict()
	}
	assert.InDelta(t, p.Timing.RetryMax.Seconds(), attempts.next(p.bd, p.Timing).Sub(now).Seconds(), p.Timing.RetryMax.Seconds()/4)
}

func TestCorrections_next(t *testing.T) {
	p := newStoppedReconciler()
	state := p.states.get("app")
	takes := time.Duration(0)
	correctAfter := func(quiet time.Duration, done action) time.Duration {
		p.clock.Step(quiet)
		began := p.clock.Now()
		p.clock.Step(takes)
		return state.corrections.next(done, began, p.clock.Now(), p.Timing).Sub(p.clock.Now())
	}
	for n := range 5 {
		assert.Equal(t, p.Timing.CorrectFirst, correctAfter(15*time.Second, correct), "edit %d of a person", n)
	}
	assert.InDelta(t, 5, correctAfter(p.Timing.CorrectFirst, correct).Seconds(), 1)
	last := time.Duration(0)
	for range 20 { // another program undoes each correction at once
		pause := correctAfter(state.corrections.lastPause, correct)
		assert.GreaterOrEqual(t, pause, last/2)
		last = pause
	}
	assert.InDelta(t, p.Timing.CorrectMax.Seconds(), last.Seconds(), p.Timing.CorrectMax.Seconds()/4)
	assert.Equal(t, p.Timing.CorrectFirst, correctAfter(2*last+time.Second, correct), "it has stopped")

	*state = deploymentState{}
	first := correctAfter(time.Hour, deploy)
	assert.Greater(t, correctAfter(first, deploy), first, "releases that agents take from each other")

	*state, takes = deploymentState{}, 5*time.Minute
	for range 20 {
		last = correctAfter(state.corrections.lastPause, deploy)
	}
	assert.InDelta(t, p.Timing.CorrectMax.Seconds(), last.Seconds(), p.Timing.CorrectMax.Seconds()/4, "a deployment with hooks takes minutes")
}

// The labels of the namespace are tried again alone, and not before a release that another writer keeps changing may be deployed again.
func TestSucceeded_namespaceError(t *testing.T) {
	for _, repeated := range []bool{false, true} {
		p := newStoppedReconciler()
		p.drifts = &recordedQueue{}
		state := p.states.get("app")
		state.attempts.retryAt = p.clock.Now().Add(time.Hour) // of an earlier failure
		made := release.Deployed{Namespace: "apps", Name: "app", Version: 1, NamespaceErr: &release.NamespaceError{Err: assert.AnError}}
		p.succeeded("app", p.bd, state, made, deploy, repeated, p.clock.Now())
		want := p.queue.last()
		if repeated {
			want = state.corrections.lastPause
			assert.Greater(t, want, p.queue.last())
		}
		require.ErrorIs(t, state.attempts.failureOf(p.bd), assert.AnError)
		assert.Equal(t, p.clock.Now().Add(want), state.attempts.next(p.bd, p.Timing))
		assert.NotEqual(t, namespaceOptions(p.bd), state.labelled)
	}
}

// keepMissing decides about another hub: the time at which the agent's own BundleDeployment disappeared must not be written over its record.
func TestRecordOwnGone_anotherHub(t *testing.T) {
	p := newStoppedReconciler()
	member := corefake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.AgentNamespace, Name: registration.HistoryKeySecret}})
	p.core, p.HubID, p.seenVersion = member.CoreV1(), "this", func() string { return "7" }
	for hub, patches := range map[string]int{"this": 1, "other": 0} {
		member.ClearActions()
		p.record.hub, p.record.ownGone = hub, time.Time{}
		require.NoError(t, p.recordOwnState(t.Context(), p.clock.Now()))
		assert.Len(t, member.Actions(), patches, "recorded hub %s", hub)
	}
}

// While the hub is asked about a BundleDeployment, another worker records that it has created the agent's own one anew, and which releases stay.
func TestConfirmGone_recordedMeanwhile(t *testing.T) {
	p := newStoppedReconciler()
	p.HubID, p.seenVersion, p.CheckRejection = "hub", func() string { return "7" }, func(error) error { return nil }
	p.ownKey = "own"
	p.record.hub, p.record.version, p.record.own, p.record.kept = "hub", 5, "old", sets.New[string]()
	p.hub.PrependReactor("get", "bundledeployments", func(a kubetesting.Action) (bool, runtime.Object, error) {
		name := a.(kubetesting.GetAction).GetName()
		if name == p.ownKey {
			return true, &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "new"}}, nil
		}
		p.record.Lock()
		defer p.record.Unlock()
		p.record.own, p.record.kept = "new", sets.New(name)
		return true, nil, apierrors.NewNotFound(fleet.Resource("bundledeployments"), name)
	})
	f, err := p.confirmGone(t.Context(), "gone", p.states.get("gone"), removalFacts{Installed: true})
	require.NoError(t, err)
	assert.True(t, f.Confirmed)
	assert.Equal(t, keep, decideRemoval(f))
}

func TestDrift_failed(t *testing.T) {
	limits := Timing{RetryFirst: time.Second, RetryMax: time.Minute}
	before := drift{objects: map[string]comparison{}}
	after := drift{err: "webhook"}
	first := after.failed(before, limits)
	assert.Empty(t, after.err, "one failure may be a moment")
	again := drift{err: "webhook"}
	assert.Greater(t, again.failed(after, limits), first)
	assert.Equal(t, "webhook", again.err)
	assert.True(t, again.compared())

	never := drift{err: "webhook"}
	never.failed(drift{}, limits)
	assert.Equal(t, "webhook", never.err, "nothing is known before the first comparison")
}

// The revision of a failed attempt of this run is not one of another writer: the next success is no repetition, after which new copies would have to wait.
func TestFacts_failedAttempt(t *testing.T) {
	p := newStoppedReconciler()
	p.bd.Spec.Options.DefaultNamespace = "apps"
	state := p.states.get("app")
	namespace, name := release.Place("app", p.bd.Spec.Options)
	labels := map[string]string{release.DeploymentLabel: "app", release.DeploymentIDLabel: release.DeploymentIDValue("one")}
	state.setRelease(&release.Deployed{Namespace: namespace, Name: name, Version: 1, Labels: labels})
	p.index.add(release.Found{Namespace: namespace, Name: name, Version: 2, Labels: labels})
	assert.True(t, p.facts("app", p.bd, state).MustRepeat, "another writer has stored the last revision")
	p.failed("app", p.bd, state, deploy, assert.AnError)
	f := p.facts("app", p.bd, state)
	assert.False(t, f.MustRepeat)
	assert.True(t, f.RetryNotDue, "the failed attempt has its own pause")
}

// A change of the spec ends a long pause, but no attempt follows another one sooner than after the shortest pause.
func TestReconcile_failedDeploymentOfAnotherGeneration(t *testing.T) {
	p := newStoppedReconciler()
	state := p.states.get("app")
	for range 20 {
		p.failed("app", p.bd, state, deploy, assert.AnError)
	}
	long := p.queue.last()
	require.Greater(t, long, time.Minute)
	p.bd.Labels = map[string]string{"commit": "two"}
	p.reconcile(t.Context(), "app")
	assert.Equal(t, long, p.queue.last(), "a changed label")

	p.bd.Generation++
	p.reconcile(t.Context(), "app")
	assert.Equal(t, p.Timing.RetryFirst, p.queue.last())
	assert.True(t, p.facts("app", p.bd, state).RetryNotDue)
	p.clock.Step(p.Timing.RetryFirst)
	assert.False(t, p.facts("app", p.bd, state).RetryNotDue)

	p.failed("app", p.bd, state, deploy, assert.AnError)
	assert.Greater(t, p.queue.last(), time.Minute, "the pauses have not become shorter")
	p.reconcile(t.Context(), "app")
	assert.Greater(t, p.queue.last(), time.Minute, "the change was tried")
}

// A person who scales the agent to zero stops it.
func TestComparePatches_ownReplicas(t *testing.T) {
	p := newStoppedReconciler()
	p.ownKey, p.AgentNamespace = "fleet-agent-a", "agents"
	p.bd.Spec.Options.Diff = &fleet.DiffOptions{ComparePatches: []fleet.ComparePatch{{Kind: "Job"}}}
	assert.Equal(t, p.bd.Spec.Options.Diff.ComparePatches, p.comparePatches("app", p.bd))
	own := p.comparePatches("fleet-agent-a", p.bd)
	require.Len(t, own, 2)
	assert.Equal(t, fleet.ComparePatch{
		APIVersion: "apps/v1", Kind: "Deployment", Namespace: "agents", Name: "fleet-agent", JSONPointers: []string{"/spec/replicas"},
	}, own[1])
	assert.Len(t, p.bd.Spec.Options.Diff.ComparePatches, 1, "the cached object stays as it is")
}

// The hashes are from Secrets of another hub.
func TestDecodeValues(t *testing.T) {
	const values = `{"key":"value"}`
	for name, row := range map[string]struct {
		values, staged, hash string
		want                 map[string]any
		err                  string
	}{
		"nothing staged":         {values, "", "e43abcf3375244839c012f9633f95862d232a95b00d5bc7348b3098b9fed7f32", map[string]any{"key": "value"}, ""},
		"the same values staged": {values, values, "3e595e3b9aececead659294e162b71ffeb4390a932d57dcad86b5974a515a77e", map[string]any{"key": "value"}, ""},
		"others staged":          {values, `{"newkey":"value"}`, "01c44d8a446abccb870503db292e07cb2b8da135b6fec52b21048bdab8c84a7c", map[string]any{"key": "value"}, ""},
		"only staged":            {"", values, "e43abcf3375244839c012f9633f95862d232a95b00d5bc7348b3098b9fed7f32", nil, ""},
		"null":                   {"null", "", "74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b", nil, ""},
		"written before spec":    {values, values, "e43abcf3375244839c012f9633f95862d232a95b00d5bc7348b3098b9fed7f32", nil, "they do not match spec.valuesHash yet"},
		"no JSON":                {"key: value", "", "b701870861d6ff0565b7078ee799ae7362323298a814d7af4d2dce6cb8d8b674", nil, "not a JSON object"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := decodeValues(map[string][]byte{"values": []byte(row.values), "stagedValues": []byte(row.staged)}, row.hash)
			if row.err != "" {
				require.ErrorContains(t, err, row.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, row.want, got)
		})
	}
}

func TestReport_retries(t *testing.T) {
	p := newStoppedReconciler()
	away := true
	p.hub.PrependReactor("patch", "bundledeployments", func(kubetesting.Action) (bool, runtime.Object, error) {
		return away, nil, assert.AnError
	})
	state := p.states.get("app")
	report := func() { p.report(t.Context(), "app", p.bd, state, facts{}, nil) }
	for range 20 {
		report()
	}
	assert.GreaterOrEqual(t, p.queue.last(), p.Timing.RetryMax, "a long outage")
	away = false
	report()
	away = true
	p.bd.Spec.Paused = true
	state.written = writtenStatus{}
	report()
	assert.Len(t, p.queue.delays, 21)
	assert.Less(t, p.queue.last(), 2*p.Timing.RetryFirst, "another outage")

	p.failed("app", p.bd, state, deploy, assert.AnError)
	away = false
	for range 10 {
		state.written = writtenStatus{}
		report()
		p.failed("app", p.bd, state, deploy, assert.AnError)
	}
	assert.Greater(t, p.queue.last(), time.Minute, "what cannot be deployed is tried less and less often, however often that is shown")
}

func TestReport_restoredHub(t *testing.T) {
	p := newStoppedReconciler()
	state := p.states.get("app")
	p.report(t.Context(), "app", p.bd, state, facts{}, nil)
	require.Len(t, statuses(p), 1)
	state.written.version = "9"
	restored := p.bd.DeepCopy()
	restored.ResourceVersion = "7"
	p.report(t.Context(), "app", restored, state, facts{}, nil)
	assert.Len(t, statuses(p), 1, "a watch that is late shows the status from before")

	p.bundleDeploymentHandler().OnUpdate(p.bd, restored)
	p.report(t.Context(), "app", restored, state, facts{}, nil)
	assert.Len(t, statuses(p), 1, "the resourceVersion of the cache has not gone back")
	lost := p.bd.DeepCopy()
	lost.ResourceVersion = "9"
	p.bundleDeploymentHandler().OnUpdate(lost, restored)
	p.report(t.Context(), "app", restored, state, facts{}, nil)
	assert.Len(t, statuses(p), 2)
}

// statuses returns the patches of the status that the hub has received.
func statuses(p *stoppedReconciler) (all []string) {
	for _, action := range p.hub.Actions() {
		if patch, ok := action.(kubetesting.PatchAction); ok {
			all = append(all, string(patch.GetPatch()))
		}
	}
	return all
}

// The interval passes while all objects are compared: those that were compared before must be compared again.
func TestCompare_requestedMeanwhile(t *testing.T) {
	p := newStoppedReconciler()
	state, asked := p.states.get("app"), 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		if asked == 2 {
			state.requestComparison()
		}
		http.NotFound(w, nil)
	}))
	t.Cleanup(server.Close)
	var err error
	p.releases, err = release.New(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	desired := &unstructured.Unstructured{Object: map[string]any{}}
	desired.SetName("a")
	object := release.Object{Resource: corev1.SchemeGroupVersion.WithResource("configmaps"), Desired: desired}
	p.objects.kinds[object.Resource] = &kindCache{store: cache.NewStore(cache.MetaNamespaceKeyFunc), synced: func() bool { return true }}
	state.setRelease(&release.Deployed{Objects: []release.Object{object}})

	p.compare(t.Context(), "app")
	assert.Equal(t, 1, asked, "the first comparison")
	p.compare(t.Context(), "app")
	assert.Equal(t, 1, asked, "nothing has changed")
	state.requestComparison()
	for range 3 {
		p.compare(t.Context(), "app")
	}
	assert.Equal(t, 3, asked, "once for each request")
}

// The removal of a release deletes objects, whose events request a comparison.
func TestCompare_removed(t *testing.T) {
	p := newStoppedReconciler()
	p.states.get("app")
	p.states.drop("app")
	p.compare(t.Context(), "app")
	assert.Empty(t, p.states.all())
}

func TestObjectsKnown_neverSynced(t *testing.T) {
	p := newStoppedReconciler()
	object := release.Object{Resource: corev1.SchemeGroupVersion.WithResource("configmaps"), Desired: &unstructured.Unstructured{}}
	p.objects.kinds[object.Resource] = &kindCache{synced: func() bool { return false }}
	deployed, state := &release.Deployed{Objects: []release.Object{object}}, p.states.get("app")
	looks, begun := 0, p.clock.Now()
	for p.clock.Since(begun) < time.Hour {
		looks++
		waited := p.clock.Since(begun)
		assert.Equal(t, waited > syncPatience, p.objectsKnown("app", state, deployed), waited)
		p.clock.Step(p.queue.last())
	}
	assert.Less(t, looks, 200)
	assert.Equal(t, p.Timing.Settle, p.queue.delays[0], "a kind is mostly known in a moment")
	assert.Equal(t, syncCheckMax, p.queue.last())
}

func TestReplacedOptions(t *testing.T) {
	labels := map[string]string{
		"muster.fleet.cattle.io/delete-namespace": "true", "muster.fleet.cattle.io/delete-crds": "true",
	}
	old := release.Found{Namespace: "old", Name: "app", Labels: labels}
	object := func(kind, namespace, name string) *release.Deployed {
		o := &unstructured.Unstructured{Object: map[string]any{"kind": kind}}
		o.SetNamespace(namespace)
		o.SetName(name)
		return &release.Deployed{Objects: []release.Object{{Desired: o}}}
	}
	for name, row := range map[string]struct {
		current  release.Found
		deployed *release.Deployed
		goes     bool
	}{
		"other namespace: removed":                      {release.Found{Namespace: "new", Name: "app"}, object("ConfigMap", "new", "a"), true},
		"other namespace, new release unknown: removed": {release.Found{Namespace: "new", Name: "app"}, nil, true},
		"same namespace: kept":                          {release.Found{Namespace: "old", Name: "other"}, nil, false},
		"an object of the new one is in it: kept":       {release.Found{Namespace: "new", Name: "app"}, object("ConfigMap", "old", "a"), false},
		"the new one contains it: kept":                 {release.Found{Namespace: "new", Name: "app"}, object("Namespace", "", "old"), false},
	} {
		t.Run(name, func(t *testing.T) {
			options := replacedOptions(old.Options(), old, row.current, row.deployed)
			assert.Equal(t, row.goes, options.DeleteNamespace)
			assert.False(t, options.DeleteCRDs, "the new release has objects of these kinds")
		})
	}
	assert.True(t, old.Options().DeleteNamespace && old.Options().DeleteCRDs)
}

func TestIsRestored(t *testing.T) {
	const known = 5_000_000
	for name, row := range map[string]struct {
		recorded, current uint64
		want              bool
	}{
		"nothing is recorded":                  {0, known, false},
		"nothing was written since":            {known, known, false},
		"a month of a busy hub":                {known, known + 400_000_000, false},
		"an earlier version":                   {known, known - 1, true},
		"another hub":                          {known, 300, true},
		"bumped by the recommended number":     {known, known + 1_000_000_000, true},
		"bumped, from a backup of weeks ago":   {known + 100_000_000, known + 1_000_000_000, true},
		"the answer of a proxy has no version": {known, 0, true}, // the quorum list refuses it
	} {
		assert.Equal(t, row.want, isRestored(row.recorded, row.current), name)
	}
}

func TestWithoutData(t *testing.T) {
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret", "data": map[string]any{"k": "dg=="}, "immutable": true,
		"metadata": map[string]any{
			"namespace": "apps", "name": "s", "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-02T03:04:05Z", "labels": map[string]any{"a": "b"},
			"annotations": map[string]any{release.NameAnnotation: "app", release.NamespaceAnnotation: strings.Repeat("x", 300), "large": "x"},
		},
	}}
	kept, err := withoutData(o)
	require.NoError(t, err)
	assert.Equal(t, map[string]any{
		"apiVersion": "v1", "kind": "Secret",
		"metadata": map[string]any{
			"namespace": "apps", "name": "s", "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-02T03:04:05Z",
			"annotations": map[string]any{release.NameAnnotation: "app"},
		},
	}, kept.(*unstructured.Unstructured).Object)
	for resource, want := range map[schema.GroupVersionResource]bool{
		{Version: "v1", Resource: "secrets"}: true, {Version: "v1", Resource: "configmaps"}: true, {Version: "v1", Resource: "services"}: false,
		{Group: "example.com", Version: "v1", Resource: "secrets"}: false,
	} {
		assert.Equal(t, want, hasOnlyData(resource), resource)
	}
}

// forge makes the index return revisions of BundleDeployments that do not exist, as users can store them who may write Secrets in one namespace. The
// member has a history key, and answers that the Secrets are gone.
func (p *stoppedReconciler) forge(t *testing.T, count int) (keys []string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/secrets/"+registration.HistoryKeySecret):
			_, _ = fmt.Fprintf(w, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":%q},"data":{"key":%q}}`,
				registration.HistoryKeySecret, base64.StdEncoding.EncodeToString(make([]byte, 32)))
		case strings.HasSuffix(r.URL.Path, "/secrets"):
			_, _ = w.Write([]byte(`{"apiVersion":"v1","kind":"SecretList","metadata":{"resourceVersion":"1"},"items":[]}`))
		default:
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"NotFound","code":404}`))
		}
	}))
	t.Cleanup(server.Close)
	client, err := release.New(&rest.Config{Host: server.URL, RateLimiter: flowcontrol.NewFakeAlwaysRateLimiter()})
	require.NoError(t, err)
	p.releases, err = client.WithHistoryKey(t.Context(), "agent")
	require.NoError(t, err)
	p.seenVersion = func() string { return "5" }
	for i := range count {
		key := fmt.Sprintf("%063d", i)
		p.index.add(release.Found{Namespace: "tenant", Name: "x", Version: i, Labels: map[string]string{release.DeploymentLabel: key}})
		keys = append(keys, key)
	}
	return keys
}

func TestRemove_forgedKeys(t *testing.T) {
	p := newStoppedReconciler()
	p.record.version = 1
	keys := p.forge(t, 200)
	questions := func() int {
		defer p.hub.ClearActions()
		return len(p.hub.Actions())
	}
	for range 2 {
		for _, key := range keys {
			p.remove(t.Context(), key, p.states.get(key))
		}
		p.clock.Step(p.Timing.RemovalDelay)
	}
	for _, key := range keys {
		p.remove(t.Context(), key, p.states.get(key))
	}
	assert.InDelta(t, 2*unknownBurst, questions(), unknownBurst, "the hub is asked about some")
	assert.Equal(t, p.Timing.RemovalRecheck, p.queue.last())

	p.states.get(keys[199]).noteSeen()
	p.remove(t.Context(), keys[199], p.states.get(keys[199]))
	assert.NotZero(t, questions(), "and about each that it had")
}

// The record of the releases that stay has room for a limited number.
func TestKeepMissing_forgedKeys(t *testing.T) {
	p := newStoppedReconciler()
	p.record.hub, p.record.version, p.HubID, p.AgentNamespace = "other", 1, "one", "agent"
	p.forge(t, 5000)
	p.core = corefake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "agent", Name: registration.HistoryKeySecret}}).CoreV1()
	require.NoError(t, p.keepIfRestored(t.Context()))
	assert.False(t, p.hubChanged())
	secret, err := p.core.Secrets("agent").Get(t.Context(), registration.HistoryKeySecret, metav1.GetOptions{})
	require.NoError(t, err)
	assert.LessOrEqual(t, len(secret.Annotations[registration.KeptAnnotation]), maxKeptBytes)
}
