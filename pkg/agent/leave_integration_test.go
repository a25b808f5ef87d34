package agent

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/pkg/agent/member"
	"github.com/muster-fleet/muster/pkg/agent/uninstall"
	"github.com/muster-fleet/muster/pkg/leader"
	"github.com/muster-fleet/muster/pkg/registration"
)

// installs creates all objects of an agent on the member, and lets the agent run with exactly its own rights.
func (w *world) installs(i installation) (objects []runtime.Object) {
	w.Helper()
	i.namespace = w.config.Namespace
	plane := controlplane.Shared(w.T, "member")
	for _, object := range append(i.objects(), i.bystanders()...) {
		w.put(object)
	}
	token, err := w.member.CoreV1().ServiceAccounts(w.config.Namespace).CreateToken(w.Context(), registration.AgentName,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(w, err)
	w.memberFront = newFront(w.T, &rest.Config{
		Host: plane.URL(), BearerToken: token.Status.Token, TLSClientConfig: rest.TLSClientConfig{CAData: plane.CA()},
	}, httptest.NewServer)
	w.config.Member = &rest.Config{Host: w.memberFront.server.URL, QPS: -1}
	return i.objects()
}

func (w *world) client(object runtime.Object) (dynamic.ResourceInterface, metav1.Object) {
	w.Helper()
	client, err := dynamic.NewForConfig(controlplane.Shared(w.T, "member").RESTConfig())
	require.NoError(w, err)
	kind, namespace, _ := describeObject(w.T, object)
	accessor, err := meta.Accessor(object)
	require.NoError(w, err)
	if namespace == "" {
		return client.Resource(kinds[kind]), accessor
	}
	return client.Resource(kinds[kind]).Namespace(namespace), accessor
}

func (w *world) put(object runtime.Object) {
	w.Helper()
	client, accessor := w.client(object)
	accessor.SetUID("")
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	require.NoError(w, err)
	kind, _, _ := describeObject(w.T, object)
	created := &unstructured.Unstructured{Object: content}
	created.SetGroupVersionKind(kinds[kind].GroupVersion().WithKind(kind))
	_, err = client.Create(w.Context(), created, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) { // the cluster-wide ones may be of a test before
		require.NoError(w, err)
	}
}

func (w *world) has(object runtime.Object) bool {
	w.Helper()
	client, accessor := w.client(object)
	_, err := client.Get(context.Background(), accessor.GetName(), metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		require.NoError(w, err)
	}
	return err == nil
}

// gone waits until the garbage collector has deleted all objects of the agent, and checks that it deleted nothing else.
func (w *world) gone(objects []runtime.Object) {
	w.Helper()
	for _, object := range objects {
		kind, _, name := describeObject(w.T, object)
		require.Eventually(w, func() bool { return !w.has(object) }, patience, 50*time.Millisecond, "%s %s", kind, name)
	}
	for _, name := range []string{registration.CredentialSecret, registration.BootstrapSecret, registration.PendingSecret} {
		require.Eventually(w, func() bool { return w.secret(name) == nil }, patience, 50*time.Millisecond, "Secret %s", name)
	}
	for _, object := range (installation{namespace: w.config.Namespace}).bystanders() {
		assert.True(w, w.has(object), "%T is somebody else's", object)
	}
	namespace, err := w.member.CoreV1().Namespaces().Get(w.Context(), w.config.Namespace, metav1.GetOptions{})
	require.NoError(w, err)
	assert.Nil(w, namespace.DeletionTimestamp, "the Namespace stays")
}

// farewell does what the agent does when the hub has asked it to leave and everything it deployed is removed.
func (w *world) farewell() {
	w.Helper()
	c := must(w.config.withDefaults())
	m, err := member.New(c.Member, c.Namespace, "test", time.Minute)
	require.NoError(w, err)
	defer m.Close()
	require.NoError(w, (&uninstall.Uninstaller{Member: m, Log: c.Log}).Mark(w.Context()))
}

func TestRunUninstallsWithItsOwnRights(t *testing.T) {
	for name, i := range map[string]installation{
		"imported": {managed: true}, "by the chart": {chart: true}, "the chart, adopted": {managed: true, chart: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			objects := w.installs(i)
			w.hub.grants()
			w.hasToken("token")
			w.config.LeaderElection = &LeaderElection{Identity: "a", Times: leader.Times{LeaseDuration: 2 * patience, RenewDeadline: patience, RetryPeriod: 100 * time.Millisecond}}
			stop := w.starts()
			w.settles()
			stop()
			w.farewell()
			w.starts()
			w.says("The agent is uninstalled")
			w.gone(objects)
		})
	}
}

// The agent is stopped at the first write of the uninstallation, in the middle and at the last write, before or after the write was
// carried out; another process finishes.
func TestRunUninstallsAfterAStop(t *testing.T) {
	for name, dies := range map[string]func(r *http.Request) bool{
		"at the first write": isWrite,
		"in the middle":      func(r *http.Request) bool { return isWrite(r) && strings.Contains(r.URL.Path, "/deployments/") },
		"at the last write":  func(r *http.Request) bool { return r.Method == http.MethodDelete },
	} {
		for _, carriedOut := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", carried out"}[carriedOut], func(t *testing.T) {
				w := newWorld(t)
				objects := w.installs(installation{managed: true})
				w.hub.grants()
				w.hasToken("token")
				stop := w.starts()
				w.settles()
				stop()
				w.farewell()
				ctx, die := context.WithCancel(context.Background())
				reached := func(r *http.Request) bool {
					if dies(r) {
						die()
						return true
					}
					return false
				}
				if carriedOut {
					w.memberFront.set(nil, reached)
				} else {
					w.memberFront.set(func(r *http.Request) (int, string) {
						if reached(r) {
							panic(http.ErrAbortHandler)
						}
						return 0, ""
					}, nil)
				}
				stop = w.startsWith(ctx, die)
				<-ctx.Done()
				stop()
				w.memberFront.set(nil, nil)
				w.starts()
				w.gone(objects)
			})
		}
	}
}

func TestRunCancelsTheUninstallation(t *testing.T) {
	t.Parallel() // an API server remembers for ten seconds that a token was good
	w := newWorld(t)
	objects := w.installs(installation{managed: true})
	w.hub.grants()
	w.hasToken("token", registration.BootstrapRegistration, "uid/1")
	stop := w.starts()
	before := w.settles()
	stop()
	w.farewell()
	w.hub.revokeAll(before.Token)
	ctx, die := context.WithCancel(context.Background())
	w.memberFront.set(func(r *http.Request) (int, string) {
		if r.Method == http.MethodDelete {
			die()
			return 503, "<h1>503</h1>"
		}
		return 0, ""
	}, nil)
	stop = w.startsWith(ctx, die)
	<-ctx.Done()
	stop()
	w.memberFront.set(nil, nil)
	w.bootstraps("token", registration.BootstrapRegistration, "uid/2")
	w.starts()
	after := w.settles()
	assert.NotEqual(t, before.Token, after.Token)
	for _, object := range objects {
		if _, _, name := describeObject(t, object); name == registration.PendingSecret {
			continue
		}
		client, accessor := w.client(object)
		got, err := client.Get(t.Context(), accessor.GetName(), metav1.GetOptions{})
		require.NoError(t, err)
		assert.Empty(t, got.GetOwnerReferences(), "%T %s", object, accessor.GetName())
	}
}
