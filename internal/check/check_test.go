package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/muster-fleet/muster/internal/testenv/golden"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	fleetfake "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/fake"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/transport"
)

func always(f Finding) func(context.Context, *knowledge) Finding {
	return func(context.Context, *knowledge) Finding { return f }
}

func TestRunSkipsWhatDependsOnAFailure(t *testing.T) {
	table := []Check{
		{ID: "a", Category: "A", Says: "a is good", run: always(pass("1"))},
		{ID: "b", Category: "A", Says: "b is good", Hint: "do it", run: always(fail("b is bad"))},
		{ID: "c", Category: "B", Says: "c is good", Needs: []string{"a", "b"}, run: always(fail("c is bad"))},
		{ID: "d", Category: "B", Says: "d is good", Needs: []string{"c"}, run: always(fail("d is bad"))},
		{ID: "e", Category: "B", Says: "e is good", ExplainedBy: []string{"d"}, run: always(fail("e is bad"))},
		{ID: "f", Category: "B", Says: "f does not apply", run: always(doesNotApply())},
		{ID: "g", Category: "B", Hint: "renew it", Says: "g needs what does not apply", Needs: []string{"f"}, run: always(warn("g is old"))},
		{ID: "h", Category: "B", Says: "h needs a hub", on: onHub, run: always(fail("no hub"))},
	}
	d := run(t.Context(), table, newKnowledge(Inputs{}))
	require.Equal(t, "Failed: A (b): b is bad", d.Summary)
	require.Equal(t, ExitFailed, d.ExitCode())
	var out bytes.Buffer
	d.Print(&out, false)
	require.Equal(t, `Failed: A (b): b is bad

A
-
√ a is good (1)
× b is good
    b is bad
    do it
    see https://github.com/muster-fleet/muster/blob/main/docs/checks.md#b

B
-
? c is good: skipped because of b
? d is good: skipped because of b
? e is good: skipped because of b
‼ g needs what does not apply
    g is old
    renew it
    see https://github.com/muster-fleet/muster/blob/main/docs/checks.md#g
`, out.String())
	out.Reset()
	d.PrintShort(&out, false)
	require.Equal(t, `Failed: A (b): b is bad
    do it
    see https://github.com/muster-fleet/muster/blob/main/docs/checks.md#b

‼ g needs what does not apply
    g is old
    renew it
    see https://github.com/muster-fleet/muster/blob/main/docs/checks.md#g

6 checks: 1 passed, 1 failed, 1 with a warning, 3 skipped because of these (-o wide lists all).
`, out.String())
	out.Reset()
	require.NoError(t, d.PrintJSON(&out))
	var read Diagnosis
	require.NoError(t, json.Unmarshal(out.Bytes(), &read))
	require.Equal(t, d, read)
	out.Reset()
	d.Print(&out, true)
	require.Contains(t, out.String(), "\x1b[31m×\x1b[0m b is good")
}

// An unknown result skips the checks that need this check, but not the checks that it would only explain.
func TestRunAfterAnUnknownResult(t *testing.T) {
	d := run(t.Context(), []Check{
		{ID: "a", run: always(unknown("no right"))},
		{ID: "b", Needs: []string{"a"}, run: always(fail("b"))},
		{ID: "c", ExplainedBy: []string{"a"}, run: always(pass(""))},
	}, newKnowledge(Inputs{}))
	require.Equal(t, ExitUnknown, d.ExitCode())
	require.Equal(t, "a", d.Checks[1].SkippedBecause)
	require.Equal(t, Pass, d.Checks[2].Result)
}

func TestExitCodes(t *testing.T) {
	for verdict, want := range map[Verdict]int{Pass: ExitGood, Warn: ExitGood, Fail: ExitFailed, Unknown: ExitUnknown} {
		d := run(t.Context(), []Check{{ID: "a", run: always(pass(""))}, {ID: "b", run: always(Finding{Verdict: verdict, Detail: "text"})}}, newKnowledge(Inputs{}))
		assert.Equal(t, want, d.ExitCode(), verdict)
		assert.Equal(t, verdict, d.Result)
	}
}

