package clusterimport

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/standing"
	"github.com/muster-fleet/muster/pkg/registration"
)

// registrationFor is what the agent's registration is to be made for: "<UID of the Cluster>", and behind a slash what made
// the one before it void. It stays the same until there is a new cause, so that a cause that is over asks for nothing.
func registrationFor(cluster *fleet.Cluster, s standing.Standing, now time.Time) string {
	switch {
	case s.Revoked != nil:
		return caused(cluster.UID, string(s.Revoked.UID))
	case s.Lost(cluster):
		return caused(cluster.UID, fmt.Sprintf("lost-%d", cluster.Status.Agent.LastSeen.Unix()))
	case standing.Expired(cluster, now):
		return caused(cluster.UID, fmt.Sprintf("expired-%d", cluster.Status.Agent.CredentialExpires.Unix()))
	}
	if last := cluster.Status.Import; last != nil && strings.HasPrefix(last.RegistrationOf, caused(cluster.UID, "")) {
		return last.RegistrationOf
	}
	return string(cluster.UID)
}

func caused(uid types.UID, cause string) string { return string(uid) + "/" + cause }

// atAnotherWay is for agents of other releases, which cannot be told of another way to the hub but by registering there: the
// way becomes part of what their registration is made for.
func atAnotherWay(cluster *fleet.Cluster, registrationFor string, d delivery) string {
	if !foreign(cluster.Status) || sameWay(cluster.Status, d) {
		return registrationFor
	}
	return caused(cluster.UID, "way-"+digest(d.apiServerURL, registration.CAHash(d.apiServerCA)))
}

// foreign says whether an agent was heard of that says neither its version nor how it was started: none of this release.
func foreign(status fleet.ClusterStatus) bool {
	return !status.Agent.LastSeen.IsZero() && status.Agent.Generation == "" && status.Agent.Version == ""
}

// registrationKey tells the agent which registration it should hold. It changes with what makes the old one useless or
// unwanted: another Cluster object, a redeployment asked for, a void credential. Another way to the hub is none of these:
// the agent tries there what it has.
func registrationKey(cluster *fleet.Cluster, registrationFor string) string {
	generation := fmt.Sprintf("/%d", cluster.Spec.RedeployAgentGeneration)
	last := cluster.Status.Import
	if last != nil && strings.HasSuffix(last.Registration, generation) && recordedFor(cluster) == registrationFor {
		return last.Registration
	}
	return digest(registrationFor) + generation
}

// recordedFor is what the registration of the last import was made for. Earlier versions did not note it and had the way to
// the hub in the key; an agent that holds such a one keeps it.
func recordedFor(cluster *fleet.Cluster) string {
	status := cluster.Status
	if status.Import.RegistrationOf != "" {
		return status.Import.RegistrationOf
	}
	if strings.HasPrefix(status.Import.Registration, digest(cluster.UID, status.APIServerURL, status.APIServerCAHash)+"/") {
		return string(cluster.UID)
	}
	return ""
}

// digest is not a KeyHash, which stops after a hundred bytes: an address may be longer.
func digest(parts ...any) string {
	const digits = 12
	hash, err := registration.StatusHash(parts)
	if err != nil {
		panic(fmt.Sprintf("strings always marshal: %v", err))
	}
	return hash[:digits]
}
