package hub

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// decoded returns an object whose spec has the JSON that a user wrote.
func decoded[T any](t *testing.T, spec string) *T {
	t.Helper()
	object := new(T)
	require.NoError(t, json.Unmarshal([]byte(`{"metadata":{"name":"x"},"spec":`+spec+`}`), object))
	return object
}

// list is a JSON list of 1.4 MB.
func list(element string) string {
	return "[" + strings.Repeat(element+",", 1_400_000/(len(element)+1)) + element + "]"
}

func TestWithoutResources_dropsWhatTakesTooMuchMemory(t *testing.T) {
	for name, spec := range map[string]string{
		"empty targets":        `{"targets":` + list("{}") + `}`,
		"empty restrictions":   `{"targets":[{"clusterName":"a"}],"targetRestrictions":` + list("{}") + `}`,
		"values of empty maps": `{"targets":[{"clusterName":"a"}],"helm":{"values":{"a":` + list("{}") + `}}}`,
		"values in a target":   `{"targets":[{"clusterName":"a","helm":{"values":{"a":` + list("[]") + `}}}]}`,
		"empty patches":        `{"targets":[{"clusterName":"a"}],"diff":{"comparePatches":` + list("{}") + `}}`,
	} {
		t.Run(name, func(t *testing.T) {
			kept, err := withoutResources(decoded[fleet.Bundle](t, spec))
			require.NoError(t, err)
			assert.Equal(t, fleet.BundleSpec{Targets: []fleet.BundleTarget{{}}, TooLarge: true}, kept.(*fleet.Bundle).Spec)
			again, err := withoutResources(kept)
			require.NoError(t, err)
			assert.Equal(t, kept, again)
		})
	}
	for name, spec := range map[string]string{
		"many targets":       `{"targets":[` + strings.Repeat(`{"clusterName":"name"},`, 9999) + `{"clusterName":"a"}]}`,
		"a megabyte of text": `{"targets":[{"clusterName":"a"}],"helm":{"values":{"a":"` + strings.Repeat("x", 1_400_000) + `"}}}`,
		"many values":        `{"targets":[{"clusterName":"a"}],"helm":{"values":{"a":[` + strings.Repeat(`{"name":"some-name","value":"some value"},`, 9999) + `{}]}}}`,
		"many resources":     `{"targets":[{"clusterName":"a"}],"resources":` + list(`{"name":"a","content":"b"}`) + `}`,
	} {
		t.Run(name+" are kept", func(t *testing.T) {
			b := decoded[fleet.Bundle](t, spec)
			want := b.DeepCopy().Spec
			kept, err := withoutResources(b)
			require.NoError(t, err)
			got := kept.(*fleet.Bundle).Spec
			want.Resources, want.ResourcesDigest = nil, got.ResourcesDigest
			assert.Equal(t, want, got)
		})
	}
}

func TestWithSmallSpec(t *testing.T) {
	reduce := withSmallSpec(restoreCluster)
	const priority = `"agentSchedulingCustomization":{"priorityClass":{"value":5}}`
	for name, row := range map[string]struct {
		spec             string
		settings, values bool // are dropped
	}{
		"empty tolerations beside a PriorityClass": {`{"clientID":"c",` + priority + `,"agentTolerations":` + list("{}") + `}`, true, false},
		"empty tolerations":                        {`{"clientID":"c","agentTolerations":` + list("{}") + `}`, true, false},
		"environment variables":                    {`{"clientID":"c","agentEnvVars":` + list(`{"name":""}`) + `}`, true, false},
		"pull secrets":                             {`{"clientID":"c","agentPullSecrets":` + list("{}") + `}`, true, false},
		"templateValues":                           {`{"clientID":"c","templateValues":{"a":` + list("{}") + `}}`, false, true},
		"settings of 64 KiB":                       {`{"clientID":"c","agentEnvVars":[{"name":"A","value":"` + strings.Repeat("x", 65000) + `"}]}`, false, false},
		"templateValues of 500 kB":                 {`{"clientID":"c","templateValues":{"a":"` + strings.Repeat("x", 500_000) + `"}}`, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := decoded[fleet.Cluster](t, row.spec)
			want := cluster.DeepCopy().Spec
			kept, err := reduce(cluster)
			require.NoError(t, err)
			if row.settings {
				want = fleet.ClusterSpec{ClientID: "c", SettingsTooLarge: true, AgentSchedulingCustomization: want.AgentSchedulingCustomization}
			}
			if row.values {
				want = fleet.ClusterSpec{ClientID: "c", TemplateValuesTooLarge: true}
			}
			assert.Equal(t, want, kept.(*fleet.Cluster).Spec)
		})
	}
}
