package clusterimport

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/release"
)

func leaver() *fleet.Cluster {
	return &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "m", UID: "uid"},
		Spec:       fleet.ClusterSpec{ClientID: "client", KubeConfigSecret: "kubeconfig"},
		Status:     fleet.ClusterStatus{Import: &fleet.ImportStatus{Registration: "digest/0", AgentNamespace: system}},
	}
}

func TestWhoseAgentItIs(t *testing.T) {
	credential := func(namespace, name string) map[string]string {
		return map[string]string{registration.CredentialClusterNamespace: namespace, registration.CredentialClusterName: name}
	}
	bootstrap := func(namespace, token, key string) map[string]string {
		return map[string]string{
			registration.BootstrapClusterNamespace: namespace, registration.BootstrapTokenName: token, registration.BootstrapRegistration: key,
		}
	}
	for _, row := range []struct {
		name     string
		evidence evidence
		ours     bool
	}{
		{"there is none", evidence{}, false},
		{"it has our credential", evidence{found: true, credential: credential("ws", "m")}, true},
		{"it has another's credential, and our identity", evidence{found: true, credential: credential("ws", "other"), clientID: "client"}, false},
		{"it has that of a Cluster of this name elsewhere", evidence{found: true, credential: credential("elsewhere", "m")}, false},
		{"it has not registered, and is to have our identity", evidence{found: true, clientID: "client"}, true},
		{"it has not registered, and is to have another", evidence{found: true, clientID: "other"}, false},
		{"nobody gave it an identity", evidence{found: true}, false},
		{"it is told to register with us again", evidence{found: true, credential: credential("ws", "m"), bootstrap: bootstrap("ws", "import-token-m", "x")}, true},
		{"by the import that the hub knows of", evidence{found: true, credential: credential("ws", "m"), bootstrap: bootstrap("ws", "tok", "digest/0")}, true},
		{"it is told to register with another Cluster", evidence{found: true, credential: credential("ws", "m"), bootstrap: bootstrap("ws", "import-token-other", "x")}, false},
		{"it is told to register in another namespace", evidence{found: true, credential: credential("ws", "m"), bootstrap: bootstrap("elsewhere", "import-token-m", "digest/0")}, false},
		{"it is told something that nobody understands", evidence{found: true, credential: credential("ws", "m"), bootstrap: map[string]string{}}, false},
	} {
		assert.Equal(t, row.ours, row.evidence.isOf(leaver()), row.name)
	}
	without := leaver()
	without.Spec.ClientID = ""
	assert.False(t, evidence{found: true}.isOf(without), "no identity is nobody's")
}

// workloads are the releases on a member.
type workloads struct {
	found    []release.Found
	err      error
	selector string
	removed  []string
	on       *fakeMember
	agent    bool // was still there when the first was removed
}

func (w *workloads) List(_ context.Context, selector labels.Selector) ([]release.Found, error) {
	w.selector = selector.String()
	_, w.agent = w.on.objects["/apis/apps/v1/namespaces/"+system+"/deployments/fleet-agent"]
	return w.found, w.err
}

func (w *workloads) Uninstall(_ context.Context, namespace, name string, _ release.Options) error {
	w.removed = append(w.removed, "uninstalled "+namespace+"/"+name)
	return nil
}

func (w *workloads) Forget(_ context.Context, namespace, name string) error {
	w.removed = append(w.removed, "forgot "+namespace+"/"+name)
	return nil
}

