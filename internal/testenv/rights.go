package testenv

import (
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/controlplane"
)

// RequireUnauthorized waits until the API server no longer accepts a token.
func RequireUnauthorized(t testing.TB, cluster *Cluster, token string) {
	t.Helper()
	Eventually(t, func() (bool, string) { return !Accepts(t, cluster, token), "the API server still accepts the token" })
}

// Accepts returns whether the API server accepts a token. It asks for a new audience, because the API server caches for ten seconds that it
// has accepted a token for the same audiences.
func Accepts(t testing.TB, cluster *Cluster, token string) bool {
	t.Helper()
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{
		Token: token, Audiences: []string{controlplane.ServiceAccountIssuer, rand.Text()},
	}}
	answer, err := cluster.Kubernetes.AuthenticationV1().TokenReviews().Create(t.Context(), review, metav1.CreateOptions{})
	require.NoError(t, err)
	return answer.Status.Authenticated
}

// Right is a permission, such as to get Secret name in Namespace ns. Resource has a suffix with the group unless it is a core resource.
type Right struct{ Verb, Resource, Namespace, Name string }

// To is the permission for a verb on an object, or on all objects if name is empty.
func To(verb, resource, namespace, name string) Right {
	return Right{Verb: verb, Resource: resource, Namespace: namespace, Name: name}
}

func (r Right) review() *authorizationv1.SelfSubjectAccessReview {
	resource, subresource, _ := strings.Cut(r.Resource, "/")
	resource, group, _ := strings.Cut(resource, ".")
	return &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: r.Verb, Group: group, Resource: resource, Subresource: subresource, Namespace: r.Namespace, Name: r.Name,
		},
	}}
}

// RequireMay waits until a token has all these permissions. An API server learns about new Roles through a watch.
func RequireMay(t testing.TB, cluster *Cluster, token string, rights ...Right) {
	t.Helper()
	for _, r := range rights {
		Eventually(t, func() (bool, string) { return may(t, cluster, token, r), fmt.Sprintf("must be allowed: %+v", r) })
	}
}

func may(t testing.TB, cluster *Cluster, token string, r Right) bool {
	t.Helper()
	reviews := cluster.ClientFor(t, token).Kubernetes.AuthorizationV1().SelfSubjectAccessReviews()
	answer, err := reviews.Create(t.Context(), r.review(), metav1.CreateOptions{})
	require.NoError(t, err)
	return answer.Status.Allowed
}

// RequireRights waits until a token has exactly these permissions in a namespace, such as "get secrets name", in alphabetical order, in
// addition to the permissions of all ServiceAccounts.
func RequireRights(t testing.TB, cluster *Cluster, token, namespace string, want ...string) {
	t.Helper()
	Eventually(t, func() (bool, string) {
		got := rightsIn(t, cluster, token, namespace)
		return slices.Equal(got, want), fmt.Sprintf("the rights in namespace %s are %q, want %q", namespace, got, want)
	})
}

// rightsIn lists the permissions of a token in a namespace without the permissions of all ServiceAccounts.
func rightsIn(t testing.TB, cluster *Cluster, token, namespace string) []string {
	t.Helper()
	everybodys := rulesOf(t, cluster, bearerWithoutRights(t, cluster), namespace)
	own := rulesOf(t, cluster, token, namespace)
	maps.DeleteFunc(own, func(rule string, _ bool) bool { return everybodys[rule] })
	return slices.Sorted(maps.Keys(own))
}

func rulesOf(t testing.TB, cluster *Cluster, token, namespace string) map[string]bool {
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

// bearerWithoutRights is a token of a ServiceAccount without Roles.
func bearerWithoutRights(t testing.TB, cluster *Cluster) string {
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
