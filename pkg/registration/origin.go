package registration

import (
	"fmt"
	"slices"
	"time"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// OriginPolicies describes whether, and since when, admission policies prove where requests come from.
type OriginPolicies struct {
	InForce bool
	Since   time.Time
	Missing string // why they are not in force, for people
	// NotRecorded is the reason, for people, why the API server does not record the creators of requests; empty if it does. Without that
	// record, the policies let a request name only a token with which its creator may register.
	NotRecorded string
	// Hub is the user of this hub if it creates requests for Clusternet agents; otherwise empty.
	Hub string
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

// OriginOf returns what the API server has proved about the origin of a request. Users cannot change a recorded creator or a checked
// token name, but a request created before the policies were in force may contain any value.
func OriginOf(request *fleet.ClusterRegistration, policies OriginPolicies) Origin {
	creator, token := CreatorOf(request, policies.Hub), request.Labels[fleet.RegistrationTokenLabel]
	switch {
	case !policies.InForce:
		return Origin{Reason: fleet.ReasonPolicyMissing, Message: policies.Missing}
	case request.CreationTimestamp.Time.Before(policies.Since), creator == "" && policies.NotRecorded == "":
		return Origin{
			Reason:  fleet.ReasonOriginUnknown,
			Message: "the request was created before the admission policies of the hub were in force",
		}
	case creator != "":
		return Origin{Creator: creator, Reason: fleet.ReasonOriginProved, Message: CreatedBy(creator)}
	case token == "":
		return Origin{
			Reason:  fleet.ReasonOriginUnknown,
			Message: "the request names no ClusterRegistrationToken, and its creator is not recorded: " + policies.NotRecorded,
		}
	}
	return Origin{Reason: fleet.ReasonOriginProved, Message: "created by a user who may register with ClusterRegistrationToken " + token}
}

// CreatedBy is the message of condition OriginProved for a creator.
func CreatedBy(user string) string { return "created by " + Brief(user) }

// IsForClusternet reports whether the hub created the request for a Clusternet agent. hub is the user of the hub; empty if it does not.
func IsForClusternet(request *fleet.ClusterRegistration, hub string) bool {
	return hub != "" && request.Annotations[fleet.CreatorAnnotation] == hub && request.Annotations[fleet.RequesterAnnotation] != ""
}

// CreatorOf is the user who created a request, as the API server recorded it; "" if it recorded none. For a request that the hub created
// for a Clusternet agent it is the user who created the request of that agent.
func CreatorOf(request *fleet.ClusterRegistration, hub string) string {
	if IsForClusternet(request, hub) {
		return request.Annotations[fleet.RequesterAnnotation]
	}
	return request.Annotations[fleet.CreatorAnnotation]
}

// AssumesToken reports whether the token of a request is only assumed: the request names none, and its creator is not known. Such a token
// proves nothing about the sender. It decides who can read the credential, sets the labels of a new Cluster and limits, and, if it was made
// for the Cluster alone, permits a request for the identity that an agent holds.
func (o Origin) AssumesToken(request *fleet.ClusterRegistration) bool {
	return o.Creator == "" && request.Labels[fleet.RegistrationTokenLabel] == ""
}

// briefLength is the maximum length of quoted text in a message, in bytes.
const briefLength = 200

// Brief shortens quoted text, such as an error, for a message in a status.
func Brief(text string) string { return fleetstatus.Cut(text, briefLength) }

// For compares the creator with the ServiceAccount of a token.
func (o Origin) For(namespace string, token KnownToken) Origin {
	if o.Creator == "" || o.holds(namespace, token) {
		return o
	}
	o.Reason = fleet.ReasonTokenMismatch
	o.Message = fmt.Sprintf("the request is for ClusterRegistrationToken %s and was created by %s, which is not the ServiceAccount of that token",
		token.Name, Brief(o.Creator))
	return o
}

// holds reports whether the creator may register with a token.
func (o Origin) holds(namespace string, token KnownToken) bool {
	return o.Creator == AccountUser(namespace, token.ServiceAccount) || slices.Contains(token.Users, o.Creator)
}

// AccountUser is the user name of a ServiceAccount.
func AccountUser(namespace, account string) string {
	return "system:serviceaccount:" + namespace + ":" + account
}

// TokenOf finds the token whose ServiceAccount created the request, for agents that send no token name.
func (o Origin) TokenOf(namespace string, tokens []KnownToken) *KnownToken {
	for i, token := range tokens {
		if o.Creator != "" && o.holds(namespace, token) {
			return &tokens[i]
		}
	}
	return nil
}
