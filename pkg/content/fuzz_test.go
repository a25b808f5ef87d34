package content

import (
	"slices"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/fuzz"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// An agent decodes Contents that another user of the hub may have written.
func FuzzDecode(f *testing.F) {
	good, err := Encode([]fleet.BundleResource{{Name: "a.yaml", Content: "kind: ConfigMap"}})
	require.NoError(f, err)
	f.Add(good.Name, good.Content)
	f.Add("s-", []byte{})
	f.Add(good.Name, []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff})
	for _, document := range []string{"", "null", "[]", `{"resources":[{"encoding":"base64+gz","content":"AA=="}]}`, `{"resources":[{"encoding":"x"}]}`} {
		packed, err := pack([]byte(document))
		require.NoError(f, err)
		_, digest, err := encodeJSON(document)
		require.NoError(f, err)
		f.Add(nameOf(digest), packed)
	}
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		resources, err := Decode(&fleet.Content{ObjectMeta: metav1.ObjectMeta{Name: name}, Content: data})
		if err != nil {
			assert.Empty(t, resources)
			return
		}
		for _, r := range resources {
			assert.Empty(t, r.Encoding)
		}
	})
}

func FuzzEncode_roundTrip(f *testing.F) {
	f.Add("a.yaml", "kind: ConfigMap", "b/c.yaml", "")
	f.Add("", "\x00\u2028<>&", "a.yaml", "{{ .Values }}")
	f.Fuzz(func(t *testing.T, name1, content1, name2, content2 string) {
		resources := []fleet.BundleResource{{Name: name1, Content: content1}, {Name: name2, Content: content2}}
		for _, text := range []string{name1, content1, name2, content2} {
			if !utf8.ValidString(text) {
				return
			}
		}
		encoded, err := Encode(resources)
		require.NoError(t, err)
		name, sum, err := Digest(resources)
		require.NoError(t, err)
		assert.Equal(t, encoded.Name, name)
		assert.Equal(t, encoded.SHA256Sum, sum)
		back, err := Decode(encoded)
		require.NoError(t, err)
		assert.Equal(t, resources, back)
		other := slices.Concat(encoded.Content, []byte{'x'})
		_, err = Decode(&fleet.Content{ObjectMeta: metav1.ObjectMeta{Name: encoded.Name}, Content: other})
		assert.Error(t, err, "something was added")
	})
}

func FuzzDeploymentID(f *testing.F) {
	fuzz.AddSeeds(f)
	f.Fuzz(func(t *testing.T, seed []byte) {
		var a fleet.BundleDeploymentOptions
		fuzz.From(seed, "a").Fill(&a)
		id, err := DeploymentID("s-1", a)
		require.NoError(t, err)
		withoutDrift := a
		withoutDrift.Diff, withoutDrift.CorrectDrift = nil, nil
		same, err := DeploymentID("s-1", withoutDrift)
		require.NoError(t, err)
		assert.Equal(t, id, same)
		withoutDrift.DefaultNamespace += "x"
		other, err := DeploymentID("s-1", withoutDrift)
		require.NoError(t, err)
		assert.NotEqual(t, id, other)
	})
}
