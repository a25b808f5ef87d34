package clusternet

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/internal/clusternetagent"
	"github.com/muster-fleet/muster/internal/pki"
	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	muster "github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/registration"
)

// TestHub tests the configuration, the writes and the restart of a hub.
func TestHub(t *testing.T) {
	recorder := &testenv.Recorder{}
	s := &stage{Stage: testenv.EmptyStage(t)}
	s.Hub.NeedsMutatingPolicies(t)
	settings := s.Hub.Reachable()
	delete(settings, "apiServerCA")
	s.Hub.Configure(t, settings)
	s.start(t, recorder.Wrap)
	boot := s.as(t, s.Token(t, "tok").Token)

	t.Log("without a CA, no agent would verify the hub")
	id := newID()
	boot.request(t, id, nil)
	s.says(t, id, "", "apiServerCA of the hub's configuration is empty")
	s.Hub.Configure(t, s.Hub.Reachable())
	answer := boot.approved(t, id).Status
	agent, name := s.as(t, string(answer.DedicatedToken)), registration.ClusterName(id)
	agent.beat(t, answer.DedicatedNamespace, id, report())
	s.Hub.ClusterCondition(t, s.Namespace, name, fleet.ConditionConnected, "True")

	t.Log("an answer that could not be written is written later, and the agent sends its request only once")
	var refused atomic.Int32
	recorder.Inject(func(request *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
		if strings.Contains(request.URL.Path, "/clusterregistrationrequests/") && strings.HasSuffix(request.URL.Path, "/status") && refused.Add(1) <= 3 {
			return nil, http.ErrHandlerTimeout
		}
		return send()
	})
	p := s.peer(t, s.Token(t, "tok-2"))
	running := p.registered()
	assert.Greater(t, refused.Load(), int32(3))
	testenv.RequireGone(t, s.admin.ClusterRegistrationRequests().Get, "ClusterRegistrationRequest", clusternetagent.RequestName(id))

	t.Log("a hub that starts counts no heartbeat twice, writes nothing, and counts the next one")
	s.Stop(t)
	before := s.Cluster(t, name)
	member := testenv.RequireThere(t, s.admin.ManagedClusters(answer.DedicatedNamespace).Get, answer.ManagedClusterName)
	s.startHub(t)
	s.AwaitWork(t, "marker")
	after := s.Cluster(t, name)
	assert.Equal(t, before.Status, after.Status)
	assert.Equal(t, member.ResourceVersion, testenv.RequireThere(t, s.admin.ManagedClusters(answer.DedicatedNamespace).Get, answer.ManagedClusterName).ResourceVersion)
	later := report()
	later.KubernetesVersion = "v1.32.0"
	agent.beat(t, answer.DedicatedNamespace, id, later)
	s.EventuallyCluster(t, name, func(c *fleet.Cluster) (bool, string) {
		return c.Status.Agent.KubernetesVersion == "v1.32.0" && c.Status.Agent.LastSeen.After(before.Status.Agent.LastSeen.Time), c.Status.Agent.KubernetesVersion
	})

	t.Log("an agent that runs meanwhile notices nothing")
	p.beatsAgain()
	assert.Equal(t, running.UID, s.Cluster(t, p.cluster()).UID)
	assert.Equal(t, 1, p.sent.Count("POST clusterregistrationrequests"))
}

// With clusternet.adopt, the hub keeps the credential that an agent offers, and installs Muster's agent with it.
func TestAdopt(t *testing.T) {
	s := &stage{Stage: testenv.EmptyStage(t)}
	s.Hub.NeedsMutatingPolicies(t)
	s.startHub(t, func(o *muster.Options) { o.ClusternetAdopt = true })
	s.Hub.AwaitClusternetAdmission(t, true)

	// The agent offers the token of an administrator of its cluster.
	admin := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "clusternet-app-deployer"}}
	_, err := s.Member.Kubernetes.CoreV1().ServiceAccounts(admin.Namespace).Create(t.Context(), admin, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = s.Member.Kubernetes.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: admin.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: admin.Namespace, Name: admin.Name}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	p := s.peer(t, s.Token(t, "tok"))
	p.options.Offers = map[string]string{
		"ca.crt": string(s.Member.CA()), "token": s.Member.TokenOf(t, admin.Namespace, admin.Name), "apiserver-advertise-url": s.Member.URL(),
	}
	before := p.registered()
	stored := testenv.EventuallyThere(t, s.Hub.Kubernetes.CoreV1().Secrets(p.namespace()).Get, clusternetagent.DeployerSecret)
	assert.Empty(t, stored.Finalizers)

	// A user creates a kubeconfig from it.
	kubeconfig, err := pki.Kubeconfig("member", string(stored.Data["apiserver-advertise-url"]), stored.Data["ca.crt"],
		&clientcmdapi.AuthInfo{Token: string(stored.Data["token"])})
	require.NoError(t, err)
	s.Hub.WriteSecret(t, s.Namespace, "adopted", map[string][]byte{registration.KubeconfigValue: kubeconfig})
	namespace := s.Member.Namespace(t)
	s.PatchSpec(t, p.cluster(), `{"kubeConfigSecret":"adopted","agentNamespace":"`+namespace+`"}`)
	s.Hub.ClusterCondition(t, s.Namespace, p.cluster(), fleet.ConditionImported, "True Imported")
	s.Member.Agent(t, namespace)
	testenv.RequireCredential(t, s.Member, namespace, p.cluster())
	p.repeats(" 401", 3)
	after := s.EventuallyCluster(t, p.cluster(), func(c *fleet.Cluster) (bool, string) {
		return c.Status.Agent.Namespace == namespace, "the agent of Muster has sent no heartbeat"
	})
	assert.Equal(t, before.UID, after.UID)
}
