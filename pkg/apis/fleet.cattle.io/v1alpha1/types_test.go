package v1alpha1_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// kinds has the kinds, each with a golden file of this name. The golden files have an object with every field of spec and status set.
var kinds = map[string]runtime.Object{
	"bundle":                   &v1alpha1.Bundle{},
	"bundledeployment":         &v1alpha1.BundleDeployment{},
	"cluster":                  &v1alpha1.Cluster{},
	"clustergroup":             &v1alpha1.ClusterGroup{},
	"clusterregistration":      &v1alpha1.ClusterRegistration{},
	"clusterregistrationtoken": &v1alpha1.ClusterRegistrationToken{},
	"content":                  &v1alpha1.Content{},
}

func TestKinds_roundTrip(t *testing.T) {
	for name, object := range kinds {
		t.Run(name, func(t *testing.T) {
			golden, err := os.ReadFile(filepath.Join("testdata", name+".json"))
			require.NoError(t, err)
			decoder := json.NewDecoder(bytes.NewReader(golden))
			decoder.DisallowUnknownFields()
			require.NoError(t, decoder.Decode(object))

			encoded, err := json.Marshal(object.DeepCopyObject())
			require.NoError(t, err)
			assert.JSONEq(t, string(golden), string(encoded))
		})
	}
}

// A field that the golden file leaves out would not be tested. This checks the fields of spec and status, not those nested in them.
func TestKinds_goldenFiles(t *testing.T) {
	for name, object := range kinds {
		golden, err := os.ReadFile(filepath.Join("testdata", name+".json"))
		require.NoError(t, err)
		var fields map[string]any
		require.NoError(t, json.Unmarshal(golden, &fields))

		kind := reflect.TypeOf(object).Elem()
		for _, half := range []string{"Spec", "Status"} {
			field, ok := kind.FieldByName(half)
			if !ok {
				continue
			}
			got, _ := fields[strings.ToLower(half)].(map[string]any)
			for _, want := range jsonNames(field.Type) {
				assert.Contains(t, got, want, "%s %s", name, half)
			}
		}
	}
}

func TestKinds_fields(t *testing.T) {
	tests := []struct {
		object any
		want   string
	}{
		{v1alpha1.ClusterSpec{}, "paused quarantined clientID kubeConfigSecret kubeConfigSecretNamespace redeployAgentGeneration " +
			"agentEnvVars agentNamespace privateRepoURL templateValues agentTolerations agentAffinity agentResources " +
			"hostNetwork agentSchedulingCustomization agentPullSecrets"},
		{v1alpha1.AgentSchedulingCustomization{}, "priorityClass podDisruptionBudget"},
		{v1alpha1.PriorityClassSpec{}, "value preemptionPolicy"},
		{v1alpha1.PodDisruptionBudgetSpec{}, "minAvailable maxUnavailable"},
		{v1alpha1.ClusterStatus{}, "conditions namespace summary resourceCounts readyGitRepos desiredReadyGitRepos " +
			"readyHelmOps desiredReadyHelmOps agentEnvVarsHash agentPrivateRepoURL agentHostNetwork " +
			"agentDeployedGeneration agentMigrated agentNamespaceMigrated cattleNamespaceMigrated agentAffinityHash " +
			"agentResourcesHash agentTolerationsHash agentSchedulingCustomizationHash agentConfigChanged apiServerURL " +
			"apiServerCAHash agentTLSMode garbageCollectionInterval display agent import scheduled activeSchedule"},
		{v1alpha1.ClusterDisplay{}, "readyBundles state"},
		{v1alpha1.AgentStatus{}, "lastSeen namespace checkinInterval version generation kubernetesVersion nodes capacity allocatable apiServer clockSkew hub " +
			"instance credentialExpires vouches registration keptReleases deploymentsStalled"},
		{v1alpha1.AgentKeptReleases{}, "count names"},
		{v1alpha1.AgentNodes{}, "count ready"},
		{v1alpha1.AgentAPIServer{}, "ready message"},
		{v1alpha1.AgentHub{}, "apiServerURL apiServerCAHash agentTLSMode pending"},
		{v1alpha1.ClusterGroupSpec{}, "selector"},
		{v1alpha1.ClusterGroupStatus{}, "clusterCount nonReadyClusterCount nonReadyClusters conditions summary display resourceCounts"},
		{v1alpha1.ClusterGroupDisplay{}, "readyClusters readyBundles state"},
		{v1alpha1.ClusterRegistrationSpec{}, "clientID clientRandom clusterLabels"},
		{v1alpha1.ClusterRegistrationStatus{}, "clusterName granted approval tokenUID conditions"},
		{v1alpha1.RegistrationApproval{}, "decision message"},
		{v1alpha1.ClusterRegistrationTokenSpec{}, "ttl usageLimit clientIDs clientIDPattern labels allowedLabelKeys longLivedCredentials approval"},
		{v1alpha1.ClusterRegistrationTokenStatus{}, "expires secretName uses pendingUses lastUsed lastCluster conditions"},
		{v1alpha1.BundleResource{}, "name content encoding"},
		{v1alpha1.BundleDeploymentSpec{}, "paused stagedOptions stagedDeploymentID options deploymentID dependsOn " +
			"correctDrift ociContents helmChartOptions valuesHash downstreamResourcesGeneration offSchedule waitingForValues"},
		{v1alpha1.BundleDeploymentStatus{}, "conditions appliedDeploymentID release ready nonModified nonReadyStatus " +
			"modifiedStatus incompleteState display syncGeneration resources resourceCounts downstreamResourcesGeneration"},
		{v1alpha1.BundleStatus{}, "conditions summary newlyCreated unavailable unavailablePartitions maxUnavailable " +
			"maxUnavailablePartitions partitions display resourceKey ociReference observedGeneration resourcesSha256Sum"},
		{v1alpha1.ContentStatus{}, "referenceCount"},
	}
	for _, test := range tests {
		kind := reflect.TypeOf(test.object)
		assert.Equal(t, strings.Fields(test.want), jsonNames(kind), kind.Name())
	}
}

