package v1alpha1

import "github.com/muster-fleet/muster/pkg/apis/internal/readable"

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
