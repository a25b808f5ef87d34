package report

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/content"
)

func TestRedactText(t *testing.T) {
	c := &collection{secrets: map[string]string{}}
	secret := &unstructured.Unstructured{Object: map[string]any{
		"kind": "Secret", "metadata": map[string]any{"namespace": "ns", "name": "s"},
		"data": map[string]any{
			"long":       "c2Vzc2FtZS1vcGVu",                                             // sessame-open
			"part":       "c2Vzc2FtZQ==",                                                 // sessame
			"short":      "dHJ1ZQ==",                                                     // true
			"apiServer":  "aHR0cHM6Ly9odWIuZXhhbXBsZS5jb20=",                             // https://hub.example.com
			"kubeconfig": "dXNlcnM6Ci0gdXNlcjoKICAgIHRva2VuOiBhYmNkZWZnaAogIG5hbWU6IG1l", // users: - user: token: abcdefgh, name: me
		},
	}}
	c.redactObject("secrets.json", secret)
	assert.Equal(t, "REDACTED, 12 bytes", secret.Object["data"].(map[string]any)["long"])

	for text, want := range map[string]string{
		"say sessame-open, or sessame":                              "say REDACTED, or REDACTED",
		"sessamesessame-opens":                                      "REDACTEDREDACTEDs",
		"sessame-openapi":                                           "REDACTEDapi",
		"sessame-oapi":                                              "REDACTED-oapi",
		"as base64 c2Vzc2FtZS1vcGVu":                                "as base64 REDACTED",
		"it is true":                                                "it is true",
		"bearer abcdefgh of me":                                     "bearer REDACTED of me",
		"Bearer eyJhbGciOiJSUzI1NiIs.eyJh.x1":                       "Bearer REDACTED",
		"https://me:pass@proxy:3128":                                "httpsREDACTEDproxy:3128",
		"https://me:pa?ss@proxy:3128":                               "httpsREDACTEDproxy:3128",
		"https://me:p@ss@proxy:3128":                                "httpsREDACTEDproxy:3128",
		"https://0123456789@git.example.com/":                       "httpsREDACTEDgit.example.com/",
		"https://s3/c.tgz?a=b&X-Amz-Signature=0123":                 "https://s3/c.tgz?a=bREDACTED",
		`"https://s3/c.tgz?a=b\u0026token=0123"`:                    `"https://s3/c.tgz?a=bREDACTED"`,
		"https://host/a?mail=a@b.org":                               "https://host/a?mail=a@b.org",
		"configmap.v1 ns/c modified {\"data\":{\"a\":\"1\"}}\nnext": "configmap.v1 ns/c modified REDACTED\nnext",
		`"message": "configmap.v1 ns/c modified {\"data\":{\"a\":\"\\\"1\"}}", "b": 1`: `"message": "configmap.v1 ns/c modified REDACTED", "b": 1`,
		"it has modified {a, b}": "it has modified {a, b}",
		"-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----": "REDACTED",
	} {
		assert.Equal(t, want, string(c.redactText("log", []byte(text))))
	}
	assert.Contains(t, c.Redacted, Redaction{"log", "a value of Secret ns/s, key kubeconfig"})
}

// If one of two overlapping values were removed first, a part of the other would stay.
func TestRedactOverlappingTexts(t *testing.T) {
	c := &collection{secrets: map[string]string{"abcdef": "one", "defghij": "two", "ghijkl": "three"}}
	assert.Equal(t, "-REDACTED-REDACTED-", string(c.redactText("log", []byte("-abcdefghijkl-ghijkl-"))))
	assert.Equal(t, []Redaction{{"log", "a value of one"}, {"log", "a value of two"}, {"log", "a value of three"}}, c.Redacted)
}

// Each registered cluster has Secrets, and their tokens begin with the same header.
func TestFindManyTexts(t *testing.T) {
	values, text := manyTokens(100_000)
	f := newFinder(values)
	spans := f.find(text)
	assert.Len(t, spans, 1000)
	for i, s := range spans {
		assert.Equal(t, values[i*100], text[s.from:s.to])
	}
	assert.Less(t, f.steps, 2*len(text), "values that were compared")
}

// manyTokens returns different tokens, and a log that has a hundredth of them.
func manyTokens(count int) (values []string, text string) {
	var log strings.Builder
	for i := range count {
		values = append(values, fmt.Sprintf("eyJhbGciOiJSUzI1NiIsImtpZCI6IjB4In0.%032x.%064x", i, count-i))
		if i%100 == 0 {
			fmt.Fprintf(&log, "2026-01-02T12:00:00Z request %d of eyJhbGciOiJSUzI1NiIsImtpZCI6IjB4In0 with %s was granted\n", i, values[i])
		}
	}
	return values, log.String()
}

