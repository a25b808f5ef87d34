package attacks

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// victim is a registered agent that sends heartbeats, with its answer Secret as it was before the attack.
type victim struct {
	testenv.Registered
	stage  *testenv.Stage
	secret string
}

// newVictim registers with the token of the values and checks in.
func newVictim(t *testing.T, s *testenv.Stage, values registration.Values, clientID string) *victim {
	t.Helper()
	v := &victim{Registered: s.Register(t, values, clientID, clientID), stage: s}
	s.RequireHeartbeat(t, v.Registered, time.Now())
	v.secret = testenv.Bytes(t, v.Secret)
	return v
}

func (v *victim) cluster() string { return v.Request.Status.ClusterName }

// undisturbed checks that the agent has the same request, Cluster and credential as before, and that the credential works.
func (v *victim) undisturbed(t *testing.T) {
	t.Helper()
	request := testenv.RequireThere(t, v.stage.Hub.Fleet.ClusterRegistrations(v.stage.Namespace).Get, v.Request.Name)
	assert.Equal(t, v.Request.UID, request.UID)
	assert.True(t, request.Status.Granted)
	assert.Equal(t, v.Request.Spec.ClientID, v.stage.Cluster(t, v.cluster()).Spec.ClientID)
	secret := testenv.RequireThere(t, v.stage.Hub.Kubernetes.CoreV1().Secrets(v.Secret.Namespace).Get, v.Secret.Name)
	assert.Equal(t, v.secret, testenv.Bytes(t, secret), "its credential was touched")
	_, err := v.stage.Hub.ClientFor(t, v.Bearer()).Kubernetes.AuthenticationV1().SelfSubjectReviews().
		Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	require.NoError(t, err, "its token")
	v.stage.RequireHeartbeat(t, v.Registered, time.Now())
}

// sends creates the request with the token of the values.
func sends(t *testing.T, s *testenv.Stage, values registration.Values, request *fleet.ClusterRegistration) *fleet.ClusterRegistration {
	t.Helper()
	if request.Name == "" {
		request.GenerateName = "request-"
	}
	return s.Hub.Send(t, values, request)
}

// refusedByPolicy sends a request that policy fleet-registration-token refuses, where the API server cannot record creators: it names a token with which
// its creator may not register.
func refusedByPolicy(t *testing.T, s *testenv.Stage, values registration.Values, request *fleet.ClusterRegistration) {
	t.Helper()
	request.GenerateName = "request-"
	_, err := s.Hub.ClientFor(t, values.Token).Fleet.ClusterRegistrations(s.Namespace).Create(t.Context(), request, metav1.CreateOptions{})
	require.True(t, apierrors.IsForbidden(err) || apierrors.IsInvalid(err), "%v", err)
	require.ErrorContains(t, err, "with which this user may not register")
}

// with returns a request that names a token.
func with(token, clientID, clientRandom string) *fleet.ClusterRegistration {
	return &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{fleet.RegistrationTokenLabel: token}},
		Spec:       fleet.ClusterRegistrationSpec{ClientID: clientID, ClientRandom: clientRandom},
	}
}

// refused waits until the hub has refused a request for that reason, with a condition and a warning event. It checks that the hub has not
// created a ServiceAccount for the request.
func refused(t *testing.T, s *testenv.Stage, request *fleet.ClusterRegistration, reason string) {
	t.Helper()
	s.Hub.WaitCondition(t, testenv.KindRequest, s.Namespace, request.Name, fleet.ConditionGranted, "False "+reason+":")
	warned(t, s, request.Name, reason)
	latest := testenv.RequireThere(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Get, request.Name)
	assert.False(t, latest.Status.Granted)
	assert.Empty(t, accounts(t, s, request), "an identity was made for it")
}

// warned waits for a warning event about an object.
func warned(t *testing.T, s *testenv.Stage, name, reason string) {
	t.Helper()
	testenv.Eventually(t, func() (bool, string) {
		for _, event := range s.Hub.Events(t, s.Namespace, name) {
			if event.Reason == reason && event.Type == corev1.EventTypeWarning {
				return true, ""
			}
		}
		return false, "no warning " + reason + " about " + name
	})
}

// accounts are the ServiceAccounts of all namespaces that were created for a request.
func accounts(t *testing.T, s *testenv.Stage, request *fleet.ClusterRegistration) (names []string) {
	t.Helper()
	all := testenv.List(t, s.Hub.Kubernetes.CoreV1().ServiceAccounts("").List, metav1.ListOptions{})
	for _, account := range all.Items {
		if strings.HasPrefix(account.Name, request.Name) {
			names = append(names, account.Namespace+"/"+account.Name)
		}
	}
	return names
}

// forbidden checks that the API server refuses each call.
func forbidden(t *testing.T, calls map[string]func() error) {
	t.Helper()
	for name, call := range calls {
		err := call()
		assert.True(t, apierrors.IsForbidden(err) || apierrors.IsInvalid(err), "%s: %v", name, err)
	}
}

// only is the error of a call whose result does not matter.
func only[T any](_ T, err error) error { return err }

// answersTo counts the requests with a clientID by the status of their condition Granted.
func answersTo(t *testing.T, s *testenv.Stage, clientID string) map[string]int {
	t.Helper()
	all := testenv.List(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).List, metav1.ListOptions{})
	answers := map[string]int{}
	for _, request := range all.Items {
		if request.Spec.ClientID == clientID {
			status, _, _ := strings.Cut(testenv.Condition(request.Status.Conditions, fleet.ConditionGranted), " ")
			answers[status]++
		}
	}
	return answers
}
