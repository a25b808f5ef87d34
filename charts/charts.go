// Package charts contains the published Helm charts, and renders them. The hub installs the agent from the same chart as a person, so that there
// is one description of the agent.
package charts

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// Names of the charts. CRD and then Hub are installed on a hub, Agent on the members.
const (
	CRD   = "fleet-crd"
	Hub   = "fleet"
	Agent = "fleet-agent"
)

// Files are the charts' files, one folder for each chart.
//
// "all:" includes the partials, whose names begin with an underscore.
//
//go:embed all:fleet-crd all:fleet all:fleet-agent
var Files embed.FS

// notesFile is the template of the text that Helm prints after an installation. It is not a manifest.
const notesFile = "NOTES.txt"

// newestCluster contains the capabilities of a cluster of the newest supported version. Charts that are rendered for it contain all admission
// policies.
var newestCluster = &common.Capabilities{
	KubeVersion: common.KubeVersion{Version: "v1.36.3", Major: "1", Minor: "36"},
	APIVersions: append(common.VersionSet{
		"v1/Namespace",
		"admissionregistration.k8s.io/v1/MutatingAdmissionPolicy",
		"admissionregistration.k8s.io/v1/ValidatingAdmissionPolicyBinding",
	}, common.DefaultVersionSet...),
	HelmVersion: common.DefaultCapabilities.HelmVersion,
}

// Release is the Helm release for which a chart is rendered.
type Release struct {
	Name      string
	Namespace string
	// KubeVersion, such as v1.30.0, renders the chart for another version of Kubernetes than the newest supported one.
	KubeVersion string
}

// Load reads a chart. Several goroutines may render the result at the same time.
func Load(name string) (*chart.Chart, error) {
	files, err := read(name)
	if err != nil {
		return nil, fmt.Errorf("reading chart %s: %w", name, err)
	}
	loaded, err := loader.LoadFiles(files)
	if err != nil {
		return nil, fmt.Errorf("loading chart %s: %w", name, err)
	}
	return loaded, nil
}

func read(name string) ([]*archive.BufferedFile, error) {
	var files []*archive.BufferedFile
	err := fs.WalkDir(Files, name, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := Files.ReadFile(file)
		if err != nil {
			return err
		}
		files = append(files, &archive.BufferedFile{Name: strings.TrimPrefix(file, name+"/"), Data: data})
		return nil
	})
	return files, err
}

// Render returns the manifests of a chart by file name ("fleet-agent/templates/rbac.yaml"), except empty ones. It merges the values with the
// chart's defaults and checks them against the chart's schema; the error names each invalid value.
func Render(name string, release Release, values map[string]any) (map[string]string, error) {
	loaded, err := Load(name)
	if err != nil {
		return nil, err
	}
	return RenderChart(loaded, release, values)
}

// RenderChart is Render for a chart that is already loaded.
func RenderChart(c *chart.Chart, release Release, values map[string]any) (map[string]string, error) {
	rendered, err := render(c, release, values)
	if err != nil {
		return nil, err
	}
	for file, content := range rendered {
		if path.Base(file) == notesFile || blank(content) {
			delete(rendered, file)
		}
	}
	return rendered, nil
}

// Documents returns the documents of a rendered file as JSON, except empty ones.
func Documents(manifest string) ([]json.RawMessage, error) {
	var documents []json.RawMessage
	for decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifest), bytes.MinRead); ; {
		var document json.RawMessage
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return nil, err
		}
		if len(document) > 0 && string(document) != "null" {
			documents = append(documents, document)
		}
	}
}

// Notes returns the text that Helm prints after the chart was installed with these values.
func Notes(name string, release Release, values map[string]any) (string, error) {
	loaded, err := Load(name)
	if err != nil {
		return "", err
	}
	rendered, err := render(loaded, release, values)
	if err != nil {
		return "", err
	}
	return rendered[path.Join(name, "templates", notesFile)], nil
}

func render(c *chart.Chart, release Release, values map[string]any) (map[string]string, error) {
	options := common.ReleaseOptions{Name: release.Name, Namespace: release.Namespace, Revision: 1, IsInstall: true}
	cluster := newestCluster
	if release.KubeVersion != "" {
		cluster = common.DefaultCapabilities.Copy()
		cluster.KubeVersion.Version = release.KubeVersion
	}
	top, err := util.ToRenderValues(c, values, options, cluster)
	if err != nil {
		return nil, fmt.Errorf("values of chart %s: %w", c.Name(), err)
	}
	rendered, err := engine.Render(c, top)
	if err != nil {
		return nil, fmt.Errorf("rendering chart %s: %w", c.Name(), err)
	}
	return rendered, nil
}

// blank reports whether a rendered template contains nothing except comments.
func blank(manifest string) bool {
	for line := range strings.Lines(manifest) {
		line = strings.TrimSpace(line)
		if line != "" && line != "---" && !strings.HasPrefix(line, "#") {
			return false
		}
	}
	return true
}
