package v1alpha1

import (
	"slices"
	"strings"

	"github.com/muster-fleet/muster/pkg/apis/internal/readable"
)

// UnmarshalJSON reads a Cluster and omits undecodable values.
func (c *Cluster) UnmarshalJSON(data []byte) error {
	type plain Cluster
	_, err := readable.Unmarshal(data, (*plain)(c), quantityPaths...)
	return err
}

// quantityPaths are the quantities of a Cluster.
var quantityPaths = []string{
	"spec.agentResources.limits.*", "spec.agentResources.requests.*", "spec.agentEnvVars.*.valueFrom.resourceFieldRef.divisor",
	"status.agent.capacity.*", "status.agent.allocatable.*",
}

// UnmarshalJSON reads a Bundle and omits undecodable values.
func (b *Bundle) UnmarshalJSON(data []byte) error {
	type plain Bundle
	_, err := readable.Unmarshal(data, (*plain)(b))
	return err
}

// UnmarshalJSON reads a BundleDeployment and omits undecodable values.
func (d *BundleDeployment) UnmarshalJSON(data []byte) error {
	type plain BundleDeployment
	_, err := readable.Unmarshal(data, (*plain)(d))
	return err
}

// UnmarshalJSON reads a ClusterGroup and omits undecodable values.
func (g *ClusterGroup) UnmarshalJSON(data []byte) error {
	type plain ClusterGroup
	_, err := readable.Unmarshal(data, (*plain)(g))
	return err
}

// UnmarshalJSON reads a ClusterRegistrationToken, omits undecodable values, and names those of the spec in Undecodable. A negative ttl counts as one: the
// CustomResourceDefinition of Fleet admits it, and a token with it would never expire.
func (t *ClusterRegistrationToken) UnmarshalJSON(data []byte) error {
	type plain ClusterRegistrationToken
	omitted, err := readable.Unmarshal(data, (*plain)(t))
	omitted = slices.DeleteFunc(omitted, func(field string) bool { return strings.HasPrefix(field, "status") })
	if t.Spec.TTL != nil && t.Spec.TTL.Duration < 0 {
		t.Spec.TTL = nil
		omitted = append(omitted, "spec.ttl")
	}
	t.Undecodable = strings.Join(omitted, ", ")
	return err
}
