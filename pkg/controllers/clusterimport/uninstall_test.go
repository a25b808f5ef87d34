package clusterimport

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/pkg/agentmanifest"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/finalizing"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	tokens "github.com/muster-fleet/muster/pkg/credential"
	fleetfake "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/fake"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/release"
	"github.com/muster-fleet/muster/pkg/transport"
)

func deletedCluster() *fleet.Cluster {
	return &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "m", UID: "uid"},
		Spec:       fleet.ClusterSpec{ClientID: "client", KubeConfigSecret: "kubeconfig"},
		Status: fleet.ClusterStatus{
			APIServerURL: "https://hub", Agent: fleet.AgentStatus{Hub: &fleet.AgentHub{APIServerURL: "https://present"}},
			Import: &fleet.ImportStatus{RegistrationKey: "digest/0", AgentNamespace: system},
		},
	}
}

func TestInstalledAgent_belongsTo(t *testing.T) {
	credential := func(namespace, name string) map[string]string {
		return map[string]string{registration.CredentialWorkspace: namespace, registration.CredentialClusterName: name}
	}
	token := func(uid string) string {
		name := "account"
		if of, isGone := strings.CutPrefix(uid, "gone/"); isGone {
			name = of + "-uid"
		}
		claims := map[string]any{"namespace": "ns", "serviceaccount": map[string]any{"name": name, "uid": uid}}
		signed, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"kubernetes.io": claims}).SignedString([]byte("k"))
		require.NoError(t, err)
		return signed
	}
	registered := func(key, token string) installedAgent { // with a Cluster of the same name
		data := credential("ws", "m")
		data[registration.BootstrapRegistrationKey] = key
		return installedAgent{exists: true, credential: data, token: tokens.Token(token)}
	}
	bootstrap := func(namespace, name, key string) map[string]string {
		return map[string]string{
			registration.BootstrapWorkspace: namespace, registration.BootstrapTokenName: name, registration.BootstrapRegistrationKey: key,
		}
	}
	bootstrapBy := func(key, uid string) map[string]string {
		data := bootstrap("ws", "import-token-m", key)
		data[registration.BootstrapToken] = token(uid)
		return data
	}
	hub := fake.NewClientset(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "account", UID: "ours"}})
	for _, row := range []struct {
		name  string
		agent installedAgent
		ours  bool
	}{
		{"no agent", installedAgent{}, false},
		{"our credential", installedAgent{exists: true, credential: credential("ws", "m")}, true},
		{"another credential, our clientID", installedAgent{exists: true, credential: credential("ws", "other"), clientID: "client"}, false},
		{"credential of a Cluster of this name in another namespace", installedAgent{exists: true, credential: credential("elsewhere", "m")}, false},
		{"not registered, our clientID", installedAgent{exists: true, clientID: "client"}, true},
		{"not registered, another clientID", installedAgent{exists: true, clientID: "other"}, false},
		{"not registered, no clientID", installedAgent{exists: true}, false},
		{"bootstrap Secret with our import token", installedAgent{exists: true, credential: credential("ws", "m"), bootstrap: bootstrap("ws", "import-token-m", "x")}, true},
		{"bootstrap Secret with our recorded registration", installedAgent{exists: true, credential: credential("ws", "m"), bootstrap: bootstrap("ws", "tok", "digest/0")}, true},
		{"bootstrap Secret of another Cluster", installedAgent{exists: true, credential: credential("ws", "m"), bootstrap: bootstrap("ws", "import-token-other", "x")}, false},
		{"bootstrap Secret of another namespace", installedAgent{exists: true, credential: credential("ws", "m"), bootstrap: bootstrap("elsewhere", "import-token-m", "digest/0")}, false},
		{"credential of another hub with a Cluster of this name", registered("other/0", token("theirs")), false},
		{"credential of this hub from another registration", registered("other/0", token("ours")), true},
		{"our credential, of a ServiceAccount that is gone", registered("digest/0", token("theirs")), true},
		{"credential from another registration whose token cannot be read", registered("other/0", "token"), true},
		{"our bootstrap Secret, and the credential of another hub", installedAgent{
			exists: true, credential: registered("other/0", "").credential, token: tokens.Token(token("theirs")), bootstrap: bootstrapBy("digest/0", "theirs"),
		}, true},
		{"bootstrap Secret of this hub, which is not recorded yet", installedAgent{exists: true, credential: credential("ws", "m"), bootstrap: bootstrapBy("x", "ours")}, true},
		{"bootstrap Secret of another hub", installedAgent{exists: true, credential: credential("ws", "m"), bootstrap: bootstrapBy("x", "theirs")}, false},
		{"credential of another hub, or revoked by deleting its ServiceAccount", registered("other/0", token("gone/request-b")), false},
		{"credential with which the agent has reported to this hub, revoked", registered("other/0", token("gone/request-a")), true},
		{"revoked credential from an import before the recorded one", registered(digest("uid")+"/0", token("gone/request-b")), true},
		{"revoked credential from an import with the cause of the recorded one", registered(digest("uid/cause")+"/0", token("gone/request-b")), true},
		{"bootstrap Secret of an import that is not recorded yet, whose token was deleted with the workspace", installedAgent{
			exists: true, clientID: "client", bootstrap: bootstrapBy(digest("uid")+"/1", "gone/import-token-m"),
		}, true},
		{"bootstrap Secret of another hub, whose ServiceAccount has another name", installedAgent{exists: true, clientID: "client", bootstrap: bootstrapBy("x", "gone/import-token-m")}, false},
		{"empty bootstrap Secret", installedAgent{exists: true, credential: credential("ws", "m"), bootstrap: map[string]string{}}, false},
	} {
		cluster := deletedCluster()
		cluster.Status.Agent.Registration, cluster.Status.Import.RegistrationID = "request-a", "uid/cause"
		ours, kept, err := row.agent.isRemovedWith(t.Context(), cluster, hub.CoreV1())
		require.NoError(t, err, row.name)
		assert.False(t, ours && kept != "", row.name)
		assert.Equal(t, row.ours, ours, row.name)
	}
	hub.PrependReactor("get", "serviceaccounts", func(kubetesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("away") })
	_, _, err := registered("other/0", token("ours")).isRemovedWith(t.Context(), deletedCluster(), hub.CoreV1())
	require.ErrorContains(t, err, "away", "nothing is removed")
	without := deletedCluster()
	without.Spec.ClientID = ""
	assert.False(t, installedAgent{exists: true}.belongsTo(without), "two empty clientIDs do not match")
}

