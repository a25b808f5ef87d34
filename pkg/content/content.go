// Package content packs the resources of a Bundle into a Content, in which the hub hands them to the agents.
package content

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Encodings of a resource that is not plain text.
const (
	encodingBase64Gzip = "base64+gz"
	encodingBase64     = "base64" // of a small resource
)

const (
	namePrefix = "s-"
	nameMax    = 63
	// sizeMax bounds the unpacked size of a Content, and that of all its resources together: a small object must not fill the memory of an agent.
	sizeMax = 64 << 20
	// beginningMax is the number of bytes of a long name or encoding that messages show.
	beginningMax = 200
)

// manifest is the JSON document in a Content.
type manifest struct {
	Resources []fleet.BundleResource `json:"resources,omitempty"`
}

// Encode packs resources into a Content. Equal resources give the same Content with the same name, so that all Bundles and
// clusters with these resources share it.
func Encode(resources []fleet.BundleResource) (*fleet.Content, error) {
	data, digest, err := encodeJSON(manifest{Resources: resources})
	if err != nil {
		return nil, err
	}
	packed, err := pack(data)
	if err != nil {
		return nil, err
	}
	return &fleet.Content{
		TypeMeta:   metav1.TypeMeta{APIVersion: fleet.SchemeGroupVersion.String(), Kind: "Content"},
		ObjectMeta: metav1.ObjectMeta{Name: nameOf(digest)},
		Content:    packed,
		SHA256Sum:  digest,
	}, nil
}

// Digest returns the name of the Content that Encode would return and the SHA-256 of its document, without packing it.
func Digest(resources []fleet.BundleResource) (name, sum string, err error) {
	for _, r := range resources {
		if !isKnown(r.Encoding) {
			return "", "", unknownEncoding(r)
		}
	}
	_, sum, err = encodeJSON(manifest{Resources: resources})
	return nameOf(sum), sum, err
}

// WithoutResources replaces the resources in the spec of a Bundle by their digest. The first resource with an unknown encoding stays, without
// its content, so that DigestOf returns the error.
func WithoutResources(spec *fleet.BundleSpec) {
	if spec.ResourcesDigest != "" {
		return
	}
	for _, r := range spec.Resources {
		if !isKnown(r.Encoding) {
			spec.Resources = []fleet.BundleResource{{Name: beginning(r.Name), Encoding: beginning(r.Encoding)}}
			return
		}
	}
	if _, sum, err := Digest(spec.Resources); err == nil {
		spec.Resources, spec.ResourcesDigest = nil, sum
	}
}

// DigestOf is Digest for the spec of a Bundle, even after WithoutResources has reduced it.
func DigestOf(spec fleet.BundleSpec) (name, sum string, err error) {
	if spec.ResourcesDigest != "" {
		return nameOf(spec.ResourcesDigest), spec.ResourcesDigest, nil
	}
	return Digest(spec.Resources)
}

// beginning shortens a name or an encoding, which may be as large as the Bundle.
func beginning(text string) string {
	return strings.Clone(strings.ToValidUTF8(text[:min(len(text), beginningMax)], ""))
}

// Decode unpacks the resources of a Content, each as plain text with an empty Encoding. It refuses a Content whose name is not
// the digest of its document: a deployment ID names the Content, and changed resources must not be deployed under the same ID.
func Decode(c *fleet.Content) ([]fleet.BundleResource, error) {
	data, err := unpack(c.Content, sizeMax)
	if err != nil {
		return nil, fmt.Errorf("Content %s is damaged: %w", c.Name, err)
	}
	resources, err := DecodeDocument(c.Name, data)
	if err != nil {
		return nil, fmt.Errorf("Content %s: %w", c.Name, err)
	}
	return resources, nil
}

