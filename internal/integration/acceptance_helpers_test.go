package integration

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers"
	"github.com/muster-fleet/muster/pkg/registration"
)

const registrationNamespace = "cattle-fleet-clusters-system"

// stage is a hub at work and a workspace on it that no other test uses.
type stage struct {
	*testenv.Running
	hub, member *testenv.Cluster
	namespace   string
}

func newStage(t *testing.T, change ...func(*controllers.Options)) *stage {
	t.Helper()
	hub, member := clusters(t)
	hub.Configure(t, hub.Reachable())
	return &stage{hub: hub, member: member, namespace: hub.Namespace(t), Running: hub.Hub(t, change...)}
}

// registered is a cluster that registered as an agent with that clientID does.
type registered struct {
	values  registration.Values
	request *fleet.ClusterRegistration
	secret  *corev1.Secret
}

func (r registered) bearer() string { return string(r.secret.Data[registration.CredentialToken]) }

func (r registered) clusterNamespace() string {
	return string(r.secret.Data[registration.CredentialDeploymentNamespace])
}

// account is the ServiceAccount of the agent.
func (r registered) account() string {
	return registration.RequestServiceAccount(r.request.Name, string(r.request.UID))
}

// register asks for a credential as an agent does. Its random string is made one that no other test has: the hub refuses one
// that was used.
func (s *stage) register(t *testing.T, values registration.Values, clientID, random string) registered {
	t.Helper()
	request := s.hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: clientID, ClientRandom: random + s.namespace})
	latest, secret := s.hub.Granted(t, values, request)
	return registered{values: values, request: latest, secret: secret}
}

func (s *stage) token(t *testing.T, name string) registration.Values {
	t.Helper()
	return s.hub.Token(t, s.namespace, name, fleet.ClusterRegistrationTokenSpec{})
}

func (s *stage) getCluster(t *testing.T, name string) *fleet.Cluster {
	t.Helper()
	cluster, err := s.hub.Fleet.Clusters(s.namespace).Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return cluster
}

func (s *stage) createCluster(t *testing.T, cluster *fleet.Cluster) *fleet.Cluster {
	t.Helper()
	created, err := s.hub.Fleet.Clusters(s.namespace).Create(t.Context(), cluster, metav1.CreateOptions{})
	require.NoError(t, err)
	return created
}

// patchSpec changes fields of a Cluster's spec, as a person with kubectl does; null takes one away.
func (s *stage) patchSpec(t *testing.T, cluster, fields string) {
	t.Helper()
	_, err := s.hub.Fleet.Clusters(s.namespace).Patch(t.Context(), cluster, types.MergePatchType,
		[]byte(`{"spec":`+fields+`}`), metav1.PatchOptions{})
	require.NoError(t, err)
}

// eventuallyCluster waits until the Cluster is as check wants it; check's text says what it is instead.
func (s *stage) eventuallyCluster(t *testing.T, name string, check func(*fleet.Cluster) (bool, string)) *fleet.Cluster {
	t.Helper()
	var found *fleet.Cluster
	testenv.Eventually(t, func() (bool, string) {
		cluster, err := s.hub.Fleet.Clusters(s.namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		found = cluster
		return check(cluster)
	})
	return found
}

// get is the Get of a typed client.
type get[T any] func(ctx context.Context, name string, options metav1.GetOptions) (T, error)

// requireGone waits until an object is gone.
func requireGone[T any](t *testing.T, get get[T], what, name string) {
	t.Helper()
	testenv.Eventually(t, func() (bool, string) {
		_, err := get(t.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), fmt.Sprintf("%s %s: want it gone, got error %v", what, name, err)
	})
}

// requireThere reads an object that must exist now.
func requireThere[T any](t *testing.T, get get[T], name string) T {
	t.Helper()
	object, err := get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return object
}

// eventuallyThere waits for an object and returns it.
func eventuallyThere[T any](t *testing.T, get get[T], name string) (object T) {
	t.Helper()
	testenv.Eventually(t, func() (bool, string) {
		var err error
		object, err = get(t.Context(), name, metav1.GetOptions{})
		return err == nil, fmt.Sprint(err)
	})
	return object
}

// requireUnauthorized waits until the API server refuses a token; it remembers good ones for ten seconds.
func requireUnauthorized(t *testing.T, cluster *testenv.Cluster, token string) {
	t.Helper()
	client := cluster.ClientFor(t, token).Kubernetes.AuthenticationV1().SelfSubjectReviews()
	testenv.Eventually(t, func() (bool, string) {
		_, err := client.Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		return apierrors.IsUnauthorized(err), fmt.Sprintf("want the token refused with 401, got %v", err)
	})
}

// right is something one may do, such as {"get", "secrets", "ns", "name"}. Resources of our group are written with it.
type right struct{ verb, resource, namespace, name string }

func (r right) review() *authorizationv1.SelfSubjectAccessReview {
	resource, subresource, _ := strings.Cut(r.resource, "/")
	resource, group, _ := strings.Cut(resource, ".")
	return &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: r.verb, Group: group, Resource: resource, Subresource: subresource, Namespace: r.namespace, Name: r.name,
		},
	}}
}

