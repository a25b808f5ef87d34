package charts_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/muster-fleet/muster/charts"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

const policyGroup = "admissionregistration.k8s.io/"

// served maps kinds of clusters to the API versions that they serve.
var served = map[string]common.VersionSet{
	"both":       {"v1", "v1/Namespace", validatingBinding, policyGroup + "v1/MutatingAdmissionPolicy", policyGroup + "v1beta1/MutatingAdmissionPolicy"},
	"stable":     {"v1", "v1/Namespace", validatingBinding, policyGroup + "v1/MutatingAdmissionPolicy"},
	"beta":       {"v1", "v1/Namespace", validatingBinding, policyGroup + "v1beta1/MutatingAdmissionPolicy"},
	"alpha":      {"v1", "v1/Namespace", validatingBinding, policyGroup + "v1alpha1/MutatingAdmissionPolicy"},
	"neither":    {"v1", "v1/Namespace", validatingBinding},
	"no cluster": common.DefaultVersionSet,
	"no cluster, helm template --api-versions": append(common.VersionSet{policyGroup + "v1beta1/MutatingAdmissionPolicy"}, common.DefaultVersionSet...),
}

const validatingBinding = policyGroup + "v1/ValidatingAdmissionPolicyBinding"

// rendersFor renders the hub's chart for a cluster of Kubernetes 1.36 with these API versions.
func rendersFor(t *testing.T, versions common.VersionSet, values string) map[string]string {
	t.Helper()
	rendered, err := renderOn(t, "v1.36.3", versions, values)
	require.NoError(t, err)
	return rendered
}

// renderOn renders the hub's chart for a version of Kubernetes.
func renderOn(t *testing.T, kubernetes string, versions common.VersionSet, values string) (map[string]string, error) {
	t.Helper()
	loaded, err := charts.Load(charts.Hub)
	require.NoError(t, err)
	capabilities := common.DefaultCapabilities.Copy()
	capabilities.APIVersions = versions
	capabilities.KubeVersion.Version = kubernetes
	options := common.ReleaseOptions{Name: charts.Hub, Namespace: systemNamespace, Revision: 1, IsInstall: true}
	top, err := util.ToRenderValues(loaded, parseValues(t, values), options, capabilities)
	require.NoError(t, err)
	return engine.Render(loaded, top)
}

// policies returns the kinds and names of the policies, and the API versions of the mutating policies.
func policies(t *testing.T, rendered map[string]string) (found []string, versions map[string]bool) {
	t.Helper()
	versions = map[string]bool{}
	for _, object := range objectsOf(t, map[string]string{"admission": rendered["fleet/templates/admission.yaml"]}) {
		found = append(found, object.GetKind()+" "+object.GetName())
		if strings.HasPrefix(object.GetKind(), "Mutating") {
			versions[object.GetAPIVersion()] = true
		}
	}
	return found, versions
}

func TestPoliciesAreRenderedInTheVersionThatTheClusterServes(t *testing.T) {
	for title, want := range map[string]string{
		"both": "v1", "stable": "v1", "no cluster": "v1", "beta": "v1beta1", "alpha": "v1alpha1", "no cluster, helm template --api-versions": "v1beta1",
	} {
		found, versions := policies(t, rendersFor(t, served[title], "{}"))
		assert.Len(t, found, 18, title)
		assert.Equal(t, map[string]bool{policyGroup + want: true}, versions, title)
	}
}

