package v1alpha1

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "k8s.io/apimachinery/pkg/util/json"
)

// A value that cannot be decoded omits its field and no other one.
func TestCluster_UnmarshalJSON(t *testing.T) {
	seen := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Local())
	for name, row := range map[string]struct {
		document string
		want     Cluster
	}{
		"nothing wrong": {
			`{"spec":{"clientID":"a"},"status":{"agent":{"lastSeen":"2026-01-01T00:00:00Z"}}}`,
			Cluster{Spec: ClusterSpec{ClientID: "a"}, Status: ClusterStatus{Agent: AgentStatus{LastSeen: seen}}},
		},
		"a time": {
			`{"metadata":{"name":"c"},"spec":{"clientID":"a"},"status":{"namespace":"n","agent":{"lastSeen":"2026-01-01t00:00:00z","namespace":"x"}}}`,
			Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: ClusterSpec{ClientID: "a"}, Status: ClusterStatus{Namespace: "n", Agent: AgentStatus{Namespace: "x"}}},
		},
		"an interval beside a time": {
			`{"status":{"agent":{"lastSeen":"2026-01-01T00:00:00Z","checkinInterval":"often"}}}`,
			Cluster{Status: ClusterStatus{Agent: AgentStatus{LastSeen: seen}}},
		},
		"a number that is too big, deep below": {
			`{"status":{"agent":{"nodes":{"count":9223372036854775808,"ready":2}}}}`,
			Cluster{Status: ClusterStatus{Agent: AgentStatus{Nodes: &AgentNodes{Ready: 2}}}},
		},
		"an element of a list": {
			`{"spec":{"clientID":"a","agentTolerations":[{"key":"a"},{"tolerationSeconds":1e300}]}}`,
			Cluster{Spec: ClusterSpec{ClientID: "a"}},
		},
		"all of a part": {`{"metadata":{"name":"c"},"spec":[1],"status":"none"}`, Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c"}}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, decode := range []func([]byte, any) error{json.Unmarshal, kjson.Unmarshal} {
				var got Cluster
				require.NoError(t, decode([]byte(row.document), &got))
				assert.Equal(t, row.want, got)
			}
		})
	}
}

func TestUnmarshalJSON_lists(t *testing.T) {
	for _, document := range []string{
		`{"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"},"status":{"resources":[{"createdAt":"2026-01-01t00:00:00z"}],"ready":true}}]}`,
		`{"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"},"status":{"syncGeneration":1e300,"ready":true}}]}`,
	} {
		var list BundleDeploymentList
		require.NoError(t, json.Unmarshal([]byte(document), &list))
		require.Len(t, list.Items, 2)
		assert.Equal(t, "b", list.Items[1].Name)
		assert.True(t, list.Items[1].Status.Ready)
	}
	var bundles BundleList
	require.NoError(t, json.Unmarshal([]byte(`{"items":[{"metadata":{"name":"a"},"spec":{"paused":true,"rolloutStrategy":{"maxUnavailable":{}}}}]}`), &bundles))
	assert.True(t, bundles.Items[0].Spec.Paused)
	var groups ClusterGroupList
	require.NoError(t, json.Unmarshal([]byte(`{"items":[{"metadata":{"name":"a"},"status":{"clusterCount":1e300}}]}`), &groups))
	assert.Equal(t, "a", groups.Items[0].Name)
}

func TestCluster_UnmarshalJSON_errors(t *testing.T) {
	for _, document := range []string{`[]`, `"x"`, `{"metadata":{"creationTimestamp":"no"}}`, `{"metadata":7}`} {
		assert.Error(t, json.Unmarshal([]byte(document), new(Cluster)), document)
	}
}

func TestCluster_UnmarshalJSON_deep(t *testing.T) {
	const levels = 5000
	deep := strings.Repeat(`{"a":`, levels) + `1` + strings.Repeat(`}`, levels)
	var got Cluster
	require.NoError(t, json.Unmarshal([]byte(`{"spec":{"clientID":"a"},"status":{"namespace":"n","agent":{"lastSeen":`+deep+`}}}`), &got))
	assert.Equal(t, Cluster{Spec: ClusterSpec{ClientID: "a"}, Status: ClusterStatus{Namespace: "n"}}, got)
}

// With any content of spec and status the object is decoded, and decoding the result again changes nothing.
func FuzzUnmarshalJSON(f *testing.F) {
	for _, part := range []string{`{}`, `null`, `[]`, `{"agent":{"lastSeen":"x"}}`, `{"clientID":"a","agentResources":{"limits":{"cpu":"1e1.5"}}}`, `{"agent":{"nodes":{"count":1e300}}}`, `{"agent":{"a":1e400}}`} {
		f.Add([]byte(part))
	}
	f.Fuzz(func(t *testing.T, part []byte) {
		if !json.Valid(part) {
			return
		}
		var object map[string]any
		document := []byte(`{"metadata":{"name":"c"},"spec":` + string(part) + `,"status":` + string(part) + `}`)
		if kjson.Unmarshal(document, &object) != nil {
			return // numbers that no API server accepts
		}
		var got, again Cluster
		require.NoError(t, kjson.Unmarshal(document, &got))
		assert.Equal(t, "c", got.Name)
		written, err := json.Marshal(got)
		require.NoError(t, err)
		require.NoError(t, kjson.Unmarshal(written, &again))
		rewritten, err := json.Marshal(again)
		require.NoError(t, err)
		assert.JSONEq(t, string(written), string(rewritten))
	})
}

