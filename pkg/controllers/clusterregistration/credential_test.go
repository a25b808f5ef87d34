package clusterregistration

import (
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/apply"
	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubetesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/fakecache"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestNewCredential(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*scene)
		want   time.Duration
	}{
		"an agent that renews gets a short lifetime": {func(*scene) {}, time.Hour},
		"any other agent gets a long lifetime":       {func(s *scene) { s.cannotRenew() }, credential.LongLived},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			row.change(s)
			secret, out := s.newCredential(t.Context(), s.request, s.cluster)
			require.NotNil(t, secret, out.Message)
			assert.Equal(t, []time.Duration{row.want}, s.issued)
			assert.Equal(t, &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "cattle-fleet-clusters-system", Name: "c-8150d44f100d34d77e6d8589694d05645ec40ee2f47982eda19053e416662",
					Labels: map[string]string{"fleet.cattle.io/managed": "true", "fleet.cattle.io/cluster": "member"},
					Annotations: map[string]string{
						"fleet.cattle.io/cluster-registration": "request-abc", "fleet.cattle.io/cluster-registration-namespace": "fleet-default",
					},
				},
				Type: "fleet.cattle.io/agent-credential",
				Data: map[string][]byte{
					"token":               []byte(bearer("uid", noon, noon.Add(row.want))),
					"deploymentNamespace": []byte(registration.ClusterNamespace("fleet-default", "member")),
					"clusterNamespace":    []byte("fleet-default"), "clusterName": []byte("member"), "systemNamespace": []byte("cattle-fleet-system"),
				},
			}, secret)
		})
	}
}

func TestEnsureCredential(t *testing.T) {
	for _, row := range []struct {
		name     string
		existing func(*scene) *corev1.Secret
		uncached bool
		want     string
		writes   []string
	}{
		{"there is none: created", nil, false, "True ", []string{"create secrets"}},
		{"one that works: kept", func(s *scene) *corev1.Secret {
			return s.credentialOf(s.request, bearer("uid", noon, noon.Add(time.Hour)))
		}, false, "True ", nil},
		{"one that works, and the cache does not show it: kept", func(s *scene) *corev1.Secret {
			return s.credentialOf(s.request, bearer("uid", noon, noon.Add(time.Hour)))
		}, true, "True ", []string{"create secrets"}},
		{"one that expired before the grant: renewed", func(s *scene) *corev1.Secret {
			return s.credentialOf(s.request, bearer("uid", noon.Add(-time.Hour), noon.Add(-time.Second)))
		}, false, "True ", []string{"update secrets"}},
		{"one of an earlier ServiceAccount: renewed", func(s *scene) *corev1.Secret {
			return s.credentialOf(s.request, bearer("other", noon, noon.Add(time.Hour)))
		}, false, "True ", []string{"update secrets"}},
		{"one that an earlier key has signed: renewed", func(s *scene) *corev1.Secret {
			s.Issuer.Keys = &credential.SigningKeys{}
			s.Issuer.Keys.Observe(credential.Token(signedBy("later", "uid", noon.Add(time.Minute), noon.Add(time.Hour))))
			return s.credentialOf(s.request, signedBy("earlier", "uid", noon, noon.Add(time.Hour)))
		}, false, "True ", []string{"update secrets"}},
		{"one without a token: renewed", func(s *scene) *corev1.Secret { return s.credentialOf(s.request, "") }, false, "True ", []string{"update secrets"}},
		{"a refusal: deleted and created", func(s *scene) *corev1.Secret { return s.refusalSecret(s.request, inUse) }, false, "True ", []string{"delete secrets", "create secrets"}},
		{"one of another request: refused", func(s *scene) *corev1.Secret {
			_, secret := s.earlier()
			secret.Name = secretName(s.request)
			return secret
		}, true, "False NameConflict", []string{"create secrets"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newScene(t)
			account := s.account()
			account.UID = "uid"
			if row.existing == nil {
				s.server(account)
			} else {
				secret := row.existing(s)
				s.server(account, secret)
				if !row.uncached {
					s.secrets = secretsOf(secret)
				}
			}
			cached, err := s.cachedAnswer(s.request)
			require.NoError(t, err)
			assert.Equal(t, row.want, text(s.ensureCredential(t.Context(), s.request, s.cluster, cached)))
			var writes []string
			for _, write := range s.writes() {
				if write != "create serviceaccounts" { // for a token
					writes = append(writes, first(write, 2))
				}
			}
			assert.Equal(t, row.writes, writes)
			if row.want == "True " {
				claims, err := credential.Inspect(credential.Token(s.stored(t, s.credentialOf(s.request, "")).Data["token"]))
				require.NoError(t, err)
				assert.True(t, claims.ServesUntil("uid", noon))
			}
		})
	}
}