func TestFailedRequests(t *testing.T) {
	secrets := schema.GroupResource{Resource: "secrets"}
	assert.Equal(t, Unknown, failed("reading", apierrors.NewForbidden(secrets, "x", nil)).Verdict)
	assert.Equal(t, Unknown, failed("reading", context.DeadlineExceeded).Verdict)
	webhook := failed("asking", apierrors.NewInternalError(errors.New(`failed calling webhook "deny.example.com": connection refused`)))
	assert.Equal(t, Unknown, webhook.Verdict)
	assert.Contains(t, webhook.Detail, `asking: there is no answer, because the server of a webhook fails: Internal error occurred: failed calling webhook "deny.example.com"`)
	assert.Equal(t, Fail, failed("reading", apierrors.NewInternalError(errors.New("etcd is full"))).Verdict)
	assert.Equal(t, Fail, failed("reading", apierrors.NewUnauthorized("no")).Verdict)
	assert.Equal(t, Fail, failed("reading", os.ErrClosed).Verdict)
}

// A user with rights in one workspace gets the result of the Cluster.
func TestRunWithoutRightsOnTheHub(t *testing.T) {
	forbidden := always(failed("reading", apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "x", nil)))
	table := []Check{
		{ID: "hub-a", Category: categoryHub, run: forbidden},
		{ID: "b", Category: categoryCluster, ExplainedBy: []string{"hub-a"}, run: always(pass(""))},
	}
	d := run(t.Context(), table, newKnowledge(Inputs{Cluster: "west"}))
	assert.Equal(t, "All 1 checks passed.", d.Summary)
	assert.Equal(t, []string{"hub-a"}, d.LeftOut)
	var out bytes.Buffer
	d.Print(&out, false)
	assert.Contains(t, out.String(), "Left out, because you lack the rights that they need: hub-a.")
	d = run(t.Context(), table, newKnowledge(Inputs{}))
	assert.Equal(t, Unknown, d.Result, "without a Cluster, the hub is what the user asked about")
	table[0].Category = categoryCluster
	assert.Equal(t, Unknown, run(t.Context(), table, newKnowledge(Inputs{Cluster: "west"})).Result)
}

// A member chooses some of the texts.
func TestPrintControlCharacters(t *testing.T) {
	d := run(t.Context(), []Check{{ID: "a", run: always(fail("evil\x1b[2J\nname"))}}, newKnowledge(Inputs{}))
	var out bytes.Buffer
	d.Print(&out, false)
	require.NotContains(t, out.String(), "\x1b")
	require.Contains(t, out.String(), "evil [2J name")
}

func TestPrint_textsOfMembers(t *testing.T) {
	var out bytes.Buffer
	Diagnosis{Summary: "agent \u202eelif", Result: Fail, Checks: []Line{{ID: "a", Result: Fail, Detail: strings.Repeat("x", 1<<20)}}}.Print(&out, false)
	assert.NotContains(t, out.String(), "\u202e", "it changes the direction of writing")
	assert.Less(t, out.Len(), 2*maxPrinted)
	assert.Equal(t, strings.Repeat("ä", maxPrinted/2-2)+"...", printable("x" + strings.Repeat("ä", maxPrinted))[1:], "a character is not cut")
}

// A Job on the member prints the results of the probe.
func TestRun_textsOfAProbe(t *testing.T) {
	const evil = "evil\x1b[2J"
	k := newKnowledge(Inputs{})
	k.probed = map[string]Line{
		"a": {ID: "a", Category: evil, Check: evil, Result: evil, Detail: evil, SkippedBecause: evil, Hint: evil, Documentation: evil},
		"b": {ID: "b", Result: Unknown, SkippedBecause: "way-dns"},
		"c": {ID: "c", Result: Pass, Detail: "good"},
	}
	table := []Check{
		{ID: "a", Category: categoryWay, Says: "a is good", Hint: "do it"},
		{ID: "b", Category: categoryWay, Says: "b is good"},
		{ID: "c", Category: categoryWay, Says: "c is good"},
		{ID: "d", Category: categoryWay, Says: "the probe knows no d"},
	}
	d := run(t.Context(), table, k)
	assert.Equal(t, []Line{
		{ID: "a", Category: categoryWay, Check: "a is good", Result: Unknown, Detail: evil, Hint: "do it", Documentation: Inputs{}.documentation("a")},
		{ID: "b", Category: categoryWay, Check: "b is good", Result: Unknown, SkippedBecause: "way-dns"},
		{ID: "c", Category: categoryWay, Check: "c is good", Result: Pass, Detail: "good"},
	}, d.Checks)
	var out bytes.Buffer
	d.Print(&out, false)
	assert.NotContains(t, out.String(), "\x1b")
}