// Every ServiceAccount of the hub may read a Content whose name it knows.
func TestRedactNamesOfContents(t *testing.T) {
	name, sum, err := content.Digest([]fleet.BundleResource{{Name: "a.yaml", Content: "kind: A"}})
	require.NoError(t, err)
	digits := strings.TrimPrefix(name, "s-")
	c := &collection{secrets: map[string]string{}}
	var text []byte
	for _, object := range []*unstructured.Unstructured{
		{Object: map[string]any{"kind": "Bundle", "metadata": map[string]any{"name": "b"}, "status": map[string]any{"resourcesSha256Sum": sum}}},
		{Object: map[string]any{
			"kind":     "BundleDeployment",
			"metadata": map[string]any{"name": "b", "labels": map[string]any{fleet.ContentNameLabel: name}},
			"spec":     map[string]any{"deploymentID": name + ":1234", "stagedDeploymentID": name + ":1234"},
			"status":   map[string]any{"appliedDeploymentID": name + ":1234"},
		}},
	} {
		c.redactObject("objects.json", object)
		encoded, err := object.MarshalJSON()
		require.NoError(t, err)
		text = append(text, encoded...)
	}
	text = c.redactText("objects.json", append(text, "reading Content "+name+" failed"...))
	assert.NotContains(t, string(text), digits)
	assert.Contains(t, string(text), `"resourcesSha256Sum":"`+sum[:8]+`..."`)
	assert.Contains(t, string(text), `"deploymentID":"s-`+sum[:8]+`...:1234"`)
	assert.Contains(t, string(text), "reading Content s-"+sum[:8]+"... failed")
	assert.Contains(t, c.Redacted, Redaction{"objects.json", "most of the names of Contents"})
	assert.Contains(t, c.Redacted, Redaction{"objects.json", "Bundle /b, most of field resourcesSha256Sum"})
}

func BenchmarkRedactText(b *testing.B) {
	values, text := manyTokens(100_000)
	c := &collection{secrets: map[string]string{}}
	for _, value := range values {
		c.secrets[value] = "one"
	}
	for b.Loop() {
		c.redactText("log", []byte(text))
	}
	b.ReportMetric(float64(c.finder.steps)/float64(b.N*len(text)), "steps/byte")
}

func FuzzFind(f *testing.F) {
	f.Add("abcdef abcdefg bcdefgh", "xabcdefgh abcdef")
	f.Fuzz(func(t *testing.T, words, text string) {
		var values []string
		for _, word := range strings.Fields(words) {
			if len(word) >= shortest && !slices.Contains(values, word) {
				values = append(values, word)
			}
		}
		var want []string
		for from := range len(text) {
			longest := ""
			for _, value := range values {
				if strings.HasPrefix(text[from:], value) && len(value) > len(longest) {
					longest = value
				}
			}
			if longest != "" {
				want = append(want, fmt.Sprint(from, longest))
			}
		}
		finder := newFinder(values)
		var found []string
		for _, s := range finder.find(text) {
			found = append(found, fmt.Sprint(s.from, finder.values[s.value]))
		}
		assert.Equal(t, want, found)
	})
}

// People write secrets into Bundles, variables and annotations.
func TestRedactFields(t *testing.T) {
	c := &collection{secrets: map[string]string{}}
	object := &unstructured.Unstructured{Object: map[string]any{
		"kind": "Bundle", "metadata": map[string]any{"name": "b", "annotations": map[string]any{
			"kubectl.kubernetes.io/last-applied-configuration": "x", "objectset.rio.cattle.io/applied": "H4sIsecret",
		}},
		"spec": map[string]any{
			"resources": []any{map[string]any{"name": "f.yaml", "content": "secret"}}, "helm": map[string]any{"values": map[string]any{"a": "secret"}, "chart": "c"},
		},
		"status": map[string]any{"modifiedStatus": []any{map[string]any{"kind": "ConfigMap", "name": "c", "patch": `{"data":{"a":"secret"}}`}}},
	}}
	c.redactObject("bundles.json", object)
	text, err := object.MarshalJSON()
	assert.NoError(t, err)
	assert.NotContains(t, string(text), "secret")
	assert.Contains(t, string(text), `"chart":"c"`)
	assert.Contains(t, string(text), `{"kind":"ConfigMap","name":"c","patch":"REDACTED"}`)
	assert.Equal(t, 5, strings.Count(string(text), redacted))
}