// newWorkloads puts an agent of the Cluster on the member, and what it has deployed.
func newWorkloads(m *fakeMember) *workloads {
	secret := func(data map[string]any) map[string]any { return map[string]any{"kind": "Secret", "data": data} }
	m.put("/apis/apps/v1/namespaces/"+system+"/deployments/fleet-agent", map[string]any{"kind": "Deployment"})
	m.put("/api/v1/namespaces/"+system+"/secrets/fleet-agent", secret(map[string]any{"clusterNamespace": "d3M=", "clusterName": "bQ=="}))
	m.put("/api/v1/namespaces/"+system+"/configmaps/fleet-agent", map[string]any{"kind": "ConfigMap", "data": map[string]any{"config": `{"clientID":"client"}`}})
	m.put("/api/v1/namespaces/"+system+"/secrets/pull", secret(nil))
	m.put("/api/v1/namespaces/"+system+"/secrets/somebody-elses", secret(nil))
	m.put("/apis/coordination.k8s.io/v1/namespaces/"+system+"/leases/fleet-agent", map[string]any{"kind": "Lease"})
	m.put("/apis/scheduling.k8s.io/v1/priorityclasses/fleet-agent-priority-class", map[string]any{"kind": "PriorityClass"})
	return &workloads{on: m, found: []release.Found{
		{Namespace: "apps", Name: "shop"},
		{Namespace: system, Name: "fleet-agent-m", Labels: map[string]string{release.DeploymentLabel: "fleet-agent-m"}},
	}}
}

func (w *workloads) farewell(t *testing.T, cluster *fleet.Cluster) *farewell {
	t.Helper()
	return &farewell{
		member: w.on.connect(t), cluster: cluster, agentNamespaces: []string{system, "an-earlier-one"}, pullSecrets: []string{"pull"},
		releases: func(*rest.Config) (releases, error) { return w, nil },
	}
}

func TestAFarewellLeavesNothingButWhatIsSomebodyElses(t *testing.T) {
	m := newFakeMember(t)
	w := newWorkloads(m)
	assert.Nil(t, w.farewell(t, leaver()).run(t.Context()))
	assert.Equal(t, []string{
		"/api/v1/namespaces/" + system + "/secrets/somebody-elses",
		"/apis/scheduling.k8s.io/v1/priorityclasses/fleet-agent-priority-class",
	}, m.paths(), "a PriorityClass that this Cluster did not ask for may be another's")
	assert.Equal(t, []string{"uninstalled apps/shop", "forgot " + system + "/fleet-agent-m"}, w.removed)
	assert.False(t, w.agent, "it would deploy again what is removed")
	assert.Contains(t, w.selector, registration.ClusterNamespace("ws", "m"))
}

func TestAFarewellRemovesThePriorityClassThatTheClusterAskedFor(t *testing.T) {
	m := newFakeMember(t)
	w, c := newWorkloads(m), leaver()
	c.Spec.AgentSchedulingCustomization = &fleet.AgentSchedulingCustomization{PriorityClass: &fleet.PriorityClassSpec{Value: 1}}
	assert.Nil(t, w.farewell(t, c).run(t.Context()))
	assert.Equal(t, []string{"/api/v1/namespaces/" + system + "/secrets/somebody-elses"}, m.paths())
}

func TestAFarewellTouchesNoOtherClustersAgent(t *testing.T) {
	m := newFakeMember(t)
	w, c := newWorkloads(m), leaver()
	c.Name = "another"
	before := m.paths()
	assert.Nil(t, w.farewell(t, c).run(t.Context()))
	assert.Equal(t, before, m.paths())
	assert.Empty(t, w.removed)
}

