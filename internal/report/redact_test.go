package report

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
		"say sessame-open, or sessame":        "say REDACTED, or REDACTED",
		"as base64 c2Vzc2FtZS1vcGVu":          "as base64 REDACTED",
		"it is true":                          "it is true",
		"bearer abcdefgh of me":               "bearer REDACTED of me",
		"Bearer eyJhbGciOiJSUzI1NiIs.eyJh.x1": "Bearer REDACTED",
		"https://me:pass@proxy:3128":          "httpsREDACTEDproxy:3128",
		"-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----": "REDACTED",
	} {
		assert.Equal(t, want, string(c.redactText("log", []byte(text))))
	}
	assert.Contains(t, c.Redacted, Redaction{"log", "a value of Secret ns/s, key kubeconfig"})
}

// People write secrets into Bundles, variables and annotations.
func TestRedactFields(t *testing.T) {
	c := &collection{secrets: map[string]string{}}
	object := &unstructured.Unstructured{Object: map[string]any{
		"kind": "Bundle", "metadata": map[string]any{"name": "b", "annotations": map[string]any{"kubectl.kubernetes.io/last-applied-configuration": "x"}},
		"spec": map[string]any{
			"resources": []any{map[string]any{"name": "f.yaml", "content": "secret"}}, "helm": map[string]any{"values": map[string]any{"a": "secret"}, "chart": "c"},
		},
	}}
	c.redactObject("bundles.json", object)
	text, err := object.MarshalJSON()
	assert.NoError(t, err)
	assert.NotContains(t, string(text), "secret")
	assert.Contains(t, string(text), `"chart":"c"`)
	assert.Equal(t, 3, strings.Count(string(text), redacted))
}
