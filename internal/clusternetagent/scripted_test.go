package clusternetagent

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/pkg/crds"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

// scene is an agent and an API server on which the test does what a hub does.
type scene struct {
	*testing.T
	hub     *testenv.Cluster
	objects dynamic.Interface
	member  *MemberState
	options Options
	sent    *SentRequests
	process *process
}

// newScene has a member on which the agent was never started, and a bootstrap token for it.
func newScene(t *testing.T) *scene {
	t.Helper()
	hub := testenv.On(t, controlplane.Shared(t, "member"))
	extensions, err := clientset.NewForConfig(hub.RESTConfig())
	require.NoError(t, err)
	require.NoError(t, crds.EnsureClusternet(t.Context(), extensions))
	objects, err := dynamic.NewForConfig(hub.RESTConfig())
	require.NoError(t, err)
	namespace := hub.Namespace(t)
	s := &scene{T: t, hub: hub, objects: objects, member: NewMember(), sent: &SentRequests{}}
	s.account(namespace, "cluster-bootstrap-use")
	s.allow("", namespace, "cluster-bootstrap-use", rbacv1.PolicyRule{
		APIGroups: []string{Requests.Group}, Resources: []string{Requests.Resource}, Verbs: []string{"get", "create"},
	})
	s.options = Options{
		HubURL: hub.URL(), Token: hub.TokenOf(t, namespace, "cluster-bootstrap-use"), Periods: QuickPeriods(), Sent: s.sent,
	}
	config := rest.AnonymousClientConfig(hub.RESTConfig())
	config.BearerToken = s.options.Token
	client, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	s.eventually(func() (bool, string) { // an API server that has stored a binding applies it a moment later
		_, err := client.Resource(Requests).Get(t.Context(), "none", metav1.GetOptions{})
		return apierrors.IsNotFound(err), fmt.Sprint(err)
	})
	return s
}

func (s *scene) eventually(check func() (bool, string)) { s.Helper(); testenv.Eventually(s.T, check) }

func (s *scene) account(namespace, name string) {
	s.Helper()
	testenv.Create(s, s.hub.Kubernetes.CoreV1().ServiceAccounts(namespace).Create, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

// allow gives a ServiceAccount rights in a namespace, or in the whole cluster.
func (s *scene) allow(in, namespace, account string, rules ...rbacv1.PolicyRule) {
	s.Helper()
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}}
	meta, rbac := metav1.ObjectMeta{Name: namespace + "-" + account}, s.hub.Kubernetes.RbacV1()
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name}
	if in == "" {
		testenv.Create(s, rbac.ClusterRoles().Create, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules})
		testenv.Create(s, rbac.ClusterRoleBindings().Create, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: ref})
		return
	}
	ref.Kind = "Role"
	testenv.Create(s, rbac.Roles(in).Create, &rbacv1.Role{ObjectMeta: meta, Rules: rules})
	testenv.Create(s, rbac.RoleBindings(in).Create, &rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: ref})
}

// process is a running agent.
type process struct {
	stop  context.CancelFunc
	ended chan error
}

// start starts a process of the agent on the member.
func (s *scene) start() *process {
	s.Helper()
	s.process = s.startOn(s.member, s.options)
	return s.process
}

func (s *scene) startOn(m *MemberState, o Options) *process {
	s.Helper()
	ctx, stop := context.WithCancel(context.Background())
	p := &process{stop: stop, ended: make(chan error, 1)}
	go func() { p.ended <- Run(ctx, m, o) }()
	s.Cleanup(func() { p.stop() })
	return p
}

// restart ends the process, forgets its requests and starts another.
func (s *scene) restart() {
	s.Helper()
	s.end()
	s.sent.Reset()
	s.start()
}

func (s *scene) end() {
	s.Helper()
	s.process.stop()
	require.NoError(s, <-s.process.ended)
}

// sees waits until the first requests of the agent are these. Only those for its registration are sent one after the other.
func (s *scene) sees(want ...string) {
	s.Helper()
	s.eventually(func() (bool, string) {
		got := s.sent.Lines()
		for i, line := range want {
			if i >= len(got) || got[i] != s.fill(line) {
				return false, fmt.Sprintf("the requests must begin with\n%s\nand are\n%s", s.fill(strings.Join(want, "\n")), strings.Join(got, "\n"))
			}
		}
		return true, ""
	})
}

// has waits until the agent has sent a request.
func (s *scene) has(line string) {
	s.Helper()
	s.eventually(func() (bool, string) {
		return s.sent.Count(s.fill(line)) > 0, fmt.Sprintf("%q is not among\n%s", s.fill(line), strings.Join(s.sent.Lines(), "\n"))
	})
}