func TestInstalledAgent_largeKubeconfig(t *testing.T) {
	installed := func(token string, ca []byte) (installedAgent, error) {
		kubeconfig, err := transport.Kubeconfig("https://hub", ca, token, "ns")
		require.NoError(t, err)
		m := newFakeMember(t)
		m.put("/api/v1/namespaces/"+system+"/secrets/"+registration.CredentialSecret, map[string]any{
			"apiVersion": "v1", "kind": "Secret", "data": map[string]any{
				registration.CredentialWorkspace: "d3M=", registration.CredentialKubeconfig: base64.StdEncoding.EncodeToString(kubeconfig),
			},
		})
		return m.connect(t).installedAgent(t.Context(), system)
	}
	agent, err := installed("token", []byte(strings.Repeat("C", 250<<10))) // all CAs that a browser trusts
	require.NoError(t, err)
	assert.Equal(t, installedAgent{exists: true, credential: map[string]string{registration.CredentialWorkspace: "ws"}, token: "token"}, agent)

	var tooLarge *transport.TooLargeError
	_, err = installed(strings.Repeat("t", fieldsMax+1), nil)
	require.ErrorAs(t, err, &tooLarge, "a call keeps the token")
	_, err = installed(strings.Repeat("-", maxSyntax), nil)
	require.ErrorAs(t, err, &tooLarge, "a parser needs some 500 bytes for each")
}

// workloads are fake Helm releases on a member.
type workloads struct {
	found    []release.Found
	err      error
	fails    string // the name of the release whose removal fails
	selector string
	removed  []string
	on       *fakeMember
	scope    *string
	agent    bool     // whether the agent was still there when the first was removed
	kept     []string // the names of the releases whose resources stay
	hub      *fake.Clientset

	deployments []fleet.BundleDeployment // of the Cluster
}

// ListAfter returns the releases one by one.
func (w *workloads) ListAfter(_ context.Context, selector labels.Selector, after release.Found, _ int) (found []release.Found, hasMore bool, err error) {
	w.selector = selector.String()
	if after.Name == "" {
		_, w.agent = w.on.objects["/apis/apps/v1/namespaces/"+system+"/deployments/fleet-agent"]
	}
	next := 1 + slices.IndexFunc(w.found, func(f release.Found) bool { return f.Namespace == after.Namespace && f.Name == after.Name })
	return w.found[next : next+1], next+1 < len(w.found), w.err
}

func (w *workloads) Uninstall(_ context.Context, namespace, name string, options release.UninstallOptions) error {
	w.scope = options.Scope
	if signed := options.Adjust(release.UninstallOptions{}); options.KeepResources && signed.KeepResources {
		w.kept = append(w.kept, name)
	}
	if name == w.fails {
		return errors.New("the manifest is damaged")
	}
	w.removed = append(w.removed, "uninstalled "+namespace+"/"+name)
	return nil
}

func (w *workloads) Forget(_ context.Context, namespace, name string) error {
	w.removed = append(w.removed, "forgot "+namespace+"/"+name)
	return nil
}

