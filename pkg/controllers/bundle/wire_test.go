package bundle

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv/recording"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// recorded is a stage of a scene in testdata/wire, which has what Fleet's own controllers made of Bundles. A text stands for a part
// that is as in the stage before.
type recorded struct {
	Stage   string
	Bundles []struct {
		Name                       string
		BundleAsApplied, Bundle    json.RawMessage
		BundleDeployments, Secrets json.RawMessage
		decodedDeployments         []fleet.BundleDeployment
		decodedSecrets             []recordedSecret
	}
}

type recordedSecret struct {
	Metadata    struct{ Name string }
	Type        string
	DataDecoded struct{ Values, StagedValues string }
}

// refused are the recorded Bundles that this hub refuses on purpose, with the reason and what its message names: to ignore a field that
// it does not support would deploy something else, and Fleet's hub leaves a Bundle with too long a name pending without a word.
var refused = map[string]problem{
	"s19-l64-abcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdef": {fleet.ReasonBundleInvalid, "has 64 characters"},
}

// resolved are the versions with which the controller of HelmOps replaced the ranges of recorded Bundles before Fleet's hub deployed them.
var resolved = map[string]string{"s21-op": "0.1.0"}

// unrendered are the recorded Bundles with templates that Fleet's hub cannot render, with the end of its message.
var unrendered = map[string]string{
	"s05-missing": `template: values:1:22: executing "values" at <.ClusterLabels.nope>: map has no entry for key "nope"`,
	"s05-syntax":  "template: values:1: unterminated character constant",
}

// TestWire makes the BundleDeployments of recorded Bundles, and the Secrets with their Helm values. They are the same as recorded, so
// that a change between this hub and Fleet's redeploys nothing.
func TestWire(t *testing.T) {
	scenes, err := filepath.Glob("testdata/wire/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, scenes)
	s := newStage(t)
	m1 := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet-default", Name: "m1", Labels: map[string]string{"env": "dev", "roll": "yes", "part": "a", "extra": "1"}, Annotations: map[string]string{"team": "blue"}}}
	m1.Spec.TemplateValues = &fleet.GenericMap{Data: map[string]any{"region": "eu", "count": int64(3)}}
	devs := group("devs", nil, selector("env", "dev"))
	devs.Namespace = "fleet-default"
	s.has(t, devs)
	compared := 0
	for _, scene := range scenes {
		for _, stage := range recording.Stages[recorded](t, scene) {
			for _, r := range stage.Bundles {
				applied := r.BundleAsApplied
				if len(applied) == 0 || applied[0] == '"' {
					applied = r.Bundle // a later stage has it as served
				}
				var shape struct{ Spec json.RawMessage }
				if len(applied) == 0 || applied[0] == '"' || json.Unmarshal(applied, &shape) != nil || len(shape.Spec) == 0 || shape.Spec[0] == '"' {
					continue // it is deleted, or as in the stage before
				}
				t.Run(filepath.Base(scene)+"/"+stage.Stage+"/"+r.Name, func(t *testing.T) {
					var b fleet.Bundle
					require.NoError(t, json.Unmarshal(applied, &b))
					if version := resolved[r.Name]; version != "" {
						assert.Equal(t, fleet.ReasonBundleInvalid, planOf(&b).problem.reason, "agents would choose versions of their own")
						b.Spec.Helm.Version = version
					}
					p := planOf(&b)
					if want, found := refused[r.Name]; found {
						require.NotNil(t, p.problem)
						assert.Equal(t, want.reason, p.problem.reason)
						assert.Contains(t, p.problem.message, want.message)
						return
					}
					require.Nil(t, p.problem)
					chosen := p.choose(&b, s.candidateOf(m1))
					if len(r.BundleDeployments) > 0 && r.BundleDeployments[0] == '"' {
						return
					}
					if len(r.BundleDeployments) > 0 {
						require.NoError(t, json.Unmarshal(r.BundleDeployments, &r.decodedDeployments))
					}
					if message := unrendered[r.Name]; message != "" {
						_, err := p.variant(chosen, m1)
						require.ErrorContains(t, err, message)
						assert.Empty(t, r.decodedDeployments)
						return
					}
					if len(r.decodedDeployments) == 0 {
						assert.Empty(t, chosen)
						return
					}
					v, err := p.variant(chosen, m1)
					require.NoError(t, err)
					want, values := r.decodedDeployments[0], helmValues{current: v.values, staged: v.values}
					if want.Spec.Paused {
						values.current = nil
					}
					if len(r.Secrets) > 0 && r.Secrets[0] != '"' {
						require.NoError(t, json.Unmarshal(r.Secrets, &r.decodedSecrets))
						var secret recordedSecret
						if at := slices.IndexFunc(r.decodedSecrets, func(s recordedSecret) bool { return s.Metadata.Name == r.Name }); at >= 0 {
							secret = r.decodedSecrets[at]
							assert.Equal(t, registration.SecretTypeHelmValues, secret.Type)
						}
						if want.Spec.Paused {
							values.current = []byte(secret.DataDecoded.Values) // of an earlier stage
						}
						assert.Equal(t, secret.DataDecoded.Values, string(values.current))
						assert.Equal(t, secret.DataDecoded.StagedValues, string(values.staged))
					}
					got := desired(&b, v, values, isPaused(&b, m1), m1, nil)
					if want.Spec.HelmChartOptions != nil { // the recording replaces the address, which the digest covers
						want.Spec.StagedDeploymentID, want.Spec.DeploymentID = got.Spec.StagedDeploymentID, got.Spec.StagedDeploymentID
						assert.True(t, strings.HasPrefix(got.Spec.StagedDeploymentID, ":"))
					}
					assert.Equal(t, want.Spec.StagedDeploymentID, got.Spec.StagedDeploymentID)
					assert.Equal(t, want.Namespace+"/"+want.Name, got.Namespace+"/"+got.Name)
					// See TestReconcileCopies: the hub counts the contents of the copies.
					got.Spec.DownstreamResourcesGeneration = want.Spec.DownstreamResourcesGeneration
					if want.Spec.Paused {
						got.Spec.Options, got.Spec.DeploymentID = want.Spec.Options, want.Spec.DeploymentID // of an earlier stage
						got.Labels[fleet.ContentNameLabel] = want.Labels[fleet.ContentNameLabel]
					}
					assert.Equal(t, want.Labels, got.Labels)
					// Fleet's hub copies the staged options when the deployment ID changes, which does not cover correctDrift. This
					// hub copies them at once; the agent acts on spec.correctDrift, which is the same.
					want.Spec.Options.CorrectDrift = got.Spec.Options.CorrectDrift
					assert.JSONEq(t, asJSON(t, want.Spec), asJSON(t, got.Spec))
					compared++
				})
			}
		}
	}
	assert.Greater(t, compared, 60)
}

func asJSON(t *testing.T, object any) string {
	t.Helper()
	data, err := json.Marshal(object)
	require.NoError(t, err)
	return string(data)
}
