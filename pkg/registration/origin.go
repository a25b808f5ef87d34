package registration

import (
	"fmt"
	"strings"
	"time"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Recording is whether, and since when, the API server records who creates a request.
type Recording struct {
	InForce bool
	Since   time.Time
	Missing string // what keeps it from doing so, for people
}

// Origin is what is known of who created a request.
type Origin struct {
	// Creator is the user, as the API server recorded it; "" where only the request itself says so.
	Creator string
	// Reason and Message are those of condition OriginProved.
	Reason, Message string
}

// Proved says whether the condition is True.
func (o Origin) Proved() bool { return o.Reason == fleet.ReasonOriginProved }

// OriginOf is what the API server has recorded. Nobody could change it since; what was created before may say anything.
func OriginOf(request *fleet.ClusterRegistration, recording Recording) Origin {
	creator := request.Annotations[fleet.CreatorAnnotation]
	switch {
	case !recording.InForce:
		return Origin{Reason: fleet.ReasonPolicyMissing, Message: recording.Missing}
	case creator == "" || request.CreationTimestamp.Time.Before(recording.Since):
		return Origin{
			Reason:  fleet.ReasonOriginUnknown,
			Message: "the request was created before the API server recorded by whom",
		}
	}
	return Origin{Creator: creator, Reason: fleet.ReasonOriginProved, Message: "created by " + Brief(creator)}
}

// briefLength bounds what is repeated of strings of somebody else.
const briefLength = 200

// Brief bounds a text that repeats what somebody else wrote, as an error may: it gets into a status.
func Brief(text string) string {
	if len(text) <= briefLength {
		return text
	}
	return strings.ToValidUTF8(text[:briefLength], "") + "..."
}

// For compares the creator with the one who may use a token: the ServiceAccount the hub made for it.
func (o Origin) For(namespace string, token Token) Origin {
	if o.Creator == "" || o.Creator == AccountUser(namespace, token.ServiceAccount) {
		return o
	}
	o.Reason = fleet.ReasonTokenMismatch
	o.Message = fmt.Sprintf("the request is for ClusterRegistrationToken %s and was created by %s, which is not the ServiceAccount of that token",
		token.Name, Brief(o.Creator))
	return o
}

// AccountUser is the name by which an API server knows a ServiceAccount.
func AccountUser(namespace, account string) string {
	return "system:serviceaccount:" + namespace + ":" + account
}

// TokenOf finds the token whose ServiceAccount created the request, for agents that name none.
func (o Origin) TokenOf(namespace string, tokens []Token) *Token {
	for i, token := range tokens {
		if o.Creator != "" && o.Creator == AccountUser(namespace, token.ServiceAccount) {
			return &tokens[i]
		}
	}
	return nil
}