func TestMaintainCredential(t *testing.T) {
	const hour = time.Hour
	for _, row := range []struct {
		name            string
		issued, expires time.Duration // from now
		used, foreign   bool
		refreshed       bool
		after           time.Duration
	}{
		{name: "in its first half: kept", issued: -10 * time.Minute, expires: 50 * time.Minute, after: 20 * time.Minute},
		{name: "in its second half: refreshed", issued: -40 * time.Minute, expires: 20 * time.Minute, refreshed: true, after: hour / 2},
		{name: "expired: refreshed", issued: -2 * hour, expires: -hour, refreshed: true, after: hour / 2},
		{name: "in use: deleted", issued: -40 * time.Minute, expires: 20 * time.Minute, used: true},
		{name: "of another request: kept", issued: -40 * time.Minute, expires: 20 * time.Minute, foreign: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newScene(t)
			secret := s.credentialOf(s.request, bearer("uid", noon.Add(row.issued), noon.Add(row.expires)))
			if row.foreign {
				secret.Annotations = nil
			}
			s.server(secret)
			s.secrets = secretsOf(secret)
			if row.used {
				s.cluster.Status.Agent.Registration = s.request.Name
			}
			require.True(t, s.maintainCredential(t.Context(), s.request, s.cluster, s.token).IsDone())
			assert.Equal(t, row.after, s.delays[requestKey.String()])
			latest, err := s.kube.CoreV1().Secrets(secret.Namespace).Get(t.Context(), secret.Name, metav1.GetOptions{})
			if row.used {
				assert.True(t, apierrors.IsNotFound(err))
				return
			}
			require.NoError(t, err)
			assert.Equal(t, row.refreshed, string(latest.Data["token"]) != string(secret.Data["token"]))
		})
	}
	for name, breaks := range map[string]func(*scene){
		"the cache": func(s *scene) { s.secrets = failing[*corev1.Secret](errTest) },
		"the token": func(s *scene) { s.fails("create", "serviceaccounts", errTest) },
		"the write": func(s *scene) { s.fails("update", "secrets", errTest) },
		"the deletion": func(s *scene) {
			s.cluster.Status.Agent.Registration = s.request.Name
			s.fails("delete", "secrets", errTest)
		},
		"a conflict": func(s *scene) {
			s.fails("update", "secrets", apierrors.NewConflict(schema.GroupResource{}, "", errTest))
		},
	} {
		t.Run("retried after an error of "+name, func(t *testing.T) {
			s := newScene(t)
			secret := s.credentialOf(s.request, bearer("uid", noon.Add(-hour), noon.Add(time.Minute)))
			s.server(secret)
			s.secrets = secretsOf(secret)
			breaks(s)
			out := s.maintainCredential(t.Context(), s.request, s.cluster, s.token)
			require.Error(t, out.Err)
			assert.NotContains(t, out.Err.Error(), string(secret.Data["token"]))
		})
	}
	t.Run("the clock of the hub is 20 minutes ahead", func(t *testing.T) {
		s := newScene(t)
		s.Clock.(*clocktesting.FakeClock).Step(20 * time.Minute)
		secret := s.credentialOf(s.request, bearer("uid", noon, noon.Add(30*time.Minute)))
		s.server(secret)
		s.kube.PrependReactor("create", "selfsubjectreviews", func(kubetesting.Action) (bool, runtime.Object, error) {
			return true, &authenticationv1.SelfSubjectReview{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(noon)}}, nil
		})
		s.secrets = secretsOf(secret)
		require.True(t, s.maintainCredential(t.Context(), s.request, s.cluster, s.token).IsDone())
		assert.Equal(t, 15*time.Minute, s.delays[requestKey.String()])
		assert.Empty(t, s.issued)
	})
	t.Run("nothing to refresh", func(t *testing.T) {
		s := newScene(t)
		assert.True(t, s.maintainCredential(t.Context(), s.request, s.cluster, s.token).IsDone(), "the Secret has expired")
		s.secrets = secretsOf(s.credentialOf(s.request, "nothing that can be read"))
		assert.True(t, s.maintainCredential(t.Context(), s.request, s.cluster, s.token).IsDone())
	})
}

