package bundle

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	yamlreader "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// recorded is a stage of a scene in testdata/wire, which has what Fleet's own controllers made of Bundles.
type recorded struct {
	Stage   string
	Bundles []struct {
		Name                    string
		BundleAsApplied, Bundle json.RawMessage
		BundleDeployments       []fleet.BundleDeployment
		Secrets                 []struct{ DataDecoded struct{ StagedValues string } }
	}
}

// TestWire makes the BundleDeployments of recorded Bundles. They are the same as recorded, so that a change between this hub and
// Fleet's redeploys nothing. One difference is on purpose: Fleet's hub puts values into a Secret, this one into the options.
func TestWire(t *testing.T) {
	scenes, err := filepath.Glob("testdata/wire/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, scenes)
	s := newStage(t)
	m1 := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet-default", Name: "m1", Labels: map[string]string{"env": "dev", "roll": "yes", "part": "a"}}}
	devs := group("devs", nil, selector("env", "dev"))
	devs.Namespace = "fleet-default"
	s.has(t, devs)
	compared := 0
	for _, scene := range scenes {
		for _, stage := range readStages(t, scene) {
			for _, r := range stage.Bundles {
				applied := r.BundleAsApplied
				if applied == nil {
					applied = r.Bundle // a later stage has it as served
				}
				if applied[0] == '"' {
					continue // it is deleted
				}
				t.Run(filepath.Base(scene)+"/"+stage.Stage+"/"+r.Name, func(t *testing.T) {
					var b fleet.Bundle
					require.NoError(t, json.Unmarshal(applied, &b))
					p := newPlan(&b)
					require.Nil(t, p.problem)
					chosen := p.choose(&b, s.memberOf(m1))
					if len(r.BundleDeployments) == 0 {
						assert.Empty(t, chosen)
						return
					}
					v, err := p.variant(chosen)
					require.NoError(t, err)
					got, want := desired(&b, v, m1, nil), r.BundleDeployments[0]
					assert.Equal(t, want.Spec.StagedDeploymentID, got.Spec.StagedDeploymentID)
					assert.Equal(t, want.Labels, got.Labels)
					assert.Equal(t, want.Namespace+"/"+want.Name, got.Namespace+"/"+got.Name)
					if len(r.Secrets) > 0 {
						assert.JSONEq(t, r.Secrets[0].DataDecoded.StagedValues, asJSON(t, v.options.Helm.Values))
						helm := *v.options.Helm
						helm.Values, got.Spec.StagedOptions.Helm, got.Spec.Options.Helm = nil, &helm, &helm
					}
					got.Spec.ValuesHash, want.Spec.ValuesHash = "", ""
					assert.JSONEq(t, asJSON(t, want.Spec), asJSON(t, got.Spec))
					compared++
				})
			}
		}
	}
	assert.Greater(t, compared, 15)
}

func asJSON(t *testing.T, object any) string {
	t.Helper()
	data, err := json.Marshal(object)
	require.NoError(t, err)
	return string(data)
}

// placeholder stands for a time in the recordings.
var placeholder = regexp.MustCompile(`\bTIME-\d+\b`)

func readStages(t *testing.T, file string) (stages []recorded) {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	for reader := yamlreader.NewYAMLReader(bufio.NewReader(f)); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return stages
		}
		require.NoError(t, err)
		var stage recorded
		require.NoError(t, yaml.Unmarshal(placeholder.ReplaceAll(document, []byte("2026-01-02T12:00:00Z")), &stage))
		stages = append(stages, stage)
	}
}
