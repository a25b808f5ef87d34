// Package crds contains the CustomResourceDefinitions of the API group fleet.cattle.io as the chart fleet-crd installs them, for
// programs and tests without Helm.
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

// YAML returns the CustomResourceDefinitions as one stream of YAML documents.
func YAML() []byte {
	data, err := charts.Files.ReadFile(path.Join(charts.CRD, "templates", "crds.yaml"))
	if err != nil {
		// The file is embedded: if it is missing, the build is broken, and every test of this package fails.
		panic(err)
	}
	return data
}

// Objects returns new copies of the CustomResourceDefinitions, ordered by name.
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
