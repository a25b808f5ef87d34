package admission_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/muster-fleet/muster/pkg/admission"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func objects(t *testing.T, version string) []*unstructured.Unstructured {
	t.Helper()
	policies, err := admission.Objects(version)
	require.NoError(t, err)
	return policies
}

func names(policies []*unstructured.Unstructured) []string {
	var all []string
	for _, p := range policies {
		all = append(all, fmt.Sprintf("%s %s %s", p.GetAPIVersion(), p.GetKind(), p.GetName()))
	}
	return all
}

func TestObjectsByVersion(t *testing.T) {
	const group = "admissionregistration.k8s.io/"
	always := []string{
		group + "v1 ValidatingAdmissionPolicy fleet-registration-request", group + "v1 ValidatingAdmissionPolicyBinding fleet-registration-request",
		group + "v1 ValidatingAdmissionPolicy fleet-controller-token", group + "v1 ValidatingAdmissionPolicyBinding fleet-controller-token",
		group + "v1 ValidatingAdmissionPolicy fleet-agent-status", group + "v1 ValidatingAdmissionPolicyBinding fleet-agent-status",
		group + "v1 ValidatingAdmissionPolicy fleet-agent-lease", group + "v1 ValidatingAdmissionPolicyBinding fleet-agent-lease",
		group + "v1 ValidatingAdmissionPolicy fleet-agent-bundledeployment-status", group + "v1 ValidatingAdmissionPolicyBinding fleet-agent-bundledeployment-status",
		group + "v1 ValidatingAdmissionPolicy fleet-agent-token", group + "v1 ValidatingAdmissionPolicyBinding fleet-agent-token",
	}
	assert.ElementsMatch(t, append([]string{
		group + "v1 ValidatingAdmissionPolicy fleet-agent-token-audience", group + "v1 ValidatingAdmissionPolicyBinding fleet-agent-token-audience",
		group + "v1 ValidatingAdmissionPolicy fleet-registration-token", group + "v1 ValidatingAdmissionPolicyBinding fleet-registration-token",
	}, always...), names(objects(t, "")), "a request whose creator is not recorded must not be refused for that")
	for _, version := range []string{"v1", "v1beta1"} {
		assert.ElementsMatch(t, append([]string{
			group + version + " MutatingAdmissionPolicy fleet-registration-creator", group + version + " MutatingAdmissionPolicyBinding fleet-registration-creator",
			group + version + " MutatingAdmissionPolicy fleet-agent-token", group + version + " MutatingAdmissionPolicyBinding fleet-agent-token",
			group + "v1 ValidatingAdmissionPolicy fleet-registration-creator", group + "v1 ValidatingAdmissionPolicyBinding fleet-registration-creator",
		}, always...), names(objects(t, version)))
	}
}

func TestObjectsAreNewInEachCall(t *testing.T) {
	objects(t, "v1")[0].SetName("changed")
	assert.NotEqual(t, "changed", objects(t, "v1")[0].GetName())
}

func TestObjectsFailClosedAndApplyToEverything(t *testing.T) {
	for _, policy := range append(objects(t, "v1"), objects(t, "")...) {
		title := policy.GetKind() + " " + policy.GetName()
		assert.Equal(t, fleet.ManagedValue, policy.GetLabels()[fleet.ManagedLabel], title)
		spec := policy.Object["spec"].(map[string]any)
		if strings.HasSuffix(policy.GetKind(), "Binding") {
			assert.Equal(t, policy.GetName(), spec["policyName"], title)
			assert.NotContains(t, spec, "matchResources", title)
			if policy.GetName() == admission.AudiencePolicy {
				assert.Equal(t, map[string]any{"name": admission.AudiencePolicy, "parameterNotFoundAction": "Allow"}, spec["paramRef"], title)
			} else {
				assert.NotContains(t, spec, "paramRef", title)
			}
			continue
		}
		assert.Equal(t, "Fail", spec["failurePolicy"], title)
		constraints := spec["matchConstraints"].(map[string]any)
		assert.Empty(t, constraints["namespaceSelector"], title)
		assert.Empty(t, constraints["objectSelector"], title)
	}
}