// DecodeDocument returns the resources of the JSON document in a Content or in an OCI artifact. It refuses a document
// with another digest than the ID.
func DecodeDocument(id string, data []byte) ([]fleet.BundleResource, error) {
	if sum := sha256.Sum256(data); nameOf(hex.EncodeToString(sum[:])) != id {
		return nil, fmt.Errorf("the name %s is not the digest of its resources; delete it, and the hub creates it again", id)
	}
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("the resources are damaged: %w", err)
	}
	left := sizeMax
	for i := range m.Resources {
		var err error
		if m.Resources[i], err = plain(m.Resources[i], left); err != nil {
			return nil, err
		}
		left -= len(m.Resources[i].Content)
	}
	return m.Resources, nil
}

// DeploymentID identifies what an agent deploys and how: the name of the Content and a digest of the options. Fleet's own
// controllers compute the same ID, so that a change of the hub redeploys nothing. The digest does not cover how drift is compared
// and corrected. It always covers an object helm, and in it an object values unless the Bundle has no helm.
func DeploymentID(contentName string, options fleet.BundleDeploymentOptions) (string, error) {
	options.Diff, options.CorrectDrift = nil, nil
	var helm fleet.HelmOptions
	if options.Helm != nil {
		helm = *options.Helm
		if helm.Values == nil {
			helm.Values = &fleet.GenericMap{}
		}
	}
	options.Helm = &helm
	_, digest, err := encodeJSON(options)
	return contentName + ":" + digest, err
}

// encodeJSON returns the JSON of a value with a final newline, and its SHA-256. Other agents and hubs compute the same digest.
func encodeJSON(value any) (data []byte, digest string, err error) {
	var buffer bytes.Buffer
	if err := json.NewEncoder(&buffer).Encode(value); err != nil {
		return nil, "", err
	}
	sum := sha256.Sum256(buffer.Bytes())
	return buffer.Bytes(), hex.EncodeToString(sum[:]), nil
}

func nameOf(digest string) string { return (namePrefix + digest)[:nameMax] }

// names matches the names of Contents in a text.
var names = regexp.MustCompile(namePrefix + `[0-9a-f]{61}`)

// WithoutNames shortens the names of Contents in a text, so that a person can still find a Content. A user who knows the whole name can read the Content.
func WithoutNames(text string) string {
	return names.ReplaceAllStringFunc(text, func(name string) string { return name[:len(namePrefix)+8] + "..." })
}

func pack(data []byte) ([]byte, error) {
	var buffer bytes.Buffer
	w := gzip.NewWriter(&buffer)
	_, err := w.Write(data)
	err = errors.Join(err, w.Close())
	return buffer.Bytes(), err
}

// plain returns a resource as plain text. A packed resource may have limit bytes.
func plain(r fleet.BundleResource, limit int) (fleet.BundleResource, error) {
	switch r.Encoding {
	case "":
		return r, nil
	case encodingBase64Gzip, encodingBase64:
		text, err := base64.StdEncoding.DecodeString(r.Content)
		if err != nil {
			return r, fmt.Errorf("resource %s is not valid base64: %w", r.Name, err)
		}
		if r.Encoding == encodingBase64Gzip {
			text, err = unpack(text, limit)
		}
		if err != nil {
			return r, fmt.Errorf("resource %s is damaged: %w", r.Name, err)
		}
		return fleet.BundleResource{Name: r.Name, Content: string(text)}, nil
	}
	return r, unknownEncoding(r)
}

// unpack decompresses up to limit bytes: sizeMax, or what earlier resources have left of it.
func unpack(data []byte, limit int) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	limit = max(limit, 0)
	unpacked, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	if err == nil && len(unpacked) > limit {
		return nil, fmt.Errorf("the unpacked size is more than %d MiB", sizeMax>>20)
	}
	return unpacked, err
}

// isKnown reports whether a Bundle may have resources with this encoding.
func isKnown(encoding string) bool {
	return encoding == "" || encoding == encodingBase64Gzip || encoding == encodingBase64
}

func unknownEncoding(r fleet.BundleResource) error {
	return fmt.Errorf("resource %s has the unknown encoding %q; it must be empty, %s or %s", r.Name, r.Encoding, encodingBase64Gzip, encodingBase64)
}