func TestBundleSpec_options(t *testing.T) {
	options := jsonNames(reflect.TypeFor[v1alpha1.BundleDeploymentOptions]())
	assert.Subset(t, jsonNames(reflect.TypeFor[v1alpha1.BundleSpec]()), options)
	assert.Subset(t, jsonNames(reflect.TypeFor[v1alpha1.BundleTarget]()), options)
	for _, own := range []string{"resources", "targets", "paused", "contentsId", "helmOpOptions"} {
		assert.NotContains(t, options, own)
	}
}

func TestAgentStatus_empty(t *testing.T) {
	data, err := json.Marshal(v1alpha1.AgentStatus{})
	require.NoError(t, err)
	assert.JSONEq(t, `{"lastSeen":null,"namespace":""}`, string(data))

	var status v1alpha1.AgentStatus
	require.NoError(t, json.Unmarshal([]byte(`{"lastSeen":null,"namespace":null}`), &status))
	assert.Zero(t, status)
}

func TestClusterSpec_agentPullSecrets(t *testing.T) {
	for _, text := range []string{`{}`, `{"agentPullSecrets":[]}`} {
		var spec v1alpha1.ClusterSpec
		require.NoError(t, json.Unmarshal([]byte(text), &spec))
		data, err := json.Marshal(spec.DeepCopy())
		require.NoError(t, err)
		assert.JSONEq(t, text, string(data))
	}
}

func TestAddToScheme(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	group := schema.GroupVersion{Group: "fleet.cattle.io", Version: "v1alpha1"}
	for _, object := range kinds {
		kind := reflect.TypeOf(object).Elem().Name()
		assert.True(t, scheme.Recognizes(group.WithKind(kind)), kind)
		assert.True(t, scheme.Recognizes(group.WithKind(kind+"List")), kind+"List")
	}
}

// jsonNames returns the names of a type's fields, in order, inlined ones included.
func jsonNames(kind reflect.Type) []string {
	var names []string
	for field := range kind.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Anonymous && name == "" {
			names = slices.Concat(names, jsonNames(field.Type))
			continue
		}
		if name != "-" {
			names = append(names, name)
		}
	}
	return names
}