// newWorkloads creates the agent of the Cluster on the member, and its Helm releases.
func newWorkloads(m *fakeMember) *workloads {
	secret := func(data map[string]any) map[string]any { return map[string]any{"kind": "Secret", "data": data} }
	m.put("/apis/apps/v1/namespaces/"+system+"/deployments/fleet-agent", map[string]any{"kind": "Deployment"})
	m.put("/api/v1/namespaces/"+system+"/secrets/fleet-agent", secret(map[string]any{"clusterNamespace": "d3M=", "clusterName": "bQ=="}))
	m.put("/api/v1/namespaces/"+system+"/configmaps/fleet-agent", map[string]any{"kind": "ConfigMap", "data": map[string]any{"config": `{"clientID":"client"}`}})
	marks, _, _ := agentmanifest.ImportMarks(system)
	m.put(copyPath, map[string]any{"kind": "Secret", "apiVersion": "v1", "metadata": map[string]any{"name": "pull", "uid": "copy", "labels": marks}})
	m.put("/api/v1/namespaces/"+system+"/secrets/somebody-elses", secret(nil))
	m.put("/apis/coordination.k8s.io/v1/namespaces/"+system+"/leases/fleet-agent", map[string]any{"kind": "Lease"})
	m.put(classPath, map[string]any{"kind": "PriorityClass", "apiVersion": "scheduling.k8s.io/v1", "metadata": map[string]any{
		"name": agentmanifest.PriorityClassName, "annotations": map[string]any{"meta.helm.sh/release-namespace": system},
	}})
	return &workloads{on: m, hub: fake.NewClientset(), found: []release.Found{
		{Namespace: "apps", Name: "shop"},
		{Namespace: system, Name: "fleet-agent-m", Labels: map[string]string{release.DeploymentLabel: "fleet-agent-m"}},
	}}
}

func (w *workloads) uninstall(t *testing.T, cluster *fleet.Cluster, namespaces ...string) *failure {
	t.Helper()
	if len(namespaces) == 0 {
		namespaces = []string{system, "an-earlier-one"}
	}
	u := removal{
		member: w.on.connect(t), cluster: cluster, namespaces: namespaces, pullSecrets: []string{"pull"},
		releases: func(context.Context, *rest.Config, string) (helmReleases, error) { return w, nil },
		accounts: w.hub.CoreV1(), deployments: deploymentsOf(w.deployments...),
	}
	return u.run(t.Context())
}

// deploymentsOf is an API server of the hub with BundleDeployments of one Cluster. It answers with one in a page.
func deploymentsOf(all ...fleet.BundleDeployment) fleetclient.BundleDeploymentInterface {
	hub := fleetfake.NewSimpleClientset()
	hub.PrependReactor("list", "bundledeployments", func(action kubetesting.Action) (bool, runtime.Object, error) {
		page := &fleet.BundleDeploymentList{}
		at, _ := strconv.Atoi(action.(kubetesting.ListActionImpl).ListOptions.Continue)
		if at < len(all) {
			page.Items = all[at : at+1]
		}
		if at+1 < len(all) {
			page.Continue = strconv.Itoa(at + 1)
		}
		return true, page, nil
	})
	return hub.FleetV1alpha1().BundleDeployments(registration.ClusterNamespace("ws", "m"))
}

// A person sets keepResources, and the agent has not deployed that when the Cluster is deleted.
func TestRemoval_keepResources(t *testing.T) {
	long := strings.Repeat("long-", 15) + "app"
	deployment := func(name string, options, staged bool) fleet.BundleDeployment {
		bd := fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Name: name}}
		bd.Spec.Options.KeepResources, bd.Spec.StagedOptions.KeepResources = options, staged
		return bd
	}
	w := newWorkloads(newFakeMember(t))
	w.found = nil
	for _, name := range []string{"removed", "applied", "staged", long} {
		w.found = append(w.found, release.Found{Namespace: "apps", Name: name, Labels: map[string]string{release.DeploymentLabel: registration.LabelValue(name)}})
	}
	w.deployments = []fleet.BundleDeployment{
		deployment("removed", false, false), deployment("applied", true, true), deployment("staged", false, true), deployment(long, true, false),
	}
	assert.Nil(t, w.uninstall(t, deletedCluster()))
	assert.Equal(t, []string{"applied", "staged", long}, w.kept)

	// A release that the agent keeps after a restore has no BundleDeployment.
	found := w.found
	w = newWorkloads(newFakeMember(t))
	w.found = found
	cluster := deletedCluster()
	cluster.Annotations = map[string]string{fleet.KeepWorkloadsAnnotation: fleet.KeepWorkloadsValue}
	assert.Nil(t, w.uninstall(t, cluster))
	assert.Len(t, w.kept, 4)
}