func TestObjectsUseTheAnnotationsOfTheHub(t *testing.T) {
	found := 0
	for _, policy := range objects(t, "v1") {
		text := fmt.Sprint(policy.Object["spec"])
		for _, key := range regexp.MustCompile(`muster\.fleet\.cattle\.io/[a-z-]+`).FindAllString(text, -1) {
			assert.Contains(t, []string{fleet.CreatorAnnotation, registration.LeaseReport, registration.LeaseProof, registration.LeaseCredential}, key)
			found++
		}
	}
	assert.Greater(t, found, 4)
}

// agentGroups are the expressions by which the policies recognize agents.
func agentGroups(t *testing.T) []*regexp.Regexp {
	t.Helper()
	var all []*regexp.Regexp
	for _, policy := range objects(t, "v1") {
		conditions, _, err := unstructured.NestedSlice(policy.Object, "spec", "matchConditions")
		require.NoError(t, err)
		for _, condition := range conditions {
			expression := condition.(map[string]any)["expression"].(string)
			_, pattern, aboutAgents := strings.Cut(expression, "group.matches('")
			if !aboutAgents {
				continue
			}
			pattern, _, _ = strings.Cut(pattern, "')")
			all = append(all, regexp.MustCompile(pattern))
		}
	}
	require.Len(t, all, 5)
	return all
}

func TestPoliciesRecognizeAgentsByTheirNamespace(t *testing.T) {
	letters := "abcdefghijklmnopqrstuvwxyz0123456789-."
	random := rand.New(rand.NewPCG(1, 2))
	for _, group := range agentGroups(t) {
		for length := 1; length < 250; length++ {
			name := make([]byte, length)
			for i := range name {
				name[i] = letters[random.IntN(len(letters))]
			}
			namespace := registration.ClusterNamespace("fleet-default", string(name))
			assert.Regexp(t, group, "system:serviceaccounts:"+namespace)
		}
		for _, other := range []string{
			"system:masters", "system:authenticated", "system:serviceaccounts", "system:serviceaccounts:fleet-default",
			"system:serviceaccounts:cattle-fleet-system", "system:serviceaccounts:cattle-fleet-clusters-system",
			"system:serviceaccounts:cluster-api-system", "system:serviceaccounts:cluster-operators-abcdef",
			"system:serviceaccounts:my-cluster-fleet-default-c-0123456789ab", "system:serviceaccounts:cluster-0123456789ab",
			"system:serviceaccounts:cluster-a-0123456789abc", "system:serviceaccounts:cluster-a-0123456789AB",
			"oidc:system:serviceaccounts:cluster-a-b-0123456789ab", "cluster-a-b-0123456789ab",
		} {
			assert.NotRegexp(t, group, other)
		}
	}
}

func TestClusternetObjects(t *testing.T) {
	const group = "admissionregistration.k8s.io/"
	var validating []string
	for _, name := range []string{
		admission.ClusternetRequestPolicy, admission.ClusternetMemberPolicy, admission.ClusternetStatusPolicy, admission.ClusternetSecretPolicy,
	} {
		validating = append(validating, group+"v1 ValidatingAdmissionPolicy "+name, group+"v1 ValidatingAdmissionPolicyBinding "+name)
	}
	older, err := admission.ClusternetObjects("")
	require.NoError(t, err)
	assert.ElementsMatch(t, validating, names(older), "nothing may require an annotation that nobody writes")
	newer, err := admission.ClusternetObjects("v1beta1")
	require.NoError(t, err)
	assert.ElementsMatch(t, append([]string{
		group + "v1 ValidatingAdmissionPolicy " + admission.ClusternetCreatorPolicy, group + "v1 ValidatingAdmissionPolicyBinding " + admission.ClusternetCreatorPolicy,
		group + "v1beta1 MutatingAdmissionPolicy " + admission.ClusternetCreatorPolicy, group + "v1beta1 MutatingAdmissionPolicyBinding " + admission.ClusternetCreatorPolicy,
		group + "v1beta1 MutatingAdmissionPolicy " + admission.ClusternetSecretPolicy, group + "v1beta1 MutatingAdmissionPolicyBinding " + admission.ClusternetSecretPolicy,
	}, validating...), names(newer))
	for _, policy := range slices.Concat(newer, older) {
		assert.Equal(t, fleet.ManagedValue, policy.GetLabels()[fleet.ManagedLabel], policy.GetName())
		if !strings.HasSuffix(policy.GetKind(), "Binding") {
			assert.Equal(t, "Fail", policy.Object["spec"].(map[string]any)["failurePolicy"], policy.GetName())
		}
	}
}
