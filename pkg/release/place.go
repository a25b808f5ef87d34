package release

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// nameMax is the longest name Helm accepts: charts append to it, and names of Services have 63 characters.
const nameMax = 53

const nameHash = 8

// Place says where the release of a BundleDeployment goes and what it is called.
func Place(bundleDeployment string, o fleet.BundleDeploymentOptions) (namespace, name string) {
	name = bundleDeployment
	if o.Helm != nil && o.Helm.ReleaseName != "" {
		name = o.Helm.ReleaseName
	}
	for _, candidate := range []string{o.TargetNamespace, o.DefaultNamespace, metav1.NamespaceDefault} {
		if candidate != "" {
			return candidate, shorten(name)
		}
	}
	return "", ""
}

// shorten keeps a name that fits as it is. A digest of the whole keeps two long names apart that begin alike.
func shorten(name string) string {
	if len(name) <= nameMax {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return strings.TrimRight(name[:nameMax-nameHash-1], "-.") + "-" + hex.EncodeToString(sum[:])[:nameHash]
}
