package release

import (
	"context"
	"fmt"
	"path"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// valuesKey is the key of a ConfigMap or Secret with values when none is named.
const valuesKey = "values.yaml"

// values are those of files of the Bundle, then those in the options, then those of ConfigMaps and Secrets on the cluster,
// then those of the request; the later ones win.
func (c *Client) values(ctx context.Context, r Request) (map[string]any, error) {
	helm := r.helm()
	var layers []map[string]any
	for _, file := range helm.ValuesFiles {
		layer, err := fileValues(file, r.Resources)
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	if helm.Values != nil {
		layers = append(layers, helm.Values.DeepCopy().Data)
	}
	for _, from := range helm.ValuesFrom {
		layer, err := c.referredValues(ctx, r.Namespace, from)
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer...)
	}
	return merge(append(layers, r.Values)), nil
}

func merge(layers []map[string]any) map[string]any {
	merged := map[string]any{}
	for _, layer := range layers {
		merged = util.MergeTables(layer, merged)
		if merged == nil {
			merged = map[string]any{}
		}
	}
	return merged
}

func fileValues(file string, resources []fleet.BundleResource) (map[string]any, error) {
	for _, r := range resources {
		if path.Clean(r.Name) == path.Clean(file) {
			return parseValues([]byte(r.Content), "file "+file+" of the Bundle")
		}
	}
	return nil, invalid("helm.valuesFiles names %s, which is not in the Bundle", file)
}

func parseValues(data []byte, source string) (map[string]any, error) {
	values, err := common.ReadValues(data)
	if err != nil {
		return nil, invalid("%s holds no values: %v", source, err)
	}
	return values, nil
}

// referredValues fails without an InvalidError for what is not there: it may be about to come, from another Bundle say.
func (c *Client) referredValues(ctx context.Context, namespace string, from fleet.ValuesFrom) (layers []map[string]any, err error) {
	add := func(kind string, ref fleet.KeySelector, read func(namespace string) ([]byte, bool, error)) error {
		place := orElse(ref.Namespace, namespace)
		data, found, err := read(place)
		source := kind + " " + place + "/" + ref.Name
		switch {
		case apierrors.IsNotFound(err):
			return fmt.Errorf("helm.valuesFrom names %s, which does not exist on this cluster", source)
		case err != nil:
			return err
		case !found:
			return fmt.Errorf("helm.valuesFrom names key %s of %s, which it does not have", orElse(ref.Key, valuesKey), source)
		}
		layer, err := parseValues(data, source)
		layers = append(layers, layer)
		return err
	}
	if ref := from.ConfigMapKeyRef; ref != nil {
		err = add("ConfigMap", *ref, func(namespace string) ([]byte, bool, error) {
			o, err := c.core.CoreV1().ConfigMaps(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
			if err != nil {
				return nil, false, err
			}
			text, found := o.Data[orElse(ref.Key, valuesKey)]
			return []byte(text), found, nil
		})
	}
	if ref := from.SecretKeyRef; ref != nil && err == nil {
		err = add("Secret", *ref, func(namespace string) ([]byte, bool, error) {
			o, err := c.core.CoreV1().Secrets(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
			if err != nil {
				return nil, false, err
			}
			data, found := o.Data[orElse(ref.Key, valuesKey)]
			return data, found, nil
		})
	}
	return layers, err
}

func orElse(value, fallback string) string {
	if value == "" {
		return fallback
	}
	return value
}
