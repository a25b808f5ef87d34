package admin

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv/withkinds"
	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

// quietHub has the kinds of a hub, and no hub that does anything: the test, which has a namespace of its own, writes what
// one would.
func quietHub(t *testing.T) (*Hub, string) {
	t.Helper()
	hub, err := Connect(withkinds.Shared(t).RESTConfig())
	require.NoError(t, err)
	created, err := hub.Kubernetes.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "ws-"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	return hub, created.Name
}

// within is a context that ends.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func conditions(kind string, status corev1.ConditionStatus, reason string) []genericcondition.GenericCondition {
	return []genericcondition.GenericCondition{{Type: kind, Status: status, Reason: reason, Message: "because of " + reason}}
}

func (h *Hub) say(t *testing.T, namespace, token string, status corev1.ConditionStatus, reason, secret string) {
	t.Helper()
	tokens := h.Fleet.ClusterRegistrationTokens(namespace)
	current, err := tokens.Get(t.Context(), token, metav1.GetOptions{})
	require.NoError(t, err)
	current.Status.Conditions, current.Status.SecretName = conditions(fleet.ConditionReady, status, reason), secret
	_, err = tokens.UpdateStatus(t.Context(), current, metav1.UpdateOptions{})
	require.NoError(t, err)
}

// patience is no measure of speed: a machine may be very busy.
const patience = 2 * time.Minute

func TestAwaitTokenEndsWithTheHubsAnswer(t *testing.T) {
	hub, namespace := quietHub(t)
	tests := map[string]struct {
		act  func(t *testing.T, name string)
		want string
	}{
		"ready":      {func(t *testing.T, name string) { hub.say(t, namespace, name, corev1.ConditionTrue, "TokenReady", name) }, ""},
		"refused":    {func(t *testing.T, name string) { hub.say(t, namespace, name, corev1.ConditionFalse, "TTLRequired", "") }, "the hub refuses it: TTLRequired: because of TTLRequired"},
		"taken-away": {func(t *testing.T, name string) { hub.remove(t, namespace, name) }, "it was deleted"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, hub.CreateToken(t.Context(), namespace, name, fleet.ClusterRegistrationTokenSpec{TTL: TTL(time.Hour)}))
			acted := make(chan struct{})
			go func() { defer close(acted); test.act(t, name) }()
			token, err := hub.AwaitToken(within(t, patience), namespace, name)
			<-acted // what is done may be seen before whoever does it hears that it is done
			if test.want == "" {
				require.NoError(t, err)
				require.Equal(t, name, token.Status.SecretName)
				return
			}
			require.ErrorContains(t, err, "ClusterRegistrationToken "+namespace+"/"+name+": ")
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestAwaitTokenSaysHowTheTokenStoodWhenTheTimeIsUp(t *testing.T) {
	hub, namespace := quietHub(t)
	for name, test := range map[string]struct{ reason, want string }{
		"waiting": {"WaitingForCredential", "because of WaitingForCredential"},
		"no-hub":  {"", "is a fleet-controller running?"},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, hub.CreateToken(t.Context(), namespace, name, fleet.ClusterRegistrationTokenSpec{TTL: TTL(time.Hour)}))
			if test.reason != "" {
				hub.say(t, namespace, name, corev1.ConditionUnknown, test.reason, "")
			}
			var err error
			// A machine that is busy may not have come to look at the token in a short time.
			for long := time.Second; long < patience && (err == nil || !strings.Contains(err.Error(), test.want)); long *= 2 {
				_, err = hub.AwaitToken(within(t, long), namespace, name)
				require.ErrorContains(t, err, "ClusterRegistrationToken "+namespace+"/"+name+" was not ready in time: ")
			}
			require.ErrorContains(t, err, test.want)
		})
	}
}

func (h *Hub) remove(t *testing.T, namespace, token string) {
	t.Helper()
	require.NoError(t, h.Fleet.ClusterRegistrationTokens(namespace).Delete(t.Context(), token, metav1.DeleteOptions{}))
}

func TestAwaitRegisteredTellsEveryStateOnce(t *testing.T) {
	hub, namespace := quietHub(t)
	clusters := hub.Fleet.Clusters(namespace)
	var states []string
	reached := make(chan string, 10)
	type answer struct {
		cluster *fleet.Cluster
		err     error
	}
	done := make(chan answer, 1)
	ctx := within(t, patience)
	next := func() (state string) {
		select {
		case state = <-reached:
		case <-ctx.Done():
			require.NoError(t, ctx.Err())
		}
		return state
	}
	go func() {
		cluster, err := hub.AwaitRegistered(ctx, namespace, "east", func(v view.Cluster) { reached <- v.State })
		done <- answer{cluster, err}
	}()
	cluster, err := clusters.Create(t.Context(), &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "east"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	states = append(states, next())
	for _, said := range [][]genericcondition.GenericCondition{
		conditions(fleet.ConditionImported, corev1.ConditionFalse, "Unreachable"),
		conditions(fleet.ConditionRegistered, corev1.ConditionUnknown, "WaitingForAgent"),
		conditions(fleet.ConditionRegistered, corev1.ConditionTrue, "Registered"),
	} {
		cluster.Status.Conditions = said
		cluster, err = clusters.UpdateStatus(t.Context(), cluster, metav1.UpdateOptions{})
		require.NoError(t, err)
		states = append(states, next())
	}
	require.Equal(t, []string{view.StateNew, view.StateImportFailed, view.StateWaitingForAgent, view.StateRegistered}, states)
	last := <-done
	require.NoError(t, last.err)
	require.Equal(t, "east", last.cluster.Name)
	require.Empty(t, reached)
}

func TestValuesAreReadFromTheTokensSecret(t *testing.T) {
	hub, namespace := quietHub(t)
	token := &fleet.ClusterRegistrationToken{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "tok"}, Status: fleet.ClusterRegistrationTokenStatus{SecretName: "tok"},
	}
	_, err := hub.Values(t.Context(), token)
	require.ErrorContains(t, err, "read Secret "+namespace+"/tok of the token")
	_, err = hub.Kubernetes.CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "tok"}, Data: map[string][]byte{"values": []byte("token: x\n")},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	values, err := hub.Values(t.Context(), token)
	require.NoError(t, err)
	require.Equal(t, "token: x\n", string(values))
}
