package release

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/rancher/wrangler/v3/pkg/patch"
	"helm.sh/helm/v4/pkg/chart/common"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

const (
	overlaysFolder  = "overlays/"
	templatesFolder = "templates/"
	// patchSuffix marks a file of an overlay that changes a file, and does not replace it.
	patchSuffix = "_patch"
)

// plainManifests returns the manifests among the files of a request. Those in the folder templates are rendered; braces in
// others are not interpreted.
func plainManifests(r Request) (chartSource, error) {
	files, err := overlaid(r)
	if err != nil {
		return chartSource{}, err
	}
	made, err := emptyChart(r, files)
	if err != nil {
		return chartSource{}, err
	}
	s := chartSource{chart: made}
	var nested []string // folders that are charts or other Bundles
	for _, file := range files {
		if folder, base := path.Split(file.Name); folder != "" && (base == "fleet.yaml" || base == chartFile) {
			nested = append(nested, folder)
		}
	}
	for _, file := range files {
		isNested := slices.ContainsFunc(nested, func(folder string) bool { return strings.HasPrefix(file.Name, folder) })
		switch {
		case isNested || !isManifest(file.Name, r.helm().ValuesFiles):
		case strings.HasPrefix(file.Name, templatesFolder):
			s.chart.Templates = append(s.chart.Templates, &common.File{Name: file.Name, Data: []byte(file.Content)})
		default:
			s.manifests = append(s.manifests, file)
		}
	}
	return s, nil
}

// overlaid returns the files in the order of their names, without the folder overlays, and with the overlays of the options
// applied: a file of an overlay replaces the file with the same path, or is added. If its name ends in _patch, it changes that
// file. An overlay that the Bundle does not have changes nothing.
func overlaid(r Request) ([]fleet.BundleResource, error) {
	byName := map[string]string{}
	for _, file := range r.Resources {
		name := path.Clean(file.Name)
		if _, twice := byName[name]; twice {
			return nil, invalid("the Bundle has two resources named %s", name)
		}
		byName[name] = file.Content
	}
	names := slices.Sorted(maps.Keys(byName))
	var overlays []string
	if r.Options.YAML != nil {
		overlays = r.Options.YAML.Overlays
	}
	for _, overlay := range overlays {
		for _, name := range names {
			relative, ok := strings.CutPrefix(name, overlaysFolder+path.Clean(overlay)+"/")
			if !ok {
				continue
			}
			extension := path.Ext(relative)
			target, isPatch := strings.CutSuffix(strings.TrimSuffix(relative, extension), patchSuffix)
			if !isPatch {
				byName[relative] = byName[name]
				continue
			}
			target += extension
			original, found := byName[target]
			if !found {
				return nil, invalid("yaml.overlays: %s changes %s, which is not in the Bundle", name, target)
			}
			patched, err := patchManifest(original, byName[name])
			if err != nil {
				return nil, invalid("yaml.overlays: applying %s to %s: %v", name, target, err)
			}
			byName[target] = patched
		}
	}
	maps.DeleteFunc(byName, func(name, _ string) bool { return strings.HasPrefix(name, overlaysFolder) })
	var files []fleet.BundleResource
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		files = append(files, fleet.BundleResource{Name: name, Content: byName[name]})
	}
	return files, nil
}

// patchManifest applies a patch to a manifest: a JSON patch if it is a list, a strategic merge patch if the kind is one of
// Kubernetes' own, a JSON merge patch otherwise.
func patchManifest(manifest, changes string) (string, error) {
	original, err := yaml.YAMLToJSON([]byte(manifest))
	if err != nil {
		return "", err
	}
	change, err := yaml.YAMLToJSON([]byte(changes))
	if err != nil {
		return "", err
	}
	patched, err := patch.Apply(original, change)
	return string(patched), err
}

// isManifest excludes files that have the extension of a manifest and no objects: values, and the description of the Bundle.
func isManifest(name string, valuesFiles []string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(name)) &&
		name != "fleet.yaml" && name != "fleet.yml" &&
		!slices.ContainsFunc(valuesFiles, func(file string) bool { return path.Clean(file) == name })
}

// decodeObjects returns the documents in YAML or JSON, without empty ones. Lists are flattened. A document need not have a kind.
func decodeObjects(data []byte) (objects []*unstructured.Unstructured, err error) {
	for reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data))); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		asJSON, err := yaml.YAMLToJSON(document)
		if err != nil {
			return nil, err
		}
		fields := map[string]any{}
		if err := utiljson.Unmarshal(asJSON, &fields); err != nil { // keeps integers exact
			return nil, err
		}
		o := &unstructured.Unstructured{Object: fields}
		switch {
		case len(fields) == 0:
		case o.IsList():
			err = o.EachListItem(func(item runtime.Object) error {
				objects = append(objects, item.(*unstructured.Unstructured))
				return nil
			})
			if err != nil {
				return nil, err
			}
		default:
			objects = append(objects, o)
		}
	}
}

// encodeObjects returns the objects as YAML documents.
func encodeObjects(objects []*unstructured.Unstructured) (*bytes.Buffer, error) {
	var documents bytes.Buffer
	for _, o := range objects {
		document, err := yaml.Marshal(o.Object)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&documents, "---\n%s", document)
	}
	return &documents, nil
}