// repeats waits until the agent has sent a request this many times since now.
func (s *scene) repeats(line string, times int) {
	s.Helper()
	before := s.sent.Count(s.fill(line))
	s.eventually(func() (bool, string) {
		return s.sent.Count(s.fill(line)) >= before+times, fmt.Sprintf("%q is not among\n%s", s.fill(line), strings.Join(s.sent.Lines(), "\n"))
	})
}

func (s *scene) never(text string) {
	s.Helper()
	require.Zero(s, s.sent.Count(s.fill(text)), "%s is among\n%s", s.fill(text), strings.Join(s.sent.Lines(), "\n"))
}

// fill replaces ID, and DN by the dedicated namespace.
func (s *scene) fill(line string) string {
	return strings.NewReplacer("<CRR>", "clusterregistrationrequests/"+RequestName(s.member.ID()), "<CRRS>", "clusterregistrationrequests",
		"<MCS>", "namespaces/"+s.namespace()+"/managedclusters", "<DN>", "namespaces/"+s.namespace()).Replace(line)
}

func (s *scene) namespace() string { return "dn-" + s.member.ID() }

// dedicated creates the dedicated namespace with a ServiceAccount, its rights, and without a ManagedCluster.
func (s *scene) dedicated() {
	s.Helper()
	namespace, id := s.namespace(), s.member.ID()
	testenv.Create(s, s.hub.Kubernetes.CoreV1().Namespaces().Create, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	s.account(namespace, "agent")
	requests := []string{Requests.Group}
	s.allow("", namespace, "agent",
		rbacv1.PolicyRule{APIGroups: requests, Resources: []string{Requests.Resource}, Verbs: []string{"create"}},
		rbacv1.PolicyRule{APIGroups: requests, Resources: []string{Requests.Resource}, Verbs: []string{"get"}, ResourceNames: []string{RequestName(id)}})
	s.allow(namespace, namespace, "agent",
		rbacv1.PolicyRule{APIGroups: requests, Resources: []string{"managedclusters"}, Verbs: []string{"list", "get", "patch"}},
		rbacv1.PolicyRule{APIGroups: requests, Resources: []string{"managedclusters/status"}, Verbs: []string{"update"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"create"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get", "update"}, ResourceNames: []string{DeployerSecret}},
		rbacv1.PolicyRule{APIGroups: []string{HelmReleases.Group}, Resources: []string{"helmreleases", "descriptions", "helmcharts"}, Verbs: []string{"list", "watch"}})
	dedicated := s.hub.ClientFor(s, s.hub.TokenOf(s, namespace, "agent"))
	s.eventually(func() (bool, string) {
		_, err := dedicated.Kubernetes.CoreV1().Secrets(namespace).Get(s.Context(), DeployerSecret, metav1.GetOptions{})
		return apierrors.IsNotFound(err), fmt.Sprint(err)
	})
}

// managedCluster creates the ManagedCluster.
func (s *scene) managedCluster(name string) *unstructured.Unstructured {
	s.Helper()
	created, err := s.managedClusters().Create(s.Context(), object(ManagedClusters, "ManagedCluster", map[string]any{
		"name": name, "labels": map[string]any{IDLabel: s.member.ID()},
	}, map[string]any{"spec": map[string]any{"clusterId": s.member.ID(), "syncMode": "Pull"}}), metav1.CreateOptions{})
	require.NoError(s, err)
	return created
}

func (s *scene) managedClusters() dynamic.ResourceInterface {
	return s.objects.Resource(ManagedClusters).Namespace(s.namespace())
}

// answer writes the status of the request, as soon as it exists.
func (s *scene) answer(status map[string]any) {
	s.Helper()
	requests := s.objects.Resource(Requests)
	request := testenv.EventuallyThere(s, func(ctx context.Context, name string, o metav1.GetOptions) (*unstructured.Unstructured, error) {
		return requests.Get(ctx, name, o)
	}, RequestName(s.member.ID()))
	request.Object["status"] = status
	testenv.Update(s, requests.UpdateStatus, request)
}

// approval is the status of an approved request, with a new token.
func (s *scene) approval() map[string]any {
	s.Helper()
	return map[string]any{
		"result": approved, "dedicatedNamespace": s.namespace(), "managedClusterName": "member",
		"token":         base64.StdEncoding.EncodeToString([]byte(s.hub.TokenOf(s, s.namespace(), "agent"))),
		"caCertificate": base64.StdEncoding.EncodeToString(s.hub.CA()),
	}
}

// registered starts the agent, approves it and waits for a heartbeat.
func (s *scene) registered() {
	s.Helper()
	s.dedicated()
	s.managedCluster("member")
	s.start()
	s.answer(s.approval())
	s.repeats("ded PUT <MCS>/member/status 200", 1)
}

func (s *scene) deleteRequest() {
	s.Helper()
	require.NoError(s, s.objects.Resource(Requests).Delete(s.Context(), RequestName(s.member.ID()), metav1.DeleteOptions{}))
}
