package writes

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// recorder is a client that records its requests.
type recorder struct {
	sent    []string
	options metav1.PatchOptions
	reply   *fleet.Cluster
	err     error
}

func (r *recorder) Patch(
	_ context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions, subresources ...string,
) (*fleet.Cluster, error) {
	r.options = o
	r.sent = append(r.sent, fmt.Sprintf("%s %s %v %s", name, pt, subresources, data))
	return r.reply, r.err
}

func someCluster() *fleet.Cluster {
	return &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "uid", ResourceVersion: "7", Labels: map[string]string{"a": "b"}},
		Spec:       fleet.ClusterSpec{ClientID: "id"},
		Status: fleet.ClusterStatus{
			Namespace: "cluster-ns-c", AgentDeployedGeneration: ptr.To(int64(1)),
			Conditions: []genericcondition.GenericCondition{{Type: "Ready", Status: "True"}, {Type: "Processed", Status: "True"}},
		},
	}
}

func TestStatus(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*fleet.Cluster)
		status string
	}{
		{"a field that is set", func(c *fleet.Cluster) { c.Status.APIServerURL = "https://hub" }, `{"apiServerURL":"https://hub"}`},
		{"a field that is removed", func(c *fleet.Cluster) { c.Status.AgentDeployedGeneration = nil }, `{"agentDeployedGeneration":null}`},
		{"a field that is emptied", func(c *fleet.Cluster) { c.Status.Namespace = "" }, `{"namespace":null}`},
		{"a field further down", func(c *fleet.Cluster) { c.Status.Agent.Namespace = "x" }, `{"agent":{"namespace":"x"}}`},
		{
			"a condition, with its neighbours", func(c *fleet.Cluster) { c.Status.Conditions[0].Status = "False" },
			`{"conditions":[{"status":"False","type":"Ready"},{"status":"True","type":"Processed"}]}`,
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			client := &recorder{reply: &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "8"}}}
			before, after := someCluster(), someCluster()
			row.change(after)
			latest, changed, err := Status(t.Context(), client, before, after)
			require.NoError(t, err)
			assert.True(t, changed)
			assert.Equal(t, "8", latest.ResourceVersion)
			assert.Equal(t, metav1.FieldValidationIgnore, client.options.FieldValidation, "no warning for each field that a definition lacks")
			assert.Equal(t, []string{fmt.Sprintf(
				`c application/merge-patch+json [status] {"metadata":{"resourceVersion":"7","uid":"uid"},"status":%s}`, row.status)}, client.sent)
		})
	}
}

func TestStatusUnchanged(t *testing.T) {
	for name, change := range map[string]func(*fleet.Cluster){
		"nothing changed":              func(*fleet.Cluster) {},
		"something else changed":       func(c *fleet.Cluster) { c.Labels["a"], c.Spec.ClientID = "c", "other" },
		"a list became an empty one":   func(c *fleet.Cluster) { c.Status.Import = nil },
		"nil and empty look the same":  func(c *fleet.Cluster) { c.Status.Summary.NonReadyResources = nil },
		"the version alone is no news": func(c *fleet.Cluster) { c.ResourceVersion = "9" },
	} {
		t.Run(name, func(t *testing.T) {
			client := &recorder{err: errors.New("not to be called")}
			before, after := someCluster(), someCluster()
			change(after)
			latest, changed, err := Status(t.Context(), client, before, after)
			require.NoError(t, err)
			assert.False(t, changed)
			assert.Same(t, before, latest)
			assert.Empty(t, client.sent)
		})
	}
}

func TestStatusError(t *testing.T) {
	conflict := errors.New("conflict")
	before, after := someCluster(), someCluster()
	after.Status.APIServerURL = "x"
	latest, changed, err := Status(t.Context(), &recorder{err: conflict}, before, after)
	require.ErrorIs(t, err, conflict)
	assert.ErrorContains(t, err, "writing the status of ns/c")
	assert.False(t, changed)
	assert.Same(t, before, latest)
}

func TestMerge(t *testing.T) {
	client := &recorder{reply: &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "8"}}}
	latest, err := Merge(t.Context(), client, someCluster(), map[string]any{"spec": map[string]any{"clientID": "x"}})
	require.NoError(t, err)
	assert.Equal(t, "8", latest.ResourceVersion)
	assert.Equal(t, []string{`c application/merge-patch+json [] {"spec":{"clientID":"x"}}`}, client.sent)
}

func TestMergeError(t *testing.T) {
	gone, object := errors.New("gone"), someCluster()
	latest, err := Merge(t.Context(), &recorder{err: gone}, object, map[string]any{})
	require.ErrorIs(t, err, gone)
	assert.ErrorContains(t, err, "patching ns/c")
	assert.Same(t, object, latest)

	client := &recorder{}
	latest, err = Merge(t.Context(), client, object, map[string]any{"x": make(chan int)})
	require.Error(t, err)
	assert.Same(t, object, latest)
	assert.Empty(t, client.sent)
}

func TestFields(t *testing.T) {
	client := &recorder{reply: &fleet.Cluster{}}
	latest, changed, err := Fields(t.Context(), client, someCluster(), []PatchOperation{
		{Op: "add", Path: "/spec/clientID", Value: "new"}, {Op: "add", Path: "/spec/paused", Value: false}, {Op: "remove", Path: "/spec/paused"},
	})
	require.NoError(t, err)
	assert.True(t, changed)
	assert.Same(t, client.reply, latest)
	assert.Equal(t, []string{`c application/json-patch+json [] [{"op":"replace","path":"/metadata/resourceVersion","value":"7"},` +
		`{"op":"add","path":"/spec/clientID","value":"new"},{"op":"add","path":"/spec/paused","value":false},{"op":"remove","path":"/spec/paused"}]`}, client.sent)
}

func TestFieldsWithoutChange(t *testing.T) {
	client, before := &recorder{}, someCluster()
	latest, changed, err := Fields(t.Context(), client, before, nil)
	require.NoError(t, err)
	assert.False(t, changed)
	assert.Same(t, before, latest)
	assert.Empty(t, client.sent)
}

func TestFieldsErrorNamesTheObject(t *testing.T) {
	client := &recorder{err: assert.AnError}
	_, changed, err := Fields(t.Context(), client, someCluster(), []PatchOperation{{Op: "remove", Path: "/spec/clientID"}})
	require.ErrorIs(t, err, assert.AnError)
	require.ErrorContains(t, err, "patching ns/c")
	assert.False(t, changed)
}