// The CustomResourceDefinition of Fleet admits any text as a ttl. One token must not prevent the hub from listing all of them.
func TestClusterRegistrationToken_undecodable(t *testing.T) {
	hour := &metav1.Duration{Duration: time.Hour}
	for name, row := range map[string]struct {
		document    string
		ttl         *metav1.Duration
		undecodable string
	}{
		"no ttl":                      {`{"spec":{}}`, nil, ""},
		"a ttl":                       {`{"spec":{"ttl":"1h"}}`, hour, ""},
		"a ttl that is no duration":   {`{"spec":{"ttl":"1d"}}`, nil, "spec.ttl"},
		"a negative ttl":              {`{"spec":{"ttl":"-1h"}}`, nil, "spec.ttl"},
		"a ttl that is an object":     {`{"spec":{"ttl":{"a":"1d"}}}`, nil, "spec.ttl"},
		"a limit that is too large":   {`{"spec":{"ttl":"1h","usageLimit":1e300}}`, hour, "spec.usageLimit"},
		"both":                        {`{"spec":{"usageLimit":1e300,"ttl":""}}`, nil, "spec.ttl, spec.usageLimit"},
		"a spec that is no object":    {`{"spec":[]}`, nil, "spec"},
		"a status with invalid times": {`{"spec":{"ttl":"1h"},"status":{"expires":"2026-01-01t00:00:00z"}}`, hour, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var list ClusterRegistrationTokenList
			require.NoError(t, kjson.Unmarshal([]byte(`{"items":[{"metadata":{"name":"other"}},`+row.document+`]}`), &list))
			require.Len(t, list.Items, 2)
			assert.Equal(t, row.ttl, list.Items[1].Spec.TTL)
			assert.Equal(t, row.undecodable, list.Items[1].DeepCopy().Undecodable)
		})
	}
}

// The CustomResourceDefinition of Fleet admits quantities that take minutes and gigabytes to decode. One Cluster must not stop the hub.
func TestCluster_unboundedQuantities(t *testing.T) {
	for text, bounded := range map[string]bool{
		`"16"`: true, `"64Gi"`: true, `"1e3"`: true, `1e+300`: true, `"1.5e-999999999"`: false, `"+.5E+99999999999"`: false,
		`"` + strings.Repeat("9", 100_000) + `.5"`: false,
	} {
		t.Run(text[:min(len(text), 20)], func(t *testing.T) {
			list := `{"cpu":` + text + `,"memory":"1Gi"}`
			document := `{"metadata":{"name":"c","labels":{"a":"1e1000"}},"spec":{"clientID":"1.5e-999999999","agentResources":{"limits":` + list + `,"requests":` + list +
				`},"agentEnvVars":[{"name":"a"},{"name":"b","valueFrom":{"resourceFieldRef":{"resource":"limits.cpu","divisor":` + text +
				`}}}]},"status":{"agent":{"capacity":` + list + `,"allocatable":` + list + `}}}`
			var got Cluster
			require.NoError(t, kjson.Unmarshal([]byte(document), &got))
			assert.Equal(t, "1e1000", got.Labels["a"])
			assert.Equal(t, "1.5e-999999999", got.Spec.ClientID)
			require.Len(t, got.Spec.AgentEnvVars, 2)
			assert.Equal(t, bounded, !got.Spec.AgentEnvVars[1].ValueFrom.ResourceFieldRef.Divisor.IsZero())
			for _, quantities := range []corev1.ResourceList{
				got.Spec.AgentResources.Limits, got.Spec.AgentResources.Requests, got.Status.Agent.Capacity, got.Status.Agent.Allocatable,
			} {
				assert.Equal(t, "1Gi", quantities.Memory().String())
				assert.Equal(t, bounded, len(quantities) == 2)
			}
		})
	}
}

// All quantities of the type are among the paths that UnmarshalJSON checks.
func TestCluster_quantities(t *testing.T) {
	assert.ElementsMatch(t, quantityPaths, pathsTo(reflect.TypeFor[resource.Quantity](), reflect.TypeFor[Cluster](), ""))
}

// pathsTo returns the JSON paths of the fields of spec and status that have a type.
func pathsTo(wanted, in reflect.Type, path string) (paths []string) {
	switch kind := in.Kind(); {
	case in == wanted:
		return []string{strings.TrimPrefix(path, ".")}
	case kind == reflect.Pointer:
		return pathsTo(wanted, in.Elem(), path)
	case kind == reflect.Slice, kind == reflect.Map:
		return pathsTo(wanted, in.Elem(), path+".*")
	case kind == reflect.Struct:
		for i := range in.NumField() {
			field := in.Field(i)
			if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" && field.IsExported() {
				name = path + "." + name
				paths = append(paths, pathsTo(wanted, field.Type, name)...)
			} else if field.Anonymous {
				paths = append(paths, pathsTo(wanted, field.Type, path)...)
			}
		}
	}
	return paths
}
