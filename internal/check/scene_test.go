package check

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/transport"
)

// TestMain sets a proxy at which nobody listens. Addresses of this machine bypass it, and Go reads it once in a process.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": ".invalid"} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(controlplane.RunTests(m))
}

// hall is a hub with two registered clusters. Cluster west has registered with a token, the hub has imported Cluster east. Hub and agents are
// stopped, so that nothing repairs what a test breaks.
type hall struct {
	*testenv.Stage
}

const (
	westNamespace = registration.DefaultSystemNamespace
	eastNamespace = "fleet-east"
	node          = "node-1"
)

func newHall(t *testing.T) *hall {
	t.Helper()
	h := &hall{Stage: testenv.NewStage(t)}
	for _, name := range []string{westNamespace, eastNamespace} {
		testenv.Create(t, h.Member.Kubernetes.CoreV1().Namespaces().Create, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	h.CreateCluster(t, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "west"}, Spec: fleet.ClusterSpec{ClientID: "west"}})
	values := h.Token(t, "westward")
	testenv.BootstrapAgent(t, h.Member, westNamespace, values, map[string]string{registration.ConfigKey: "clientID: west"})
	west := h.Member.Agent(t, westNamespace)
	h.ImportInto(t, "east", eastNamespace)
	east := h.Member.Agent(t, eastNamespace)
	for _, name := range []string{"west", "east"} {
		h.Hub.ClusterCondition(t, h.Namespace, name, fleet.ConditionRegistered, "True")
		h.Hub.ClusterCondition(t, h.Namespace, name, fleet.ConditionConnected, "True")
	}
	testenv.RequireCredential(t, h.Member, westNamespace, "west")
	testenv.RequireCredential(t, h.Member, eastNamespace, "east")
	west.Stop(t)
	east.Stop(t)
	h.Stop(t)

	// Hubs of tests need no Lease. Agents of tests check in every second.
	now := metav1.NewMicroTime(time.Now())
	testenv.Create(t, h.Hub.Kubernetes.CoordinationV1().Leases(testenv.SystemNamespace).Create, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: registration.HubLease},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To("fleet-controller-0"), RenewTime: &now, LeaseDurationSeconds: ptr.To[int32](3600)},
	})
	for _, name := range []string{"west", "east"} {
		testenv.Merge(t, h.Hub.Fleet.Clusters(h.Namespace).Patch, name, `{"status":{"agent":{"checkinInterval":"15m0s"}}}`, "status")
		found := testenv.RequireThere(t, h.Hub.Fleet.Clusters(h.Namespace).Get, name)
		found.Status.Display.ReadyBundles = "1/1"
		setCondition(&found.Status, fleet.ConditionReady, corev1.ConditionTrue, fleet.ReasonAllReady, "")
		testenv.Update(t, h.Hub.Fleet.Clusters(h.Namespace).UpdateStatus, found)
	}
	testenv.Create(t, h.Member.Kubernetes.CoreV1().Nodes().Create, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
	h.installRightsOfHub(t)
	return h
}

// installRightsOfHub creates the Deployment of the hub, without pods, and the rights of its ServiceAccount, as the chart does.
func (h *hall) installRightsOfHub(t *testing.T) {
	t.Helper()
	client, err := dynamic.NewForConfig(h.Hub.RESTConfig())
	require.NoError(t, err)
	for _, object := range testenv.ObjectsOfHubChart(t, nil) {
		resource, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
		if !slices.Contains([]string{"deployments", "serviceaccounts", "clusterroles", "clusterrolebindings", "roles", "rolebindings"}, resource.Resource) {
			continue
		}
		if object.GetKind() == "Deployment" {
			require.NoError(t, unstructured.SetNestedField(object.Object, int64(0), "spec", "replicas"))
		}
		_, err := client.Resource(resource).Namespace(object.GetNamespace()).Apply(t.Context(), object.GetName(), object,
			metav1.ApplyOptions{FieldManager: "helm", Force: true})
		require.NoError(t, err)
	}
	testenv.Eventually(t, func() (bool, string) { // an API server reads roles after a moment
		found := hubRightsGranted(t.Context(), newKnowledge(h.inputs("")))
		return found.Verdict == Pass, found.Detail
	})
}

// inputs returns the inputs for a Cluster, with the kubeconfig of the hub.
func (h *hall) inputs(cluster string) Inputs {
	return Inputs{Hub: h.Hub.RESTConfig(), Namespace: h.Namespace, Cluster: cluster, Version: "dev", Now: time.Now}
}

// across returns the inputs for Cluster west, with the kubeconfigs of the hub and the member.
func (h *hall) across(agentNamespace string) Inputs {
	in := h.inputs("west")
	in.Member, in.AgentNamespace = h.Member.RESTConfig(), agentNamespace
	return in
}

