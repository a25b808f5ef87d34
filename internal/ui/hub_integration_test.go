package ui

import (
	"context"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
)

// person is a user with a browser that has opened the printed address.
type person struct {
	address string // without the path
	client  *http.Client
}

// opened runs the page on a hub, and opens it.
func opened(t *testing.T, config *rest.Config, namespace string) person {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- Serve(ctx, Options{Config: config, Namespace: namespace, Address: "127.0.0.1:0", OnReady: func(url string) { ready <- url }})
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	p := person{client: &http.Client{Jar: jar}}
	select {
	case printed := <-ready:
		u, err := url.Parse(printed)
		require.NoError(t, err)
		p.address = "http://" + u.Host
		require.Contains(t, p.get(t, u.RequestURI()), "<title>Muster</title>")
	case err := <-ended:
		ended <- nil
		require.NoError(t, err)
	}
	return p
}

func (p person) get(t *testing.T, path string) string {
	t.Helper()
	response, err := p.client.Get(p.address + path)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode, string(text))
	return string(text)
}

func TestPageFollowsTheHub(t *testing.T) {
	sample.Long(t)
	s := testenv.NewStage(t, testenv.Ahead(31*time.Second)) // the hub delays the first status of a Cluster until it is that old
	p := opened(t, s.Hub.RESTConfig(), "")
	require.Contains(t, p.get(t, "/"), "No cluster is registered yet")

	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.address+"/", nil)
	require.NoError(t, err)
	request.Header.Set("Accept", "text/event-stream")
	lines := openStream(t, p.client, request)
	nextParts(t, lines)

	// An agent registers, and is granted.
	values := s.Token(t, "token")
	granted := s.Register(t, values, "store", "random")
	for parts := nextParts(t, lines); !strings.Contains(parts["table"], "WaitingForAgent"); {
		parts = nextParts(t, lines)
	}
	// It checks in.
	name := granted.Request.Status.ClusterName
	testenv.Merge(t, s.Hub.ClientFor(t, granted.Bearer()).Fleet.Clusters(s.Namespace).Patch, name, map[string]any{"status": map[string]any{"agent": map[string]any{
		"lastSeen": metav1.Now(), "namespace": "cattle-fleet-system", "version": "<b>v1</b>", "registration": granted.Request.Name,
	}}}, "status")
	for parts := nextParts(t, lines); !strings.Contains(parts["table"], ">Registered</span>"); {
		parts = nextParts(t, lines)
	}

	// The tree has what belongs to the Cluster, and the timeline what has happened.
	testenv.Eventually(t, func() (bool, string) {
		body := p.get(t, clusterLink(s.Namespace, name))
		for _, want := range []string{
			"<small>ClusterRegistration</small> <b>" + granted.Request.Name + "</b>",
			"<small>ClusterRegistrationToken</small> <b>token</b>", "<small>Namespace</small> <b>" + granted.ClusterNamespace() + "</b>",
			"<small>ServiceAccount</small> <b>" + granted.Account() + "</b>", "&lt;b&gt;v1&lt;/b&gt;",
			"<b>Registered True Registered</b> <small>Cluster " + name, "<b>Granted True ", "<small>ClusterRegistration " + granted.Request.Name,
		} {
			if !strings.Contains(body, want) {
				return false, want + " is not in " + body
			}
		}
		return !strings.Contains(body, `class="problem"`), body
	})
	body := p.get(t, "/registrations")
	require.Regexp(t, `<td class="step">Granted<td class="number"><b>1</b>`, body)
	require.Regexp(t, `<td class="name"><span>`+s.Namespace+`/</span>token`, body)

	require.NoError(t, s.Hub.Fleet.Clusters(s.Namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
	for parts := nextParts(t, lines); !strings.Contains(parts["summary"], "0 clusters") && !strings.Contains(parts["summary"], "Deleting"); {
		parts = nextParts(t, lines)
	}
}

// All pages together cost the hub one list and watch of Clusters, for any number of browsers. Details are read on demand, and Secrets never.
func TestPageCostsOneWatch(t *testing.T) {
	hub := testenv.SharedCluster(t, "hub")
	namespace := hub.Namespace(t)
	for _, name := range []string{"a", "b", "c"} {
		testenv.Create(t, hub.Fleet.Clusters(namespace).Create, &fleet.Cluster{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: fleet.ClusterSpec{KubeConfigSecret: "kubeconfig"},
		})
	}
	recorder := &testenv.Recorder{}
	p := opened(t, recorder.On(hub.RESTConfig()), "")
	for range 20 {
		require.Contains(t, p.get(t, "/"), "3 clusters")
		require.Contains(t, p.get(t, "/?q=/b&state=New"), "1 to 1 of 1")
	}
	for range 3 {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.address+"/", nil)
		require.NoError(t, err)
		request.Header.Set("Accept", "text/event-stream")
		nextParts(t, openStream(t, p.client, request))
	}
	// A hub without streaming lists answers the first watch with an error, and then needs a list and a watch.
	all := recorder.Requests("")
	require.LessOrEqual(t, len(all), 3, "%v", all)
	require.Equal(t, []string{"GET /apis/fleet.cattle.io/v1alpha1/clusters"}, slices.Compact(all))

	require.Contains(t, p.get(t, clusterLink(namespace, "a")), "<small>Secret</small> <b>kubeconfig</b>")
	details := recorder.Requests("")[len(all):]
	require.Less(t, len(details), 8, "%v", details)
	require.Empty(t, recorder.Requests("/"+namespace+"/clusters/b"), "nobody has looked at this one")
	require.Contains(t, p.get(t, "/registrations"), "3 Clusters")
	p.get(t, "/registrations")
	require.Len(t, recorder.Requests("/v1alpha1/clusterregistrationtokens"), 1, "the second time within some seconds shows the same")
	require.Empty(t, recorder.Requests("secrets"))
	for _, request := range recorder.Requests("") {
		require.True(t, strings.HasPrefix(request, "GET "), request)
	}
}

