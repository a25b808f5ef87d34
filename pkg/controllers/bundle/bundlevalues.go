package bundle

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/release"
)

// bundleValuesKey is the key of the values of the Bundle itself in its Secret; those of a target have the name of the target.
const bundleValuesKey = "values.yaml"

// maxValueNodes limits the nodes of the YAML in a Secret with the values of a Bundle. A node takes up to 800 bytes when it is parsed.
const maxValueNodes = 50_000

// bundleValues reads the Helm values of Bundles that are not in their spec. Fleet's git job moves them to a Secret with the name of the Bundle, and
// sets spec.valuesHash to the digest of the Secret's data.
type bundleValues struct{ kubernetes kubernetes.Interface }

// addTo returns the Bundle with its Helm values. Without them it would be another deployment than its creator wants: if the Secret does not have
// them, addTo returns the Bundle as it is, and the problem. Any other error is temporary.
func (v bundleValues) addTo(ctx context.Context, b *fleet.Bundle) (*fleet.Bundle, *problem, error) {
	if b.Spec.ValuesHash == "" {
		return b, nil, nil
	}
	secret, err := v.kubernetes.CoreV1().Secrets(b.Namespace).Get(ctx, b.Name, metav1.GetOptions{})
	missing := func(why string) (*fleet.Bundle, *problem, error) {
		return b, &problem{fleet.ReasonValuesMissing, fmt.Sprintf(
			"Secret %s/%s with the Helm values of spec.valuesHash %s; the creator of the Bundle writes both, and what was deployed before stays as it is",
			b.Namespace, b.Name, why)}, nil
	}
	switch {
	case apierrors.IsNotFound(err):
		return missing("does not exist")
	case err != nil:
		return b, nil, fmt.Errorf("reading Secret %s/%s with the Helm values: %w", b.Namespace, b.Name, err)
	case secret.Type != registration.SecretTypeBundleValues:
		return missing("has another type than " + registration.SecretTypeBundleValues)
	case hashOfData(secret) != b.Spec.ValuesHash:
		return missing("has other values")
	}

	var all []byte
	for _, key := range slices.Sorted(maps.Keys(secret.Data)) {
		all = append(append(all, secret.Data[key]...), "\n---\n"...)
	}
	if err := release.CheckDocuments(all, maxValueNodes); err != nil {
		return missing("has " + err.Error())
	}
	decoded := map[string]*fleet.GenericMap{} // shared by the targets of one name, of which a Bundle can have thousands
	keys := []string{bundleValuesKey}
	for _, target := range b.Spec.Targets {
		keys = append(keys, target.Name)
	}
	for _, key := range keys {
		if _, known := decoded[key]; known {
			continue
		}
		if decoded[key], err = decodeValues(secret.Data[key]); err != nil {
			return missing(fmt.Sprintf("has invalid values in key %s: %v", key, err))
		}
		if decoded[key] != nil {
			decoded[key].Pack()
		}
	}
	b = b.DeepCopy()
	b.Spec.Helm = withBundleValues(b.Spec.Helm, decoded[bundleValuesKey])
	for i := range b.Spec.Targets {
		if target := &b.Spec.Targets[i]; target.Name != "" {
			target.Helm = withBundleValues(target.Helm, decoded[target.Name])
		}
	}
	return b, nil, nil
}

// hashOfData is the digest with which spec.valuesHash is compared.
func hashOfData(secret *corev1.Secret) string {
	text, _ := json.Marshal(secret.Data) // a map of bytes has JSON
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// decodeValues decodes the values of one key; nil if the text is empty.
func decodeValues(text []byte) (*fleet.GenericMap, error) {
	if len(text) == 0 {
		return nil, nil
	}
	if err := registration.RefuseAliases(text); err != nil {
		return nil, err
	}
	values := &fleet.GenericMap{}
	if err := yaml.Unmarshal(text, values); err != nil {
		return nil, fmt.Errorf("it is not a YAML object")
	}
	return values, nil
}

func withBundleValues(helm *fleet.HelmOptions, values *fleet.GenericMap) *fleet.HelmOptions {
	if values == nil {
		return helm
	}
	with := fleet.HelmOptions{}
	if helm != nil {
		with = *helm
	}
	with.Values = values
	return &with
}
