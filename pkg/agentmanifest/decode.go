package agentmanifest

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

// order is how the objects are handed out: what a pod needs before the pod. Kinds that are not listed come last.
var order = []string{"ClusterRole", "ClusterRoleBinding", "ServiceAccount", "Deployment", "NetworkPolicy"}

// decode turns rendered files into typed objects in a fixed order.
func decode(manifests map[string]string) ([]runtime.Object, error) {
	var objects []runtime.Object
	for _, file := range slices.Sorted(maps.Keys(manifests)) {
		decoded, err := decodeFile(manifests[file])
		if err != nil {
			return nil, fmt.Errorf("decoding %s: %w", file, err)
		}
		objects = append(objects, decoded...)
	}
	slices.SortStableFunc(objects, func(a, b runtime.Object) int { return cmp.Compare(rank(a), rank(b)) })
	return objects, nil
}

func rank(object runtime.Object) int {
	i := slices.Index(order, object.GetObjectKind().GroupVersionKind().Kind)
	if i < 0 {
		return len(order)
	}
	return i
}

func decodeFile(manifest string) ([]runtime.Object, error) {
	var objects []runtime.Object
	reader := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(manifest)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		object, gvk, err := scheme.Codecs.UniversalDeserializer().Decode(document, nil, nil)
		if err != nil {
			return nil, err
		}
		object.GetObjectKind().SetGroupVersionKind(*gvk)
		objects = append(objects, object)
	}
}