// installed creates a namespace on the member with the Secrets of the agent of west, a Deployment and a pod that runs. A control plane has no
// nodes, so the test writes what a kubelet would write.
func (h *hall) installed(t *testing.T, change ...func(*appsv1.Deployment, *corev1.Pod)) (namespace string) {
	t.Helper()
	namespace = h.Member.Namespace(t)
	core := h.Member.Kubernetes.CoreV1()
	secret := testenv.RequireThere(t, core.Secrets(westNamespace).Get, registration.CredentialSecret)
	testenv.Create(t, core.Secrets(namespace).Create, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secret.Name}, Data: secret.Data})
	labels := map[string]string{"app": registration.AgentName}
	containers := []corev1.Container{{Name: registration.AgentName, Image: "registry.example.com/fleet-agent:v1"}}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: registration.AgentName},
		Spec: appsv1.DeploymentSpec{
			Paused: true, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: containers}},
		},
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "fleet-agent-1", Labels: labels},
		Spec: corev1.PodSpec{
			NodeName: node, Containers: containers, TerminationGracePeriodSeconds: ptr.To[int64](0),
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
			Name: registration.AgentName, Image: containers[0].Image, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}}},
	}
	for _, f := range change {
		f(deployment, pod)
	}
	testenv.Create(t, h.Member.Kubernetes.AppsV1().Deployments(namespace).Create, deployment)
	if pod.Name == "" {
		return namespace
	}
	created := testenv.Create(t, core.Pods(namespace).Create, pod)
	created.Status = pod.Status
	testenv.Update(t, core.Pods(namespace).UpdateStatus, created)
	return namespace
}

// container sets the state of the agent's container.
func container(change func(*corev1.ContainerStatus)) func(*appsv1.Deployment, *corev1.Pod) {
	return func(_ *appsv1.Deployment, pod *corev1.Pod) { change(&pod.Status.ContainerStatuses[0]) }
}

func waits(reason, message string) func(*corev1.ContainerStatus) {
	return func(c *corev1.ContainerStatus) {
		c.Ready, c.State = false, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
}

type object interface {
	metav1.Object
	runtime.Object
}

// change changes an object until the end of the test.
func change[T object](
	t *testing.T, get testenv.Get[T], update func(context.Context, T, metav1.UpdateOptions) (T, error), name string, edit func(T),
) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	found, err := get(ctx, name, metav1.GetOptions{})
	require.NoError(t, err)
	before := found.DeepCopyObject().(T)
	edit(found)
	_, err = update(ctx, found, metav1.UpdateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		latest, err := get(ctx, name, metav1.GetOptions{})
		require.NoError(t, err)
		before.SetResourceVersion(latest.GetResourceVersion())
		_, err = update(ctx, before, metav1.UpdateOptions{})
		require.NoError(t, err)
	})
}

// configure changes the configuration of the hub until the end of the test.
func (h *hall) configure(t *testing.T, key string, value any) {
	t.Helper()
	maps := h.Hub.Kubernetes.CoreV1().ConfigMaps(testenv.SystemNamespace)
	change(t, maps.Get, maps.Update, registration.HubConfigMap, func(m *corev1.ConfigMap) {
		settings := h.Hub.Reachable()
		settings[key] = value
		document, err := yaml.Marshal(settings)
		require.NoError(t, err)
		m.Data[registration.ConfigKey] = string(document)
	})
}

// status changes the status of a Cluster until the end of the test.
func (h *hall) status(t *testing.T, cluster string, edit func(*fleet.ClusterStatus)) {
	t.Helper()
	clusters := h.Hub.Fleet.Clusters(h.Namespace)
	change(t, clusters.Get, clusters.UpdateStatus, cluster, func(c *fleet.Cluster) { edit(&c.Status) })
}

// condition changes a condition of a Cluster until the end of the test.
func (h *hall) condition(t *testing.T, cluster, kind string, status corev1.ConditionStatus, reason, message string) {
	t.Helper()
	h.status(t, cluster, func(s *fleet.ClusterStatus) { setCondition(s, kind, status, reason, message) })
}

// setCondition changes a condition, or adds it.
func setCondition(s *fleet.ClusterStatus, kind string, status corev1.ConditionStatus, reason, message string) {
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c genericcondition.GenericCondition) bool { return c.Type == kind })
	s.Conditions = append(s.Conditions, genericcondition.GenericCondition{Type: kind, Status: status, Reason: reason, Message: message})
}

// bundlesNotReady changes condition Ready of west until the end of the test.
func (h *hall) bundlesNotReady(t *testing.T) {
	t.Helper()
	h.condition(t, "west", fleet.ConditionReady, corev1.ConditionFalse, fleet.ReasonNotReady, "NotReady(1) [Bundle shop]")
}

// kubeconfig changes the kubeconfig of east until the end of the test.
func (h *hall) kubeconfig(t *testing.T, edit func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo)) {
	t.Helper()
	h.kubeconfigIs(t, testenv.EditKubeconfig(t, h.Member.Kubeconfig(), edit))
}

var ended = corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{{
	Name: registration.AgentName, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}},
}}}

func waiting(reason, message string) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
		Name: registration.AgentName, Image: "registry.example.com/fleet-agent:v1",
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
	}}}
}

