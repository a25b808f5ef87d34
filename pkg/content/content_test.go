package content

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"

	"github.com/muster-fleet/muster/internal/testenv/sample"
)

var files = []fleet.BundleResource{{Name: "a.yaml", Content: "kind: A"}, {Name: "b.yaml", Content: "kind: B"}}

func TestEncode_roundTrip(t *testing.T) {
	c, err := Encode(files)
	require.NoError(t, err)
	out, err := Decode(c)
	require.NoError(t, err)
	assert.Equal(t, files, out)
}

func TestEncode_name(t *testing.T) {
	c, err := Encode([]fleet.BundleResource{{Name: "a", Content: "b"}})
	require.NoError(t, err)
	sum := sha256.Sum256([]byte(`{"resources":[{"name":"a","content":"b"}]}` + "\n"))
	digest := hex.EncodeToString(sum[:])
	assert.Equal(t, digest, c.SHA256Sum)
	assert.Equal(t, ("s-" + digest)[:63], c.Name)
}

func TestDigest(t *testing.T) {
	c, err := Encode(files)
	require.NoError(t, err)
	name, sum, err := Digest(files)
	require.NoError(t, err)
	assert.Equal(t, c.Name, name)
	assert.Equal(t, c.SHA256Sum, sum)
	_, _, err = Digest([]fleet.BundleResource{{Name: "r", Encoding: "zip"}})
	assert.ErrorContains(t, err, `unknown encoding "zip"`)
}

func TestWithoutResources(t *testing.T) {
	long := strings.Repeat("ä", 1<<20)
	for name, resources := range map[string][]fleet.BundleResource{
		"none":                             nil,
		"two":                              files,
		"one of unknown encoding":          {{Name: "r", Content: long, Encoding: "zip"}},
		"one of unknown encoding, huge":    {{Name: long, Encoding: long}},
		"one of unknown encoding and more": {files[0], {Name: "r", Encoding: "zip"}, {Name: "s", Encoding: "rar"}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := fleet.BundleSpec{Resources: resources}
			WithoutResources(&spec)
			WithoutResources(&spec) // a cache may do so for an object that it has
			kept, err := json.Marshal(spec)
			require.NoError(t, err)
			assert.Less(t, len(kept), 1000)
			before, sum, errBefore := Digest(resources)
			after, sumAfter, errAfter := DigestOf(spec)
			if errBefore != nil {
				assert.ErrorContains(t, errAfter, errBefore.Error()[:20])
				return
			}
			require.NoError(t, errAfter)
			assert.Empty(t, spec.Resources)
			assert.Equal(t, before+sum, after+sumAfter)
		})
	}
}

func TestEncode_equalResources(t *testing.T) {
	one, err := Encode(files)
	require.NoError(t, err)
	other, err := Encode(append([]fleet.BundleResource{}, files...))
	require.NoError(t, err)
	assert.Equal(t, one, other)
}

func TestDecode_packedResource(t *testing.T) {
	packed, err := pack([]byte("kind: A"))
	require.NoError(t, err)
	for encoding, data := range map[string][]byte{"base64+gz": packed, "base64": []byte("kind: A")} {
		resources := []fleet.BundleResource{{Name: "a", Content: base64.StdEncoding.EncodeToString(data), Encoding: encoding}}
		name, _, err := Digest(resources) // for a Bundle
		require.NoError(t, err)
		c, err := Encode(resources)
		require.NoError(t, err)
		assert.Equal(t, name, c.Name)
		out, err := Decode(c)
		require.NoError(t, err)
		assert.Equal(t, []fleet.BundleResource{{Name: "a", Content: "kind: A"}}, out)
	}
}

func TestDecode_errors(t *testing.T) {
	sample.Long(t)
	good, err := Encode(files)
	require.NoError(t, err)
	of := func(r fleet.BundleResource) *fleet.Content {
		c, err := Encode([]fleet.BundleResource{r})
		require.NoError(t, err)
		return c
	}
	huge, err := pack([]byte(strings.Repeat("x", sizeMax+1)))
	require.NoError(t, err)
	half, err := pack([]byte(strings.Repeat("x", sizeMax/2+1)))
	require.NoError(t, err)
	packed := fleet.BundleResource{Name: "r", Content: base64.StdEncoding.EncodeToString(half), Encoding: "base64+gz"}
	many, err := Encode([]fleet.BundleResource{packed, packed, packed})
	require.NoError(t, err)
	other := good.DeepCopy()
	other.Name = "s-other"
	for _, row := range []struct {
		name    string
		content *fleet.Content
		says    string
	}{
		{"not what the name says", other, "is not the digest of its resources"},
		{"nothing", &fleet.Content{}, "is damaged"},
		{"no gzip", &fleet.Content{Content: []byte("text")}, "is damaged"},
		{"cut off", &fleet.Content{Content: good.Content[:20]}, "is damaged"},
		{"a bomb", &fleet.Content{Content: huge}, "more than 64 MiB"},
		{"resources that are too large together", many, "resource r is damaged: the unpacked size is more than 64 MiB"},
		{"a resource of unknown encoding", of(fleet.BundleResource{Name: "r", Encoding: "zip"}), `unknown encoding "zip"`},
		{"a resource that is no base64", of(fleet.BundleResource{Name: "r", Content: "!", Encoding: "base64+gz"}), "resource r is not valid base64"},
		{"a resource that is no gzip", of(fleet.BundleResource{Name: "r", Content: "eA==", Encoding: "base64+gz"}), "resource r is damaged"},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := Decode(row.content)
			assert.ErrorContains(t, err, row.says)
		})
	}
}

