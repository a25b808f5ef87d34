// Package crds contains the CustomResourceDefinitions of the API group fleet.cattle.io as the chart fleet-crd installs them, for
// programs and tests without Helm, and those of Clusternet, which only a hub needs that serves Clusternet's agents.
package crds

import (
	"bytes"
	_ "embed" // the definitions of Clusternet
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
func Objects() ([]*apiextensionsv1.CustomResourceDefinition, error) { return decode(YAML()) }

var (
	//go:embed clusternet.yaml
	clusternet []byte
	//go:embed clusternet-apps.yaml
	clusternetApps []byte
)

// ClusternetYAML returns the CustomResourceDefinitions with which unchanged Clusternet agents work: those of ClusterRegistrationRequests
// and ManagedClusters, and those of three kinds that an agent watches and of which this hub creates no objects.
func ClusternetYAML() []byte { return bytes.Join([][]byte{clusternet, clusternetApps}, nil) }

// ClusternetObjects returns new copies of the CustomResourceDefinitions of ClusternetYAML.
func ClusternetObjects() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	return decode(ClusternetYAML())
}

func decode(stream []byte) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	var objects []*apiextensionsv1.CustomResourceDefinition
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(stream), 4096)
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
