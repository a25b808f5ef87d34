package liveness

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rancher/wrangler/v3/pkg/apply"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Limits of a report. The same limits apply to an agent that writes status.agent itself: the CustomResourceDefinition limits the lengths of an instance
// and of a request's name, and the admission policy fleet-agent-status limits the whole and the number of quantities
// (fleetstatus.MaxQuantities).
const (
	maxReport      = 16384 // bytes of the JSON
	maxInstance    = 64
	maxRequestName = 253
)

// Reduce is the transform of the cache of Leases. An agent may write anything into the metadata of its Lease where the admission
// policies are not in force: only what the hub reads is kept.
func Reduce(object any) (any, error) {
	lease, ok := object.(*coordinationv1.Lease)
	if !ok {
		return object, nil
	}
	maps.DeleteFunc(lease.Labels, func(key, _ string) bool { return key != fleet.ManagedLabel && key != apply.LabelHash })
	maps.DeleteFunc(lease.Annotations, func(key, value string) bool {
		switch key {
		case apply.LabelID, apply.LabelGVK, apply.LabelName, apply.LabelNamespace, fleet.ClusterAnnotation, fleet.WorkspaceAnnotation,
			registration.LeaseProof, registration.LeaseCredential:
			return len(value) > maxRequestName
		case registration.LeaseReport:
			return false
		}
		return true
	})
	if text := lease.Annotations[registration.LeaseReport]; len(text) > maxReport {
		lease.Annotations[registration.LeaseReport] = strings.Clone(text[:maxReport+1]) // too long to be a report
	}
	lease.Finalizers = slices.Clone(lease.Finalizers[:min(len(lease.Finalizers), 1)]) // one shows that there are some: the hub then removes all
	if _, ok := clusterOf(lease); !ok {
		delete(lease.Annotations, registration.LeaseReport)
	}
	lease.OwnerReferences, lease.GenerateName = nil, ""
	lease.Spec.Strategy, lease.Spec.PreferredHolder = nil, nil
	if holder := lease.Spec.HolderIdentity; holder != nil && len(*holder) > maxInstance {
		lease.Spec.HolderIdentity = nil
	}
	return lease, nil
}

// clusterOf returns the Cluster of a Lease. An agent may write the annotations, but the name of the namespace is a hash of them.
func clusterOf(lease *coordinationv1.Lease) (key types.NamespacedName, ok bool) {
	key = types.NamespacedName{Namespace: lease.Annotations[fleet.WorkspaceAnnotation], Name: lease.Annotations[fleet.ClusterAnnotation]}
	return key, key.Name != "" && registration.ClusterNamespace(key.Namespace, key.Name) == lease.Namespace
}

// renewTime is the time of the last renewal by the agent's clock; zero if there was none, or if the API server would not store it in a status.
func renewTime(lease *coordinationv1.Lease) metav1.Time {
	if lease.Spec.RenewTime == nil || !storable(lease.Spec.RenewTime.Time) {
		return metav1.Time{}
	}
	return metav1.NewTime(lease.Spec.RenewTime.Time)
}

// storable reports whether the year is from 1 to 9998. The API server refuses a time whose year has more than four digits.
func storable(t time.Time) bool { return t.UTC().Year() > 0 && t.UTC().Year() < 9999 }

func sameReport(a, b *coordinationv1.Lease) bool {
	return a.Annotations[registration.LeaseReport] == b.Annotations[registration.LeaseReport] &&
		a.Annotations[registration.LeaseProof] == b.Annotations[registration.LeaseProof] && holderOf(a) == holderOf(b)
}

var digestSeed = maphash.MakeSeed()

// digestOfReport is a digest of the name of a Lease and of what sameReport compares.
func digestOfReport(lease *coordinationv1.Lease) uint64 {
	return maphash.Comparable(digestSeed, [5]string{
		lease.Name, lease.Annotations[registration.LeaseReport], lease.Annotations[registration.LeaseProof],
		lease.Annotations[registration.LeaseCredential], instanceOf(lease),
	})
}

// holderOf returns who has renewed a Lease.
func holderOf(lease *coordinationv1.Lease) holder {
	return holder{instance: instanceOf(lease), credential: lease.Annotations[registration.LeaseCredential]}
}

// instanceOf is the instance of the agent.
func instanceOf(lease *coordinationv1.Lease) string {
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// reportedFields returns the fields of fleet.AgentStatus that the report of the agent has. The first reports of an agent that has started lack the
// fields that it does not know yet.
func reportedFields(lease *coordinationv1.Lease) (fields map[string]json.RawMessage) {
	_ = json.Unmarshal([]byte(lease.Annotations[registration.LeaseReport]), &fields) // reportOf reports the error
	return fields
}

// reportOf decodes the report of the agent, without lastSeen and registration. The agent may write anything there, and the API server
// would refuse a status that is not valid.
func reportOf(lease *coordinationv1.Lease) (report fleet.AgentStatus, err error) {
	text := lease.Annotations[registration.LeaseReport]
	if text == "" {
		return fleet.AgentStatus{Instance: instanceOf(lease)}, nil
	}
	if len(text) > maxReport {
		return fleet.AgentStatus{}, fmt.Errorf("it has more than %d bytes", maxReport)
	}
	if report, err = fleetstatus.DecodeAgent([]byte(text)); err != nil {
		return fleet.AgentStatus{}, err
	}
	proof := lease.Annotations[registration.LeaseProof]
	if expires := report.CredentialExpires; expires != nil && !expires.IsZero() && !storable(expires.Time) {
		return fleet.AgentStatus{}, errors.New("the year of credentialExpires is out of range")
	}
	report.LastSeen, report.Registration = metav1.Time{}, ""
	report.Instance, report.PossessionProof = instanceOf(lease), proof
	return report, nil
}
