package registration

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// MaxClientIDLength is the maximum length of a clientID. The CRD counts characters and the hub counts bytes, so the hub also refuses some that the
// CRD accepts. The hub checks at all because another component may have installed a CRD without the limit.
const MaxClientIDLength = 4096

// Explanation says why a request is refused, waits or is approved: a constant reason for machines, and a message for people.
type Explanation struct {
	Reason  string
	Message string
}

// ClusterMatch is the Cluster of a request. Exactly one field is set.
type ClusterMatch struct {
	Use    *fleet.Cluster // an existing Cluster
	Create string         // a new Cluster of that name
	Wait   *Explanation   // retry on an event of the Cluster in the message
	Refuse *Explanation   // refuse until the object in the message changes
}

// MatchCluster finds the Cluster of a clientID. owners are the Clusters of the request's namespace with that clientID, and
// sameName is the Cluster, if any, with the name that a new one would get.
func MatchCluster(clientID string, owners []*fleet.Cluster, sameName *fleet.Cluster) ClusterMatch {
	if refusal := checkClientID(clientID); refusal != nil {
		return ClusterMatch{Refuse: refusal}
	}
	living := slices.DeleteFunc(slices.Clone(owners), func(c *fleet.Cluster) bool { return c.DeletionTimestamp != nil })
	switch {
	case len(living) > 1:
		return ClusterMatch{Refuse: ambiguous(living)}
	case len(living) == 1:
		return ClusterMatch{Use: living[0]}
	case len(owners) > 0:
		return ClusterMatch{Wait: waitDeleted(owners[0].Name)}
	}
	return matchNew(clientID, sameName)
}

func matchNew(clientID string, sameName *fleet.Cluster) ClusterMatch {
	switch {
	case sameName == nil:
		return ClusterMatch{Create: ClusterName(clientID)}
	case sameName.DeletionTimestamp != nil:
		return ClusterMatch{Wait: waitDeleted(sameName.Name)}
	case sameName.Spec.ClientID == clientID:
		return ClusterMatch{Use: sameName} // created between the two look-ups
	}
	return ClusterMatch{Refuse: &Explanation{
		Reason: fleet.ReasonClusterNameTaken,
		Message: fmt.Sprintf("Cluster %s has the name of a Cluster for this clientID, but another clientID; "+
			"delete that Cluster or give this agent another clientID", sameName.Name),
	}}
}

func checkClientID(clientID string) *Explanation {
	switch {
	case strings.TrimSpace(clientID) == "":
		return &Explanation{fleet.ReasonClientIDEmpty, "spec.clientID is empty; an agent sends its configured clientID or the UID of its kube-system namespace"}
	case len(clientID) > MaxClientIDLength:
		return &Explanation{fleet.ReasonClientIDTooLong, fmt.Sprintf("spec.clientID has %d bytes, at most %d are accepted", len(clientID), MaxClientIDLength)}
	}
	return nil
}

// ambiguous names a limited number of Clusters: the message is part of the answer to each request, and users may create any number of Clusters.
// It does not say how many others there are, because each change of the message would be a write for each request.
func ambiguous(clusters []*fleet.Cluster) *Explanation {
	const most = 10
	names := make([]string, len(clusters))
	for i, c := range clusters {
		names[i] = c.Name
	}
	slices.Sort(names)
	text := strings.Join(names[:min(len(names), most)], ", ")
	if len(names) > most {
		text += " and others"
	}
	return &Explanation{
		Reason:  fleet.ReasonClientIDAmbiguous,
		Message: fmt.Sprintf("Clusters %s all have this clientID; change or delete all but one", text),
	}
}

func waitDeleted(cluster string) *Explanation {
	return &Explanation{fleet.ReasonClusterDeleting, fmt.Sprintf("waiting for Cluster %s to be deleted", cluster)}
}

// KnownToken describes a ClusterRegistrationToken to MatchToken.
type KnownToken struct {
	Name           string
	ServiceAccount string
	// Users are further users who may register with the token: the users of bootstrap tokens of Kubernetes.
	Users []string
}

