package credential

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
)

var (
	account = Account{Namespace: "ns", Name: "account"}
	now     = time.Unix(1_800_000_000, 0)
	errAPI  = errors.New("the API server is out")
)

// server is a fake API server that issues tokens of at most max.
type server struct {
	*fake.Clientset
	asked []int64 // the requested lifetimes, in seconds
}

func newServer(t *testing.T, longest time.Duration, objects ...runtime.Object) *server {
	t.Helper()
	s := &server{Clientset: fake.NewClientset(objects...)}
	s.PrependReactor("create", "serviceaccounts", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create := action.(clienttesting.CreateActionImpl)
		assert.Equal(t, "token", create.Subresource)
		assert.Equal(t, "ns/account", create.Namespace+"/"+create.Name)
		request := create.Object.(*authenticationv1.TokenRequest)
		s.asked = append(s.asked, *request.Spec.ExpirationSeconds)
		expires := now.Add(min(longest, time.Duration(*request.Spec.ExpirationSeconds)*time.Second))
		return true, &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{
			Token: bound(t, "uid", expires).Reveal(), ExpirationTimestamp: metav1.NewTime(expires),
		}}, nil
	})
	return s
}

func (s *server) fail(verb, resource string, err error) {
	s.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
}

func (s *server) issuer() Issuer {
	return Issuer{Client: s.CoreV1(), Clock: clocktesting.NewFakePassiveClock(now)}
}

// writes returns the requests that change Secrets.
func (s *server) writes() (all []string) {
	for _, action := range s.Actions() {
		if verb := action.GetVerb(); action.GetResource().Resource == "secrets" && verb != "get" {
			all = append(all, verb)
		}
	}
	return all
}

func filled(t *testing.T, change func(*corev1.Secret)) *corev1.Secret {
	t.Helper()
	s := tokenSecret(account, "uid")
	s.Annotations[corev1.ServiceAccountUIDKey] = "uid"
	s.Data = map[string][]byte{corev1.ServiceAccountTokenKey: []byte(legacy(t, "uid").Reveal())}
	if change != nil {
		change(s)
	}
	return s
}

func TestIssue(t *testing.T) {
	for _, row := range []struct {
		name              string
		longest, lifetime time.Duration
		asked             time.Duration
		secret            *corev1.Secret
		expires           time.Time // zero if the token is of a Secret
		err               error
	}{
		{"the lifetime is granted", LongLived, LongLived, LongLived, nil, now.Add(LongLived), nil},
		{"a little less is granted", LongLived - 30*time.Second, LongLived, LongLived, nil, now.Add(LongLived - 30*time.Second), nil},
		{"a lifetime below the minimum", LongLived, time.Second, MinLifetime, nil, now.Add(MinLifetime), nil},
		{"no lifetime", LongLived, 0, MinLifetime, nil, now.Add(MinLifetime), nil},
		{"a negative lifetime", LongLived, -time.Hour, MinLifetime, nil, now.Add(MinLifetime), nil},
		{"less is granted, and the token Secret has a token", time.Hour, LongLived, LongLived, filled(t, nil), time.Time{}, nil},
		{
			"less is granted, and the token Secret is empty: never an empty token", time.Hour, LongLived, LongLived,
			filled(t, func(s *corev1.Secret) { s.Data = nil }),
			time.Time{},
			ErrPending,
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newServer(t, row.longest)
			if row.secret != nil {
				s = newServer(t, row.longest, row.secret)
			}
			issued, err := s.issuer().IssueAtLeast(t.Context(), account, row.lifetime)
			require.ErrorIs(t, err, row.err)
			assert.Equal(t, row.expires, issued.Expires)
			assert.Equal(t, row.err == nil, issued.Token != "")
			if row.err == nil && row.expires.IsZero() {
				assert.Equal(t, legacy(t, "uid"), issued.Token)
			}
			assert.Equal(t, []int64{int64(row.asked / time.Second)}, s.asked)
			assert.Empty(t, s.writes())
		})
	}
}