func TestIsFor(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*corev1.Secret)
		is     bool
	}{
		"as the hub wrote it": {func(*corev1.Secret) {}, true},
		"as Fleet's hub writes it": {func(s *corev1.Secret) {
			s.Annotations = map[string]string{apply.LabelNamespace: "fleet-default", apply.LabelName: "request-abc"}
		}, true},
		"of a request elsewhere": {func(s *corev1.Secret) { s.Annotations[fleet.ClusterRegistrationNamespaceAnnotation] = "x" }, false},
		"of another request":     {func(s *corev1.Secret) { s.Annotations[fleet.ClusterRegistrationAnnotation] = "x" }, false},
		"of another type":        {func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }, false},
		"without annotations":    {func(s *corev1.Secret) { s.Annotations = nil }, false},
	} {
		s := newScene(t)
		secret := s.credentialOf(s.request, "bearer")
		row.change(secret)
		assert.Equal(t, row.is, isFor(secret, s.request), name)
		keys := requestOfSecret(secret)
		if row.is {
			assert.Equal(t, []string{"fleet-default/request-abc"}, keys, name)
		} else {
			assert.NotContains(t, keys, "fleet-default/request-abc", name)
		}
	}
}

func TestDeleteOldAnswer(t *testing.T) {
	old := metav1.NewTime(noon.Add(-answerLifetime))
	for _, row := range []struct {
		name    string
		secret  func(*scene) *corev1.Secret
		deleted bool
	}{
		{"a credential after its lifetime", func(s *scene) *corev1.Secret { return s.credentialOf(s.request, "bearer") }, true},
		{"a Secret of another namespace", func(s *scene) *corev1.Secret {
			c := s.credentialOf(s.request, "bearer")
			c.Namespace = "elsewhere"
			return c
		}, false},
		{"a Secret of another type", func(s *scene) *corev1.Secret {
			c := s.credentialOf(s.request, "bearer")
			c.Type = corev1.SecretTypeOpaque
			return c
		}, false},
		{"a Secret without a Cluster", func(s *scene) *corev1.Secret {
			c := s.credentialOf(s.request, "bearer")
			delete(c.Labels, fleet.ClusterLabel)
			return c
		}, false},
		{"a refusal with its request", func(s *scene) *corev1.Secret { return s.refusalSecret(s.request, inUse) }, false},
		{"a refusal whose request is gone", func(s *scene) *corev1.Secret {
			s.handler.requests = requestsOf()
			return s.refusalSecret(s.request, inUse)
		}, true},
		{"a refusal whose request cannot be read", func(s *scene) *corev1.Secret {
			s.handler.requests = failing[*fleet.ClusterRegistration](errTest)
			return s.refusalSecret(s.request, inUse)
		}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newScene(t)
			secret := row.secret(s)
			secret.CreationTimestamp = old
			s.server(secret)
			_, _ = s.deleteOldAnswer("", secret)
			assert.Equal(t, row.deleted, len(s.writes()) == 1)
		})
	}
}