// MatchToken finds the token whose ServiceAccount may read the credential of a request. claimed is the token name on the request, and
// found is the token with that name, if any. For agents of versions that send no name it uses the token made for their Cluster, or
// the only one of the namespace; among several it cannot know which one the agent holds. The caller leaves out tokens that were created after
// the request.
func MatchToken(claimed string, found, importToken *KnownToken, namespaceTokens []KnownToken) (*KnownToken, *Explanation) {
	switch {
	case found != nil:
		return found, nil
	case claimed != "":
		return nil, &Explanation{fleet.ReasonTokenNotFound, fmt.Sprintf(
			"ClusterRegistrationToken %s, named by the request, does not exist, or was created after the request: the token of the request expired, "+
				"was deleted or is of another namespace; register with a new token", claimed)}
	case importToken != nil:
		return importToken, nil
	case len(namespaceTokens) == 1:
		return &namespaceTokens[0], nil
	}
	return nil, &Explanation{fleet.ReasonTokenUnknown, fmt.Sprintf(
		"the request names no ClusterRegistrationToken and the namespace has %d that may be its token; register with an agent that names its token, "+
			"or keep a single token in the namespace", len(namespaceTokens))}
}

// HasAssumedToken reports whether a request names no token and has no recorded creator. The annotation of the creator counts even on a request from
// before the policies were in force: a user who could forge it could name a token as well.
func HasAssumedToken(request *fleet.ClusterRegistration) bool {
	return request.Labels[fleet.RegistrationTokenLabel] == "" && request.Annotations[fleet.CreatorAnnotation] == ""
}

// newestFirst compares the creation times of requests, which have a resolution of one second, and then the names.
func newestFirst(a, b *fleet.ClusterRegistration) int {
	return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(b.Name, a.Name))
}

// Superseded returns the older requests of the same agent, which the hub deletes when this one is granted or, if the agent renews its credential,
// when the agent uses the credential of this one. others are the requests with the same clientID in the namespace. A granted request of the same
// second counts as older. Requests that are being deleted are left out.
func Superseded(self *fleet.ClusterRegistration, others []*fleet.ClusterRegistration) (older []*fleet.ClusterRegistration) {
	for _, r := range others {
		if r.Name == self.Name || r.Spec.ClientRandom == self.Spec.ClientRandom || r.DeletionTimestamp != nil {
			continue
		}
		age := self.CreationTimestamp.Compare(r.CreationTimestamp.Time)
		if age > 0 || r.Status.Granted && age == 0 {
			older = append(older, r)
		}
	}
	return older
}

// MostUnused is the maximum number of granted requests of one identity, in addition to the one that is being granted, whose credential no agent
// has used.
const MostUnused = 10

// OldestUnused returns the oldest of these requests above MostUnused.
func OldestUnused(unused []*fleet.ClusterRegistration) []*fleet.ClusterRegistration {
	unused = slices.SortedFunc(slices.Values(unused), newestFirst)
	return unused[min(len(unused), MostUnused):]
}

// NewerGranted returns the newest of the granted requests that are newer than this one, or nil. An old request that is
// reconciled late, for example after an outage, must not revoke the agent's current credential. A granted request whose token is only
// assumed may come from another agent, so it supersedes only requests whose token is assumed as well. Requests that are being deleted are left out.
// The result does not depend on the order of others, because it is part of a message, and each change of the message would be a status write.
func NewerGranted(self *fleet.ClusterRegistration, others []*fleet.ClusterRegistration) (newest *fleet.ClusterRegistration) {
	for _, r := range others {
		isNewer := r.CreationTimestamp.After(self.CreationTimestamp.Time) && r.Spec.ClientRandom != self.Spec.ClientRandom
		mayCount := r.Status.Granted && r.DeletionTimestamp == nil && (HasAssumedToken(self) || !HasAssumedToken(r))
		if isNewer && mayCount && (newest == nil || newestFirst(r, newest) < 0) {
			newest = r
		}
	}
	return newest
}

// TooManyAssumed refuses a request whose token is only assumed, and whose agent does not renew its credential, if MostUnused+1 granted requests of the
// identity are of that kind. It supersedes none of them, because it may come from another agent, and nothing shows which of their credentials are
// used. So there could be any number of them.
func TooManyAssumed(request *fleet.ClusterRegistration, granted []*fleet.ClusterRegistration) *Explanation {
	assumed := 0
	for _, r := range granted {
		if HasAssumedToken(r) {
			assumed++
		}
	}
	if a := request.Status.Approval; assumed <= MostUnused || a != nil && a.Decision == fleet.DecisionApproved {
		return nil
	}
	return &Explanation{fleet.ReasonClientIDInUse, fmt.Sprintf(
		"%d requests with this clientID that name no ClusterRegistrationToken are granted; delete those whose agents are gone, approve the request with "+
			"\"muster -n %s approve %s\", or register with an agent that names its token", assumed, request.Namespace, request.Name)}
}