func TestRemoval(t *testing.T) {
	m := newFakeMember(t)
	w := newWorkloads(m)
	assert.Nil(t, w.uninstall(t, deletedCluster()))
	assert.Equal(t, []string{
		"/api/v1/namespaces/" + system + "/secrets/somebody-elses",
		"/apis/scheduling.k8s.io/v1/priorityclasses/fleet-agent-priority-class",
	}, m.paths(), "a PriorityClass that this Cluster does not require may belong to another")
	assert.Equal(t, []string{"uninstalled apps/shop", "forgot " + system + "/fleet-agent-m"}, w.removed)
	assert.False(t, w.agent, "the agent would deploy again what is removed")
	assert.Contains(t, w.selector, registration.ClusterNamespace("ws", "m"))

	w, c := newWorkloads(m), deletedCluster()
	c.Spec.AgentSchedulingCustomization = &fleet.AgentSchedulingCustomization{PriorityClass: &fleet.PriorityClassSpec{Value: 1}}
	c.Spec.AgentNamespace = "theirs"
	assert.Nil(t, w.uninstall(t, c))
	assert.Equal(t, "theirs", *w.scope, "objects of an agent with another scope stay")
	assert.Equal(t, []string{"/api/v1/namespaces/" + system + "/secrets/somebody-elses"}, m.paths(), "this Cluster requires it")

	w = newWorkloads(m)
	marks, _, err := agentmanifest.ImportMarks(system)
	require.NoError(t, err)
	m.put(classPath, map[string]any{"kind": "PriorityClass", "apiVersion": "scheduling.k8s.io/v1", "metadata": map[string]any{
		"name": agentmanifest.PriorityClassName, "labels": marks,
	}})
	assert.Nil(t, w.uninstall(t, c))
	assert.NotContains(t, m.paths(), classPath, "the last import had another spec.agentNamespace")

	w = newWorkloads(m)
	m.put(copyPath, map[string]any{"kind": "Secret", "apiVersion": "v1", "metadata": map[string]any{"name": "pull"}})
	assert.Nil(t, w.uninstall(t, c))
	assert.Contains(t, m.paths(), copyPath, "a person has replaced the copy")

	w, c.Name = newWorkloads(m), "another"
	before := m.paths()
	assert.Nil(t, w.uninstall(t, c))
	assert.Equal(t, before, m.paths(), "the agent belongs to another Cluster")
	assert.Empty(t, w.removed)
}

func TestRemoval_agentUnaware(t *testing.T) {
	for _, row := range []struct {
		name     string
		agent    fleet.AgentStatus
		replaced bool // status.import.unlabelledReleases
		moved    bool
		left     string
	}{
		{name: "an agent that labels what it deploys", agent: fleet.AgentStatus{LastSeen: metav1.NewTime(start), Version: "v1"}},
		{name: "an agent of Fleet", agent: fleet.AgentStatus{LastSeen: metav1.NewTime(start)}, left: "its Helm releases may be left"},
		{name: "an agent of Fleet, before the heartbeat of its successor", replaced: true, left: "its Helm releases may be left"},
		{name: "an agent of Fleet, and its successor has sent a heartbeat", replaced: true, agent: fleet.AgentStatus{LastSeen: metav1.NewTime(start), Version: "v1"}},
		{name: "an agent that is no longer there", agent: fleet.AgentStatus{LastSeen: metav1.NewTime(start), Version: "v1"}, moved: true, left: "may be left"},
		{name: "an agent that never checked in", moved: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := newFakeMember(t)
			w, c := newWorkloads(m), deletedCluster()
			c.Status.Agent, c.Status.Import.UnlabelledReleases = row.agent, row.replaced
			var namespaces []string
			if row.moved {
				namespaces = []string{"an-earlier-one"}
			}
			problem := w.uninstall(t, c, namespaces...)
			assert.Equal(t, row.moved, m.state(t)["/apis/apps/v1/namespaces/"+system+"/deployments/fleet-agent"] != nil, "our agent is removed")
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

func TestRemoval_tokenOfUnknownAccount(t *testing.T) {
	credential := func(t *testing.T) map[string]any {
		t.Helper()
		claims := map[string]any{"namespace": "ns", "serviceaccount": map[string]any{"name": "request-a-uid", "uid": "theirs"}}
		token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"kubernetes.io": claims}).SignedString([]byte("k"))
		require.NoError(t, err)
		kubeconfig, err := transport.Kubeconfig("https://hub", nil, token, "ns")
		require.NoError(t, err)
		data := map[string]any{}
		for key, value := range map[string]string{
			registration.CredentialWorkspace: "ws", registration.CredentialClusterName: "m",
			registration.CredentialKubeconfig: string(kubeconfig), registration.BootstrapRegistrationKey: "other/0",
		} {
			data[key] = base64.StdEncoding.EncodeToString([]byte(value))
		}
		return data
	}
	agent := "/apis/apps/v1/namespaces/" + system + "/deployments/fleet-agent"
	for _, row := range []struct {
		name    string
		account string // the UID of the ServiceAccount on this hub, "" if there is none
		request string // in the last report of the agent to this hub
		kept    string
	}{
		{"the agent is of another hub", "", "request-b", "ServiceAccount ns/request-a-uid, which its token names, does not exist on this hub; either the agent is of another hub, or its"},
		{"another hub has a ServiceAccount of the same name", "ours", "request-a", "it is of another hub, which has issued its token for another ServiceAccount of the name ns/request-a-uid"},
		{"a person has revoked the credential", "", "request-a", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := newFakeMember(t)
			w, c := newWorkloads(m), deletedCluster()
			m.put("/api/v1/namespaces/"+system+"/secrets/fleet-agent", map[string]any{"kind": "Secret", "data": credential(t)})
			if row.account != "" {
				w.hub = fake.NewClientset(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "request-a-uid", UID: types.UID(row.account)}})
			}
			c.Status.Agent = fleet.AgentStatus{LastSeen: metav1.NewTime(start), Version: "v1", Registration: row.request}
			problem := w.uninstall(t, c)
			if row.kept == "" {
				assert.Nil(t, problem)
				assert.NotContains(t, m.state(t), agent)
				return
			}
			assert.Contains(t, m.state(t), agent)
			assert.Empty(t, w.removed)
			require.NotNil(t, problem)
			assert.Equal(t, fleet.ReasonAgentUnaware, problem.reason)
			says := "the agent in namespace " + system + " of the member stays, with what it deployed: " + row.kept
			assert.Contains(t, problem.message, says)

			earlier := "/api/v1/namespaces/an-earlier-one/secrets/fleet-agent"
			m.put(earlier, map[string]any{"kind": "Secret", "data": map[string]any{"clusterNamespace": "d3M=", "clusterName": "bQ=="}})
			problem = w.uninstall(t, c)
			assert.NotContains(t, m.state(t), earlier)
			require.NotNil(t, problem, "another agent was removed")
			assert.Contains(t, problem.message, says)

			c.Status.Agent.LastSeen = metav1.Time{}
			problem = w.uninstall(t, c)
			require.NotNil(t, problem, "the agent has not reported to this hub")
			assert.Contains(t, problem.message, says)
		})
	}
}

