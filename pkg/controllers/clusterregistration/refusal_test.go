package clusterregistration

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/guard"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

var inUse = result.Stalled(fleet.ReasonClientIDInUse, "an agent has registered")

func TestTheRefusalIsNoCredential(t *testing.T) {
	secret := judged().refusalSecret(inUse)
	assert.Equal(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "cattle-fleet-clusters-system", Name: registration.CredentialSecretName("client", "random"),
			Labels: map[string]string{"fleet.cattle.io/managed": "true"},
			Annotations: map[string]string{
				"fleet.cattle.io/cluster-registration": "request-abc", "fleet.cattle.io/cluster-registration-namespace": "fleet-default",
			},
		},
		Type: "fleet.cattle.io/agent-credential",
		Data: map[string][]byte{"refusalReason": []byte("ClientIDInUse"), "refusalMessage": []byte("an agent has registered")},
	}, secret)
	assert.True(t, isRefusal(secret))
	assert.False(t, isRefusal(somePass().credentialSecret("bearer")))
	assert.False(t, isRefusal(nil))
	assert.True(t, isFor(secret, judged().request), "it is found, replaced and removed as the credential is")
	assert.True(t, judged().isCredential(secret))
}

func TestOnlyAgentsThatUnderstandItAreAnsweredAndOnlyForGood(t *testing.T) {
	for _, row := range []struct {
		name   string
		out    result.Result
		change func(*pass)
	}{
		{"an agent of another release", inUse, func(p *pass) { delete(p.request.Annotations, registration.RenewalAnnotation) }},
		{"one that was granted", inUse, func(p *pass) { p.request.Status.Granted = true }},
		{"a refusal that may pass", result.Stalled(fleet.ReasonNameConflict, ""), func(*pass) {}},
		{"an error", result.Retry(fleet.ReasonError, errBadDay), func(*pass) {}},
		{"a grant", result.Done(fleet.ReasonGranted, ""), func(*pass) {}},
		{"nothing to say", result.Skip(), func(*pass) {}},
		{"one whose token nobody knows", inUse, func(p *pass) { p.tokens = tokensOf{} }},
		{"one whose place is taken", inUse, func(p *pass) {
			_, others := p.earlier()
			others.Name = p.secretName()
			p.secrets = secretsOf{all: []*corev1.Secret{others}}
		}},
		{"one that was told already", inUse, func(p *pass) { p.secrets = secretsOf{all: []*corev1.Secret{p.refusalSecret(inUse)}} }},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, client := judged(), fake.NewClientset()
			p.Kubernetes = client
			row.change(p)
			require.NoError(t, p.answer(t.Context(), row.out))
			assert.Empty(t, client.Actions())
		})
	}
}

func TestEachFinalReasonIsOne(t *testing.T) {
	for _, reason := range []string{
		fleet.ReasonDenied, fleet.ReasonClientIDInUse, fleet.ReasonTokenUsedUp, fleet.ReasonClientIDNotAllowed, fleet.ReasonLongLivedRefused,
		fleet.ReasonQuarantined, fleet.ReasonTokenMismatch, fleet.ReasonSuperseded,
	} {
		assert.True(t, isFinal(reason), reason)
	}
	for _, reason := range []string{"", fleet.ReasonError, fleet.ReasonNameConflict, fleet.ReasonWaitingForApproval, fleet.ReasonCountingUse} {
		assert.False(t, isFinal(reason), reason)
	}
}

func failing(verb string, err error) *fake.Clientset {
	client := fake.NewClientset()
	client.PrependReactor(verb, "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
	return client
}

func TestWritingARefusal(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, "c-x", errBadDay)
	taken := apierrors.NewAlreadyExists(schema.GroupResource{Resource: "secrets"}, "c-x")
	for _, row := range []struct {
		name     string
		existing bool
		verb     string
		err      error
		want     error
	}{
		{name: "the first", verb: "create"},
		{name: "another reason than before", existing: true, verb: "update"},
		{name: "it came a moment ago", verb: "create", err: taken},
		{name: "the API server has a bad day", verb: "create", err: errBadDay, want: errBadDay},
		{name: "and later", existing: true, verb: "update", err: errBadDay, want: errBadDay},
		{name: "somebody was faster", existing: true, verb: "update", err: conflict, want: conflict},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := judged()
			var existing *corev1.Secret
			client := fake.NewClientset()
			if row.existing {
				existing = p.refusalSecret(result.Stalled(fleet.ReasonDenied, "before"))
				existing.ResourceVersion = "7"
				client = fake.NewClientset(existing)
			}
			if row.err != nil {
				client = failing(row.verb, row.err)
			}
			p.Kubernetes = client
			err := p.writeRefusal(t.Context(), existing, p.refusalSecret(inUse))
			require.Len(t, client.Actions(), 1)
			assert.Equal(t, row.verb, client.Actions()[0].GetVerb())
			if row.want == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, row.want)
			assert.ErrorContains(t, err, "which tells the agent why it is refused")
		})
	}
}

func TestARefusalIsWithdrawnWhenThereIsHopeAgain(t *testing.T) {
	wait := result.Wait(fleet.ReasonWaitingForApproval, "")
	for _, row := range []struct {
		name    string
		secret  func(*pass) *corev1.Secret
		deleted bool
	}{
		{"a refusal", func(p *pass) *corev1.Secret { return p.refusalSecret(inUse) }, true},
		{"nothing", func(*pass) *corev1.Secret { return &corev1.Secret{} }, false},
		{"a credential of an earlier pass", func(p *pass) *corev1.Secret { return p.credentialSecret("bearer") }, false},
		{"a refusal of another request", func(p *pass) *corev1.Secret {
			s := p.refusalSecret(inUse)
			s.Annotations[fleet.ClusterRegistrationAnnotation] = "other"
			return s
		}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := judged()
			secret := row.secret(p)
			client := fake.NewClientset(secret)
			p.Kubernetes, p.secrets = client, secretsOf{all: []*corev1.Secret{secret}}
			require.NoError(t, p.answer(t.Context(), wait))
			if !row.deleted {
				assert.Empty(t, client.Actions())
				return
			}
			require.Len(t, client.Actions(), 1)
			assert.Equal(t, "delete", client.Actions()[0].GetVerb())
		})
	}
	p := judged()
	p.secrets = secretsOf{err: errBadDay}
	require.ErrorIs(t, p.answer(t.Context(), wait), errBadDay)
	p.secrets, p.Kubernetes = secretsOf{all: []*corev1.Secret{p.refusalSecret(inUse)}}, failing("delete", errBadDay)
	require.ErrorIs(t, p.answer(t.Context(), wait), errBadDay)
	require.ErrorIs(t, p.ensureCredential(t.Context()).Err, errBadDay, "nor is a credential written over it")
}

func TestARefusalLivesAsLongAsItsRequest(t *testing.T) {
	p, client := judged(), fake.NewClientset()
	p.Kubernetes, p.Passes = client, guard.NewPasses(t.Context())
	secret := p.refusalSecret(inUse) // created at the beginning of time
	_, err := p.expireCredential("", secret)
	require.NoError(t, err)
	assert.Empty(t, client.Actions())

	p.cache = requestsOf{err: errBadDay}
	_, err = p.expireCredential("", secret)
	require.ErrorIs(t, err, errBadDay)
	assert.Empty(t, client.Actions())

	p.cache = requestsOf{}
	_, err = p.expireCredential("", secret)
	require.NoError(t, err)
	require.Len(t, client.Actions(), 1)
	assert.Equal(t, "delete", client.Actions()[0].GetVerb())
}
