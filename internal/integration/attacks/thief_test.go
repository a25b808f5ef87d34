package attacks

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestStolenImportToken(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	values := s.Token(t, "shared")
	v := newVictim(t, s, values, "victim")
	thief, other := s.Hub.ClientFor(t, values.Token), s.Hub.ClientFor(t, s.Token(t, "other").Token)
	core, requests := thief.Kubernetes.CoreV1(), thief.Fleet.ClusterRegistrations(s.Namespace)
	account := registration.TokenServiceAccount("shared", string(s.ReadyToken(t, "shared").UID))
	ctx, all := t.Context(), metav1.ListOptions{}
	forbidden(t, map[string]func() error{
		"read requests":               func() error { return only(requests.List(ctx, all)) },
		"read the victim's request":   func() error { return only(requests.Get(ctx, v.Request.Name, metav1.GetOptions{})) },
		"watch requests":              func() error { return only(requests.Watch(ctx, all)) },
		"delete the victim's request": func() error { return requests.Delete(ctx, v.Request.Name, metav1.DeleteOptions{}) },
		"approve": func() error {
			return only(requests.Patch(ctx, v.Request.Name, types.MergePatchType, approval, metav1.PatchOptions{}, "status"))
		},
		"read Clusters": func() error { return only(thief.Fleet.Clusters(s.Namespace).List(ctx, all)) },
		"create a Cluster": func() error {
			return only(thief.Fleet.Clusters(s.Namespace).Create(ctx, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{}))
		},
		"read tokens": func() error { return only(thief.Fleet.ClusterRegistrationTokens(s.Namespace).List(ctx, all)) },
		"create a token": func() error {
			return only(thief.Fleet.ClusterRegistrationTokens(s.Namespace).Create(ctx, &fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{}))
		},
		"read Secrets":        func() error { return only(core.Secrets(s.Namespace).List(ctx, all)) },
		"read its own Secret": func() error { return only(core.Secrets(s.Namespace).Get(ctx, "shared", metav1.GetOptions{})) },
		"list credentials":    func() error { return only(core.Secrets(values.SystemRegistrationNamespace).List(ctx, all)) },
		"watch credentials":   func() error { return only(core.Secrets(values.SystemRegistrationNamespace).Watch(ctx, all)) },
		"read the victim's credential with another token": func() error {
			return only(other.Kubernetes.CoreV1().Secrets(v.Secret.Namespace).Get(ctx, v.Secret.Name, metav1.GetOptions{}))
		},
		"write the victim's credential": func() error {
			return only(core.Secrets(v.Secret.Namespace).Patch(ctx, v.Secret.Name, types.MergePatchType, []byte(`{"data":null}`), metav1.PatchOptions{}))
		},
		"extend the lifetime of its token": func() error {
			return only(core.ServiceAccounts(s.Namespace).CreateToken(ctx, account, longLived(), metav1.CreateOptions{}))
		},
		"get a token of the victim": func() error {
			return only(core.ServiceAccounts(v.ClusterNamespace()).CreateToken(ctx, v.Account(), longLived(), metav1.CreateOptions{}))
		},
		"read the hub's configuration": func() error { return only(core.ConfigMaps(testenv.SystemNamespace).List(ctx, all)) },
		"create a request in another namespace": func() error {
			return only(thief.Fleet.ClusterRegistrations(metav1.NamespaceDefault).Create(ctx, with("shared", "x", "x"), metav1.CreateOptions{}))
		},
		"give itself rights": func() error {
			return only(thief.Kubernetes.RbacV1().RoleBindings(s.Namespace).Create(ctx, admin(account, s.Namespace), metav1.CreateOptions{}))
		},
		"read Bundles":                  func() error { return only(thief.Fleet.Bundles(s.Namespace).List(ctx, all)) },
		"read the victim's deployments": func() error { return only(thief.Fleet.BundleDeployments(v.ClusterNamespace()).List(ctx, all)) },
	})
	v.undisturbed(t)
}

