package v1alpha1

import (
	"encoding/json"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/apis/internal/readable"
)

// UnmarshalJSON reads a Cluster and omits undecodable values.
func (c *Cluster) UnmarshalJSON(data []byte) error {
	type plain Cluster
	return readable.Unmarshal(data, (*plain)(c))
}

// UnmarshalJSON reads a Bundle and omits undecodable values.
func (b *Bundle) UnmarshalJSON(data []byte) error {
	type plain Bundle
	return readable.Unmarshal(data, (*plain)(b))
}

// UnmarshalJSON reads a BundleDeployment and omits undecodable values.
func (d *BundleDeployment) UnmarshalJSON(data []byte) error {
	type plain BundleDeployment
	return readable.Unmarshal(data, (*plain)(d))
}

// UnmarshalJSON reads a ClusterGroup and omits undecodable values.
func (g *ClusterGroup) UnmarshalJSON(data []byte) error {
	type plain ClusterGroup
	return readable.Unmarshal(data, (*plain)(g))
}

// UnmarshalJSON reads a ClusterRegistrationToken and omits undecodable values. Without a limit that its creator has set, the token would
// admit more than intended, so it counts as expired if its spec has such a value.
func (t *ClusterRegistrationToken) UnmarshalJSON(data []byte) error {
	type plain ClusterRegistrationToken
	if err := readable.Unmarshal(data, (*plain)(t)); err != nil {
		return err
	}
	var part struct {
		Spec ClusterRegistrationTokenSpec `json:"spec"`
	}
	if json.Unmarshal(data, &part) != nil {
		t.Spec.TTL = &metav1.Duration{Duration: time.Nanosecond}
	}
	return nil
}