func TestDeploymentID(t *testing.T) {
	id := func(o fleet.BundleDeploymentOptions) string {
		id, err := DeploymentID("s-x", o)
		require.NoError(t, err)
		return id
	}
	base := id(fleet.BundleDeploymentOptions{DefaultNamespace: "n"})
	assert.Regexp(t, `^s-x:[0-9a-f]{64}$`, base)
	assert.NotEqual(t, base, id(fleet.BundleDeploymentOptions{DefaultNamespace: "m"}))
	assert.Equal(t, base, id(fleet.BundleDeploymentOptions{
		DefaultNamespace: "n", Diff: &fleet.DiffOptions{}, CorrectDrift: &fleet.CorrectDrift{Enabled: true},
	}), "a change of the handling of drift is not deployed again")
}

// The digest in a deployment ID is of the options as JSON, with the fields in this order, as Fleet's hub computes it. The recordings contain most
// of the fields. The others are at the position that they have in the Go types.
func TestDeploymentID_fields(t *testing.T) {
	for name, row := range map[string]struct {
		options fleet.BundleDeploymentOptions
		text    string
	}{
		"no helm":    {fleet.BundleDeploymentOptions{DefaultNamespace: "n"}, `{"defaultNamespace":"n","helm":{}}`},
		"helm: {}":   {fleet.BundleDeploymentOptions{DefaultNamespace: "n", Helm: &fleet.HelmOptions{}}, `{"defaultNamespace":"n","helm":{"values":{}}}`},
		"empty ones": {empty, `{"yaml":{},"kustomize":{},"helm":{"values":{}},"ignore":{},"createNamespace":false,"allowedTargetNamespaceSelector":{}}`},
		"all": {all, `{"yaml":{"overlays":["o"]},"kustomize":{"dir":"k"},"defaultNamespace":"d","namespace":"t",` +
			`"helm":{"chart":"c","repo":"r","releaseName":"n","version":"v","timeoutSeconds":1,"values":{"a":"\u003c\u0026\u003e","b":[1,2.5,null,true]},` +
			`"templateValues":{"x":"y"},"valuesFrom":[{"configMapKeyRef":{"name":"m","namespace":"s","key":"k"}},{"secretKeyRef":{"name":"m"}}],"force":true,` +
			`"takeOwnership":true,"maxHistory":2,"valuesFiles":["f"],"waitForJobs":true,"atomic":true,"disablePreProcess":true,"disableDNS":true,` +
			`"skipSchemaValidation":true,"disableDependencyUpdate":true},"serviceAccount":"s","forceSyncGeneration":3,"keepResources":true,` +
			`"deleteNamespace":true,"deleteCRDResources":true,"ignore":{"conditions":[{"type":"T"}]},"namespaceLabels":{"l":"1"},` +
			`"namespaceAnnotations":{"a":"1"},"downstreamResources":[{"kind":"Secret","name":"d"}],"overwrites":[{"kind":"K","name":"n","namespace":"s"}],` +
			`"createNamespace":true,"allowedTargetNamespaceSelector":{"matchLabels":{"a":"b"}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			row.options.Diff, row.options.CorrectDrift = &fleet.DiffOptions{}, &fleet.CorrectDrift{Enabled: true}
			id, err := DeploymentID("s-x", row.options)
			require.NoError(t, err)
			sum := sha256.Sum256([]byte(row.text + "\n"))
			assert.Equal(t, "s-x:"+hex.EncodeToString(sum[:]), id)
		})
	}
}

var (
	empty = fleet.BundleDeploymentOptions{
		YAML: &fleet.YAMLOptions{}, Kustomize: &fleet.KustomizeOptions{}, Helm: &fleet.HelmOptions{}, IgnoreOptions: &fleet.IgnoreOptions{},
		NamespaceLabels: map[string]string{}, DownstreamResources: []fleet.DownstreamResource{}, CreateNamespace: new(bool),
		AllowedTargetNamespaceSelector: &metav1.LabelSelector{},
	}
	all = fleet.BundleDeploymentOptions{
		YAML: &fleet.YAMLOptions{Overlays: []string{"o"}}, Kustomize: &fleet.KustomizeOptions{Dir: "k"}, DefaultNamespace: "d", TargetNamespace: "t",
		Helm: &fleet.HelmOptions{
			Chart: "c", Repo: "r", ReleaseName: "n", Version: "v", TimeoutSeconds: 1,
			Values:         &fleet.GenericMap{Data: map[string]any{"b": []any{int64(1), 2.5, nil, true}, "a": "<&>"}},
			TemplateValues: map[string]string{"x": "y"},
			ValuesFrom: []fleet.ValuesFrom{
				{ConfigMapKeyRef: &fleet.KeySelector{Name: "m", Namespace: "s", Key: "k"}}, {SecretKeyRef: &fleet.KeySelector{Name: "m"}},
			},
			Force: true, TakeOwnership: true, MaxHistory: 2, ValuesFiles: []string{"f"}, WaitForJobs: true, Atomic: true, DisablePreProcess: true,
			DisableDNS: true, SkipSchemaValidation: true, DisableDependencyUpdate: true,
		},
		ServiceAccount: "s", ForceSyncGeneration: 3, KeepResources: true, DeleteNamespace: true, DeleteCRDResources: true,
		IgnoreOptions:   &fleet.IgnoreOptions{Conditions: []map[string]string{{"type": "T"}}},
		NamespaceLabels: map[string]string{"l": "1"}, NamespaceAnnotations: map[string]string{"a": "1"},
		DownstreamResources:            []fleet.DownstreamResource{{Kind: "Secret", Name: "d"}},
		Overwrites:                     []fleet.OverwrittenResource{{Kind: "K", Namespace: "s", Name: "n"}},
		CreateNamespace:                ptr.To(true),
		AllowedTargetNamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
	}
)
