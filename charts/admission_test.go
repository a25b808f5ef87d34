package charts_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/engine"

	"github.com/muster-fleet/muster/charts"
)

const policyGroup = "admissionregistration.k8s.io/"

// served are what clusters tell of themselves.
var served = map[string]common.VersionSet{
	"both":       {"v1", "v1/Namespace", policyGroup + "v1", policyGroup + "v1/MutatingAdmissionPolicy", policyGroup + "v1beta1/MutatingAdmissionPolicy"},
	"stable":     {"v1", "v1/Namespace", policyGroup + "v1", policyGroup + "v1/MutatingAdmissionPolicy"},
	"beta":       {"v1", "v1/Namespace", policyGroup + "v1", policyGroup + "v1beta1/MutatingAdmissionPolicy"},
	"neither":    {"v1", "v1/Namespace", policyGroup + "v1", policyGroup + "v1/ValidatingAdmissionPolicy"},
	"no cluster": common.DefaultVersionSet,
}

// rendersFor is what Helm renders where these kinds are served.
func rendersFor(t *testing.T, versions common.VersionSet, values string) map[string]string {
	t.Helper()
	loaded, err := charts.Load(charts.Hub)
	require.NoError(t, err)
	capabilities := common.DefaultCapabilities.Copy()
	capabilities.APIVersions = versions
	options := common.ReleaseOptions{Name: charts.Hub, Namespace: systemNamespace, Revision: 1, IsInstall: true}
	top, err := util.ToRenderValues(loaded, parseValues(t, values), options, capabilities)
	require.NoError(t, err)
	rendered, err := engine.Render(loaded, top)
	require.NoError(t, err)
	return rendered
}

// policies are the kinds and names of the policies, with the versions of the mutating ones.
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
	for title, want := range map[string]string{"both": "v1", "stable": "v1", "no cluster": "v1", "beta": "v1beta1"} {
		found, versions := policies(t, rendersFor(t, served[title], "{}"))
		assert.Len(t, found, 14, title)
		assert.Equal(t, map[string]bool{policyGroup + want: true}, versions, title)
	}
}

func TestHelmTemplateTakesTheVersionItIsToldOf(t *testing.T) {
	told := append(common.VersionSet{policyGroup + "v1beta1/MutatingAdmissionPolicy"}, common.DefaultVersionSet...)
	_, versions := policies(t, rendersFor(t, told, "{}"))
	assert.Equal(t, map[string]bool{policyGroup + "v1beta1": true}, versions)
}

// A policy that insists on what nobody writes would refuse every registration.
func TestWhereNothingRecordsTheCreatorNothingInsistsOnIt(t *testing.T) {
	rendered := rendersFor(t, served["neither"], "{}")
	found, _ := policies(t, rendered)
	assert.ElementsMatch(t, []string{
		"ValidatingAdmissionPolicy fleet-registration-request", "ValidatingAdmissionPolicyBinding fleet-registration-request",
		"ValidatingAdmissionPolicy fleet-controller-token", "ValidatingAdmissionPolicyBinding fleet-controller-token",
		"ValidatingAdmissionPolicy fleet-agent-status", "ValidatingAdmissionPolicyBinding fleet-agent-status",
		"ValidatingAdmissionPolicy fleet-agent-token", "ValidatingAdmissionPolicyBinding fleet-agent-token",
	}, found)
	assert.Contains(t, rendered["fleet/templates/NOTES.txt"], "--feature-gates=MutatingAdmissionPolicy=true")
}

func TestNotesSpeakOfPoliciesOnlyWhereSomeAreMissing(t *testing.T) {
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

func TestPoliciesCanBeLeftOutAndANullLeavesOutNothing(t *testing.T) {
	for values, want := range map[string]int{
		"admissionPolicies: {enabled: false}": 0,
		"admissionPolicies: {enabled: true}":  14,
		"admissionPolicies: {enabled: null}":  14,
		"admissionPolicies: null":             14,
	} {
		found, _ := policies(t, rendersFor(t, served["stable"], values))
		assert.Len(t, found, want, values)
	}
	_, err := charts.Render(charts.Hub, release(charts.Hub), parseValues(t, "admissionPolicies: {enabled: sometimes}"))
	assert.ErrorContains(t, err, "admissionPolicies")
}

// What the chart installs, the hub need not have the right to write.
func TestTheHubMayWatchPoliciesAndNothingMore(t *testing.T) {
	cluster := rolesIn(t, "{}")["ClusterRole fleet-controller"]
	for _, resource := range []string{"mutatingadmissionpolicies", "mutatingadmissionpolicybindings", "validatingadmissionpolicies", "validatingadmissionpolicybindings"} {
		for _, verb := range []string{"list", "watch"} {
			assert.True(t, allows(cluster, "admissionregistration.k8s.io", resource, verb), "%s %s", verb, resource)
		}
		for _, verb := range []string{"create", "update", "patch", "delete", "deletecollection"} {
			assert.False(t, allows(cluster, "admissionregistration.k8s.io", resource, verb), "%s %s", verb, resource)
		}
	}
	env := hubDeployment(t, renderHub(t, "{}")).Spec.Template.Spec.Containers[0]
	assert.Equal(t, "true", variable(env, "FLEET_LEAVE_ADMISSION_POLICIES"))
}

// Helm asks a cluster what it serves, and takes the policies away with the release.
func TestARealClusterGetsThePoliciesAndLosesThem(t *testing.T) {
	s := newScene(t)
	before := inventory(t, s.config)
	s.install(t, charts.Hub, nil)
	here := strings.Join(difference(inventory(t, s.config), before), "\n")
	for _, object := range []string{
		"mutatingadmissionpolicies.admissionregistration.k8s.io /fleet-registration-creator",
		"mutatingadmissionpolicybindings.admissionregistration.k8s.io /fleet-registration-creator",
		"validatingadmissionpolicies.admissionregistration.k8s.io /fleet-registration-creator",
		"validatingadmissionpolicybindings.admissionregistration.k8s.io /fleet-registration-creator",
		"validatingadmissionpolicies.admissionregistration.k8s.io /fleet-agent-status",
		"validatingadmissionpolicies.admissionregistration.k8s.io /fleet-agent-token",
	} {
		assert.Contains(t, here, object)
	}
	s.upgrade(t, charts.Hub, parseValues(t, "admissionPolicies: {enabled: false}"))
	assert.NotContains(t, strings.Join(difference(inventory(t, s.config), before), "\n"), "admissionpolic")
	s.rollback(t, charts.Hub, 1)
	assert.Contains(t, strings.Join(difference(inventory(t, s.config), before), "\n"), "fleet-registration-creator")
	s.uninstall(t, charts.Hub)
	eventuallyAsBefore(t, s.config, before)
}

// The kinds' version changes with an upgrade of Kubernetes: the same objects, which Helm must not delete and make anew at a
// moment when requests come in.
func TestAReleaseOfTheBetaIsUpgradedInPlace(t *testing.T) {
	beta, stable := rendersFor(t, served["beta"], "{}"), rendersFor(t, served["stable"], "{}")
	const file = "fleet/templates/admission.yaml"
	assert.Equal(t, stable[file], strings.ReplaceAll(beta[file], policyGroup+"v1beta1", policyGroup+"v1"))
}
