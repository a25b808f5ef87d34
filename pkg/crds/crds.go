// Package crds has the CustomResourceDefinitions of the API group fleet.cattle.io, the very ones the chart fleet-crd
// installs, for programs and tests that have to do without Helm.
package crds

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/muster-fleet/muster/charts"
)

// YAML returns the CustomResourceDefinitions as one multi-document stream that kubectl takes.
func YAML() []byte {
	data, err := charts.Files.ReadFile(path.Join(charts.CRD, "templates", "crds.yaml"))
	if err != nil {
		// The file is compiled in: its absence is a broken build, and every test of this package finds that.
		panic(err)
	}
	return data
}

// Objects returns the CustomResourceDefinitions in the order of their names. Each call returns new objects.
func Objects() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	var objects []*apiextensionsv1.CustomResourceDefinition
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(YAML()), 4096)
	for {
		object := new(apiextensionsv1.CustomResourceDefinition)
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading the embedded CustomResourceDefinitions: %w", err)
		}
		objects = append(objects, object)
	}
}
