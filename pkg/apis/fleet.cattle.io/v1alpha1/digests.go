package v1alpha1

import (
	"crypto/sha256"
	"unique"
)

// SpecDigests is not part of the API. In the caches of the hub it stands for the fields of a BundleDeploymentSpec that users fill. It is
// immutable.
// +k8s:deepcopy-gen=false
type SpecDigests struct {
	Options, StagedOptions, DependsOn, CorrectDrift, HelmChartOptions FieldDigest
	// DeployedDrift is the correctDrift in the options, the zero value without one.
	DeployedDrift struct {
		IsSet bool
		CorrectDrift
	}
}

// DeepCopy returns the same digests.
func (d *SpecDigests) DeepCopy() *SpecDigests { return d }

// FieldDigest is the digest of a field as JSON, zero for an empty one, and what the hub reads of the field.
// +k8s:deepcopy-gen=false
type FieldDigest struct {
	Sum [sha256.Size]byte
	// Sources are the Secrets and ConfigMaps that the field names, in a format of package bundle. Equal texts are in memory once.
	Sources unique.Handle[string]
}

// MemoryExcess is why the caches of the hub lack the large parts of an object: the large objects of its workspace would take more memory than the limit.
// It is zero for an object that is whole, or that is too large by itself.
type MemoryExcess struct {
	// Size is the memory of the object, and Limit that of all large objects of the workspace, in bytes.
	Size, Limit int64
}