func TestWhenAFarewellCannotTellThatNothingIsLeft(t *testing.T) {
	for _, row := range []struct {
		name  string
		agent fleet.AgentStatus
		moved bool
		left  string
	}{
		{name: "an agent that marks what it deploys", agent: fleet.AgentStatus{LastSeen: metav1.NewTime(start), Generation: "managed/0"}},
		{name: "one that tells its version only", agent: fleet.AgentStatus{LastSeen: metav1.NewTime(start), Version: "v1"}},
		{name: "one of another release", agent: fleet.AgentStatus{LastSeen: metav1.NewTime(start)}, left: "its Helm releases may be left"},
		{name: "one that is not there any more", agent: fleet.AgentStatus{LastSeen: metav1.NewTime(start), Version: "v1"}, moved: true, left: "may be left"},
		{name: "one that never was there", moved: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := newFakeMember(t)
			w, c := newWorkloads(m), leaver()
			c.Status.Agent = row.agent
			bye := w.farewell(t, c)
			if row.moved {
				bye.agentNamespaces = []string{"an-earlier-one"}
			}
			problem := bye.run(t.Context())
			assert.Equal(t, row.moved, m.state(t)["/apis/apps/v1/namespaces/"+system+"/deployments/fleet-agent"] != nil, "what is ours is removed")
			if row.left == "" {
				assert.Nil(t, problem)
				return
			}
			require.NotNil(t, problem)
			assert.Equal(t, fleet.ReasonAgentUnaware, problem.reason)
			assert.Contains(t, problem.message, row.left)
		})
	}
}

func TestAFarewellThatWasCutOffIsTakenUpAgain(t *testing.T) {
	for at := 0; ; at++ {
		m := newFakeMember(t)
		w := newWorkloads(m)
		m.fault = failAt(at, "broken")
		if w.farewell(t, leaver()).run(t.Context()) == nil {
			require.Greater(t, at, 10, "it took every request")
			return
		}
		m.fault = nil
		assert.Nil(t, w.farewell(t, leaver()).run(t.Context()), at)
		left := strings.Join(m.paths(), " ")
		assert.NotContains(t, left, "secrets/fleet-agent", at)
		assert.NotContains(t, left, "leases", at)
	}
}

func TestWhatCannotBeRemovedIsTold(t *testing.T) {
	m := newFakeMember(t)
	w := newWorkloads(m)
	w.err = errors.New("helm is confused")
	problem := w.farewell(t, leaver()).run(t.Context())
	require.NotNil(t, problem)
	assert.Equal(t, fleet.ReasonMemberError, problem.reason)
	assert.Contains(t, problem.message, "helm is confused")
	assert.Contains(t, m.paths(), "/api/v1/namespaces/"+system+"/secrets/fleet-agent", "and is known next time")

	m.fault = failAt(len(m.requests)+2, "forbid")
	problem = w.farewell(t, leaver()).run(t.Context())
	require.NotNil(t, problem)
	assert.Equal(t, fleet.ReasonForbidden, problem.reason)
}

func TestPartTriesOnceAndDoesNotWaitForEver(t *testing.T) {
	m := newFakeMember(t)
	m.fault = func(_ int, w http.ResponseWriter, _ *http.Request) bool {
		http.Error(w, "no", http.StatusInternalServerError)
		return true
	}
	secret, c := kubeconfigSecret(with(t, to(m.Server))), leaver()
	o := newOffice(t, secret)
	c.Spec.KubeConfigSecret, c.Namespace = secret.Name, secret.Namespace
	generation := int64(0)
	c.Status.AgentDeployedGeneration = &generation
	until := o.clock.Now().Add(30 * time.Second)
	out := o.Part(t.Context(), c, until)
	assert.True(t, out.IsWait(), out.Message)
	assert.Equal(t, fleet.ReasonFarewell, out.Reason)
	require.Eventually(t, func() bool { return !o.Part(t.Context(), c, until).IsWait() }, 2*time.Minute, time.Millisecond)
	for range 2 {
		out = o.Part(t.Context(), c, until)
		assert.True(t, out.IsStalled())
		assert.Equal(t, fleet.ReasonMemberError, out.Reason)
		o.clock.Step(10 * time.Second)
	}
	assert.Len(t, m.requests, 1)
}

