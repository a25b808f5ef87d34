package clusterregistration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
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
	kubetesting "k8s.io/client-go/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/credential"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// bearer is a token of the account with that UID; a zero end is none.
func bearer(t *testing.T, uid string, issued, expires time.Time) credential.Token {
	t.Helper()
	claims := jwt.MapClaims{"kubernetes.io": map[string]any{"serviceaccount": map[string]any{"name": "a", "uid": uid}}, "iat": issued.Unix()}
	if !expires.IsZero() {
		claims["exp"] = expires.Unix()
	}
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte("k"))
	require.NoError(t, err)
	return credential.Token(token)
}

// desk notes which requests are deleted, and when this one is looked at again.
type desk struct {
	fleetcontrollers.ClusterRegistrationController
	deleted []string
	after   time.Duration
	err     error
}

func (d *desk) Delete(_, name string, _ *metav1.DeleteOptions) error {
	d.deleted = append(d.deleted, name)
	return d.err
}

func (d *desk) EnqueueAfter(_, _ string, after time.Duration) { d.after = after }

// issuing is a granted request on a hub that issues tokens of the lifetime asked for, which it notes.
func issuing(t *testing.T, renewing bool, objects ...runtime.Object) (p *pass, at *desk, asked *[]time.Duration, kube *fake.Clientset) {
	t.Helper()
	p, at, asked = somePass(), &desk{}, &[]time.Duration{}
	p.requests = at
	p.Config = config.NewStore(config.Hub{Registration: config.Registration{CredentialLifetime: metav1.Duration{Duration: time.Hour}}})
	if renewing {
		p.request.Annotations = map[string]string{registration.RenewalAnnotation: "true"}
	}
	kube = fake.NewClientset(objects...)
	kube.PrependReactor("create", "serviceaccounts", func(action kubetesting.Action) (bool, runtime.Object, error) {
		request := action.(kubetesting.CreateAction).GetObject().(*authenticationv1.TokenRequest)
		life := time.Duration(*request.Spec.ExpirationSeconds) * time.Second
		*asked = append(*asked, life)
		request.Status = authenticationv1.TokenRequestStatus{
			Token: bearer(t, "uid", noon, noon.Add(life)).Reveal(), ExpirationTimestamp: metav1.NewTime(noon.Add(life)),
		}
		return true, request, nil
	})
	p.Kubernetes, p.Issuer = kube, credential.Issuer{Client: kube.CoreV1(), Clock: p.Clock}
	return p, at, asked, kube
}

func TestOnlyAnAgentThatRenewsGetsAShortLife(t *testing.T) {
	for _, row := range []struct {
		name     string
		renewing bool
		want     time.Duration
	}{
		{"an agent that renews", true, time.Hour},
		{"any other", false, credential.LongLived},
	} {
		p, _, asked, _ := issuing(t, row.renewing)
		secret, out := p.newCredential(t.Context())
		require.NotNil(t, secret, out.Message)
		assert.Equal(t, []time.Duration{row.want}, *asked, row.name)
	}
}

func TestOnlyAnAgentThatRenewsMayAskForItsOwnTokens(t *testing.T) {
	p, _, _, _ := issuing(t, false)
	assert.Empty(t, p.renewalRules())
	p.request.Annotations = map[string]string{registration.RenewalAnnotation: "yes"}
	assert.Empty(t, p.renewalRules())
	p.request.Annotations = map[string]string{registration.RenewalAnnotation: "true"}
	require.Len(t, p.renewalRules(), 1)
	rule := p.renewalRules()[0]
	assert.Equal(t, []string{"create"}, rule.Verbs)
	assert.Equal(t, []string{"serviceaccounts/token"}, rule.Resources)
	assert.Equal(t, []string{p.accountName()}, rule.ResourceNames)
}

