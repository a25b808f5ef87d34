package hub

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/muster-fleet/muster/internal/testenv/sample"
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
	sample.Long(t)
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

func TestWithoutResources_annotationOfKubectl(t *testing.T) {
	annotations := map[string]string{"kubectl.kubernetes.io/last-applied-configuration": `{"spec":{}}`, "other": "kept"}
	kept, err := withoutResources(&fleet.Bundle{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}})
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"other": "kept"}, kept.(*fleet.Bundle).Annotations)
}

func TestWithSmallSpec(t *testing.T) {
	sample.Long(t)
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

// manyLabels are 1.2 MB of JSON, and 9 MiB of memory.
func manyLabels(prefix string) map[string]string {
	labels := map[string]string{}
	for i := range 100_000 {
		labels[prefix+fmt.Sprintf("%05x", i)] = ""
	}
	return labels
}

func TestWithSmallMetadata(t *testing.T) {
	sample.Long(t)
	reduce := withSmallMetadata(nil)
	const token, annotation = "fleet.cattle.io/registration-token", "muster.fleet.cattle.io/created-by"
	for name, object := range map[string]interface {
		metav1.Object
		runtime.Object
	}{
		"Cluster": &fleet.Cluster{}, "ClusterGroup": &fleet.ClusterGroup{}, "Bundle": &fleet.Bundle{}, "ClusterRegistration": &fleet.ClusterRegistration{},
		"ClusterRegistrationToken": &fleet.ClusterRegistrationToken{},
	} {
		t.Run(name, func(t *testing.T) {
			labels := manyLabels("")
			labels[token] = "kept"
			object.SetLabels(labels)
			object.SetAnnotations(map[string]string{annotation: "kept", "kubectl.kubernetes.io/last-applied-configuration": strings.Repeat("x", 256<<10-100)})
			want := maps.Clone(object.GetAnnotations())
			kept, err := reduce(object)
			require.NoError(t, err)
			assert.Equal(t, map[string]string{token: "kept"}, object.GetLabels())
			assert.Equal(t, want, object.GetAnnotations(), "a large annotation is usual")
			marked := fmt.Sprintf("%+v", kept)
			assert.Equal(t, name != "ClusterRegistrationToken", strings.Contains(marked, "TooLarge:true"), "nothing depends on the labels of a token")
			again, err := reduce(kept.(runtime.Object).DeepCopyObject())
			require.NoError(t, err)
			assert.Equal(t, kept, again)

			object.SetFinalizers(append(slices.Collect(maps.Keys(manyLabels(""))), "fleet.cattle.io/f"))
			object.SetOwnerReferences(make([]metav1.OwnerReference, 10_000))
			_, err = reduce(object)
			require.NoError(t, err)
			assert.Equal(t, []string{"fleet.cattle.io/f"}, object.GetFinalizers())
			assert.Len(t, object.GetOwnerReferences(), maxOwners)

			object.SetAnnotations(manyLabels("fleet.cattle.io/"))
			_, err = reduce(object)
			require.NoError(t, err)
			assert.Empty(t, object.GetAnnotations())
		})
	}

	usual := map[string]string{}
	for i := range 256 {
		usual[fmt.Sprintf("example.com/label-%d", i)] = strings.Repeat("x", 50)
	}
	request := &fleet.ClusterRegistration{ObjectMeta: metav1.ObjectMeta{Labels: usual}, Spec: fleet.ClusterRegistrationSpec{ClusterLabels: usual}}
	want := request.DeepCopy()
	kept, err := reduce(request)
	require.NoError(t, err)
	assert.Equal(t, want, kept, "as many as the admission policy permits")
}

// Without the digest, the hub would not recognize the namespace that it has just created for a Cluster: status.namespace may be written later.
func TestLimitMetadata_namespaceDigest(t *testing.T) {
	digest := strings.Repeat("d", 64)
	cluster := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		fleet.NamespaceDigestAnnotation: digest, "objectset.rio.cattle.io/applied": strings.Repeat("x", smallPart),
	}}}
	assert.True(t, limitMetadata(cluster, smallPart, smallPart))
	assert.Equal(t, map[string]string{fleet.NamespaceDigestAnnotation: digest}, cluster.Annotations)

	cluster.Annotations = map[string]string{fleet.NamespaceDigestAnnotation: strings.Repeat("d", smallPart)}
	assert.True(t, limitMetadata(cluster, smallPart, smallPart))
	assert.Empty(t, cluster.Annotations, "a user has written it")
}

// A refused request stays in the cache for a day, so none of its fields may take much memory there. The CustomResourceDefinitions of Fleet limit
// neither the texts nor the labels.
func TestWithSmallMetadata_fieldsOfRequests(t *testing.T) {
	large := strings.Repeat("x", maxClientID+1)
	for _, field := range reflect.VisibleFields(reflect.TypeFor[fleet.ClusterRegistrationSpec]()) {
		if field.Tag.Get("json") == "-" {
			continue
		}
		request := &fleet.ClusterRegistration{}
		value := reflect.ValueOf(&request.Spec).Elem().FieldByIndex(field.Index)
		switch value.Interface().(type) {
		case string:
			value.SetString(large)
		case map[string]string:
			value.Set(reflect.ValueOf(manyLabels("")))
		default:
			require.Fail(t, "the caches may have to limit this field, too: "+field.Name)
		}
		kept, err := withSmallMetadata(nil)(request)
		require.NoError(t, err)
		assert.Equal(t, &fleet.ClusterRegistration{Spec: fleet.ClusterRegistrationSpec{TooLarge: true}}, kept, field.Name)
	}
	spec := fleet.ClusterRegistrationSpec{ClientID: large[1:], ClientRandom: large[1:]}
	kept, err := withSmallMetadata(nil)(&fleet.ClusterRegistration{Spec: spec})
	require.NoError(t, err)
	assert.Equal(t, &fleet.ClusterRegistration{Spec: spec}, kept)
}