func TestIssueCreatesATokenSecret(t *testing.T) {
	s := newServer(t, time.Hour)
	_, err := s.issuer().IssueAtLeast(t.Context(), account, LongLived)
	require.ErrorIs(t, err, ErrPending)
	made, err := s.CoreV1().Secrets("ns").Get(t.Context(), "account-token", metav1.GetOptions{})
	require.NoError(t, err)
	made.ManagedFields, made.TypeMeta = nil, metav1.TypeMeta{}
	assert.Equal(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "account-token",
			Labels:          map[string]string{"fleet.cattle.io/managed": "true"},
			Annotations:     map[string]string{"kubernetes.io/service-account.name": "account"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ServiceAccount", Name: "account", UID: types.UID("uid")}},
		},
		Type: corev1.SecretTypeServiceAccountToken,
	}, made)
}

func TestIssueRefusesForeignSecrets(t *testing.T) {
	for name, change := range map[string]func(*corev1.Secret){
		"another type":                           func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque },
		"another ServiceAccount":                 func(s *corev1.Secret) { s.Annotations[corev1.ServiceAccountNameKey] = "other" },
		"no ServiceAccount":                      func(s *corev1.Secret) { s.Annotations = nil },
		"the ServiceAccount of this name before": func(s *corev1.Secret) { s.Annotations[corev1.ServiceAccountUIDKey] = "old" },
	} {
		t.Run(name, func(t *testing.T) {
			foreign := filled(t, change)
			s := newServer(t, time.Hour, foreign.DeepCopy())
			issued, err := s.issuer().IssueAtLeast(t.Context(), account, LongLived)
			require.ErrorContains(t, err, "Secret ns/account-token is not the token Secret of ServiceAccount account")
			assert.NotErrorIs(t, err, ErrPending)
			assert.Zero(t, issued)
			assert.Empty(t, s.writes())
			assert.NotContains(t, err.Error(), legacy(t, "uid").Reveal())
		})
	}
}

func TestIssueErrors(t *testing.T) {
	accounts := schema.GroupResource{Resource: "serviceaccounts"}
	for _, row := range []struct {
		name, verb, resource string
		err                  error
		says                 string
	}{
		{"the token is not issued", "create", "serviceaccounts", errAPI, "requesting a token for ServiceAccount ns/account"},
		{"the ServiceAccount is gone", "create", "serviceaccounts", apierrors.NewNotFound(accounts, "account"), "ServiceAccount ns/account"},
		{"the hub may not ask", "create", "serviceaccounts", apierrors.NewForbidden(accounts, "account", errAPI), "ServiceAccount ns/account"},
		{"the Secret is not read", "get", "secrets", errAPI, "reading token Secret ns/account-token"},
		{"the Secret is not made", "create", "secrets", errAPI, "creating token Secret ns/account-token"},
		{
			"another hub was faster", "create", "secrets", apierrors.NewAlreadyExists(schema.GroupResource{Resource: "secrets"}, "account-token"),
			"creating token Secret ns/account-token",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newServer(t, time.Hour)
			s.fail(row.verb, row.resource, row.err)
			issued, err := s.issuer().IssueAtLeast(t.Context(), account, LongLived)
			require.ErrorIs(t, err, row.err)
			assert.ErrorContains(t, err, row.says)
			assert.NotErrorIs(t, err, ErrPending)
			assert.Zero(t, issued)
		})
	}
}

func TestIssueAfterAnInvalidAnswer(t *testing.T) {
	for _, reply := range []authenticationv1.TokenRequestStatus{
		{ExpirationTimestamp: metav1.NewTime(now.Add(LongLived))},
		{Token: "opaque", ExpirationTimestamp: metav1.NewTime(now.Add(time.Hour))},
		{Token: bound(t, "", now.Add(time.Hour)).Reveal(), ExpirationTimestamp: metav1.NewTime(now.Add(time.Hour))},
	} {
		s := newServer(t, time.Hour)
		s.PrependReactor("create", "serviceaccounts", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, &authenticationv1.TokenRequest{Status: reply}, nil
		})
		_, err := s.issuer().IssueAtLeast(t.Context(), account, LongLived)
		require.Error(t, err)
		assert.NotErrorIs(t, err, ErrPending)
		assert.Empty(t, s.writes(), "a Secret without an owner would outlive its ServiceAccount")
	}
}

func TestRequest(t *testing.T) {
	s := newServer(t, time.Hour)
	issued, err := s.issuer().Request(t.Context(), account, LongLived)
	require.NoError(t, err)
	assert.Equal(t, now.Add(time.Hour), issued.Expires)
	assert.Empty(t, s.writes())
}