// Without a cluster, as for helm template, only --kube-version and --api-versions say what is served.
func TestHelmTemplate(t *testing.T) {
	const beta, alpha = policyGroup + "v1beta1", policyGroup + "v1alpha1"
	tests := map[string]struct {
		kubernetes, serves string
		count              int
		mutating           string
	}{
		"1.36":                {kubernetes: "v1.36.3+rke2r1", count: 18, mutating: policyGroup + "v1"},
		"later":               {kubernetes: "1.40", count: 18, mutating: policyGroup + "v1"},
		"1.35":                {kubernetes: "1.35.4", count: 16},
		"1.35 with the beta":  {kubernetes: "v1.35.4", serves: beta + "/MutatingAdmissionPolicy", count: 18, mutating: beta},
		"1.33 with the alpha": {kubernetes: "v1.33.13", serves: alpha + "/MutatingAdmissionPolicy", count: 18, mutating: alpha},
		"1.30":                {kubernetes: "v1.30.14", count: 16},
	}
	for title, test := range tests {
		t.Run(title, func(t *testing.T) {
			versions := append(common.VersionSet{}, common.DefaultVersionSet...)
			if test.serves != "" {
				versions = append(versions, test.serves)
			}
			rendered, err := renderOn(t, test.kubernetes, versions, "{}")
			require.NoError(t, err)
			found, mutating := policies(t, rendered)
			assert.Len(t, found, test.count)
			want := map[string]bool{}
			if test.mutating != "" {
				want[test.mutating] = true
			}
			assert.Equal(t, want, mutating)
			assert.Contains(t, rendered["fleet/templates/admission.yaml"], "Rendered without a cluster, for Kubernetes "+test.kubernetes)
		})
	}
	assert.NotContains(t, rendersFor(t, served["neither"], "{}")["fleet/templates/admission.yaml"], "Rendered without a cluster")
}

func TestHubChartWithoutValidatingPolicies(t *testing.T) {
	old := common.VersionSet{"v1", "v1/Namespace", policyGroup + "v1beta1/ValidatingAdmissionPolicyBinding"}
	for title, test := range map[string]struct {
		kubernetes string
		serves     common.VersionSet
		refusal    string
	}{
		"1.28":                    {"v1.28.15", old, "Kubernetes v1.28.15 serves no ValidatingAdmissionPolicies"},
		"1.29, without a cluster": {"v1.29.6", common.DefaultVersionSet, "--kube-version"},
		"1.34 with the kinds off": {"v1.34.4", old, "serves no kind ValidatingAdmissionPolicyBinding in admissionregistration.k8s.io/v1"},
		"not a version of 1":      {"v0.9.0", old, "--set allowWithoutPolicies=true"},
	} {
		t.Run(title, func(t *testing.T) {
			_, err := renderOn(t, test.kubernetes, test.serves, "{}")
			require.ErrorContains(t, err, test.refusal)
			rendered, err := renderOn(t, test.kubernetes, test.serves, "allowWithoutPolicies: true")
			require.NoError(t, err)
			found, _ := policies(t, rendered)
			assert.Empty(t, found)
			assert.Contains(t, rendered["fleet/templates/NOTES.txt"], "Agents may write the whole\nstatus")
		})
	}
	_, err := renderOn(t, "v1.34.4", old, "admissionPolicies: {enabled: false}")
	require.NoError(t, err, "the values say that there are no policies")
	_, err = renderOn(t, "v1.28.15", old, "admissionPolicies: {enabled: false}")
	require.ErrorContains(t, err, "allowWithoutPolicies")
}

// The notes name flags of the API server only for versions that have them.
func TestNotesNameFlagsThatTheVersionHas(t *testing.T) {
	for kubernetes, want := range map[string]string{
		"v1.30.14": "is not proved. Kubernetes 1.36 serves them.\nThen", "v1.31.14": "is not proved. Kubernetes 1.36 serves them.\nThen",
		"v1.33.13": "admissionregistration.k8s.io/v1alpha1=true.\nThen", "v1.35.4": "admissionregistration.k8s.io/v1beta1=true.\nThen",
		"v1.36.3": "remove these settings",
	} {
		rendered, err := renderOn(t, kubernetes, served["neither"], "{}")
		require.NoError(t, err)
		notes := rendered["fleet/templates/NOTES.txt"]
		assert.Contains(t, notes, want, kubernetes)
		assert.Equal(t, strings.Contains(want, "=true"), strings.Contains(notes, "--runtime-config="), kubernetes)
	}
}

