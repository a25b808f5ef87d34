package release

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// readValues merges the values of the Bundle's files, of the options, of the request, and of ConfigMaps and Secrets on the
// cluster; later ones win. A file that the Bundle does not have was merged into the options before.
func readValues(ctx context.Context, member kubernetes.Interface, r Request) (map[string]any, error) {
	var layers []map[string]any
	for _, file := range r.helm().ValuesFiles {
		at := slices.IndexFunc(r.Resources, func(r fleet.BundleResource) bool { return path.Clean(r.Name) == path.Clean(file) })
		if at < 0 {
			continue
		}
		layer, err := parseValues([]byte(r.Resources[at].Content), "file "+file+" of the Bundle")
		if err != nil {
			return nil, &InvalidError{err.Error()}
		}
		layers = append(layers, layer)
	}
	if values := r.helm().Values; values != nil {
		layer, err := asHelmReads(values)
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	layers = append(layers, (&fleet.GenericMap{Data: r.Values}).DeepCopy().Data) // mergeValues changes it
	for _, from := range r.helm().ValuesFrom {
		for kind, ref := range []*fleet.KeySelector{from.ConfigMapKeyRef, from.SecretKeyRef} {
			if ref == nil {
				continue
			}
			layer, err := valuesFrom(ctx, member, []string{"ConfigMap", "Secret"}[kind], *ref, r)
			if err != nil {
				return nil, err
			}
			layers = append(layers, layer)
		}
	}
	return mergeValues(layers), nil
}

// valuesFrom reads the values in a ConfigMap or Secret. A copy from the hub is in the namespace of the release, whatever namespace the reference
// names. No error is an InvalidError: another Bundle, or a person, may create or repair the object, and the agent gets no event of that.
func valuesFrom(ctx context.Context, member kubernetes.Interface, kind string, ref fleet.KeySelector, r Request) (map[string]any, error) {
	namespace, key := cmp.Or(ref.Namespace, r.Namespace), cmp.Or(ref.Key, "values.yaml")
	if slices.ContainsFunc(r.Options.DownstreamResources, func(d fleet.DownstreamResource) bool {
		return strings.EqualFold(d.Kind, kind) && d.Name == ref.Name
	}) {
		namespace = r.Namespace
	}
	var data []byte
	var found bool
	var err error
	if kind == "Secret" {
		secret, getErr := member.CoreV1().Secrets(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err = getErr; err == nil {
			data, found = secret.Data[key]
		}
	} else {
		configMap, getErr := member.CoreV1().ConfigMaps(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err = getErr; err == nil {
			var text string
			text, found = configMap.Data[key]
			data = []byte(text)
		}
	}
	source := kind + " " + namespace + "/" + ref.Name
	switch {
	case apierrors.IsNotFound(err):
		return nil, err // the message is that of Fleet's own agent
	case err != nil:
		return nil, fmt.Errorf("helm.valuesFrom: %w", err)
	case !found:
		return nil, fmt.Errorf("helm.valuesFrom names key %s of %s, which it does not have", key, source)
	}
	return parseValues(data, source)
}

// valuesNodes limits the nodes of the values in one file, ConfigMap or Secret, with what aliases repeat: a user who may write a ConfigMap in one
// namespace must not exhaust the memory of the agent.
const valuesNodes = 100_000

func parseValues(data []byte, source string) (values map[string]any, err error) {
	if err = CheckYAML(data, valuesNodes); err == nil {
		values, err = common.ReadValues(data)
	}
	if err != nil {
		return nil, fmt.Errorf("%s contains no valid values: %w", source, err)
	}
	return values, nil
}

// asHelmReads returns the values as Helm reads the same values from a file: with all numbers as float64, as they are in the other layers. Templates
// show the difference, for example in the text of a large number.
func asHelmReads(values *fleet.GenericMap) (map[string]any, error) {
	data, err := json.Marshal(values)
	if err != nil {
		return nil, err
	}
	layer := map[string]any{}
	return layer, json.Unmarshal(data, &layer)
}

// mergeValues merges layers; later ones win. Helm's own function of this kind logs values that it overrides, which may come from a Secret.
func mergeValues(layers []map[string]any) map[string]any {
	merged := map[string]any{}
	for _, layer := range layers {
		addValues(merged, layer)
	}
	return merged
}

func addValues(merged, layer map[string]any) {
	for key, value := range layer {
		table, isTable := value.(map[string]any)
		if before, wasTable := merged[key].(map[string]any); isTable && wasTable {
			addValues(before, table)
		} else {
			merged[key] = value
		}
	}
}