// The owner of a member, or of a workspace, decides what the member answers and what its kubeconfig contains.
func TestImport_hostileMember(t *testing.T) {
	kubeconfig := func(more string) *knowledge {
		return &knowledge{
			Inputs: Inputs{Now: time.Now}, cluster: &fleet.Cluster{},
			kubeconfig: &corev1.Secret{Data: map[string][]byte{registration.KubeconfigValue: []byte(more)}},
		}
	}
	t.Run("aliases", func(t *testing.T) {
		found := importKubeconfig(t.Context(), kubeconfig("a: &a [x]\nb: [*a, *a]\n"))
		assert.Equal(t, Fail, found.Verdict)
		assert.Contains(t, found.Detail, "alias")
	})
	t.Run("a file of this machine", func(t *testing.T) {
		endless := filepath.Join(t.TempDir(), "fifo")
		require.NoError(t, syscall.Mkfifo(endless, 0o600)) // opening it would wait for a writer
		k := kubeconfig(strings.Join([]string{
			"clusters: [{name: c, cluster: {server: 'https://example.com'}}]", "contexts: [{name: x, context: {cluster: c, user: u}}]",
			"current-context: x", "users: [{name: u, user: {tokenFile: " + endless + "}}]",
		}, "\n"))
		assert.Equal(t, pass("https://example.com"), importKubeconfig(t.Context(), k))
		assert.Equal(t, fail("it refers to files, which the hub cannot read"), importSelfContained(t.Context(), k))
	})
	t.Run("an endless response", func(t *testing.T) {
		var sent atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			text := bytes.Repeat([]byte("x"), 1<<20)
			for r.Context().Err() == nil {
				n, err := w.Write(text)
				if err != nil {
					return
				}
				sent.Add(int64(n))
			}
		}))
		defer server.Close()
		k := kubeconfig("")
		k.importConfig = &rest.Config{Host: server.URL}
		found := importReaches(t.Context(), k)
		assert.Equal(t, Fail, found.Verdict)
		assert.Contains(t, found.Detail, "the response is larger than 32768 kB")
		assert.Less(t, sent.Load(), 2*memberLimits.Bytes)
	})
}

func TestTable(t *testing.T) {
	id := regexp.MustCompile(`^[a-z]+(-[a-z]+)+$`)
	earlier := map[string]bool{}
	for _, c := range Table() {
		assert.Regexp(t, id, c.ID)
		assert.False(t, earlier[c.ID], "%s occurs twice", c.ID)
		for _, needed := range slices.Concat(c.Needs, c.ExplainedBy) {
			if !slices.Contains(beforeHeartbeat, needed) {
				assert.True(t, earlier[needed], "%s needs %s, which is not made before it", c.ID, needed)
			}
		}
		assert.NotEmpty(t, c.Says, c.ID)
		assert.NotEmpty(t, c.Hint, c.ID)
		earlier[c.ID] = true
	}
	for _, needed := range beforeHeartbeat {
		assert.True(t, earlier[needed], "there is no check %s", needed)
	}
}

// The page is generated from the table, and has the sections to which the output refers.
func TestPage(t *testing.T) {
	file := filepath.Join("..", "..", "docs", "checks.md")
	golden.Equal(t, file, page())
	for _, c := range Table() {
		require.Contains(t, page(), "\n### "+c.ID+"\n")
	}
}

// The commands in hints contain the flags, the namespace and the Cluster of the command line.
func TestHint(t *testing.T) {
	c := Check{Hint: "`muster clusters -A` lists all; `muster release CLUSTER` helps, and so does `kubectl get nodes`"}
	assert.Equal(t, c.Hint, Inputs{Namespace: "default"}.hint(c))
	assert.Equal(t, "`muster --context=b clusters -A` lists all; `muster --context=b release CLUSTER` helps, and so does `kubectl get nodes`",
		Inputs{HubFlags: " --context=b", Namespace: "clusters"}.hint(c))
	assert.Equal(t, "`muster --context=b -n clusters clusters -A` lists all; `muster --context=b -n clusters release east` helps, and so does `kubectl get nodes`",
		Inputs{HubFlags: " --context=b", Namespace: "clusters", Cluster: "east"}.hint(c))
}