func TestACredentialNobodyCameForIsRefreshedAtHalfItsLife(t *testing.T) {
	const hour = time.Hour
	for _, row := range []struct {
		name            string
		issued, expires time.Duration // from now
		stock, used     bool          // an agent that does not renew; one that has fetched it
		foreign         bool
		refreshed       bool
		after           time.Duration
	}{
		{name: "young", issued: -10 * time.Minute, expires: 50 * time.Minute, after: 20 * time.Minute},
		{name: "of the other half", issued: -40 * time.Minute, expires: 20 * time.Minute, refreshed: true, after: hour / 2},
		{name: "dead", issued: -2 * hour, expires: -hour, refreshed: true, after: hour / 2},
		{name: "in use", issued: -40 * time.Minute, expires: 20 * time.Minute, used: true},
		{name: "of an agent that does not renew", issued: -40 * time.Minute, expires: 20 * time.Minute, stock: true},
		{name: "of another request", issued: -40 * time.Minute, expires: 20 * time.Minute, foreign: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, at, _, kube := issuing(t, !row.stock)
			secret := p.credentialSecret(bearer(t, "uid", noon.Add(row.issued), noon.Add(row.expires)))
			if row.foreign {
				secret.Annotations = nil
			}
			require.NoError(t, kube.Tracker().Add(secret))
			p.secrets = secretsOf{all: []*corev1.Secret{secret}}
			if row.used {
				p.cluster.Status.Agent.Registration = p.request.Name
			}
			require.True(t, p.refreshCredential(t.Context()).IsDone())
			assert.Equal(t, row.after, at.after)
			now, err := kube.CoreV1().Secrets(secret.Namespace).Get(t.Context(), secret.Name, metav1.GetOptions{})
			if row.used {
				assert.True(t, apierrors.IsNotFound(err), "it only waits to be stolen")
				return
			}
			require.NoError(t, err)
			assert.Equal(t, row.refreshed, string(now.Data["token"]) != string(secret.Data["token"]))
		})
	}
}

func TestACredentialThatCannotBeRefreshedIsTriedAgain(t *testing.T) {
	old := func(p *pass) *corev1.Secret {
		return p.credentialSecret(bearer(t, "uid", noon.Add(-time.Hour), noon.Add(time.Minute)))
	}
	for name, breaks := range map[string]func(*pass, *fake.Clientset){
		"the cache": func(p *pass, _ *fake.Clientset) { p.secrets = secretsOf{err: assert.AnError} },
		"the token": func(_ *pass, k *fake.Clientset) { fails(k, "create", "serviceaccounts", assert.AnError) },
		"the write": func(_ *pass, k *fake.Clientset) { fails(k, "update", "secrets", assert.AnError) },
		"the removal": func(p *pass, k *fake.Clientset) {
			p.cluster.Status.Agent.Registration = p.request.Name
			fails(k, "delete", "secrets", assert.AnError)
		},
		"a conflict": func(_ *pass, k *fake.Clientset) {
			fails(k, "update", "secrets", apierrors.NewConflict(schema.GroupResource{}, "", assert.AnError))
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, _, _, kube := issuing(t, true)
			secret := old(p)
			require.NoError(t, kube.Tracker().Add(secret))
			p.secrets = secretsOf{all: []*corev1.Secret{secret}}
			breaks(p, kube)
			out := p.refreshCredential(t.Context())
			require.Error(t, out.Err)
			assert.NotContains(t, out.Err.Error(), string(secret.Data["token"]))
		})
	}
	p, _, _, _ := issuing(t, true)
	p.secrets = secretsOf{}
	assert.True(t, p.refreshCredential(t.Context()).IsDone(), "the Secret's time is over")
	p.secrets = secretsOf{all: []*corev1.Secret{p.credentialSecret("nothing that can be read")}}
	assert.True(t, p.refreshCredential(t.Context()).IsDone())
}

func fails(k *fake.Clientset, verb, resource string, err error) {
	k.PrependReactor(verb, resource, func(kubetesting.Action) (bool, runtime.Object, error) { return true, nil, err })
}

func TestATokenThatRanOutBeforeTheGrantIsRenewed(t *testing.T) {
	p, _, _, kube := issuing(t, true)
	account := p.account()
	account.UID = "uid"
	dead := p.credentialSecret(bearer(t, "uid", noon.Add(-time.Hour), noon.Add(-time.Second)))
	require.NoError(t, kube.Tracker().Add(account))
	require.NoError(t, kube.Tracker().Add(dead))
	require.True(t, p.keepCredential(t.Context(), dead).IsDone())
	now, err := kube.CoreV1().Secrets(dead.Namespace).Get(t.Context(), dead.Name, metav1.GetOptions{})
	require.NoError(t, err)
	claims, err := credential.Inspect(credential.Token(now.Data["token"]))
	require.NoError(t, err)
	assert.True(t, claims.ServesUntil("uid", noon))
}

func sibling(p *pass, name string, age time.Duration, granted bool) *fleet.ClusterRegistration {
	r := p.request.DeepCopy()
	r.Name, r.Spec.ClientRandom, r.Status.Granted = name, name, granted
	r.CreationTimestamp = metav1.NewTime(p.request.CreationTimestamp.Add(-age))
	return r
}

