package release

import (
	"cmp"
	"crypto/md5" //nolint:gosec // Fleet's agent computes these names with MD5; they protect nothing
	"encoding/hex"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// nameMax is Helm's limit for release names: charts append to them, and names of Services have 63 characters.
const nameMax = 53

var (
	notInNames    = regexp.MustCompile(`[^a-z0-9-]`)
	severalDashes = regexp.MustCompile(`-+`)
	releaseName   = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
)

// Place returns the namespace and the name of the release of a BundleDeployment, as Fleet's own agent computes them.
func Place(bundleDeployment string, o fleet.BundleDeploymentOptions) (namespace, name string) {
	if o.Helm != nil {
		name = o.Helm.ReleaseName
	}
	return cmp.Or(o.TargetNamespace, o.DefaultNamespace, metav1.NamespaceDefault), cmp.Or(name, nameFor(bundleDeployment))
}

// nameFor makes a release name of the name of a BundleDeployment. Digests distinguish names that would become the same.
func nameFor(bundleDeployment string) string {
	digest := func(text string, length int) string {
		sum := md5.Sum([]byte(text)) //nolint:gosec // see the import
		return hex.EncodeToString(sum[:])[:length]
	}
	const changedDigest, cutDigest, wholeDigest = 8, 5, 24
	name := strings.ReplaceAll(bundleDeployment, "/", "-")
	if notInNames.MatchString(name) {
		name = notInNames.ReplaceAllString(strings.ToLower(name), "-") + "-" + digest(name, changedDigest)
	}
	name = strings.Trim(severalDashes.ReplaceAllString(name, "-"), "-")
	if len(name) > nameMax {
		name = name[:nameMax-cutDigest-1] + "-" + digest(name, cutDigest)
	}
	if !releaseName.MatchString(name) {
		return digest(bundleDeployment, wholeDigest)
	}
	return name
}