func TestDocumentation(t *testing.T) {
	assert.Equal(t, "https://github.com/muster-fleet/muster/blob/v1.2.3/docs/checks.md#a", Inputs{Version: "v1.2.3"}.documentation("a"))
	assert.Equal(t, "https://github.com/muster-fleet/muster/blob/main/docs/checks.md#a", Inputs{Version: "v1.2.3-4-g1a2b3c4"}.documentation("a"))
	hint := Inputs{Version: "v1.2.3", Cluster: "west", Namespace: "ws", HubFlags: " --context=b"}.hint(Check{Hint: "see docs/reasons.md#cluster; " + registerAgain})
	assert.Contains(t, hint, "see https://github.com/muster-fleet/muster/blob/v1.2.3/docs/reasons.md#cluster; ")
	assert.Contains(t, hint, "`muster --context=b -n ws token create --cluster west --usage-limit 1 --ttl 1h -o values | muster join - --kubeconfig MEMBER`")
}

// A webhook or a policy refuses what the user sends as it refuses what the hub sends, if it does not distinguish users. A user who lacks the right is
// refused for another reason.
func TestHubWrites(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	leases, clusters := schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, schema.GroupResource{Resource: "clusters"}
	webhook := apierrors.NewInternalError(errors.New(`failed calling webhook "gone.example.com"`))
	denied := apierrors.NewForbidden(leases, registration.HubLease, errors.New("ValidatingAdmissionPolicy 'strict' denied request"))
	for name, row := range map[string]struct {
		lease, status, review error
		mayNot                bool
		renewed               time.Duration
		want                  Verdict
		says                  string
	}{
		"accepted":                        {want: Pass},
		"a webhook without a server":      {lease: webhook, want: Fail, says: `the API server refuses what the hub writes: Lease cattle-fleet-system/fleet-agentmanagement-lock: Internal error`},
		"one for statuses":                {status: webhook, want: Fail, says: `status of Cluster ws/west: Internal error occurred: failed calling webhook "gone.example.com"`},
		"one that also refuses reviews":   {lease: denied, review: webhook, want: Fail, says: `failed calling webhook "gone.example.com"`},
		"a policy that stops the hub":     {lease: denied, renewed: time.Minute, want: Fail, says: "ValidatingAdmissionPolicy 'strict' denied request"},
		"a policy for users":              {lease: denied, want: Warn, says: "but the hub renews its Lease: Lease "},
		"one for statuses, for users":     {status: apierrors.NewForbidden(clusters, "west", errors.New("denied")), want: Warn, says: "status of Cluster ws/west"},
		"a webhook that does not answer":  {lease: apierrors.NewTimeoutError("no answer", 1), want: Unknown, says: "possibly because a webhook has none"},
		"no Lease":                        {lease: apierrors.NewNotFound(leases, "x"), want: Pass},
		"no right":                        {lease: denied, status: denied, mayNot: true, want: Unknown, says: "you may not patch it"},
		"the right for statuses only":     {lease: denied, mayNot: true, want: Pass},
		"no right, and a refused webhook": {lease: denied, status: webhook, mayNot: true, want: Fail, says: "status of Cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			kube := fake.NewClientset(&coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Namespace: registration.DefaultSystemNamespace, Name: registration.HubLease},
				Spec: coordinationv1.LeaseSpec{
					HolderIdentity: new("hub"), RenewTime: &metav1.MicroTime{Time: now.Add(-row.renewed)}, LeaseDurationSeconds: new(int32(15)),
				},
			})
			clusters := fleetfake.NewSimpleClientset(&fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "west"}})
			answer := func(err error) clienttesting.ReactionFunc {
				return func(clienttesting.Action) (bool, runtime.Object, error) { return err != nil, nil, err }
			}
			kube.PrependReactor("patch", "leases", answer(row.lease))
			clusters.PrependReactor("patch", "clusters", answer(row.status))
			kube.PrependReactor("create", "selfsubjectaccessreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, &authorizationv1.SelfSubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: !row.mayNot}}, row.review
			})
			k := newKnowledge(Inputs{Namespace: "ws", Cluster: "west"})
			k.hub = &apiServer{core: kube, fleet: clusters.FleetV1alpha1(), clock: &dateReader{now: func() time.Time { return now }}}
			found := hubWrites(t.Context(), k)
			assert.Equal(t, row.want, found.Verdict, found.Detail)
			assert.Contains(t, found.Detail, row.says)
			assert.Equal(t, name == "no right", found.optional)
		})
	}
}