// The clock of the hub may be ahead of the one of the API server, by which the Secret was created.
func TestDeleteOldAnswer_byTheClockOfTheAPIServer(t *testing.T) {
	s := newScene(t)
	clock := s.Clock.(*clocktesting.FakeClock)
	const ahead = 2 * time.Hour
	serverNow := func() metav1.Time { return metav1.NewTime(clock.Now().Add(-ahead)) }
	secret := s.credentialOf(s.request, "bearer")
	secret.CreationTimestamp = serverNow()
	s.server(secret)
	var failure error
	s.kube.PrependReactor("create", "selfsubjectreviews", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, &authenticationv1.SelfSubjectReview{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: serverNow()}}, failure
	})
	secrets := &secretQueue{}
	s.Core = coreQueues{secrets: secrets}
	_, err := s.deleteOldAnswer("", secret)
	require.NoError(t, err)
	assert.Empty(t, s.writes(), "its agent may be polling for it")
	assert.Equal(t, answerLifetime, secrets.after)

	clock.Step(answerLifetime)
	failure = errTest
	_, err = s.deleteOldAnswer("", secret)
	require.ErrorIs(t, err, errTest)
	assert.Empty(t, s.writes())
	failure = nil
	_, err = s.deleteOldAnswer("", secret)
	require.NoError(t, err)
	assert.Equal(t, []string{"delete secrets " + secret.Name}, s.writes())
}

type coreQueues struct {
	corecontrollers.Interface
	secrets *secretQueue
}

func (c coreQueues) Secret() corecontrollers.SecretController { return c.secrets }

type secretQueue struct {
	corecontrollers.SecretController
	after time.Duration
}

func (q *secretQueue) EnqueueAfter(_, _ string, after time.Duration) { q.after = after }

// A client that deletes each new answer Secret must not keep the hub busy.
func TestReplaceLostAnswer_pauses(t *testing.T) {
	s := newScene(t)
	s.request.Status.Granted = true
	secret := s.credentialOf(s.request, bearer("uid", noon, noon.Add(time.Hour)))
	secret.UID = "secret"
	s.server()
	pass := func() []string {
		s.kube.ClearActions()
		s.observeAnswer(secret, nil)
		require.NoError(t, s.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("secrets"), secret.Namespace, secret.Name))
		require.True(t, s.maintainCredential(t.Context(), s.request, s.cluster, s.token).IsDone())
		return s.writes()
	}
	require.NoError(t, s.kube.Tracker().Add(secret))
	assert.Equal(t, []string{"create secrets"}, pass())
	assert.Empty(t, pass(), "at once after the first")
	s.Clock.(*clocktesting.FakeClock).Step(answerPause + time.Second)
	require.NoError(t, s.kube.Tracker().Add(secret))
	assert.Equal(t, []string{"create secrets"}, pass())
}

func TestReplaceLostAnswer(t *testing.T) {
	deleted := func(s *scene, secret *corev1.Secret) { s.observeAnswer(secret, nil) }
	for _, row := range []struct {
		name     string
		happens  func(*scene, *corev1.Secret)
		replaced bool
	}{
		{"deleted by another client", deleted, true},
		{"quarantine ended", func(s *scene, _ *corev1.Secret) {
			account := s.account()
			account.Annotations = map[string]string{
				apply.LabelGVK: requestKind.String(), apply.LabelNamespace: requestKey.Namespace, apply.LabelName: requestKey.Name,
			}
			s.accounts = fakecache.With(account)
			quarantined := s.cluster.DeepCopy()
			quarantined.Spec.Quarantined = true
			s.dependentsOfQuarantine(quarantined, s.cluster)
		}, true},
		{"deleted by this hub", func(s *scene, secret *corev1.Secret) {
			require.NoError(t, s.deleteAnswerOnly(t.Context(), secret))
			deleted(s, secret)
		}, false},
		{"the agent uses the credential", func(s *scene, secret *corev1.Secret) {
			deleted(s, secret)
			s.cluster.Status.Agent.Registration = s.request.Name
		}, false},
		{"in quarantine", func(s *scene, secret *corev1.Secret) {
			deleted(s, secret)
			s.cluster.Spec.Quarantined = true
		}, false},
		{"without a token", func(s *scene, secret *corev1.Secret) {
			deleted(s, secret)
			s.token = nil
		}, false},
		{"no hub has seen the deletion", func(*scene, *corev1.Secret) {}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newScene(t)
			s.request.Status.Granted = true
			secret := s.credentialOf(s.request, bearer("uid", noon, noon.Add(time.Hour)))
			secret.UID = "secret"
			s.server()
			row.happens(s, secret)
			s.kube.ClearActions()
			for range 2 { // the second pass comes before the cache shows the new Secret
				require.True(t, s.maintainCredential(t.Context(), s.request, s.cluster, s.token).IsDone())
			}
			var want []string
			if row.replaced {
				want = []string{"create secrets"}
			}
			assert.Equal(t, want, s.writes())
			roles, err := s.kube.RbacV1().Roles(s.RegistrationNamespace()).List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			assert.Equal(t, row.replaced, len(roles.Items) == 1, "the right to read it")
		})
	}
}

