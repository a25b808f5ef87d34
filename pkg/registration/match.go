package registration

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

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

// KnownCluster describes an existing Cluster to MatchCluster.
type KnownCluster struct {
	Name     string
	ClientID string
	Deleting bool
}

// ClusterMatch is the Cluster of a request. Exactly one field is set.
type ClusterMatch struct {
	Use    string       // the existing Cluster of that name
	Create string       // a new Cluster of that name
	Wait   *Explanation // retry on an event of the Cluster in the message
	Refuse *Explanation // refuse until the object in the message changes
}

// MatchCluster finds the Cluster of a clientID. owners are the Clusters of the request's namespace with that clientID, and
// sameName is the Cluster, if any, with the name that a new one would get.
func MatchCluster(clientID string, owners []KnownCluster, sameName *KnownCluster) ClusterMatch {
	if refusal := checkClientID(clientID); refusal != nil {
		return ClusterMatch{Refuse: refusal}
	}
	living := slices.DeleteFunc(slices.Clone(owners), func(k KnownCluster) bool { return k.Deleting })
	switch {
	case len(living) > 1:
		return ClusterMatch{Refuse: ambiguous(living)}
	case len(living) == 1:
		return ClusterMatch{Use: living[0].Name}
	case len(owners) > 0:
		return ClusterMatch{Wait: waitDeleted(owners[0].Name)}
	}
	return matchNew(clientID, sameName)
}

func matchNew(clientID string, sameName *KnownCluster) ClusterMatch {
	switch {
	case sameName == nil:
		return ClusterMatch{Create: ClusterName(clientID)}
	case sameName.Deleting:
		return ClusterMatch{Wait: waitDeleted(sameName.Name)}
	case sameName.ClientID == clientID:
		return ClusterMatch{Use: sameName.Name} // created between the two look-ups
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
func ambiguous(clusters []KnownCluster) *Explanation {
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

// AgentRequest is one of the requests of an agent: those with the same clientID in one namespace.
type AgentRequest struct {
	Name         string
	ClientRandom string
	Created      time.Time
	Granted      bool
	AssumedToken bool // the request names no token, and has no recorded creator
}

// Superseded returns the older requests of the same agent, which the hub deletes when this one is granted or, if the agent renews its credential,
// when the agent uses the credential of this one. A granted request of the same second counts as older, because creation times have a resolution of one second.
func Superseded(self AgentRequest, others []AgentRequest) []string {
	var names []string
	for _, r := range others {
		if r.Name == self.Name || r.ClientRandom == self.ClientRandom {
			continue
		}
		if r.Created.Before(self.Created) || r.Granted && r.Created.Equal(self.Created) {
			names = append(names, r.Name)
		}
	}
	slices.Sort(names)
	return names
}

// MostUnused is the maximum number of granted requests of one identity, in addition to the one that is being granted, whose credential no agent
// has used.
const MostUnused = 10

// OldestUnused returns the oldest of these requests above MostUnused.
func OldestUnused(unused []AgentRequest) (names []string) {
	unused = slices.Clone(unused)
	slices.SortFunc(unused, func(a, b AgentRequest) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(b.Name, a.Name))
	})
	for _, r := range unused[min(len(unused), MostUnused):] {
		names = append(names, r.Name)
	}
	return names
}

// NewerGranted names the newest of the granted requests that are newer than this one, or "". An old request that is
// reconciled late, for example after an outage, must not revoke the agent's current credential. A granted request whose token is only
// assumed may come from another agent, so it supersedes only requests whose token is assumed as well. The result does not depend on the order of
// others, because it is part of a message, and each change of the message would be a status write.
func NewerGranted(self AgentRequest, others []AgentRequest) string {
	newest := self
	for _, r := range others {
		newer := cmp.Or(r.Created.Compare(newest.Created), cmp.Compare(r.Name, newest.Name)) > 0
		if r.Granted && (self.AssumedToken || !r.AssumedToken) && r.Created.After(self.Created) && r.ClientRandom != self.ClientRandom && newer {
			newest = r
		}
	}
	if newest == self {
		return ""
	}
	return newest.Name
}

// TooManyAssumed refuses a request whose token is only assumed, and whose agent does not renew its credential, if MostUnused+1 granted requests of the
// identity are of that kind. It supersedes none of them, because it may come from another agent, and nothing shows which of their credentials are
// used. So there could be any number of them.
func TooManyAssumed(request *fleet.ClusterRegistration, granted []AgentRequest) *Explanation {
	assumed := 0
	for _, r := range granted {
		if r.AssumedToken {
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
