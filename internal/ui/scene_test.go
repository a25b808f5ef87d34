package ui

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/controlplane"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned/fake"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

// noon is the time in tests without a control plane.
var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// browser sends requests like a browser that has opened the printed address.
type browser struct {
	*httptest.Server
	pages *pages
}

// serving serves the page for Clusters and other objects without a control plane.
func serving(t *testing.T, clusters []*fleet.Cluster, others ...runtime.Object) browser {
	t.Helper()
	return servingAt(t, clocktesting.NewFakeClock(noon), clusters, others...)
}

func servingAt(t *testing.T, clock clock.WithTicker, clusters []*fleet.Cluster, others ...runtime.Object) browser {
	t.Helper()
	informer := cache.NewSharedIndexInformer(nil, &fleet.Cluster{}, 0, nil)
	var core, ours []runtime.Object
	for _, c := range clusters {
		e, err := entryOf(c)
		require.NoError(t, err)
		require.NoError(t, informer.GetStore().Add(e))
		ours = append(ours, c)
	}
	for _, o := range others {
		switch o.(type) {
		case *corev1.Event, *corev1.ServiceAccount, *corev1.Namespace:
			core = append(core, o)
		default:
			ours = append(ours, o)
		}
	}
	kube := kubernetesfake.NewClientset(core...)
	kube.PrependReactor("list", "events", func(action clienttesting.Action) (bool, runtime.Object, error) { // the fake ignores field selectors
		all, err := kube.Tracker().List(corev1.SchemeGroupVersion.WithResource("events"), corev1.SchemeGroupVersion.WithKind("Event"), action.GetNamespace())
		if err != nil {
			return true, nil, err
		}
		list := all.(*corev1.EventList)
		list.Items = slices.DeleteFunc(list.Items, func(e corev1.Event) bool {
			return !action.(clienttesting.ListAction).GetListRestrictions().Fields.Matches(fields.Set{"involvedObject.uid": string(e.InvolvedObject.UID)})
		})
		return true, list, nil
	})
	hub := &admin.Hub{Kubernetes: kube, Fleet: fake.NewSimpleClientset(ours...).FleetV1alpha1()}
	server := httptest.NewUnstartedServer(nil)
	_, port, found := strings.Cut(server.Listener.Addr().String(), ":")
	require.True(t, found)
	number, err := strconv.Atoi(port)
	require.NoError(t, err)
	p := newPages(hub, &watchedFleet{informer: informer, changed: make(chan struct{})}, Options{Config: &rest.Config{Host: "https://hub.example.com:6443"}, Clock: clock}, number)
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/first" { // what a person does in two steps
			http.SetCookie(w, &http.Cookie{Name: "muster-ui-" + port, Value: p.secret, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
			http.Redirect(w, r, r.URL.Query().Get("then"), http.StatusSeeOther)
			return
		}
		p.ServeHTTP(w, r)
	})
	server.Start()
	t.Cleanup(server.Close)
	return browser{server, p}
}

// opening is an address that opens a path, with the cookie.
func (b browser) opening(path string) string { return b.URL + "/first?then=" + url.QueryEscape(path) }

// get sends a request with the cookie.
func (b browser) get(t *testing.T, path string, change ...func(*http.Request)) (status int, body string, header http.Header) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.URL+path, nil)
	require.NoError(t, err)
	request.AddCookie(&http.Cookie{Name: "muster-ui-" + strconv.Itoa(b.pages.port), Value: b.pages.secret})
	for _, f := range change {
		f(request)
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(text), response.Header
}

func condition(kind string, status corev1.ConditionStatus, reason, message string, at time.Time) genericcondition.GenericCondition {
	return genericcondition.GenericCondition{
		Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: at.Format(time.RFC3339), LastUpdateTime: at.Format(time.RFC3339),
	}
}

// registered is a Cluster whose agent sends heartbeats.
func registered(namespace, name string, seen time.Time) *fleet.Cluster {
	c := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID(namespace + name), CreationTimestamp: metav1.NewTime(seen.Add(-40 * time.Minute)), Labels: map[string]string{},
	}}
	c.Status.Namespace = registration.ClusterNamespace(namespace, name)
	c.Status.Display.ReadyBundles = "3/3"
	c.Status.Agent.LastSeen = metav1.NewTime(seen)
	c.Status.Agent.Version, c.Status.Agent.KubernetesVersion = "v0.9.0", "v1.36.3"
	c.Status.Conditions = []genericcondition.GenericCondition{
		condition(fleet.ConditionProcessed, corev1.ConditionTrue, "", "", seen.Add(-40*time.Minute)),
		condition(fleet.ConditionRegistered, corev1.ConditionTrue, fleet.ReasonRegistered, "", seen.Add(-39*time.Minute)),
		condition(fleet.ConditionConnected, corev1.ConditionTrue, fleet.ReasonConnected, "", seen.Add(-39*time.Minute)),
	}
	return c
}

// withCondition changes a condition of a Cluster.
func withCondition(c *fleet.Cluster, kind string, status corev1.ConditionStatus, reason, message string) *fleet.Cluster {
	at := c.CreationTimestamp.Add(20 * time.Minute)
	for i := range c.Status.Conditions {
		if c.Status.Conditions[i].Type == kind {
			c.Status.Conditions[i] = condition(kind, status, reason, message, at)
			return c
		}
	}
	c.Status.Conditions = append(c.Status.Conditions, condition(kind, status, reason, message, at))
	return c
}