// Without a MutatingAdmissionPolicy nothing records the creator of a request. A policy that requires the record would then refuse every
// registration; the one that checks the token takes its place.
func TestPoliciesWithoutMutatingOnes(t *testing.T) {
	rendered := rendersFor(t, served["neither"], "{}")
	found, _ := policies(t, rendered)
	assert.ElementsMatch(t, []string{
		"ValidatingAdmissionPolicy fleet-registration-token", "ValidatingAdmissionPolicyBinding fleet-registration-token",
		"ValidatingAdmissionPolicy fleet-registration-request", "ValidatingAdmissionPolicyBinding fleet-registration-request",
		"ValidatingAdmissionPolicy fleet-controller-token", "ValidatingAdmissionPolicyBinding fleet-controller-token",
		"ValidatingAdmissionPolicy fleet-agent-lease", "ValidatingAdmissionPolicyBinding fleet-agent-lease",
		"ValidatingAdmissionPolicy fleet-agent-status", "ValidatingAdmissionPolicyBinding fleet-agent-status",
		"ValidatingAdmissionPolicy fleet-agent-bundledeployment-status", "ValidatingAdmissionPolicyBinding fleet-agent-bundledeployment-status",
		"ValidatingAdmissionPolicy fleet-agent-token", "ValidatingAdmissionPolicyBinding fleet-agent-token",
		"ValidatingAdmissionPolicy fleet-agent-token-audience", "ValidatingAdmissionPolicyBinding fleet-agent-token-audience",
	}, found)
}

func TestNotesNameMissingPolicies(t *testing.T) {
	const missing, off = "serves no MutatingAdmissionPolicies", "admissionPolicies.enabled is false"
	for title, versions := range served {
		notes := rendersFor(t, versions, "{}")["fleet/templates/NOTES.txt"]
		assert.Equal(t, title == "neither", strings.Contains(notes, missing), title)
		assert.NotContains(t, notes, off, title)
		notes = rendersFor(t, versions, "admissionPolicies: {enabled: false}")["fleet/templates/NOTES.txt"]
		assert.Contains(t, notes, off, title)
		assert.NotContains(t, notes, missing, title)
	}
}

func TestPoliciesCanBeDisabled(t *testing.T) {
	for values, want := range map[string]int{
		"admissionPolicies: {enabled: false}": 0,
		"admissionPolicies: {enabled: true}":  18,
		"admissionPolicies: {enabled: null}":  18,
		"admissionPolicies: null":             18,
	} {
		found, _ := policies(t, rendersFor(t, served["stable"], values))
		assert.Len(t, found, want, values)
	}
	_, err := charts.Render(charts.Hub, release(charts.Hub), parseValues(t, "admissionPolicies: {enabled: sometimes}"))
	assert.ErrorContains(t, err, "admissionPolicies")
}

// An upgrade of Kubernetes changes the API version of the policies. Helm must not delete and create them again while requests come in, so only the
// API version may differ.
func TestPoliciesAreUpgradedInPlace(t *testing.T) {
	beta, stable := rendersFor(t, served["beta"], "{}"), rendersFor(t, served["stable"], "{}")
	const file = "fleet/templates/admission.yaml"
	assert.Equal(t, stable[file], strings.ReplaceAll(beta[file], policyGroup+"v1beta1", policyGroup+"v1"))
}

// With the CustomResourceDefinitions of Fleet, nothing else limits what a request contains.
func TestRequestPolicyLimitsAllFields(t *testing.T) {
	rendered := rendersFor(t, served["both"], "")["fleet/templates/admission.yaml"]
	for _, object := range objectsOf(t, map[string]string{"admission": rendered}) {
		if object.GetKind() != "ValidatingAdmissionPolicy" || object.GetName() != "fleet-registration-request" {
			continue
		}
		validations, _, err := unstructured.NestedSlice(object.Object, "spec", "validations")
		require.NoError(t, err)
		for _, field := range reflect.VisibleFields(reflect.TypeFor[fleet.ClusterRegistrationSpec]()) {
			if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "-" {
				assert.Regexp(t, `size\(object\.spec\.`+name+`\) <= \d+`, fmt.Sprint(validations), "the policy does not limit spec.%s", name)
			}
		}
		return
	}
	require.Fail(t, "the policy was not rendered")
}
