package report

import (
	"bytes"
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

	"github.com/muster-fleet/muster/pkg/content"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Redaction describes a value that was removed from a file.
type Redaction struct {
	File string `json:"file"`
	What string `json:"what"`
}

const redacted = "REDACTED"

// shownDigits is how many digits of a digest stay, so that a person can still compare it.
const shownDigits = 8

// shortest is the minimum length of a value of a Secret that is removed from other files: shorter values, such as "true", occur in any text.
const shortest = 6

// Public are keys in Secrets of the hub and of the agent, and fields of kubeconfigs, whose values are not secret. They are names and addresses,
// without which the report would be useless.
var Public = []string{
	registration.BootstrapAPIServerURL, registration.BootstrapAPIServerCA, registration.BootstrapWorkspace, registration.BootstrapTokenName,
	registration.BootstrapSystemRegistrationNamespace, registration.CredentialDeploymentNamespace,
	registration.CredentialClusterName, registration.CredentialSystemNamespace,
	"request", "apiVersion", "kind", "name", "cluster", "context", "user", "namespace", "current-context", "server", "certificate-authority-data", "ca.crt",
}

// credentials matches texts that are removed from all files: tokens, private keys, users with their passwords in URLs, and parameters of URLs that
// sign them.
var credentials = regexp.MustCompile(`eyJ[\w-]{10,}\.[\w-]+(?:\.[\w-]*)?|(?s:-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----)|` +
	`://(?:[^/\s"?#]+|[^/\s:@"?#]+:[^/\s"]+)@|(?i:(?:[?&]|\\u0026)[\w-]*(?:token|signature|sig|password|secret|key)=[^&\s"\\]+)`)

// differences matches the differences of deployed objects in messages, which contain values of Bundles: in a JSON string to its end, and otherwise to the
// end of the line.
var differences = regexp.MustCompile(`modified \{(?:\\"(?:\\.|[^"\\\n])*|"[^\n]*)`)

// appliedAnnotations contain the whole object as kubectl and wrangler's apply applied it. Wrangler compresses it, so no text in it can be found.
var appliedAnnotations = []string{corev1.LastAppliedConfigAnnotation, "objectset.rio.cattle.io/applied"}

// secretFields are fields that may contain secrets of users: resources and values of Bundles, differences of deployed objects, environment variables.
// clientRandom is a secret of the agent.
var secretFields = []string{"clientRandom", "content", "values", "templateValues", "value", "patch"}

// redactObject removes the values of a Secret, and fields that may contain secrets from other objects. Keys and sizes stay.
func (c *collection) redactObject(file string, o *unstructured.Unstructured) {
	title := fmt.Sprintf("%s %s/%s", o.GetKind(), o.GetNamespace(), o.GetName())
	annotations := o.GetAnnotations()
	for _, name := range appliedAnnotations {
		if annotations[name] != "" {
			annotations[name] = redacted
			o.SetAnnotations(annotations)
			c.Redacted = append(c.Redacted, Redaction{file, title + ", annotation " + name})
		}
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

// remember adds a value to secrets, unchanged, as base64 and as a JSON string. If the value is a YAML document, such as a kubeconfig, remember also
// adds each string in it.
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

// redactFields removes the fields that may contain secrets, and shortens the digest of the resources of a Bundle: the name of their Content begins with
// it, and every ServiceAccount may read a Content whose name it knows.
func (c *collection) redactFields(file, title string, value any) {
	switch v := value.(type) {
	case map[string]any:
		for key, field := range v {
			if slices.Contains(secretFields, key) && field != nil {
				v[key] = redacted
				c.Redacted = append(c.Redacted, Redaction{file, title + ", field " + key})
				continue
			}
			if sum, ok := field.(string); ok && key == "resourcesSha256Sum" && len(sum) > shownDigits {
				v[key] = sum[:shownDigits] + "..."
				c.Redacted = append(c.Redacted, Redaction{file, title + ", most of field " + key})
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

// redactText removes the values in secrets, and texts that look like a credential, and shortens the names of Contents. Where values overlap, it removes
// all that one of them covers.
func (c *collection) redactText(name string, text []byte) []byte {
	if c.finder == nil || len(c.finder.values) != len(c.secrets) {
		c.finder = newFinder(slices.Collect(maps.Keys(c.secrets)))
	}
	var left bytes.Buffer
	found, end := map[string]bool{}, 0
	for _, s := range c.finder.find(string(text)) {
		if s.from >= end {
			left.Write(text[end:s.from])
			left.WriteString(redacted)
		}
		end = max(end, s.to)
		found[c.finder.values[s.value]] = true
	}
	left.Write(text[end:])
	text = left.Bytes()
	for _, value := range slices.Sorted(maps.Keys(found)) {
		c.Redacted = append(c.Redacted, Redaction{name, "a value of " + c.secrets[value]})
	}
	if credentials.Match(text) {
		text = credentials.ReplaceAll(text, []byte(redacted))
		c.Redacted = append(c.Redacted, Redaction{name, "a text that looks like a credential"})
	}
	if differences.Match(text) {
		text = differences.ReplaceAllLiteral(text, []byte("modified "+redacted))
		c.Redacted = append(c.Redacted, Redaction{name, "the difference of a deployed object"})
	}
	if shortened := content.WithoutNames(string(text)); len(shortened) < len(text) {
		text = []byte(shortened)
		c.Redacted = append(c.Redacted, Redaction{name, "most of the names of Contents"})
	}
	return text
}