// clustersInAllStates returns Clusters in all states.
func clustersInAllStates(n int) (clusters []*fleet.Cluster) {
	for i := range n {
		seen := noon.Add(-time.Duration(i*37%900) * time.Second)
		c := registered("fleet-default", fmt.Sprintf("%s-%s-%05d", []string{"store", "edge", "plant"}[i%3], []string{"ams", "fra", "lon", "nyc", "sgp"}[i/3%5], i), seen)
		c.Labels["region"] = []string{"eu", "us"}[i%2]
		switch {
		case i%211 == 17 || i%1009 > 990:
			c.Status.Agent.LastSeen = metav1.NewTime(noon.Add(-48 * time.Minute))
			withCondition(c, fleet.ConditionConnected, corev1.ConditionFalse, fleet.ReasonDisconnected, "no heartbeat since 2026-01-01T11:12:00Z, for more than 3 intervals of 15m0s")
		case i%173 == 40:
			c.Spec.KubeConfigSecret = c.Name + "-kubeconfig"
			c.Status.Agent = fleet.AgentStatus{}
			withCondition(withCondition(c, fleet.ConditionRegistered, corev1.ConditionUnknown, "WaitingForAgent", ""), "Imported", corev1.ConditionFalse, "Unreachable", "dial tcp 192.0.2.17:6443: connect: no route to host")
		case i%97 == 61:
			c.Status.Agent = fleet.AgentStatus{}
			withCondition(c, fleet.ConditionRegistered, corev1.ConditionUnknown, "WaitingForAgent", "waiting for the agent to register and send its first heartbeat")
		case i%389 == 99:
			withCondition(c, fleet.ConditionRegistered, corev1.ConditionFalse, "CloneDetected", "two agents send heartbeats with the identity of this cluster")
		case i%401 == 222:
			c.Spec.Quarantined = true
		case i%41 == 9:
			c.Status.Display.ReadyBundles = "2/3"
		}
		clusters = append(clusters, c)
	}
	return clusters
}

// belongings returns the objects of a registered Cluster, and tokens and requests of other Clusters.
func belongings(c *fleet.Cluster) []runtime.Object {
	at := c.CreationTimestamp.Time
	objectMeta := func(namespace, name string, after time.Duration) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(at.Add(after))}
	}
	token := &fleet.ClusterRegistrationToken{ObjectMeta: objectMeta(c.Namespace, "stores-2026", -24*time.Hour)}
	token.Status = fleet.ClusterRegistrationTokenStatus{
		SecretName: "stores-2026", Uses: 41, Expires: &metav1.Time{Time: noon.Add(30 * time.Hour)},
		Conditions: []genericcondition.GenericCondition{condition(fleet.ConditionReady, corev1.ConditionTrue, "Ready", "", at)},
	}
	request := func(name, cluster string, status corev1.ConditionStatus, reason, message string) *fleet.ClusterRegistration {
		r := &fleet.ClusterRegistration{ObjectMeta: objectMeta(c.Namespace, name, -2*time.Second)}
		r.Labels = map[string]string{fleet.RegistrationTokenLabel: token.Name}
		r.Status = fleet.ClusterRegistrationStatus{
			ClusterName: cluster, Granted: status == corev1.ConditionTrue,
			Conditions: []genericcondition.GenericCondition{condition(fleet.ConditionGranted, status, reason, message, at)},
		}
		return r
	}
	granted := request("request-8zk2m", c.Name, corev1.ConditionTrue, "Granted", "")
	namespace := &corev1.Namespace{ObjectMeta: objectMeta("", c.Status.Namespace, time.Second), Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}}
	account := &corev1.ServiceAccount{ObjectMeta: objectMeta(c.Status.Namespace, "request-8zk2m-0c4a", time.Second)}
	account.Labels = map[string]string{fleet.ManagedLabel: fleet.ManagedValue}
	account.Annotations = map[string]string{fleet.ClusterRegistrationAnnotation: granted.Name}
	event := func(name, kind string, about types.UID, reason, message string, after time.Duration) *corev1.Event {
		e := &corev1.Event{ObjectMeta: objectMeta(c.Namespace, name, after), Type: "Normal", Reason: reason, Message: message, LastTimestamp: metav1.NewTime(at.Add(after))}
		e.InvolvedObject.Kind, e.InvolvedObject.UID = kind, about
		return e
	}
	bundle := func(name string, ready bool) *fleet.BundleDeployment {
		b := &fleet.BundleDeployment{ObjectMeta: objectMeta(c.Status.Namespace, name, time.Minute)}
		b.Spec.DeploymentID, b.Spec.StagedDeploymentID = "id", "id"
		b.Status.AppliedDeploymentID, b.Status.Ready, b.Status.NonModified = "id", ready, ready
		if !ready {
			b.Status.Conditions = []genericcondition.GenericCondition{condition(fleet.ConditionReady, corev1.ConditionFalse, "", "deployment shop/web: 1 of 3 replicas are ready", at)}
		}
		return b
	}
	return []runtime.Object{
		token, granted, namespace, account, bundle("fleet-agent-store", true), bundle("monitoring", true), bundle("shop", false),
		request("request-p4x7c", "edge-new-1", corev1.ConditionUnknown, "WaitingForApproval", `waiting for an approval (the token or the hub's configuration asks for it): run "muster -n fleet-default approve request-p4x7c" or the same with deny`),
		request("request-v9n5t", "edge-new-2", corev1.ConditionUnknown, "WaitingForApproval", `waiting for an approval (the token or the hub's configuration asks for it): run "muster -n fleet-default approve request-v9n5t" or the same with deny`),
		request("request-j2d8w", "plant-old", corev1.ConditionFalse, "ClientIDInUse", "the Cluster has an agent already"),
		event("e1", "ClusterRegistration", granted.UID, "Granted", "the agent may fetch its credential for Cluster "+c.Name, 2*time.Second),
		event("e2", "Cluster", c.UID, "Registered", "the agent has registered and sent its first heartbeat", 5*time.Second),
	}
}
