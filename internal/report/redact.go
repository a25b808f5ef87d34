package report

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/pkg/registration"
)

// Redaction is something that was removed from a file.
type Redaction struct {
	File string `json:"file"`
	What string `json:"what"`
}

const redacted = "REDACTED"

// shortest is the length from which a value of a Secret is searched for in other files: shorter ones, such as "true", occur in any text.
const shortest = 6

// Public are keys of Secrets of the hub and of the agent, and fields of kubeconfigs, whose values are no secrets. They are names and
// addresses, without which nobody could read the rest.
var Public = []string{
	registration.BootstrapAPIServerURL, registration.BootstrapAPIServerCA, registration.BootstrapWorkspace, registration.BootstrapTokenName,
	registration.BootstrapSystemRegistrationNamespace, registration.CredentialDeploymentNamespace,
	registration.CredentialClusterName, registration.CredentialSystemNamespace,
	"request", "apiVersion", "kind", "name", "cluster", "context", "user", "namespace", "current-context", "server", "certificate-authority-data", "ca.crt",
}

// credentials are texts that are secret wherever they are found: tokens, private keys, and passwords in URLs.
var credentials = regexp.MustCompile(`eyJ[\w-]{10,}\.[\w-]+(?:\.[\w-]*)?|(?s:-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----)|://[^/\s:@"]+:[^/\s@"]+@`)

// secretFields are fields whose content people write, and may have written secrets into: resources and values of Bundles, environment
// variables. clientRandom is what only the agent knows.
var secretFields = []string{"clientRandom", "content", "values", "templateValues", "value"}

// redactObject removes the values of a Secret, and fields that may contain secrets from other objects. Keys and sizes stay.
func (c *collection) redactObject(file string, o *unstructured.Unstructured) {
	title := fmt.Sprintf("%s %s/%s", o.GetKind(), o.GetNamespace(), o.GetName())
	if annotations := o.GetAnnotations(); annotations[corev1.LastAppliedConfigAnnotation] != "" {
		annotations[corev1.LastAppliedConfigAnnotation] = redacted
		o.SetAnnotations(annotations)
		c.Redacted = append(c.Redacted, Redaction{file, title + ", annotation " + corev1.LastAppliedConfigAnnotation})
	}
	if o.GetKind() != "Secret" {
		c.redactFields(file, title, o.Object)
		return
	}
	data, _, _ := unstructured.NestedMap(o.Object, "data")
	for key, encoded := range data {
		text, _ := encoded.(string)
		value, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			value = []byte(text)
		}
		c.remember(title+", key "+key, key, string(value))
		data[key] = fmt.Sprintf("%s, %d bytes", redacted, len(value))
		c.Redacted = append(c.Redacted, Redaction{file, title + ", key " + key})
	}
	if len(data) > 0 {
		o.Object["data"] = data
	}
}

// remember notes a value that is removed from all files: as it is, as base64 and as in JSON. Of a YAML document, such as a kubeconfig, each
// text is a value too.
func (c *collection) remember(from, key, value string) {
	if slices.Contains(Public, key) || len(value) < shortest {
		return
	}
	quoted, _ := json.Marshal(value) //nolint:errchkjson // a string
	for _, form := range []string{value, base64.StdEncoding.EncodeToString([]byte(value)), string(quoted[1 : len(quoted)-1])} {
		c.secrets[form] = from
	}
	var document any
	if strings.Contains(value, ":") && yaml.Unmarshal([]byte(value), &document) == nil {
		c.rememberTexts(from, document)
	}
}

func (c *collection) rememberTexts(from string, document any) {
	switch v := document.(type) {
	case map[string]any:
		for key, field := range v {
			if text, ok := field.(string); ok && !slices.Contains(Public, key) {
				c.remember(from, key, text)
				continue
			}
			c.rememberTexts(from, field)
		}
	case []any:
		for _, item := range v {
			c.rememberTexts(from, item)
		}
	}
}

// redactFields removes the fields that may contain secrets.
func (c *collection) redactFields(file, title string, value any) {
	switch v := value.(type) {
	case map[string]any:
		for key, field := range v {
			if slices.Contains(secretFields, key) && field != nil {
				v[key] = redacted
				c.Redacted = append(c.Redacted, Redaction{file, title + ", field " + key})
				continue
			}
			c.redactFields(file, title, field)
		}
	case []any:
		for _, item := range v {
			c.redactFields(file, title, item)
		}
	}
}

// redactText removes the values of all Secrets that were read, and what looks like a credential.
func (c *collection) redactText(name string, text []byte) []byte {
	// The longest first: a part of it can be a value too, and the rest would stay.
	values := slices.SortedFunc(maps.Keys(c.secrets), func(a, b string) int { return cmp.Or(len(b)-len(a), cmp.Compare(a, b)) })
	for _, value := range values {
		if bytes.Contains(text, []byte(value)) {
			text = bytes.ReplaceAll(text, []byte(value), []byte(redacted))
			c.Redacted = append(c.Redacted, Redaction{name, "a value of " + c.secrets[value]})
		}
	}
	if credentials.Match(text) {
		text = credentials.ReplaceAll(text, []byte(redacted))
		c.Redacted = append(c.Redacted, Redaction{name, "a text that looks like a credential"})
	}
	return text
}