func TestStolenRequestToken(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	values := s.Token(t, "shared")
	v, mine := newVictim(t, s, values, "victim"), newVictim(t, s, values, "stolen")
	thief := s.Hub.ClientFor(t, mine.Bearer())
	core, ctx, all := thief.Kubernetes.CoreV1(), t.Context(), metav1.ListOptions{}
	clusters, requests := thief.Fleet.Clusters(s.Namespace), thief.Fleet.ClusterRegistrations(s.Namespace)
	patch := func(cluster, patch string, sub ...string) func() error {
		return func() error {
			return only(clusters.Patch(ctx, cluster, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, sub...))
		}
	}
	forbidden(t, map[string]func() error{
		"read the victim's deployments": func() error { return only(thief.Fleet.BundleDeployments(v.ClusterNamespace()).List(ctx, all)) },
		"read all deployments":          func() error { return only(thief.Fleet.BundleDeployments("").List(ctx, all)) },
		"create a BundleDeployment": func() error {
			return only(thief.Fleet.BundleDeployments(mine.ClusterNamespace()).Create(ctx, &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{}))
		},
		"read all Contents":             func() error { return only(thief.Fleet.Contents().List(ctx, all)) },
		"read Secrets of its namespace": func() error { return only(core.Secrets(mine.ClusterNamespace()).List(ctx, all)) },
		"read the victim's Secrets":     func() error { return only(core.Secrets(v.ClusterNamespace()).List(ctx, all)) },
		"read credentials":              func() error { return only(core.Secrets(values.SystemRegistrationNamespace).List(ctx, all)) },
		"read the token's Secret":       func() error { return only(core.Secrets(s.Namespace).Get(ctx, "shared", metav1.GetOptions{})) },
		"read its own credential": func() error {
			return only(core.Secrets(mine.Secret.Namespace).Get(ctx, mine.Secret.Name, metav1.GetOptions{}))
		},
		"read the victim's credential": func() error {
			return only(core.Secrets(v.Secret.Namespace).Get(ctx, v.Secret.Name, metav1.GetOptions{}))
		},
		"read the kubeconfig of the hub": func() error {
			return only(core.Secrets("fleet-local").Get(ctx, registration.LocalSecret, metav1.GetOptions{}))
		},
		"read Clusters":                                func() error { return only(clusters.List(ctx, all)) },
		"change the namespace in its status":           patch(mine.cluster(), `{"status":{"namespace":"kube-system"}}`, "status"),
		"cause another import of itself":               patch(mine.cluster(), `{"status":{"agentConfigChanged":true}}`, "status"),
		"change the address of the hub":                patch(mine.cluster(), `{"status":{"apiServerURL":"https://evil"}}`, "status"),
		"set condition Ready":                          patch(mine.cluster(), `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, "status"),
		"change labels and spec with the status":       patch(mine.cluster(), `{"metadata":{"labels":{"env":"prod"}},"status":{"agent":{"namespace":"x"}},"spec":{"paused":true}}`),
		"send a heartbeat of the victim":               patch(v.cluster(), `{"status":{"agent":{"namespace":"evil"}}}`, "status"),
		"prove possession for a request of the victim": patch(v.cluster(), `{"status":{"agent":{"vouches":"evil"}}}`, "status"),
		"take the victim's identity":                   patch(mine.cluster(), `{"spec":{"clientID":"victim"}}`),
		"leave quarantine":                             patch(mine.cluster(), `{"spec":{"quarantined":false}}`),
		"create a request for another Cluster":         func() error { return only(requests.Create(ctx, with("shared", "x", "x"), metav1.CreateOptions{})) },
		"approve": func() error {
			return only(requests.Patch(ctx, mine.Request.Name, types.MergePatchType, approval, metav1.PatchOptions{}, "status"))
		},
		"delete the victim's request": func() error { return requests.Delete(ctx, v.Request.Name, metav1.DeleteOptions{}) },
		"get a token of the victim": func() error {
			return only(core.ServiceAccounts(v.ClusterNamespace()).CreateToken(ctx, v.Account(), &authenticationv1.TokenRequest{}, metav1.CreateOptions{}))
		},
		"extend the lifetime of its token": func() error {
			return only(core.ServiceAccounts(mine.ClusterNamespace()).CreateToken(ctx, mine.Account(), longLived(), metav1.CreateOptions{}))
		},
		"get a token of the hub": func() error {
			return only(core.ServiceAccounts(testenv.SystemNamespace).CreateToken(ctx, "fleet-controller", &authenticationv1.TokenRequest{}, metav1.CreateOptions{}))
		},
		"get a token of another ServiceAccount in its namespace": func() error {
			return only(core.ServiceAccounts(mine.ClusterNamespace()).CreateToken(ctx, "default", longLived(), metav1.CreateOptions{}))
		},
		"create a ServiceAccount": func() error {
			return only(core.ServiceAccounts(mine.ClusterNamespace()).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{}))
		},
		"create a token Secret": func() error {
			return only(core.Secrets(mine.ClusterNamespace()).Create(ctx, tokenSecret(mine.Account()), metav1.CreateOptions{}))
		},
		"give itself rights": func() error {
			return only(thief.Kubernetes.RbacV1().RoleBindings(mine.ClusterNamespace()).Create(ctx, admin(mine.Account(), mine.ClusterNamespace()), metav1.CreateOptions{}))
		},
	})
	v.undisturbed(t)
	mine.undisturbed(t)
	assert.Equal(t, registration.ClusterNamespace(s.Namespace, mine.cluster()), s.Cluster(t, mine.cluster()).Status.Namespace)
}

// The API server rejects the token of a request that was deleted.
func TestRevokedToken(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	values := s.Token(t, "shared")
	v, stolen := newVictim(t, s, values, "victim"), newVictim(t, s, values, "stolen")
	require.NoError(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Delete(t.Context(), stolen.Request.Name, metav1.DeleteOptions{}))
	testenv.RequireUnauthorized(t, s.Hub, stolen.Bearer())
	require.NoError(t, s.Hub.Fleet.ClusterRegistrationTokens(s.Namespace).Delete(t.Context(), "shared", metav1.DeleteOptions{}))
	testenv.RequireUnauthorized(t, s.Hub, values.Token)
	s.RequireHeartbeat(t, v.Registered, time.Now())
}

var approval = []byte(`{"status":{"approval":{"decision":"Approved"},"granted":true}}`)

// longLived requests a token for ten years.
func longLived() *authenticationv1.TokenRequest {
	const tenYears = 10 * 365 * 24 * 60 * 60
	return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(tenYears))}}
}

// tokenSecret is a Secret into which Kubernetes would write a token that does not expire.
func tokenSecret(account string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "x", Annotations: map[string]string{corev1.ServiceAccountNameKey: account}},
		Type:       corev1.SecretTypeServiceAccountToken,
	}
}

func admin(account, namespace string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "x"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}},
	}
}

// The holder of a token can list the names of the Secrets that it may read. The hub has deleted those whose credential is in use.
func TestReadCredentialsOfOthers(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	values := s.Token(t, "shared")
	v := &victim{Registered: s.RegisterRenewing(t, values, "victim", "v"), stage: s}
	granted, secret := v.Request, v.Secret
	beat(t, s, v, fleet.AgentStatus{Registration: granted.Name})

	thief := s.Hub.ClientFor(t, values.Token).Kubernetes
	testenv.RequireGone(t, s.Hub.Kubernetes.CoreV1().Secrets(secret.Namespace).Get, "Secret", secret.Name)
	review := testenv.Create(t, thief.AuthorizationV1().SelfSubjectRulesReviews().Create, &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: secret.Namespace},
	})
	for _, rule := range review.Status.ResourceRules {
		for _, name := range rule.ResourceNames {
			_, err := thief.CoreV1().Secrets(secret.Namespace).Get(t.Context(), name, metav1.GetOptions{})
			assert.Error(t, err, name)
		}
	}
	reader := registration.CredentialReaderName(v.Account())
	testenv.RequireGone(t, s.Hub.Kubernetes.RbacV1().RoleBindings(secret.Namespace).Get, "RoleBinding", reader)
	testenv.RequireGone(t, s.Hub.Kubernetes.RbacV1().Roles(secret.Namespace).Get, "Role", reader)
	beat(t, s, v, fleet.AgentStatus{Registration: granted.Name})
}