func TestWhenThereIsNothingToTry(t *testing.T) {
	generation := int64(0)
	for _, row := range []struct {
		name   string
		change func(*fleet.Cluster)
		check  func(*testing.T, *office, *fleet.Cluster)
	}{
		{"no kubeconfig", func(c *fleet.Cluster) { c.Spec.KubeConfigSecret = "" }, func(t *testing.T, o *office, c *fleet.Cluster) {
			t.Helper()
			assert.True(t, o.Part(t.Context(), c, o.clock.Now().Add(time.Minute)).IsSkip())
		}},
		{"nothing was sent", nil, func(t *testing.T, o *office, c *fleet.Cluster) {
			t.Helper()
			assert.True(t, o.Part(t.Context(), c, o.clock.Now().Add(time.Minute)).IsDone())
		}},
		{"the kubeconfig is gone", func(c *fleet.Cluster) { c.Status.AgentDeployedGeneration = &generation }, func(t *testing.T, o *office, c *fleet.Cluster) {
			t.Helper()
			out := o.Part(t.Context(), c, o.clock.Now().Add(time.Minute))
			assert.True(t, out.IsStalled())
			assert.Equal(t, fleet.ReasonWaitingForKubeconfig, out.Reason)
		}},
		{"the time is over", func(c *fleet.Cluster) { c.Status.AgentDeployedGeneration = &generation }, func(t *testing.T, o *office, c *fleet.Cluster) {
			t.Helper()
			assert.Equal(t, fleet.ReasonFarewellTimeout, o.Part(t.Context(), c, o.clock.Now()).Reason)
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := leaver()
			if row.change != nil {
				row.change(c)
			}
			row.check(t, newOffice(t), c)
		})
	}
}

func TestAMemberThatMayHaveBeenCalledIsCleanedThoughTheTokenIsGone(t *testing.T) {
	for _, row := range []struct {
		reason  string
		touched bool
	}{
		{"", false},
		{fleet.ReasonWaitingForKubeconfig, false},
		{fleet.ReasonKubeconfigInvalid, false},
		{fleet.ReasonImporting, true},
		{fleet.ReasonUnreachable, true},
		{fleet.ReasonForbidden, true},
		{fleet.ReasonMemberError, true},
	} {
		t.Run("Imported says "+row.reason, func(t *testing.T) {
			c := fresh()
			o, m := workFor(t, c)
			delete(o.tokens.tokens, "import-token-c")
			if row.reason != "" {
				result.Set(&c.Status.Conditions, fleet.ConditionImported, result.Wait(row.reason, ""), o.clock.Now())
			}
			require.Equal(t, row.touched, o.Part(t.Context(), c, o.clock.Now().Add(time.Minute)).IsWait())
			o.pool.wait()
			assert.Equal(t, row.touched, len(m.requests) > 0)
		})
	}
}

func TestACallUnderWayIsFollowedByAFarewellUntilThatIsOver(t *testing.T) {
	c := fresh()
	o, _ := workFor(t, c)
	require.True(t, o.Reconcile(t.Context(), c).IsWait())
	delete(o.tokens.tokens, "import-token-c") // and the status does not say yet that there is a call
	until := o.clock.Now().Add(time.Minute)
	require.True(t, o.Part(t.Context(), c, until).IsWait())
	for o.pool.busy(clusterKey("c" + clean)) {
		require.True(t, o.Part(t.Context(), c, until).IsWait() || !o.pool.busy(clusterKey("c"+clean)), "nobody is let go before")
	}
	o.pool.wait()
	require.True(t, o.Part(t.Context(), c, until).IsDone())
}

func TestAnImportThatWaitsDoesNotFollowTheFarewell(t *testing.T) {
	c := fresh()
	o, m := workFor(t, c)
	for range freshSlots {
		o.pool.fresh <- struct{}{}
	}
	require.True(t, o.Reconcile(t.Context(), c).IsWait())
	deployed := int64(0)
	c.Status.AgentDeployedGeneration = &deployed
	o.Part(t.Context(), c, o.clock.Now().Add(time.Minute))
	for range freshSlots {
		<-o.pool.fresh
	}
	o.pool.wait()
	assert.NotContains(t, m.transcript(), "PATCH")
}
