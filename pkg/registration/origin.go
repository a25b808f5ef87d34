package registration

import (
	"fmt"
	"strings"
	"time"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// CreatorRecording describes whether, and since when, the API server records the creators of requests.
type CreatorRecording struct {
	InForce bool
	Since   time.Time
	Missing string // why not, for people
}

// Origin is the creator of a request and the content of condition OriginProved.
type Origin struct {
	// Creator is the user that the API server recorded; "" if it recorded none.
	Creator string
	// Reason and Message are those of condition OriginProved.
	Reason, Message string
}

// Proved reports whether condition OriginProved is True.
func (o Origin) Proved() bool { return o.Reason == fleet.ReasonOriginProved }

// OriginOf returns the recorded creator. Users cannot change a recorded creator, but a request created before recording began may
// contain any value.
func OriginOf(request *fleet.ClusterRegistration, recording CreatorRecording) Origin {
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

// briefLength is the maximum length of foreign text in a message, in bytes.
const briefLength = 200

// Brief shortens foreign text, such as an error, for a message in a status.
func Brief(text string) string {
	if len(text) <= briefLength {
		return text
	}
	return strings.ToValidUTF8(text[:briefLength], "") + "..."
}

// For compares the creator with the ServiceAccount of a token.
func (o Origin) For(namespace string, token Token) Origin {
	if o.Creator == "" || o.Creator == AccountUser(namespace, token.ServiceAccount) {
		return o
	}
	o.Reason = fleet.ReasonTokenMismatch
	o.Message = fmt.Sprintf("the request is for ClusterRegistrationToken %s and was created by %s, which is not the ServiceAccount of that token",
		token.Name, Brief(o.Creator))
	return o
}

// AccountUser is the user name of a ServiceAccount.
func AccountUser(namespace, account string) string {
	return "system:serviceaccount:" + namespace + ":" + account
}

// TokenOf finds the token whose ServiceAccount created the request, for agents that send no token name.
func (o Origin) TokenOf(namespace string, tokens []Token) *Token {
	for i, token := range tokens {
		if o.Creator != "" && o.Creator == AccountUser(namespace, token.ServiceAccount) {
			return &tokens[i]
		}
	}
	return nil
}
