package registration

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

var since = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func sentBy(creator string, when time.Time) *fleet.ClusterRegistration {
	request := &fleet.ClusterRegistration{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(when)}}
	if creator != "" {
		request.Annotations = map[string]string{fleet.CreatorAnnotation: creator}
	}
	return request
}

func TestOriginOf(t *testing.T) {
	const holder = "system:serviceaccount:ns:tok-uid"
	recorded := OriginPolicies{InForce: true, Since: since}
	token := KnownToken{Name: "tok", ServiceAccount: "tok-uid", Users: []string{"system:bootstrap:abcdef"}}
	for _, row := range []struct {
		name      string
		creator   string
		when      time.Time
		recording OriginPolicies
		reason    string
		says      string
	}{
		{"the holder of the token", holder, since, recorded, fleet.ReasonOriginProved, "created by " + holder},
		{"later", holder, since.Add(time.Hour), recorded, fleet.ReasonOriginProved, holder},
		{"a moment too early", holder, since.Add(-time.Second), recorded, fleet.ReasonOriginUnknown, "before the admission policies"},
		{"nobody recorded it", "", since, recorded, fleet.ReasonOriginUnknown, "before the admission policies"},
		{"nobody records it now", holder, since, OriginPolicies{Since: since, Missing: "install it"}, fleet.ReasonPolicyMissing, "install it"},
		{"somebody else", "system:serviceaccount:ns:other-uid", since, recorded, fleet.ReasonTokenMismatch, "ns:other-uid, which is not"},
		{"a namesake elsewhere", "system:serviceaccount:elsewhere:tok-uid", since, recorded, fleet.ReasonTokenMismatch, "elsewhere:tok-uid"},
		{"the holder of its bootstrap token", "system:bootstrap:abcdef", since, recorded, fleet.ReasonOriginProved, "system:bootstrap:abcdef"},
		{"the holder of another bootstrap token", "system:bootstrap:abcdeg", since, recorded, fleet.ReasonTokenMismatch, "system:bootstrap:abcdeg"},
		{"a person", "admin", since, recorded, fleet.ReasonTokenMismatch, "created by admin"},
		{"somebody else, early", "thief", since.Add(-time.Second), recorded, fleet.ReasonOriginUnknown, ""},
		{"somebody else, unrecorded", "thief", since, OriginPolicies{}, fleet.ReasonPolicyMissing, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			origin := OriginOf(sentBy(row.creator, row.when), row.recording).For("ns", token)
			assert.Equal(t, row.reason, origin.Reason)
			assert.Contains(t, origin.Message, row.says)
			assert.Equal(t, row.reason == fleet.ReasonOriginProved, origin.Proved())
		})
	}
}

// Where the API server records no creators, it lets a request name a token only if its creator may register with it.
func TestOriginOfCheckedToken(t *testing.T) {
	checks := OriginPolicies{InForce: true, Since: since, NotRecorded: "the API server is too old"}
	token := KnownToken{Name: "tok", ServiceAccount: "tok-uid"}
	for _, row := range []struct {
		name           string
		creator, named string
		when           time.Time
		reason         string
		says           string
		assumes        bool
	}{
		{"names its token", "", "tok", since, fleet.ReasonOriginProved, "may register with ClusterRegistrationToken tok", false},
		{"names its token and itself", "system:serviceaccount:ns:tok-uid", "tok", since, fleet.ReasonOriginProved, "created by", false},
		{"an administrator names a token and itself", "admin", "tok", since, fleet.ReasonTokenMismatch, "created by admin", false},
		{"names itself only", "system:serviceaccount:ns:tok-uid", "", since, fleet.ReasonOriginProved, "created by", false},
		{"names none", "", "", since, fleet.ReasonOriginUnknown, "names no ClusterRegistrationToken, and its creator is not recorded: the API server is too old", true},
		{"names one, a moment too early", "", "tok", since.Add(-time.Second), fleet.ReasonOriginUnknown, "before the admission policies", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			request := sentBy(row.creator, row.when)
			request.Labels = map[string]string{fleet.RegistrationTokenLabel: row.named}
			origin := OriginOf(request, checks).For("ns", token)
			assert.Equal(t, row.reason, origin.Reason)
			assert.Contains(t, origin.Message, row.says)
			assert.Equal(t, row.assumes, origin.AssumesToken(request))
		})
	}
}

func TestOriginTokenOf(t *testing.T) {
	tokens := []KnownToken{{Name: "a", ServiceAccount: "a-1"}, {Name: "b", ServiceAccount: "b-2"}}
	assert.Equal(t, &tokens[1], Origin{Creator: "system:serviceaccount:ns:b-2"}.TokenOf("ns", tokens))
	assert.Nil(t, Origin{Creator: "system:serviceaccount:other:b-2"}.TokenOf("ns", tokens))
	assert.Nil(t, Origin{Creator: "admin"}.TokenOf("ns", tokens))
	assert.Nil(t, Origin{}.TokenOf("ns", tokens), "nobody recorded it")
	assert.Nil(t, Origin{}.TokenOf("ns", []KnownToken{{}}))
}

func FuzzOriginOf(f *testing.F) {
	f.Add("admin")
	f.Add(strings.Repeat("é", 300))
	f.Fuzz(func(t *testing.T, creator string) {
		origin := OriginOf(sentBy(creator, since), OriginPolicies{InForce: true, Since: since}).For("ns", KnownToken{Name: "t", ServiceAccount: "s"})
		assert.Equal(t, creator == "", origin.Reason == fleet.ReasonOriginUnknown)
		assert.Less(t, len(origin.Message), 400)
		assert.True(t, !utf8.ValidString(creator) || utf8.ValidString(origin.Message))
	})
}

// Only the hub can say for whom it created a request.
func TestCreatorOf(t *testing.T) {
	const hub = "system:serviceaccount:cattle-fleet-system:fleet-controller"
	for _, row := range []struct{ name, hub, creator, requester, want string }{
		{"a request of the hub", hub, hub, "the agent", "the agent"},
		{"of somebody who claims that", hub, "somebody", "the agent", "somebody"},
		{"of the hub for itself", hub, hub, "", hub},
		{"of a hub that serves no such agents", "", hub, "the agent", hub},
		{"without a recorded creator", hub, "", "the agent", ""},
		{"without a recorded creator, on a hub without a name", "", "", "the agent", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			request := &fleet.ClusterRegistration{}
			request.Annotations = map[string]string{fleet.CreatorAnnotation: row.creator, fleet.RequesterAnnotation: row.requester}
			assert.Equal(t, row.want, CreatorOf(request, row.hub))
			request.Labels = map[string]string{fleet.RegistrationTokenLabel: "tok"}
			if row.want != "" {
				assert.Equal(t, row.want, OriginOf(request, OriginPolicies{InForce: true, Hub: row.hub}).Creator)
			}
		})
	}
}