func TestCreateAnswer_inADeletedNamespace(t *testing.T) {
	for name, create := range map[string]func(*scene) error{
		"a credential": func(s *scene) error { return s.ensureCredential(t.Context(), s.request, s.cluster, nil).Err },
		"a refusal":    func(s *scene) error { return s.refuse(t, inUse).Err },
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.server()
			s.kube.PrependReactor("create", "secrets", func(action kubetesting.Action) (bool, runtime.Object, error) {
				_, err := s.kube.Tracker().Get(corev1.SchemeGroupVersion.WithResource("namespaces"), "", action.GetNamespace())
				return err != nil, nil, err
			})
			require.NoError(t, create(s))
			assert.Equal(t, []string{"create secrets", "create namespaces", "create secrets"}, s.writes())
		})
	}
}

// After the deletion, a request of another workspace may get a Secret of that name.
func TestDeleteAnswer_withdrawsTheRightToReadItFirst(t *testing.T) {
	for name, remove := range map[string]func(t *testing.T, s *scene, secret *corev1.Secret) error{
		"it is old": func(_ *testing.T, s *scene, secret *corev1.Secret) error {
			secret.CreationTimestamp = metav1.NewTime(noon.Add(-answerLifetime))
			_, err := s.deleteOldAnswer("", secret)
			return err
		},
		"the agent uses it": func(t *testing.T, s *scene, _ *corev1.Secret) error {
			s.cluster.Status.Agent.Registration = s.request.Name
			return s.maintainCredential(t.Context(), s.request, s.cluster, s.token).Err
		},
		"it was a refusal, and the request waits again": func(t *testing.T, s *scene, _ *corev1.Secret) error {
			s.secrets = secretsOf(s.refusalSecret(s.request, inUse))
			return s.refuse(t, result.Wait(fleet.ReasonWaitingForApproval, "")).Err
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			secret := s.credentialOf(s.request, bearer("uid", noon, noon.Add(time.Hour)))
			s.secrets = secretsOf(secret)
			s.server()
			require.NoError(t, s.sets.Add(t.Context(), ownedSet(s.request), s.request, s.readerRights(s.request, s.token)...))
			bindings, err := s.kube.RbacV1().RoleBindings(s.RegistrationNamespace()).List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			require.Len(t, bindings.Items, 1)
			s.bindings = fakecache.With(&bindings.Items[0])
			s.kube.ClearActions()
			require.NoError(t, remove(t, s, secret))
			assert.Equal(t, []string{"delete rolebindings", "delete secrets"}, s.answers())

			_, err = s.kube.RbacV1().RoleBindings(s.RegistrationNamespace()).Create(t.Context(), &bindings.Items[0], metav1.CreateOptions{})
			require.NoError(t, err)
			s.bindings = fakecache.With[*rbacv1.RoleBinding]()
			s.kube.ClearActions()
			require.NoError(t, remove(t, s, secret))
			assert.Equal(t, []string{"delete rolebindings", "delete secrets"}, s.answers(), "the cache does not show the right yet")

			foreign := bindings.Items[0].DeepCopy()
			foreign.Annotations = nil
			s.bindings = fakecache.With(foreign)
			s.kube.ClearActions()
			require.NoError(t, remove(t, s, secret))
			assert.Equal(t, []string{"delete secrets"}, s.answers(), "another owner's binding stays")
			s.bindings = failing[*rbacv1.RoleBinding](errTest)
			require.ErrorIs(t, remove(t, s, secret), errTest)
		})
	}
}