func TestRemoval_interrupted(t *testing.T) {
	for at := 0; ; at++ {
		m := newFakeMember(t)
		w := newWorkloads(m)
		m.fault = failAt(at, "broken")
		if w.uninstall(t, deletedCluster()) == nil {
			require.Greater(t, at, 10, "every request was interrupted")
			return
		}
		m.fault = nil
		assert.Nil(t, w.uninstall(t, deletedCluster()), at)
		left := strings.Join(m.paths(), " ")
		assert.NotContains(t, left, "secrets/fleet-agent", at)
		assert.NotContains(t, left, "leases", at)
	}
}

func TestRemoval_failure(t *testing.T) {
	m := newFakeMember(t)
	w := newWorkloads(m)
	w.err = errors.New("helm fails")
	problem := w.uninstall(t, deletedCluster())
	require.NotNil(t, problem)
	assert.Equal(t, fleet.ReasonMemberError, problem.reason)
	assert.Contains(t, problem.message, "removing what the agent deployed")
	assert.NotContains(t, problem.message, "helm fails", "the error may contain an answer of the member")
	assert.Contains(t, m.paths(), "/api/v1/namespaces/"+system+"/secrets/fleet-agent", "the agent is recognized next time")

	w.err, w.fails = nil, "shop"
	problem = w.uninstall(t, deletedCluster())
	require.NotNil(t, problem)
	assert.Equal(t, []string{"forgot " + system + "/fleet-agent-m"}, w.removed, "the other releases are removed")
	assert.Contains(t, m.paths(), "/api/v1/namespaces/"+system+"/secrets/fleet-agent", "the agent is recognized next time")

	m.fault = failAt(len(m.requests)+2, "forbid")
	problem = w.uninstall(t, deletedCluster())
	require.NotNil(t, problem)
	assert.Equal(t, fleet.ReasonForbidden, problem.reason)
}

func (h *harness) uninstalls(t *testing.T, cluster *fleet.Cluster, deadline time.Time) finalizing.Farewell {
	t.Helper()
	out, err := h.Uninstall(t.Context(), cluster, deadline)
	require.NoError(t, err)
	return out
}

func (h *harness) belongs(t *testing.T, cluster *fleet.Cluster, others ...*fleet.Cluster) (belongs, canAsk bool) {
	t.Helper()
	belongs, canAsk, err := h.AgentBelongsTo(t.Context(), cluster, others)
	require.NoError(t, err)
	return belongs, canAsk
}

func TestUninstall_failures(t *testing.T) {
	for name, row := range map[string]struct {
		code     int
		reason   string
		attempts int
	}{
		"nobody has to act":   {http.StatusInternalServerError, fleet.ReasonMemberError, 2},
		"somebody has to act": {http.StatusForbidden, fleet.ReasonForbidden, 1},
		"the answer is too large, and would be read as often": {http.StatusOK, fleet.ReasonMemberError, 1},
	} {
		t.Run(name, func(t *testing.T) {
			m := newFakeMember(t)
			m.fault = func(_ int, w http.ResponseWriter, _ *http.Request) bool {
				if row.code == http.StatusOK {
					reply(w, row.code, strings.Repeat("x", int(agentLimits.Bytes)))
					return true
				}
				reply(w, row.code, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(row.code), Reason: map[int]metav1.StatusReason{
					http.StatusForbidden: metav1.StatusReasonForbidden,
				}[row.code]})
				return true
			}
			secret, c := kubeconfigSecret(with(t, to(m.Server))), deletedCluster()
			h := newHarness(t, secret)
			c.Spec.KubeConfigSecret, c.Namespace = secret.Name, secret.Namespace
			generation := int64(0)
			c.Status.AgentDeployedGeneration = &generation
			until := h.clock.Now().Add(5 * time.Second)
			var out finalizing.Farewell
			for attempt := range row.attempts {
				out = h.uninstalls(t, c, until)
				assert.True(t, out.IsWaiting(), out.Message)
				h.Wait()
				out = h.uninstalls(t, c, until)
				assert.Equal(t, row.attempts == 1, out.IsGivenUp(), out.Message)
				if attempt+1 < row.attempts {
					assert.Contains(t, out.Message, "500 Internal Server Error; retrying until")
					h.clock.Step(out.After)
				}
			}
			h.clock.Step(10 * time.Second)
			for range 2 {
				out = h.uninstalls(t, c, until)
				assert.True(t, out.IsGivenUp())
				assert.Equal(t, row.reason, out.Reason)
				h.clock.Step(10 * time.Second)
			}
			assert.Equal(t, row.attempts, strings.Count(m.transcript(), "GET /api/v1/namespaces/kube-system"))
		})
	}
}