func TestOlderRequestsGoOnceTheNewCredentialIsInUse(t *testing.T) {
	for _, row := range []struct {
		name     string
		renewing bool
		uses     string // what the agent says it uses
		vouches  string
		granting []string // deleted by the pass that grants
		keeping  []string // deleted by the passes after that
	}{
		{name: "an agent that cannot tell", granting: []string{"older", "twin"}},
		{name: "one that tells, and has not come yet", renewing: true},
		{name: "one that still uses the old one", renewing: true, uses: "older"},
		{
			name: "one that uses the new one", renewing: true, uses: "request-abc",
			granting: []string{"older", "twin"}, keeping: []string{"older", "twin"},
		},
		{
			name: "one that has asked for the next within the second", renewing: true, uses: "request-abc", vouches: "twin",
			granting: []string{"older"}, keeping: []string{"older"},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			for _, step := range []struct {
				run  func(*pass) func(context.Context) result.Result
				want []string
			}{
				{func(p *pass) func(context.Context) result.Result { return p.supersede }, row.granting},
				{func(p *pass) func(context.Context) result.Result { return p.supersedeUsed }, row.keeping},
			} {
				p, at, _, _ := issuing(t, row.renewing)
				p.cluster.Status.Agent = fleet.AgentStatus{Registration: row.uses, Vouches: row.vouches}
				p.cache = requestsOf{all: []*fleet.ClusterRegistration{
					p.request, sibling(p, "older", time.Hour, true), sibling(p, "twin", 0, true), sibling(p, "newer", -time.Hour, false),
				}}
				require.True(t, step.run(p)(t.Context()).IsDone())
				assert.Equal(t, step.want, at.deleted)
			}
		})
	}
}

func TestADeletionThatFailsIsTriedAgain(t *testing.T) {
	p, at, _, _ := issuing(t, true)
	p.cluster.Status.Agent.Registration = p.request.Name
	p.cache = requestsOf{all: []*fleet.ClusterRegistration{sibling(p, "older", time.Hour, true)}}
	at.err = apierrors.NewNotFound(schema.GroupResource{}, "older")
	assert.True(t, p.supersedeUsed(t.Context()).IsDone(), "somebody was faster")
	at.err = errors.New("out")
	out := p.supersedeUsed(t.Context())
	assert.Equal(t, fleet.ReasonError, out.Reason)
	assert.Contains(t, out.Err.Error(), "older")
}

func TestAHeartbeatBringsBackTheRequestItIsMadeWithWhileSomethingIsLeftToRemove(t *testing.T) {
	p, _, _, _ := issuing(t, true)
	p.request.Status.Granted = true
	key := []types.NamespacedName{{Namespace: "fleet-default", Name: "request-abc"}}
	older, newer := sibling(p, "older", time.Hour, true), sibling(p, "newer", -time.Hour, false)
	stock := p.request.DeepCopy()
	stock.Annotations = nil
	for _, row := range []struct {
		name string
		uses string
		own  []*fleet.ClusterRegistration
		left bool // the credential Secret
		want []types.NamespacedName
	}{
		{"the new one is used", "request-abc", []*fleet.ClusterRegistration{p.request, older}, false, key},
		{"the old one is used", "older", []*fleet.ClusterRegistration{p.request, older}, false, nil},
		{"there is no other", "request-abc", []*fleet.ClusterRegistration{p.request}, false, nil},
		{"its Secret is left", "request-abc", []*fleet.ClusterRegistration{p.request}, true, key},
		{"the others are newer", "request-abc", []*fleet.ClusterRegistration{p.request, newer}, false, nil},
		{"the agent does not tell", "", []*fleet.ClusterRegistration{p.request, older}, true, nil},
		{"a request that promises nothing", "request-abc", []*fleet.ClusterRegistration{stock, older}, true, nil},
	} {
		c := p.cluster.DeepCopy()
		c.Status.Agent.Registration = row.uses
		found := secretsFound{}
		if row.left {
			found.all = []*corev1.Secret{{}}
		}
		p.secrets = found
		assert.Equal(t, row.want, p.inUse(c, row.own), row.name)
	}
}

// secretsFound answers for the index of credential Secrets by their request.
type secretsFound struct {
	secretsOf
}

func (s secretsFound) GetByIndex(string, string) ([]*corev1.Secret, error) { return s.all, s.err }
