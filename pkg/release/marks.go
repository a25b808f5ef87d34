package release

import (
	"crypto/sha1" //nolint:gosec // Fleet's agent computes this label with SHA-1; it protects nothing
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/rancher/wrangler/v3/pkg/name"
	"helm.sh/helm/v4/pkg/release/common"
	helm "helm.sh/helm/v4/pkg/release/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/muster-fleet/muster/pkg/registration"
)

// Marks of Fleet's own agent on each object of a release. It takes an object without them for missing.
const (
	// SetHashLabel holds a digest of the annotation objectSetIDAnnotation.
	SetHashLabel = "objectset.rio.cattle.io/hash"
	// objectSetIDAnnotation names the BundleDeployment.
	objectSetIDAnnotation = "objectset.rio.cattle.io/id"
)

// objectManager is the field manager of the objects of a release, as with Fleet's own agent. Because both use this name, either agent removes the
// fields that the other one set and that a Bundle no longer has.
const objectManager = "fleetagent"

// Annotations of the chart in each revision of a release. Fleet's own agent finds its releases by them: it has no labels on the
// history.
const (
	bundleAnnotation         = "fleet.cattle.io/bundle-id"
	agentAnnotation          = "fleet.cattle.io/agent-namespace"
	serviceAccountAnnotation = "fleet.cattle.io/service-account"
	keepResourcesAnnotation  = "fleet.cattle.io/keep-resources"
	commitAnnotation         = "fleet.cattle.io/commit"
)

// adoptedAnnotation of the chart in a revision has the objects, in JSON, that existed before the deployment of that revision and were not those of the
// release, each with the release in its marks. Its value is nothingWritten if the deployment has failed before it wrote an object. A revision whose deployment was interrupted has none.
const (
	adoptedAnnotation = labelPrefix + "adopted"
	nothingWritten    = "none"
)

// markObject marks an object as one of the set of a BundleDeployment.
func markObject(o *unstructured.Unstructured, bundleDeployment, scope string) {
	id := objectSetID(bundleDeployment, scope)
	o.SetLabels(labels.Merge(o.GetLabels(), map[string]string{SetHashLabel: setHash(id)}))
	o.SetAnnotations(labels.Merge(o.GetAnnotations(), map[string]string{objectSetIDAnnotation: id}))
}

// setHash returns the value of SetHashLabel for the annotation objectSetIDAnnotation.
func setHash(id string) string {
	sum := sha1.Sum([]byte(id)) //nolint:gosec // see the import
	return hex.EncodeToString(sum[:])
}

// objectSetID returns the name of the set of the objects of a BundleDeployment. The agents of a scope share one set, so that an imported agent and an
// agent that a Bundle deploys have the same objects.
func objectSetID(bundleDeployment, scope string) string {
	if strings.HasPrefix(bundleDeployment, "fleet-agent") {
		return registration.AgentBootstrapSetID(scope)
	}
	if scope == "" {
		return name.SafeConcatName("default", bundleDeployment)
	}
	return name.SafeConcatName("default", bundleDeployment, scope)
}

// chartAnnotations returns the annotations for the chart of a request.
func chartAnnotations(r Request) map[string]string {
	all := map[string]string{
		bundleAnnotation: r.BundleDeployment, agentAnnotation: r.ServiceAccountNamespace, serviceAccountAnnotation: r.Options.ServiceAccount,
		keepResourcesAnnotation: strconv.FormatBool(r.Options.KeepResources),
	}
	if r.Commit != "" {
		all[commitAnnotation] = r.Commit
	}
	return all
}

// isAnnotatedFor reports whether an agent in the same namespace made a revision for the same BundleDeployment.
func isAnnotatedFor(r Request, existing *helm.Release) bool {
	annotations := annotationsOf(existing)
	return annotations[bundleAnnotation] == r.BundleDeployment && annotations[agentAnnotation] == r.ServiceAccountNamespace && r.BundleDeployment != ""
}

func annotationsOf(existing *helm.Release) map[string]string {
	if existing.Chart == nil || existing.Chart.Metadata == nil {
		return nil
	}
	return existing.Chart.Metadata.Annotations
}

// wroteNothing reports whether the deployment of a revision has failed before it wrote an object.
func wroteNothing(r *helm.Release) bool {
	return annotationsOf(r)[adoptedAnnotation] == nothingWritten && r.Info.Status == common.StatusFailed
}

// adoptedBy returns the objects in adoptedAnnotation, as ledger.adopted has them. Earlier versions have stored a list, without the marks that the objects
// had.
func adoptedBy(r *helm.Release) (adopted map[string]string, isNoted bool) {
	text := []byte(annotationsOf(r)[adoptedAnnotation])
	if err := json.Unmarshal(text, &adopted); err == nil {
		return adopted, true
	}
	var keys []string
	if err := json.Unmarshal(text, &keys); err != nil {
		return nil, false
	}
	adopted = map[string]string{}
	for _, key := range keys {
		adopted[key] = ""
	}
	return adopted, true
}
