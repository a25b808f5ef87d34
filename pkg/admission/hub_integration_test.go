package admission_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/registration"
)

// issued has names of ServiceAccounts, and whether the hub may get a token of each.
func issued() map[string]bool {
	const uid = "0c5bbf4e-2b0f-4d6a-9d4e-0123456789ab"
	return map[string]bool{
		registration.TokenServiceAccount("token", uid):                                             true,
		registration.TokenServiceAccount(strings.Repeat("t", 80), uid):                             true,
		registration.TokenServiceAccount(strings.Repeat("t", 56)+"."+strings.Repeat("u", 20), uid): true,
		registration.RequestServiceAccount("request-abcde", uid):                                   true,
		registration.AgentName:               false, // in a namespace that is not that of the local agent
		"default":                            false,
		"clusterrole-aggregation-controller": false,
		registration.BootstrapAccount:        false, // of another namespace
		"x-" + uid + "-y":                    false,
	}
}

func TestHubTokenPolicy(t *testing.T) {
	sample.Long(t)
	s := sceneInForce(t)
	s.run("tokens only of ServiceAccounts that the hub created", func(t *testing.T, s *scene) {
		who := s.account("hub-"+s.namespace, "fleet-controller",
			rule("", "serviceaccounts/token", "create"), rule("", "secrets", "create", "get", "update"))
		for name, may := range issued() {
			_, err := s.admin.kubernetes.CoreV1().ServiceAccounts(s.namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			require.True(t, err == nil || apierrors.IsAlreadyExists(err), "%s: %v", name, err)
			refusal := only(who.kubernetes.CoreV1().ServiceAccounts(s.namespace).CreateToken(t.Context(), name,
				&authenticationv1.TokenRequest{}, metav1.CreateOptions{}))
			secret := &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "x-", Annotations: map[string]string{corev1.ServiceAccountNameKey: name}},
				Type:       corev1.SecretTypeServiceAccountToken,
			}
			_, filled := who.kubernetes.CoreV1().Secrets(s.namespace).Create(t.Context(), secret, metav1.CreateOptions{})
			if may {
				assert.NoError(t, refusal, name)
				assert.NoError(t, filled, name)
				continue
			}
			requireRefused(t, refusal, "only of ServiceAccounts that it created")
			requireRefused(t, filled, "only of ServiceAccounts that it created")
		}
	})
	s.run("tokens of its own bootstrap account, and other Secrets without limit", func(t *testing.T, s *scene) {
		home := "hub-" + s.namespace
		who := s.account(home, "fleet-controller", rule("", "serviceaccounts/token", "create"), rule("", "secrets", "create", "get", "update"))
		s.account(home, registration.BootstrapAccount)
		_, err := who.kubernetes.CoreV1().ServiceAccounts(home).CreateToken(t.Context(), registration.BootstrapAccount, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = who.kubernetes.CoreV1().ServiceAccounts(home).CreateToken(t.Context(), "fleet-controller", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		requireRefused(t, err, "only of ServiceAccounts that it created")
		secrets := who.kubernetes.CoreV1().Secrets(s.namespace)
		made, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "values"}, Type: registration.SecretTypeValues}, metav1.CreateOptions{})
		require.NoError(t, err)
		made.Data = map[string][]byte{"values": []byte("x")}
		_, err = secrets.Update(t.Context(), made, metav1.UpdateOptions{})
		require.NoError(t, err)
	})
	s.run("tokens of the agent of its own cluster, and of no other agent", func(t *testing.T, s *scene) {
		home, local, other := "hub-"+s.namespace, s.namespace, "another-"+s.namespace
		tokens := rule("", "serviceaccounts/token", "create")
		who := s.account(home, "fleet-controller", tokens)
		s.account(local, registration.AgentName)
		s.account(other, registration.AgentName)
		s.allow(other, home, "fleet-controller", []rbacv1.PolicyRule{tokens})
		s.account(home, registration.AgentName)
		s.account(home, registration.BootstrapAccount)
		request := func(namespace string) error {
			return only(who.kubernetes.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), registration.AgentName, &authenticationv1.TokenRequest{}, metav1.CreateOptions{}))
		}
		requireRefused(t, request(local), "only of ServiceAccounts that it created") // without bootstrap.enabled
		s.allowEverywhere("bootstrap-"+s.namespace, home, registration.BootstrapAccount,
			rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"namespaces"}, ResourceNames: []string{local}, Verbs: []string{"create", "patch"}})
		require.Eventually(t, func() bool { return request(local) == nil }, patience, poll)
		requireRefused(t, request(other), "only of ServiceAccounts that it created")
		requireRefused(t, request(home), "only of ServiceAccounts that it created")
	})
	s.run("an existing token Secret cannot be changed to another account", func(t *testing.T, s *scene) {
		who := s.account("hub-"+s.namespace, "fleet-controller", rule("", "secrets", "create", "get", "update"))
		ours := registration.TokenServiceAccount("token", "0c5bbf4e-2b0f-4d6a-9d4e-0123456789ab")
		s.account(s.namespace, ours) // without it Kubernetes removes the Secret
		secret, err := s.admin.kubernetes.CoreV1().Secrets(s.namespace).Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "bent", Annotations: map[string]string{corev1.ServiceAccountNameKey: ours}},
			Type:       corev1.SecretTypeServiceAccountToken,
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		secret.Annotations[corev1.ServiceAccountNameKey] = "default"
		secret.ResourceVersion = ""
		_, err = who.kubernetes.CoreV1().Secrets(s.namespace).Update(t.Context(), secret, metav1.UpdateOptions{})
		requireRefused(t, err, "only of ServiceAccounts that it created")
	})
}

func only[T any](_ T, err error) error { return err }
