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
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// recorded is a stage of a scene in testdata/wire: Bundles, and the objects that Fleet's own controllers made for them. A text stands for a part
// that equals the part of the stage before.
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
// it does not support would deploy something else, and Fleet's hub leaves a Bundle with too long a name pending without a message.
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

// TestWire makes the BundleDeployments of recorded Bundles, and the Secrets with their Helm values. They equal the recorded ones, so that
// a change between this hub and Fleet's redeploys nothing.
func TestWire(t *testing.T) {
	scenes, err := filepath.Glob("testdata/wire/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, scenes)
	s, m1 := wireStage(t)
	compared := 0
	for _, scene := range scenes {
		before := map[string]*fleet.BundleDeployment{} // what an earlier stage has
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
					chosen, _ := p.choose(&b, candidateOf(m1, s.groupsOf(m1.Namespace)))
					if len(r.BundleDeployments) > 0 && r.BundleDeployments[0] == '"' {
						return
					}
					if len(r.BundleDeployments) > 0 {
						require.NoError(t, json.Unmarshal(r.BundleDeployments, &r.decodedDeployments))
					}
					if message := unrendered[r.Name]; message != "" {
						_, err := p.variant(t.Context(), chosen, m1)
						require.ErrorContains(t, err, message)
						assert.Empty(t, r.decodedDeployments)
						return
					}
					if len(r.decodedDeployments) == 0 {
						assert.Empty(t, chosen)
						return
					}
					v, err := p.variant(t.Context(), chosen, m1)
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
					got := desired(&b, v, values, isPaused(&b, m1), m1, before[r.Name])
					if want.Spec.HelmChartOptions != nil { // the recording replaces the address, which the digest covers
						want.Spec.StagedDeploymentID, want.Spec.DeploymentID = got.Spec.StagedDeploymentID, got.Spec.StagedDeploymentID
						assert.True(t, strings.HasPrefix(got.Spec.StagedDeploymentID, ":"))
					}
					assert.Equal(t, want.Spec.StagedDeploymentID, got.Spec.StagedDeploymentID)
					assert.Equal(t, want.Namespace+"/"+want.Name, got.Namespace+"/"+got.Name)
					// See TestReconcileCopies: the hub counts the contents of the copies.
					got.Spec.DownstreamResourcesGeneration = want.Spec.DownstreamResourcesGeneration
					assert.Equal(t, want.Labels, got.Labels)
					before[r.Name] = want.DeepCopy()
					Reduce(&before[r.Name].Spec)
					if got.Spec.CachedDigests == nil {
						assert.JSONEq(t, asJSON(t, want.Spec), asJSON(t, got.Spec))
					} else {
						assert.True(t, isSpecEqual(&before[r.Name].Spec, &got.Spec), "want %s\ngot %s", asJSON(t, want.Spec), asJSON(t, got.Spec))
					}
					compared++
				})
			}
		}
	}
	assert.Greater(t, compared, 60)
}

// wireStage returns a stage with the recorded Cluster and ClusterGroup.
func wireStage(t *testing.T) (*stage, *fleet.Cluster) {
	t.Helper()
	s := newStage(t)
	m1 := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet-default", Name: "m1", Labels: map[string]string{"env": "dev", "roll": "yes", "part": "a", "extra": "1"}, Annotations: map[string]string{"team": "blue"}}}
	m1.Spec.TemplateValues = &fleet.GenericMap{Data: map[string]any{"region": "eu", "count": int64(3)}}
	devs := group("devs", nil, selector("env", "dev"))
	devs.Namespace = "fleet-default"
	s.has(t, m1, devs)
	return s, m1
}

// otherStatus are the recorded Bundles whose status is not compared, by "stage name", and why.
var otherStatus = map[string]string{
	"settled s15-first": "this hub counts the state that the BundleDeployment shows, NotReady, and says that it is paused; Fleet's counts WaitApplied",
	"changed-while-paused s15-later": "this hub counts the state that the BundleDeployment shows, OutOfSync, and says that it is paused; " +
		"Fleet's counts WaitApplied, although the agent may not apply anything",
	"settled s19-l64-abcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdef": "this hub refuses the name and says so; Fleet's leaves the Bundle Pending",
	"settled s21-op": "it was recorded before Fleet's hub had written the status of that generation",
}

// TestWire_status computes the status of Bundles from the recorded BundleDeployments. It is as recorded, with three differences on
// purpose: condition Ready has a reason, and its message names more than the first Cluster of a state; the messages in the summary also
// say what is not ready; and the fields of a rollout are set only if the Bundle has a rollout strategy, because they repeat the summary.
func TestWire_status(t *testing.T) {
	scenes, err := filepath.Glob("testdata/wire/*.yaml")
	require.NoError(t, err)
	compared := 0
	for _, scene := range scenes {
		specs, deployments := map[string]json.RawMessage{}, map[string]json.RawMessage{}
		for _, stage := range recording.Stages[recorded](t, scene) {
			for _, r := range stage.Bundles {
				var applied, served struct {
					Metadata, Spec json.RawMessage
					Status         fleet.BundleStatus
				}
				_ = json.Unmarshal(r.Bundle, &served) // a text, if it is as in the stage before
				if json.Unmarshal(r.BundleAsApplied, &applied) == nil && len(applied.Spec) > 0 {
					specs[r.Name] = applied.Spec
				}
				if len(served.Spec) > 0 && served.Spec[0] == '{' {
					specs[r.Name] = served.Spec
				}
				if len(r.BundleDeployments) > 0 && r.BundleDeployments[0] == '[' {
					deployments[r.Name] = r.BundleDeployments
				}
				if served.Status.ObservedGeneration == 0 || otherStatus[stage.Stage+" "+r.Name] != "" {
					continue
				}
				t.Run(filepath.Base(scene)+"/"+stage.Stage+"/"+r.Name, func(t *testing.T) {
					s, _ := wireStage(t)
					b := &fleet.Bundle{}
					require.NoError(t, json.Unmarshal(served.Metadata, &b.ObjectMeta))
					require.NoError(t, json.Unmarshal(specs[r.Name], &b.Spec))
					if version := resolved[r.Name]; version != "" {
						b.Spec.Helm.Version = version
					}
					b.Finalizers, b.CreationTimestamp = []string{fleet.BundleFinalizer}, metav1.Time{}
					var made []fleet.BundleDeployment
					require.NoError(t, json.Unmarshal(deployments[r.Name], &made))
					for i := range made {
						s.has(t, &made[i])
					}
					s.has(t, b)
					_, err := s.updateStatus(t.Context(), b, s.plans.of(t.Context(), b), s.groupsOf(b.Namespace), s.matching(b), nil, rolloutStatus{})
					require.NoError(t, err)
					log := s.taken()
					require.Len(t, log, 1)
					_, patch, found := strings.Cut(log[0], "[status] ")
					require.True(t, found, log[0])
					var got struct{ Status fleet.BundleStatus }
					require.NoError(t, json.Unmarshal([]byte(patch), &got))

					want := served.Status
					assert.Equal(t, fleetstatus.Condition(want.Conditions, fleet.ConditionReady).Status, fleetstatus.Condition(got.Status.Conditions, fleet.ConditionReady).Status)
					for _, status := range []*fleet.BundleStatus{&want, &got.Status} {
						status.Conditions, status.MaxUnavailable, status.Partitions, status.UnavailablePartitions = nil, 0, nil, 0
						for i := range status.Summary.NonReadyResources {
							status.Summary.NonReadyResources[i].Message = ""
						}
					}
					assert.JSONEq(t, asJSON(t, want), asJSON(t, got.Status))
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