// probed are inputs for --probe. The test is the node of the pod: it sets its status, and serves its log as a kubelet does. At the end of the
// test, the Job and the pod have to be gone.
func (h *hall) probed(t *testing.T, status func(*corev1.Pod), output func(Inputs) []byte) Inputs {
	t.Helper()
	in := h.across(h.installed(t))
	in.Probe = true
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(output(in)) }))
	t.Cleanup(kubelet.Close)
	core := h.Member.Kubernetes.CoreV1()
	created := testenv.Create(t, core.Nodes().Create, &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "probed-"}})
	port := int32(kubelet.Listener.Addr().(*net.TCPAddr).Port)
	testenv.Merge(t, core.Nodes().Patch, created.Name, fmt.Sprintf(
		`{"status":{"addresses":[{"type":"InternalIP","address":"127.0.0.1"}],"daemonEndpoints":{"kubeletEndpoint":{"Port":%d}}}}`, port), "status")

	pods := core.Pods(in.AgentNamespace)
	events, err := pods.Watch(t.Context(), metav1.ListOptions{LabelSelector: "app=" + probeName})
	require.NoError(t, err)
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		for event := range events.ResultChan() {
			pod, is := event.Object.(*corev1.Pod)
			if !is || event.Type != watch.Added {
				continue
			}
			err := pods.Bind(contextOf(t), &corev1.Binding{
				ObjectMeta: metav1.ObjectMeta{Name: pod.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: created.Name},
			}, metav1.CreateOptions{})
			assert.NoError(t, err)
			bound, err := pods.Get(contextOf(t), pod.Name, metav1.GetOptions{})
			if !assert.NoError(t, err) {
				continue
			}
			status(bound)
			_, err = pods.UpdateStatus(contextOf(t), bound, metav1.UpdateOptions{})
			assert.True(t, err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err), err)
		}
	}()
	t.Cleanup(func() {
		events.Stop()
		<-ran
		jobs, err := h.Member.Kubernetes.BatchV1().Jobs(in.AgentNamespace).List(contextOf(t), metav1.ListOptions{})
		require.NoError(t, err)
		require.Empty(t, jobs.Items)
	})
	return in
}

func (h *hall) kubeconfigIs(t *testing.T, data []byte) {
	t.Helper()
	secrets := h.Hub.Kubernetes.CoreV1().Secrets(h.Namespace)
	change(t, secrets.Get, secrets.Update, "east-kubeconfig", func(s *corev1.Secret) { s.Data[registration.KubeconfigValue] = data })
}

// east returns the inputs for Cluster east, without the kubeconfig of the member.
func (h *hall) east(t *testing.T) Inputs {
	t.Helper()
	in := h.inputs("east")
	in.AgentNamespace = h.installed(t)
	h.belongsTo(t, in.AgentNamespace, in.Cluster)
	return in
}

// belongsTo makes the credential of an installed agent that of another Cluster.
func (h *hall) belongsTo(t *testing.T, namespace, cluster string) {
	t.Helper()
	secrets := h.Member.Kubernetes.CoreV1().Secrets(namespace)
	change(t, secrets.Get, secrets.Update, registration.CredentialSecret, func(s *corev1.Secret) {
		s.Data[registration.CredentialClusterName] = []byte(cluster)
	})
}

// credential replaces the token in the credential of an installed agent.
func (h *hall) credential(t *testing.T, namespace, token string) {
	t.Helper()
	secrets := h.Member.Kubernetes.CoreV1().Secrets(namespace)
	change(t, secrets.Get, secrets.Update, registration.CredentialSecret, func(s *corev1.Secret) {
		s.Data[registration.CredentialKubeconfig] = testenv.EditKubeconfig(t, s.Data[registration.CredentialKubeconfig],
			func(_ *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) { user.Token = token })
	})
}

// registers replaces the credential of an installed agent with a bootstrap Secret.
func (h *hall) registers(t *testing.T, namespace string, values registration.Values) {
	t.Helper()
	require.NoError(t, h.Member.Kubernetes.CoreV1().Secrets(namespace).Delete(t.Context(), registration.CredentialSecret, metav1.DeleteOptions{}))
	testenv.BootstrapAgent(t, h.Member, namespace, values, nil)
}

// forged returns a token with an expiry that no API server has signed.
func forged(t *testing.T, expires time.Time) string {
	t.Helper()
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"iat": expires.Add(-24 * time.Hour).Unix(), "exp": expires.Unix(), "sub": "system:serviceaccount:a:b",
	}).SignedString([]byte("not the key of the hub"))
	require.NoError(t, err)
	return token
}

// dated makes the clock of a server appear to be ahead.
func dated(by time.Duration) transport.Sender {
	return func(next http.RoundTripper, request *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		if err == nil {
			response.Header.Set("Date", time.Now().Add(by).UTC().Format(http.TimeFormat))
		}
		return response, err
	}
}

type leaseType = coordinationv1.Lease

func base64Of(data []byte) string { return base64.StdEncoding.EncodeToString(data) }

// contextOf is for cleanups, at whose time the context of the test has ended.
func contextOf(t *testing.T) context.Context { return context.WithoutCancel(t.Context()) }