// The Pod of a dead node never ends. That must leave time for the removal of everything else.
func TestUninstall_podOnDeadNode(t *testing.T) {
	c := fresh()
	h, m := importable(t, c)
	require.True(t, h.Reconcile(t.Context(), c).IsWait())
	h.Wait()
	m.fault = podNeverEnds
	c.Status.AgentDeployedGeneration = new(int64)
	until := h.clock.Now().Add(2 * time.Second)
	require.True(t, h.uninstalls(t, c, until).IsWaiting())
	h.Wait()
	out := h.uninstalls(t, c, until)
	assert.True(t, out.IsRemoved(), out.Message)
	assert.NotContains(t, m.paths(), "/api/v1/namespaces/"+system+"/secrets/fleet-agent-bootstrap")
}

// waitingRemoval begins a removal while all slots of the workspace for removals are taken.
func waitingRemoval(t *testing.T) (h *harness, m *fakeMember, c *fleet.Cluster, until time.Time) {
	t.Helper()
	c = fresh()
	h, m = importable(t, c)
	h.calls.takeSlots(t, h.calls.removals, removalsPerWorkspace)
	c.Status.AgentDeployedGeneration = new(int64)
	until = h.clock.Now().Add(30 * time.Second)
	require.True(t, h.uninstalls(t, c, until).IsWaiting())
	return h, m, c, until
}

func TestUninstall_notBegunInTime(t *testing.T) {
	h, m, c, until := waitingRemoval(t)
	h.clock.Step(30 * time.Second)
	out := h.uninstalls(t, c, until)
	assert.Equal(t, fleet.ReasonFarewellTimeout, out.Reason)
	assert.Contains(t, out.Message, "did not begin to remove the agent in time")
	assert.Empty(t, m.requests)
}

func TestAgentBelongsTo(t *testing.T) {
	other := func(name string) *fleet.Cluster {
		return &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: name, UID: types.UID(name)}}
	}
	stranger := other("stranger")
	stranger.Labels, stranger.Status.AgentDeployedGeneration = map[string]string{fleet.ManagementClusterLabel: "c-1"}, new(int64)
	for name, row := range map[string]struct {
		others []*fleet.Cluster
		fault  bool
		want   string // the reason of the failure
	}{
		"the agent belongs to one of them":       {[]*fleet.Cluster{stranger, other("m")}, false, ""},
		"the agent belongs to none of them":      {[]*fleet.Cluster{stranger}, false, fleet.ReasonAgentUnaware},
		"the member cannot be asked: no promise": {[]*fleet.Cluster{other("m")}, true, fleet.ReasonMemberError},
	} {
		t.Run(name, func(t *testing.T) {
			m := newFakeMember(t)
			newWorkloads(m)
			if row.fault {
				m.fault = func(_ int, w http.ResponseWriter, _ *http.Request) bool {
					http.Error(w, "no", http.StatusInternalServerError)
					return true
				}
			}
			secret, c := kubeconfigSecret(with(t, to(m.Server))), deletedCluster()
			h := newHarness(t, secret)
			c.Name, c.Spec.KubeConfigSecret, c.Namespace = "old", secret.Name, secret.Namespace
			belongs, _ := h.belongs(t, c, row.others...)
			assert.False(t, belongs, "the member has not answered yet")
			h.Wait()
			asked := len(m.requests)
			for range 2 {
				belongs, canAsk := h.belongs(t, c, row.others...)
				assert.Equal(t, row.want == "", belongs)
				assert.True(t, canAsk)
			}
			assert.Len(t, m.requests, asked, "the answer is kept")
			reason := ""
			if call := h.calls.byKey[callKey{nameOf(c), checkingOwner}]; call.failure != nil {
				reason = call.failure.reason
			}
			assert.Equal(t, row.want, reason)
		})
	}
	t.Run("the kubeconfig was deleted", func(t *testing.T) {
		belongs, canAsk := newHarness(t).belongs(t, deletedCluster(), stranger)
		assert.False(t, belongs)
		assert.False(t, canAsk)
	})
	t.Run("the kubeconfig is deleted while a slot is offered", func(t *testing.T) {
		m := newFakeMember(t)
		secret, c := kubeconfigSecret(with(t, to(m.Server))), deletedCluster()
		h := newHarness(t, secret)
		c.Name, c.Spec.KubeConfigSecret, c.Namespace = "old", secret.Name, secret.Namespace
		h.calls.takeSlots(t, h.calls.removals, removalsPerWorkspace)
		h.belongs(t, c, stranger)
		h.calls.releaseSlot(h.calls.removals)
		require.Equal(t, offered, h.calls.last(callKey{nameOf(c), checkingOwner}).state)
		c.Spec.KubeConfigSecret = "gone"
		_, canAsk := h.belongs(t, c, stranger)
		require.False(t, canAsk)
		h.Wait()
		assert.Equal(t, removalsPerWorkspace-1, h.calls.asked(h.calls.removals))
		assert.Empty(t, m.requests)
	})
	for _, name := range []string{"the claims end while the call waits for a slot", "while a slot is offered", "while the member is asked"} {
		t.Run(name, func(t *testing.T) {
			m := newFakeMember(t)
			secret, c := kubeconfigSecret(with(t, to(m.Server))), deletedCluster()
			h := newHarness(t, secret)
			key := callKey{types.NamespacedName{Namespace: secret.Namespace, Name: "old"}, checkingOwner}
			c.Name, c.Spec.KubeConfigSecret, c.Namespace = "old", secret.Name, secret.Namespace
			taken := 0
			begun := make(chan struct{})
			if name == "while the member is asked" {
				m.fault = func(_ int, _ http.ResponseWriter, r *http.Request) bool {
					m.mu.Unlock()
					close(begun)
					<-r.Context().Done()
					m.mu.Lock()
					return true
				}
			} else {
				taken = removalsPerWorkspace
				h.calls.takeSlots(t, h.calls.removals, taken)
			}
			h.belongs(t, c, stranger)
			switch name {
			case "while a slot is offered":
				h.calls.releaseSlot(h.calls.removals)
				taken--
				require.Equal(t, offered, h.calls.last(key).state)
			case "while the member is asked":
				<-begun
			}
			belongs, canAsk := h.belongs(t, c)
			assert.False(t, belongs)
			assert.True(t, canAsk)
			h.Wait()
			assert.Equal(t, taken, h.calls.asked(h.calls.removals))
			assert.Equal(t, absent, h.calls.last(key).state)
		})
	}
}

