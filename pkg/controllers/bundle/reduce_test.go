package bundle

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
)

// someSpec returns a spec in which each field is set.
func someSpec() fleet.BundleDeploymentSpec {
	options := fleet.BundleDeploymentOptions{
		TargetNamespace: "n", Helm: &fleet.HelmOptions{Chart: "c"},
		DownstreamResources: []fleet.DownstreamResource{{Kind: "secret", Name: "s"}, {Kind: "ConfigMap", Name: "c"}, {Kind: "Secret", Name: "no/name"}},
	}
	return fleet.BundleDeploymentSpec{
		Paused: true, StagedOptions: fleet.BundleDeploymentOptions{TargetNamespace: "staged"}, StagedDeploymentID: "s:2", Options: options, DeploymentID: "s:1",
		DependsOn: []fleet.BundleRef{{Name: "b"}}, CorrectDrift: &fleet.CorrectDrift{Enabled: true}, OCIContents: true,
		HelmChartOptions: &fleet.GenericMap{Data: map[string]any{"helmOpSecretName": "login"}}, ValuesHash: "hash", DownstreamResourcesGeneration: 3,
		OffSchedule: true, WaitingForValues: true,
	}
}

// A change of any field is found, and written, whether the cache has dropped the fields that users fill or not.
func TestSpecChanges(t *testing.T) {
	for field, change := range map[string]func(*fleet.BundleDeploymentSpec){
		"paused":                        func(s *fleet.BundleDeploymentSpec) { s.Paused = false },
		"stagedOptions":                 func(s *fleet.BundleDeploymentSpec) { s.StagedOptions.TargetNamespace = "other" },
		"stagedDeploymentID":            func(s *fleet.BundleDeploymentSpec) { s.StagedDeploymentID = "s:3" },
		"options":                       func(s *fleet.BundleDeploymentSpec) { s.Options.Helm = nil },
		"deploymentID":                  func(s *fleet.BundleDeploymentSpec) { s.DeploymentID = "s:3" },
		"dependsOn":                     func(s *fleet.BundleDeploymentSpec) { s.DependsOn = nil },
		"correctDrift":                  func(s *fleet.BundleDeploymentSpec) { s.CorrectDrift = nil },
		"ociContents":                   func(s *fleet.BundleDeploymentSpec) { s.OCIContents = false },
		"helmChartOptions":              func(s *fleet.BundleDeploymentSpec) { s.HelmChartOptions.Data["x"] = "y" },
		"valuesHash":                    func(s *fleet.BundleDeploymentSpec) { s.ValuesHash = "" },
		"downstreamResourcesGeneration": func(s *fleet.BundleDeploymentSpec) { s.DownstreamResourcesGeneration = 4 },
		"offSchedule":                   func(s *fleet.BundleDeploymentSpec) { s.OffSchedule = false },
		"waitingForValues":              func(s *fleet.BundleDeploymentSpec) { s.WaitingForValues = false },
	} {
		for _, isReduced := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, reduced %t", field, isReduced), func(t *testing.T) {
				before, after := &fleet.BundleDeployment{Spec: someSpec()}, &fleet.BundleDeployment{Spec: someSpec()}
				require.True(t, isSpecEqual(&before.Spec, &after.Spec))
				change(&after.Spec)
				want := map[string]any{}
				encode(t, after.Spec, &want)
				if isReduced {
					after.Spec.CachedDigests = digestsOf(&after.Spec)
					Reduce(&before.Spec)
				}
				assert.False(t, isSpecEqual(&before.Spec, &after.Spec))
				operations, err := specChanges(before, after)
				require.NoError(t, err)
				operation := writes.PatchOperation{Op: "remove", Path: "/spec/" + field}
				if value, isSet := want[field]; isSet {
					operation.Op, operation.Value = "add", value
				}
				require.Len(t, operations, 1)
				if operations[0].Value != nil {
					var value any
					encode(t, operations[0].Value, &value)
					operations[0].Value = value
				}
				assert.Equal(t, operation, operations[0])
			})
		}
	}
}

// If the object has no field spec, a JSON patch cannot add fields to it, and has to add the whole spec.
func TestSpecChangesOfNoSpec(t *testing.T) {
	for name, spec := range map[string]fleet.BundleDeploymentSpec{"whole": {}, "reduced": {CachedDigests: &fleet.SpecDigests{}}} {
		t.Run(name, func(t *testing.T) {
			after := &fleet.BundleDeployment{Spec: someSpec()}
			operations, err := specChanges(&fleet.BundleDeployment{Spec: spec}, after)
			require.NoError(t, err)
			assert.Equal(t, writes.PatchOperation{Op: "add", Path: "/spec", Value: after.Spec}, operations[0])
		})
	}
}

func encode(t *testing.T, from, to any) {
	t.Helper()
	text, err := json.Marshal(from)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, to))
}

func TestReduceKeepsTheSources(t *testing.T) {
	deployment := &fleet.BundleDeployment{Spec: someSpec()}
	Reduce(&deployment.Spec)
	assert.Equal(t, fleet.BundleDeploymentOptions{}, deployment.Spec.Options)
	assert.Equal(t, []copySource{
		{kind: secretKind, name: "login", loginType: "fleet.cattle.io/bundle-helmops-access/v1alpha1"},
		{kind: secretKind, name: "s", loginType: "fleet.cattle.io/bundle-oci-storage/v1alpha1"},
		{kind: secretKind, name: "s"},
		{kind: configMapKind, name: "c"},
	}, sourcesOf(deployment))
	again := &fleet.BundleDeployment{Spec: someSpec()}
	Reduce(&again.Spec)
	assert.Equal(t, *deployment.Spec.CachedDigests, *again.Spec.CachedDigests, "equal specs have equal digests")
}

// Without the values that older versions of Fleet's hub wrote into the options, the hub could not move these values to the Secret with the Helm
// values.
func TestReduceKeepsValues(t *testing.T) {
	spec := someSpec()
	spec.Options.Helm.Values = &fleet.GenericMap{Data: map[string]any{"a": "b"}}
	Reduce(&spec)
	assert.Nil(t, spec.CachedDigests)
	assert.Equal(t, "n", spec.Options.TargetNamespace)
}