// requireMay asks the API server whether the holder of the token may do all this.
func requireMay(t *testing.T, cluster *testenv.Cluster, token string, rights ...right) {
	t.Helper()
	for _, r := range rights {
		assert.True(t, may(t, cluster, token, r), "must be allowed: %+v", r)
	}
}

func requireMayNot(t *testing.T, cluster *testenv.Cluster, token string, rights ...right) {
	t.Helper()
	for _, r := range rights {
		assert.False(t, may(t, cluster, token, r), "must not be allowed: %+v", r)
	}
}

func may(t *testing.T, cluster *testenv.Cluster, token string, r right) bool {
	t.Helper()
	reviews := cluster.ClientFor(t, token).Kubernetes.AuthorizationV1().SelfSubjectAccessReviews()
	answer, err := reviews.Create(t.Context(), r.review(), metav1.CreateOptions{})
	require.NoError(t, err)
	return answer.Status.Allowed
}

// rightsIn lists, as text, all the holder of the token may do in a namespace beyond what everybody may.
func rightsIn(t *testing.T, cluster *testenv.Cluster, token, namespace string) []string {
	t.Helper()
	everybodys := rulesOf(t, cluster, bearerWithoutRights(t, cluster), namespace)
	own := rulesOf(t, cluster, token, namespace)
	maps.DeleteFunc(own, func(rule string, _ bool) bool { return everybodys[rule] })
	return slices.Sorted(maps.Keys(own))
}

func rulesOf(t *testing.T, cluster *testenv.Cluster, token, namespace string) map[string]bool {
	t.Helper()
	review := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}
	answer, err := cluster.ClientFor(t, token).Kubernetes.AuthorizationV1().SelfSubjectRulesReviews().
		Create(t.Context(), review, metav1.CreateOptions{})
	require.NoError(t, err)
	rules := map[string]bool{}
	for _, r := range answer.Status.ResourceRules {
		for _, resource := range r.Resources {
			rules[strings.TrimSpace(fmt.Sprintf("%s %s %s", strings.Join(r.Verbs, ","), resource, strings.Join(r.ResourceNames, ",")))] = true
		}
	}
	for _, r := range answer.Status.NonResourceRules {
		rules[fmt.Sprint(r.Verbs, r.NonResourceURLs)] = true
	}
	return rules
}

// bearerWithoutRights is a token of a ServiceAccount that nobody gave anything.
func bearerWithoutRights(t *testing.T, cluster *testenv.Cluster) string {
	t.Helper()
	const name = "nobody"
	accounts := cluster.Kubernetes.CoreV1().ServiceAccounts(metav1.NamespaceDefault)
	_, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		require.NoError(t, err)
	}
	reply, err := accounts.CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	return reply.Status.Token
}

// shifted is a clock that is ahead. Timers run as ever.
type shifted struct {
	clock.RealClock
	by time.Duration
}

func (s shifted) Now() time.Time { return s.RealClock.Now().Add(s.by) }

func (s shifted) Since(moment time.Time) time.Duration { return s.Now().Sub(moment) }

func ahead(by time.Duration) func(*controllers.Options) {
	return func(o *controllers.Options) { o.Clock = shifted{by: by} }
}

func keysOf[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