func TestUninstall_notStarted(t *testing.T) {
	deployed := func(c *fleet.Cluster) { c.Status.AgentDeployedGeneration = new(int64) }
	for _, row := range []struct {
		name      string
		change    func(*fleet.Cluster)
		remaining time.Duration
		want      finalizing.Farewell // without a message
	}{
		{"no kubeconfig", func(c *fleet.Cluster) { c.Spec.KubeConfigSecret = "" }, time.Minute, finalizing.NotNeeded()},
		{"the member was never called", func(*fleet.Cluster) {}, time.Minute, finalizing.NotNeeded()},
		{"the kubeconfig was deleted", deployed, time.Minute, finalizing.GivenUp(fleet.ReasonWaitingForKubeconfig, "")},
		{"the deadline has passed", deployed, 0, finalizing.GivenUp(fleet.ReasonFarewellTimeout, "")},
	} {
		t.Run(row.name, func(t *testing.T) {
			h, c := newHarness(t), deletedCluster()
			row.change(c)
			out := h.uninstalls(t, c, h.clock.Now().Add(row.remaining))
			out.Message = ""
			assert.Equal(t, row.want, out)
		})
	}
}

func TestUninstall_tokenDeleted(t *testing.T) {
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
			h, m := importable(t, c)
			h.tokens.All = nil
			if row.reason != "" {
				result.Set(&c.Status.Conditions, fleet.ConditionImported, result.Wait(row.reason, ""), h.clock.Now())
			}
			require.Equal(t, row.touched, h.uninstalls(t, c, h.clock.Now().Add(time.Minute)).IsWaiting())
			h.Wait()
			assert.Equal(t, row.touched, len(m.requests) > 0)
		})
	}
}

func TestUninstall_afterARunningImport(t *testing.T) {
	c := fresh()
	h, _ := importable(t, c)
	require.True(t, h.Reconcile(t.Context(), c).IsWait())
	h.tokens.All = nil // and the status does not say yet that there is a call
	until := h.clock.Now().Add(time.Minute)
	require.True(t, h.uninstalls(t, c, until).IsWaiting())
	removal := callKey{clusterKey("c"), removing}
	for h.calls.last(removal).state.isPending() {
		require.True(t, h.uninstalls(t, c, until).IsWaiting() || !h.calls.last(removal).state.isPending())
	}
	h.Wait()
	require.True(t, h.uninstalls(t, c, until).IsRemoved())
}

