package clusterregistration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestTheTokenBehindARequestAndWhoSentIt(t *testing.T) {
	tokens := func(p *pass, names ...string) {
		var all []*fleet.ClusterRegistrationToken
		for _, name := range names {
			token := someToken()
			token.Name = name
			all = append(all, token)
		}
		p.tokens = tokensOf{all: all}
	}
	silent := func(p *pass) { p.request.Labels = nil }
	for _, row := range []struct {
		name   string
		change func(*pass)
		token  string
		origin string
		says   string
	}{
		{"the one it names", func(*pass) {}, "token", "True OriginProved", ""},
		{"one that is gone", func(p *pass) { p.tokens = tokensOf{} }, "", "True OriginProved", "False TokenNotFound"},
		{"one that is going", func(p *pass) {
			token := someToken()
			token.DeletionTimestamp = &metav1.Time{Time: noon}
			p.tokens = tokensOf{all: []*fleet.ClusterRegistrationToken{token}}
		}, "", "True OriginProved", "False TokenNotFound"},
		{"one whose time is over, though nobody has deleted it", func(p *pass) {
			token := someToken()
			token.CreationTimestamp, token.Spec.TTL = metav1.NewTime(noon.Add(-time.Hour)), &metav1.Duration{Duration: time.Hour}
			p.tokens = tokensOf{all: []*fleet.ClusterRegistrationToken{token}}
		}, "", "True OriginProved", "False TokenNotFound"},
		{
			"one whose holder did not send it", func(p *pass) { tokens(p, "token", "other"); p.request.Labels[fleet.RegistrationTokenLabel] = "other" },
			"other", "False TokenMismatch", "",
		},
		{"none named, the API server knows whose it is", func(p *pass) { silent(p); tokens(p, "other", "token", "third") }, "token", "True OriginProved", ""},
		{"none named, nobody knows, there is one", func(p *pass) { silent(p); p.Admission = &recorded{missing: "x"} }, "token", "False PolicyMissing", ""},
		{"none named, nobody knows, there are two", func(p *pass) {
			silent(p)
			tokens(p, "token", "other")
			p.Admission = nil
		}, "", "False PolicyMissing", "False TokenUnknown"},
		{"none named, nobody knows, one is for the import", func(p *pass) {
			silent(p)
			tokens(p, "token", registration.ImportTokenName("member"))
			p.Admission = nil
		}, "import-token-member", "False PolicyMissing", ""},
		{"none named, a person sent it", func(p *pass) { silent(p); p.request.Annotations[fleet.CreatorAnnotation] = "admin" }, "token", "False TokenMismatch", ""},
		{"sent before anybody recorded it", func(p *pass) { p.Admission = &recorded{since: noon.Add(time.Second)} }, "token", "False OriginUnknown", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := judged()
			row.change(p)
			out := p.proveOrigin(t.Context())
			assert.Equal(t, row.origin, conditionText(p, fleet.ConditionOriginProved))
			if row.token == "" {
				assert.Equal(t, row.says, text(out))
				assert.Nil(t, p.reader)
				assert.Positive(t, out.After, "it is looked at again")
				return
			}
			require.True(t, out.IsDone())
			assert.Equal(t, row.token, p.reader.Name)
			assert.Equal(t, row.token, p.token.Name)
			assert.Equal(t, registration.TokenServiceAccount(row.token, "uid"), p.reader.ServiceAccount)
		})
	}
}

func TestAnErrorOfTheCacheIsNoJudgement(t *testing.T) {
	p := judged()
	p.tokens = tokensOf{err: errBadDay}
	require.ErrorIs(t, p.proveOrigin(t.Context()).Err, errBadDay)
	assert.Empty(t, p.after.Conditions)
	require.ErrorIs(t, p.keepReader(t.Context()).Err, errBadDay)
}

func TestAGrantedRequestKeepsItsReaderOrLosesItWithTheToken(t *testing.T) {
	p := judged()
	require.True(t, p.keepReader(t.Context()).IsDone())
	assert.Equal(t, "token", p.reader.Name)
	p.reader, p.tokens = nil, tokensOf{}
	require.True(t, p.keepReader(t.Context()).IsDone(), "it stays granted")
	assert.Nil(t, p.reader)
	assert.Empty(t, p.after.Conditions, "and is not judged again")
}