// A check that needs a right which few users have is left out, also if the user asks about the hub.
func TestRunWithoutAnOptionalRight(t *testing.T) {
	d := run(t.Context(), []Check{
		{ID: "hub-a", Category: categoryHub, run: always(Finding{Verdict: Unknown, forbidden: true, optional: true})},
		{ID: "hub-b", Category: categoryHub, ExplainedBy: []string{"hub-a"}, run: always(pass(""))},
	}, newKnowledge(Inputs{}))
	assert.Equal(t, "All 1 checks passed.", d.Summary)
	assert.Equal(t, []string{"hub-a"}, d.LeftOut)
}

func TestHubAPI_slow(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"gitVersion":"v1.36.1"}`)) }))
	defer server.Close()
	for name, test := range map[string]struct {
		took []time.Duration // of each request
		want Finding
	}{
		"fast":            {[]time.Duration{time.Second}, pass("Kubernetes v1.36.1 at %s", server.URL)},
		"slow at first":   {[]time.Duration{slowAnswer, time.Second}, pass("Kubernetes v1.36.1 at %s", server.URL)},
		"slow both times": {[]time.Duration{slowAnswer, 2 * slowAnswer}, warn("Kubernetes v1.36.1 at %s answers slowly: in 4s", server.URL)},
	} {
		t.Run(name, func(t *testing.T) {
			now, calls := time.Time{}, 0
			k := &knowledge{Inputs: Inputs{Hub: &rest.Config{Host: server.URL}}}
			k.Now = func() time.Time { // hubAPI calls it before and after each request
				if calls++; calls%2 == 0 {
					now = now.Add(test.took[calls/2-1])
				}
				return now
			}
			k.hub = connectTo(k.Hub, time.Now, transport.ResponseLimits{})
			assert.Equal(t, test.want, hubAPI(t.Context(), k))
		})
	}
}

func TestFleetClusters(t *testing.T) {
	at := func(second int) string { return time.Date(2026, 1, 2, 2, 41, second, 0, time.UTC).Format(time.RFC3339) }
	fleetWith := func(offline int, times ...string) *knowledge {
		k := &knowledge{}
		for i := range 100 {
			s := surveyed{Cluster: view.Cluster{Namespace: "ws", Name: fmt.Sprint("c", i), State: view.StateRegistered}}
			s.connected.Status = corev1.ConditionTrue
			if i < offline {
				s.State, s.Reason = view.StateOffline, fleet.ReasonDisconnected
				s.connected.Status, s.connected.LastTransitionTime = corev1.ConditionFalse, times[i%len(times)]
			}
			k.surveyed = append(k.surveyed, s)
		}
		return k
	}
	assert.Equal(t, pass("100"), fleetClusters(t.Context(), fleetWith(0)))
	assert.Equal(t, warn("1 of 100 Clusters are not connected: ws/c0 Offline Disconnected"), fleetClusters(t.Context(), fleetWith(1, at(0))))
	assert.Equal(t, Warn, fleetClusters(t.Context(), fleetWith(5, at(0))).Verdict, "the alert needs more than 5 %")
	found := fleetClusters(t.Context(), fleetWith(6, at(50), at(0), at(20)))
	assert.Equal(t, Fail, found.Verdict)
	assert.Contains(t, found.Detail, "6 of 100 Clusters are not connected (6 became disconnected within 5m, the last at 2026-01-02T02:41:50Z: look for a common cause): ws/c0 ")
	found = fleetClusters(t.Context(), fleetWith(6, "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"))
	assert.NotContains(t, found.Detail, "common cause")
}

func TestFleetBundles(t *testing.T) {
	bundle := func(name string, status corev1.ConditionStatus, reason string) *fleet.Bundle {
		b := &fleet.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: name}}
		b.Status.Conditions = []genericcondition.GenericCondition{{Type: fleet.ConditionReady, Status: status, Reason: reason}}
		return b
	}
	// Each of these is no fault, or is shown by the Clusters.
	good := []runtime.Object{
		&fleet.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "new"}}, bundle("ready", corev1.ConditionTrue, fleet.ReasonAllReady),
		bundle("prepared", corev1.ConditionTrue, fleet.ReasonNoClusters), bundle("slow", corev1.ConditionFalse, fleet.ReasonNotReady),
		bundle("failed", corev1.ConditionFalse, fleet.ReasonDeployFailed), bundle("large", corev1.ConditionFalse, fleet.ReasonWorkspaceLimitReached),
		bundle("of-fleet", corev1.ConditionFalse, ""),
	}
	faulty := []runtime.Object{
		bundle("a", corev1.ConditionFalse, fleet.ReasonBundleInvalid), bundle("b", corev1.ConditionFalse, fleet.ReasonValuesMissing),
		bundle("c", corev1.ConditionFalse, fleet.ReasonKindDeleted), bundle("d", corev1.ConditionFalse, fleet.ReasonError),
	}
	unready := surveyed{Cluster: view.Cluster{Namespace: "ws", Name: "west", State: view.StateRegistered, Reason: fleet.ReasonNotReady, NotReady: true}}
	const ofCluster = "1 of 1 Clusters have Bundles that are not ready: ws/west Registered NotReady"
	const forbidden = `listing Bundles: bundles.fleet.cattle.io is forbidden: no`
	for name, row := range map[string]struct {
		clusters []surveyed
		bundles  []runtime.Object
		err      error
		want     Finding
	}{
		"no fault":              {[]surveyed{{}}, good, nil, pass("1")},
		"a Cluster":             {[]surveyed{unready}, good, nil, warn(ofCluster)},
		"a Bundle":              {[]surveyed{{}}, append(good, faulty[0]), nil, warn("1 of 8 Bundles have a fault themselves: ws/a BundleInvalid")},
		"both, and all reasons": {[]surveyed{unready}, faulty, nil, warn(ofCluster + "; 4 of 4 Bundles have a fault themselves: ws/a BundleInvalid, ws/b ValuesMissing, ws/c KindDeleted, ws/d Error")},
		"many": {
			[]surveyed{{}},
			append(slices.Clone(faulty), bundle("e", corev1.ConditionFalse, fleet.ReasonError), bundle("f", corev1.ConditionFalse, fleet.ReasonError)), nil,
			warn("6 of 6 Bundles have a fault themselves: ws/a BundleInvalid, ws/b ValuesMissing, ws/c KindDeleted, ws/d Error, ws/e Error and 1 others"),
		},
		"no right to read Bundles":                         {[]surveyed{{}}, nil, errors.New("no"), Finding{Verdict: Unknown, Detail: forbidden, forbidden: true}},
		"no right to read Bundles, and a Cluster says why": {[]surveyed{unready}, nil, errors.New("no"), warn(ofCluster + "; " + forbidden)},
	} {
		t.Run(name, func(t *testing.T) {
			clients := fleetfake.NewSimpleClientset(row.bundles...)
			clients.PrependReactor("list", "bundles", func(clienttesting.Action) (bool, runtime.Object, error) {
				return row.err != nil, nil, apierrors.NewForbidden(fleet.Resource("bundles"), "", row.err)
			})
			k := &knowledge{surveyed: row.clusters, hub: &apiServer{fleet: clients.FleetV1alpha1()}}
			assert.Equal(t, row.want, fleetBundles(t.Context(), k))
		})
	}
}

func TestFromHere(t *testing.T) {
	connected := surveyed{address: "https://hub:6443/", caHash: registration.CAHash([]byte("ca"))}
	connected.connected.Status = corev1.ConditionTrue
	seen := &fleet.Cluster{Status: fleet.ClusterStatus{Agent: fleet.AgentStatus{LastSeen: metav1.Now()}}}
	tests := map[string]struct {
		server, ca string
		cluster    *fleet.Cluster
		others     []surveyed
		want       Verdict
	}{
		"agents are connected at the address":    {"https://hub:6443", "ca", nil, []surveyed{connected}, Warn},
		"with another CA":                        {"https://hub:6443", "new", nil, []surveyed{connected}, Fail},
		"at another address":                     {"https://new:6443", "ca", nil, []surveyed{connected}, Fail},
		"none is connected":                      {"https://hub:6443", "ca", nil, []surveyed{{address: "https://hub:6443"}}, Fail},
		"the agent is offline, others are not":   {"https://hub:6443", "ca", seen, []surveyed{connected}, Warn},
		"the agent is offline, and the only one": {"https://hub:6443", "ca", seen, []surveyed{}, Unknown},
		"the agent has never sent a heartbeat":   {"https://hub:6443", "ca", &fleet.Cluster{}, []surveyed{}, Fail},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			k := &knowledge{hub: &apiServer{}, cluster: test.cluster, surveyed: test.others}
			k.access = &hubclient.Access{Endpoint: hubclient.Endpoint{Server: test.server, CA: []byte(test.ca)}}
			found := k.fromHere(t.Context(), fail("no answer"), k.withCA())
			assert.Equal(t, test.want, found.Verdict)
			assert.Contains(t, found.Detail, "from this machine: no answer")
		})
	}
	assert.Equal(t, fail("no answer"), (&knowledge{}).fromHere(t.Context(), fail("no answer"), nil), "the pod of the agent")
}

// A server that accepts connections and ends each before the handshake.
func TestWayTLS_noHandshake(t *testing.T) {
	sample.Long(t)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			_ = connection.Close()
		}
	}()
	k := &knowledge{access: &hubclient.Access{Endpoint: hubclient.Endpoint{Server: "https://" + listener.Addr().String()}}}
	found := wayTLS(t.Context(), k)
	assert.Equal(t, Fail, found.Verdict)
	assert.Contains(t, found.Detail, "the TLS handshake with https://127.0.0.1:")
}

func TestClusterProcessed_newCluster(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for age, want := range map[time.Duration]Verdict{0: Warn, firstStatusWithin: Fail} {
		k := &knowledge{Inputs: Inputs{Now: func() time.Time { return now.Add(age) }}, cluster: &fleet.Cluster{}}
		k.cluster.CreationTimestamp = metav1.NewTime(now)
		assert.Equal(t, want, clusterProcessed(t.Context(), k).Verdict, age)
	}
}

// A person with rights only in the workspace may not read the Leases. A hub that does not run any more leaves condition Connected as it is.
func TestClusterHeartbeat_withoutLeases(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	kube := fake.NewClientset()
	kube.PrependReactor("list", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "", nil)
	})
	for _, row := range []struct {
		connected corev1.ConditionStatus
		age       time.Duration // of the last heartbeat in the status
		want      Verdict
	}{
		{corev1.ConditionTrue, 0, Pass},
		{corev1.ConditionTrue, 18 * time.Minute, Pass}, // the hub writes it every 15 minutes
		{corev1.ConditionTrue, 19 * time.Minute, Unknown},
		{corev1.ConditionFalse, 0, Fail},
		{corev1.ConditionFalse, time.Hour, Fail},
		{corev1.ConditionUnknown, 0, Unknown},
		{"", 0, Unknown},
	} {
		k := &knowledge{hub: &apiServer{core: kube, clock: &dateReader{now: func() time.Time { return now }}}, cluster: &fleet.Cluster{}}
		k.cluster.Status.Agent.LastSeen = metav1.NewTime(now.Add(-row.age))
		k.cluster.Status.Agent.CheckinInterval = &metav1.Duration{Duration: time.Minute}
		if row.connected != "" {
			k.cluster.Status.Conditions = []genericcondition.GenericCondition{{Type: fleet.ConditionConnected, Status: row.connected}}
		}
		assert.Equal(t, row.want, clusterHeartbeat(t.Context(), k).Verdict, row)
	}
}

// The import of another Cluster may replace the agent of a Cluster without a kubeconfig.
func TestClusterImported(t *testing.T) {
	for _, row := range []struct {
		name, kubeconfig string
		status           corev1.ConditionStatus
		verdict          Verdict
	}{
		{"imported", "kc", corev1.ConditionTrue, Pass},
		{"not imported", "kc", corev1.ConditionFalse, Fail},
		{"importing", "kc", corev1.ConditionUnknown, Fail},
		{"registered with a token", "", corev1.ConditionTrue, ""},
		{"registered with a token and replaced", "", corev1.ConditionFalse, Fail},
		{"without conditions", "", "", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := &fleet.Cluster{Spec: fleet.ClusterSpec{KubeConfigSecret: row.kubeconfig}}
			if row.status != "" {
				c.Status.Conditions = []genericcondition.GenericCondition{{Type: fleet.ConditionImported, Status: row.status, Reason: fleet.ReasonKubeconfigInUse}}
			}
			assert.Equal(t, row.verdict, clusterImported(t.Context(), &knowledge{cluster: c}).Verdict)
		})
	}
}