func TestUninstall_unreportedImport(t *testing.T) {
	const agent = "/apis/apps/v1/namespaces/" + system + "/deployments/fleet-agent"
	restart := func(h *harness) { h.calls.drop(keyOf("c")) }
	for name, row := range map[string]struct {
		age     time.Duration // of the Cluster at its deletion
		change  func(*harness)
		reason  string // of Imported
		touched bool
	}{
		"the call has ended":    {age: time.Hour, touched: true},
		"the hub has restarted": {age: 9 * time.Second, change: restart, touched: true},
		"the hub has restarted, its status would report a call":   {age: time.Hour, change: restart},
		"the hub has restarted, its status reports that none was": {age: time.Second, change: restart, reason: fleet.ReasonWaitingForKubeconfig},
		"the kubeconfig cannot be read at first": {age: time.Hour, touched: true, change: func(h *harness) {
			h.kubeconfigs.drop(clusterKey("c"))
			failed := false
			h.kube.PrependReactor("get", "secrets", func(kubetesting.Action) (bool, runtime.Object, error) {
				fail := !failed
				failed = true
				return fail, nil, errors.New("the API server is overloaded")
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := fresh()
			h, m := importable(t, c)
			require.True(t, h.Reconcile(t.Context(), c.DeepCopy()).IsWait())
			h.Wait() // the call ends, and no status is written
			require.Contains(t, m.state(t), agent)
			h.tokens.All = nil
			c.CreationTimestamp, c.DeletionTimestamp = metav1.NewTime(start), ptr.To(metav1.NewTime(start.Add(row.age)))
			if row.reason != "" {
				result.Set(&c.Status.Conditions, fleet.ConditionImported, result.Wait(row.reason, ""), start)
			}
			if row.change != nil {
				row.change(h)
			}
			var out finalizing.Farewell
			for range 3 {
				out, _ = h.Uninstall(t.Context(), c, h.clock.Now().Add(time.Minute))
				h.Wait()
			}
			want := finalizing.NotNeeded()
			if row.touched {
				want = finalizing.Removed()
			}
			assert.Equal(t, want, out)
			assert.Equal(t, row.touched, m.state(t)[agent] == nil)
		})
	}
}

func TestUninstall_waitsForASlot(t *testing.T) {
	for name, passFails := range map[string]bool{"the next pass takes the slot": false, "the next pass fails": true} {
		t.Run(name, func(t *testing.T) { uninstallsAfterWaiting(t, passFails) })
	}
}

func uninstallsAfterWaiting(t *testing.T, passFails bool) {
	const agent = "/apis/apps/v1/namespaces/" + system + "/deployments/fleet-agent"
	c := fresh()
	h, m := importable(t, c)
	require.True(t, h.Reconcile(t.Context(), c.DeepCopy()).IsWait())
	h.Wait() // the call ends, and no status is written
	require.Contains(t, m.state(t), agent)
	h.tokens.All = nil
	h.calls.takeSlots(t, h.calls.removals, removalsPerWorkspace)
	until := h.clock.Now().Add(time.Minute)
	for range 3 {
		require.True(t, h.uninstalls(t, c, until).IsWaiting())
	}
	h.calls.releaseSlot(h.calls.removals)
	require.Equal(t, offered, h.calls.last(callKey{clusterKey("c"), removing}).state)
	if passFails {
		h.kubeconfigs.drop(nameOf(c))
		isFirst := true
		h.kube.PrependReactor("get", "secrets", func(kubetesting.Action) (bool, runtime.Object, error) {
			fails := isFirst
			isFirst = false
			return fails, nil, errors.New("the API server is overloaded")
		})
		_, err := h.Uninstall(t.Context(), c, until)
		require.Error(t, err)
		require.Equal(t, removalsPerWorkspace-1, h.calls.asked(h.calls.removals), "it keeps no slot until its repetition")
	}
	require.True(t, h.uninstalls(t, c, until).IsWaiting(), "nothing but the first pass knows that a call has touched the member")
	h.Wait()
	assert.True(t, h.uninstalls(t, c, until).IsRemoved())
	assert.NotContains(t, m.state(t), agent)
}

func TestUninstall_givesUpWithASlot(t *testing.T) {
	h, m, c, until := waitingRemoval(t)
	h.calls.releaseSlot(h.calls.removals)
	require.Equal(t, offered, h.calls.last(callKey{clusterKey("c"), removing}).state)
	h.clock.Step(30 * time.Second)
	assert.Equal(t, fleet.ReasonFarewellTimeout, h.uninstalls(t, c, until).Reason)
	h.Wait()
	assert.Equal(t, removalsPerWorkspace-1, h.calls.asked(h.calls.removals))
	assert.Empty(t, m.requests)
}

// Imports of members that do not answer must not use up the time of a removal.
func TestUninstall_cancelsAWaitingImport(t *testing.T) {
	c := fresh()
	h, m := importable(t, c)
	h.calls.takeSlots(t, h.calls.first, firstPerWorkspace)
	require.True(t, h.Reconcile(t.Context(), c).IsWait())
	deployed := int64(0)
	c.Status.AgentDeployedGeneration = &deployed
	until := h.clock.Now().Add(time.Minute)
	require.True(t, h.uninstalls(t, c, until).IsWaiting())
	h.Wait()
	assert.True(t, h.uninstalls(t, c, until).IsRemoved())
	assert.NotEmpty(t, m.requests)
	assert.NotContains(t, m.transcript(), "PATCH")
}
