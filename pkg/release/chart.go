package release

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/action"
	chartapi "helm.sh/helm/v4/pkg/chart"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

const (
	chartFile = "Chart.yaml"
	// fetchedCharts is the folder into which tools that make Bundles put the charts they downloaded.
	fetchedCharts = ".chart/"
	overlays      = "overlays/"
	manifests     = "manifests/"
	// wrapperVersion is that of the chart around plain manifests: a chart must have one.
	wrapperVersion    = "v0.0.0"
	wrapperAnnotation = labelPrefix + "plain-manifests"
)

// packaged is a chart that is ready to be deployed.
type packaged struct {
	chart *chart.Chart
	// plain says that it was made around manifests: it is rendered from nothing but itself.
	plain bool
}

// pack makes a chart of the resources.
func pack(r Request) (packaged, error) {
	if err := unsupported(r.Options, r.Resources); err != nil {
		return packaged{}, err
	}
	folder, isChart := chartFolder(r.helm().Chart, r.Resources)
	if isChart {
		loaded, err := load(folder, r.Resources)
		return packaged{chart: loaded}, err
	}
	if named := r.helm().Chart; named != "" {
		return packaged{}, invalid("helm.chart is %q, but the Bundle has no file %s", named, path.Join(named, chartFile))
	}
	wrapped, err := wrap(r)
	return packaged{chart: wrapped, plain: true}, err
}

// chartFolder is where the chart is among the resources, "" for their root.
func chartFolder(named string, resources []fleet.BundleResource) (folder string, found bool) {
	if !strings.Contains(named, "://") {
		folder = strings.Trim(path.Clean("/"+named), "/")
		if slices.ContainsFunc(resources, func(r fleet.BundleResource) bool { return path.Clean(r.Name) == path.Join(folder, chartFile) }) {
			return folder, true
		}
	}
	var fetched []string
	for _, r := range resources {
		name := path.Clean(r.Name)
		if strings.HasPrefix(name, fetchedCharts) && path.Base(name) == chartFile && strings.Count(name, "/") == 2 {
			fetched = append(fetched, path.Dir(name))
		}
	}
	if len(fetched) == 1 {
		return fetched[0], true
	}
	return "", false
}

func load(folder string, resources []fleet.BundleResource) (*chart.Chart, error) {
	var files []*archive.BufferedFile
	for _, r := range resources {
		if name, ok := strings.CutPrefix("/"+path.Clean(r.Name), path.Join("/", folder)); ok {
			files = append(files, &archive.BufferedFile{Name: strings.TrimPrefix(name, "/"), Data: []byte(r.Content)})
		}
	}
	loaded, err := loader.LoadFiles(files)
	if err != nil {
		return nil, invalid("the chart in the Bundle cannot be loaded: %v", err)
	}
	return loaded, complete(loaded)
}

// complete says which dependencies are not in the folder charts: an agent downloads none.
func complete(c *chart.Chart) error {
	required := make([]chartapi.Dependency, 0, len(c.Metadata.Dependencies))
	for _, d := range c.Metadata.Dependencies {
		required = append(required, d)
	}
	if err := action.CheckDependencies(c, required); err != nil {
		return invalid("chart %s is not complete: %v; run helm dependency build before it becomes a Bundle", c.Name(), err)
	}
	return nil
}

// wrap makes a chart around plain manifests. Each is a template that includes a file, so that braces in a manifest stay
// what they are.
func wrap(r Request) (*chart.Chart, error) {
	wrapped := &chart.Chart{Metadata: &chart.Metadata{
		APIVersion: chart.APIVersionV2, Name: r.Name, Version: wrapperVersion, Type: "application",
		Annotations: map[string]string{wrapperAnnotation: "true"},
	}}
	seen := map[string]bool{}
	for _, resource := range r.Resources {
		name := path.Clean(resource.Name)
		if !isManifest(name, r.helm().ValuesFiles) {
			continue
		}
		if seen[name] {
			return nil, invalid("the Bundle has two resources named %s", name)
		}
		seen[name] = true
		wrapped.Files = append(wrapped.Files, &common.File{Name: manifests + name, Data: []byte(resource.Content)})
		wrapped.Templates = append(wrapped.Templates, &common.File{
			Name: templateName(name), Data: fmt.Appendf(nil, "{{ .Files.Get %q }}", manifests+name),
		})
	}
	return wrapped, nil
}

// templateName keeps a manifest from being taken for a partial or for notes by its name.
func templateName(name string) string {
	return "templates/" + path.Join(path.Dir(name), "m-"+strings.TrimSuffix(path.Base(name), path.Ext(name))+".yaml")
}

// isManifest: what only looks like one, a file of values or the description of the Bundle itself, would fail as an object
// without a kind.
func isManifest(name string, valuesFiles []string) bool {
	switch path.Ext(name) {
	case ".yaml", ".yml", ".json":
	default:
		return false
	}
	if name == "fleet.yaml" || name == "fleet.yml" || strings.HasPrefix(name, overlays) {
		return false
	}
	return !slices.ContainsFunc(valuesFiles, func(file string) bool { return path.Clean(file) == name })
}