func TestServeWithFewRights(t *testing.T) {
	hub := testenv.SharedCluster(t, "hub")
	namespace := hub.Namespace(t)
	reader := rest.CopyConfig(hub.RESTConfig())
	reader.Impersonate.UserName = "reader"
	err := Serve(t.Context(), Options{Config: reader, Address: "127.0.0.1:0"})
	require.ErrorContains(t, err, `User "reader" cannot list resource "clusters"`)

	err = Serve(t.Context(), Options{Config: testenv.SharedCluster(t, "member").RESTConfig(), Address: "127.0.0.1:0"})
	require.ErrorContains(t, err, "is this a hub?")

	// Now the user reader may read the Clusters of one namespace.
	testenv.Create(t, hub.Fleet.Clusters(namespace).Create, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "mine"}})
	testenv.Create(t, hub.Fleet.Clusters(hub.Namespace(t)).Create, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "other"}})
	testenv.Create(t, hub.Kubernetes.RbacV1().Roles(namespace).Create, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"fleet.cattle.io"}, Resources: []string{"clusters", "clusterregistrations"}, Verbs: []string{"get", "list", "watch"}}},
	})
	testenv.Create(t, hub.Kubernetes.RbacV1().RoleBindings(namespace).Create, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "reader"}},
	})
	clients, err := versioned.NewForConfig(reader)
	require.NoError(t, err)
	testenv.Eventually(t, func() (bool, string) {
		_, err := clients.FleetV1alpha1().Clusters(namespace).List(t.Context(), metav1.ListOptions{})
		return err == nil, "the API server does not know the Role yet"
	})

	p := opened(t, reader, namespace)
	body := p.get(t, "/")
	require.Contains(t, body, "<h1>1 cluster</h1>")
	require.NotContains(t, body, "other")
	body = p.get(t, clusterLink(namespace, "mine"))
	for _, missing := range []string{"events", "namespaces", "serviceaccounts", "bundledeployments"} {
		require.Regexp(t, `Not everything could be read: `+missing+`\b.* is forbidden`, body)
	}
	require.Contains(t, body, "<b>created</b> <small>Cluster mine</small>")
	response, err := p.client.Get(p.address + "/registrations")
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusBadGateway, response.StatusCode)
}
