package release

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"helm.sh/helm/v4/pkg/action"
	chartapi "helm.sh/helm/v4/pkg/chart"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/chart/v2/util"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/content"
)

const (
	chartFile = "Chart.yaml"
	// fetchedCharts is the folder for charts that were downloaded, each below the digest of the options that name it.
	fetchedCharts = ".chart"
)

// chartSource is what a request deploys: a chart, and additions to its output.
type chartSource struct {
	// chart is the chart of the request, or an empty one around plain manifests.
	chart *chart.Chart
	// manifests are plain manifests beside the templates of the chart.
	manifests []fleet.BundleResource
	// kustomization changes the output of the chart, or makes the objects if the chart is empty; nil if there is none.
	kustomization *kustomization
}

// makeSource determines what a request deploys: the chart that the options name, a kustomization, or plain manifests.
func makeSource(r Request) (chartSource, error) {
	kustomization, err := findKustomization(r)
	if err != nil {
		return chartSource{}, err
	}
	if folder, found := chartFolder(r.helm(), r.Resources); found {
		made, err := loadChart(folder, r.Resources)
		return chartSource{chart: made, kustomization: kustomization}, err
	}
	if h := r.helm(); h.Repo != "" || strings.Contains(h.Chart, "://") {
		return chartSource{}, &UnsupportedError{Field: "helm.repo", Why: fmt.Sprintf("the Bundle has no chart in %s; put the chart's files into the Bundle, or use a HelmOp",
			FetchedFolder(h))}
	} else if h.Chart != "" {
		return chartSource{}, invalid("helm.chart is %q, but the Bundle has no file %s", h.Chart, path.Join(h.Chart, chartFile))
	}
	if kustomization != nil {
		made, err := emptyChart(r, r.Resources)
		return chartSource{chart: made, kustomization: kustomization}, err
	}
	return plainManifests(r)
}

// complete returns the objects to deploy: those that the chart rendered and the plain manifests, changed by the kustomization.
func (s chartSource) complete(rendered []byte) ([]*unstructured.Unstructured, error) {
	objects, err := decodeObjects(rendered)
	if err != nil {
		return nil, invalid("chart %s: %v", s.chart.Name(), err)
	}
	for _, o := range objects {
		if o.GetKind() == "" {
			return nil, invalid("chart %s renders a document without a kind", s.chart.Name())
		}
	}
	for _, file := range s.manifests {
		added, err := decodeObjects([]byte(file.Content))
		if err != nil {
			return nil, invalid("%s: %v", file.Name, err)
		}
		// Values and other settings have the extension of a manifest and no kind.
		objects = append(objects, slices.DeleteFunc(added, func(o *unstructured.Unstructured) bool { return o.GetKind() == "" })...)
	}
	if s.kustomization != nil {
		return s.kustomization.build(objects)
	}
	return objects, nil
}

// needsCapabilities reports whether Helm needs the capabilities of the cluster: for templates, or to check the version of Kubernetes.
func (s chartSource) needsCapabilities() bool {
	return len(s.chart.Templates) > 0 || len(s.chart.Dependencies()) > 0 || s.chart.Metadata.KubeVersion != ""
}

// chartFolder returns the folder of the chart among the resources; "" is their root.
func chartFolder(h fleet.HelmOptions, resources []fleet.BundleResource) (folder string, found bool) {
	isChart := func(folder string) bool {
		return slices.ContainsFunc(resources, func(r fleet.BundleResource) bool { return path.Clean(r.Name) == path.Join(folder, chartFile) })
	}
	if named := cmp.Or(h.Chart, h.Repo); !strings.Contains(named, "://") {
		if folder = strings.Trim(path.Clean("/"+named), "/"); isChart(folder) {
			return folder, true
		}
	}
	fetched := FetchedFolder(h)
	if isChart(fetched) {
		return fetched, true
	}
	for _, r := range resources {
		// An archive has the chart in a folder with its name.
		if folder = path.Dir(path.Clean(r.Name)); path.Base(r.Name) == chartFile && path.Dir(folder) == fetched {
			return folder, true
		}
	}
	return "", false
}

// FetchedFolder returns the folder for the files of a downloaded chart. Programs that make Bundles compute the same name. A Bundle whose targets
// use several charts has a folder for each chart.
func FetchedFolder(h fleet.HelmOptions) string {
	sum := sha256.Sum256([]byte(h.Chart + ":" + h.Repo + ":" + h.Version))
	return path.Join(fetchedCharts, hex.EncodeToString(sum[:]))
}

// loadChart loads the chart in a folder.
func loadChart(folder string, resources []fleet.BundleResource) (*chart.Chart, error) {
	var files []*archive.BufferedFile
	for _, r := range resources {
		if name, ok := strings.CutPrefix("/"+path.Clean(r.Name), strings.TrimSuffix(path.Join("/", folder), "/")+"/"); ok {
			files = append(files, &archive.BufferedFile{Name: name, Data: []byte(r.Content)})
		}
	}
	if err := NewChartBudget().unpackDependencies(files); err != nil {
		return nil, invalid("the chart in the Bundle cannot be loaded: %v", err)
	}
	loaded, err := loader.LoadFiles(files)
	if err != nil {
		return nil, invalid("the chart in the Bundle cannot be loaded: %v", err)
	}
	return loaded, nil
}

// checkDependencies refuses a chart that lacks dependencies which the values enable: only a part of the application would be deployed.
func (s chartSource) checkDependencies(r Request, values map[string]any) error {
	if missingDependencies(s.chart) == nil {
		return nil
	}
	enabled, err := enabledChart(r, values)
	if err != nil {
		return err
	}
	if err := missingDependencies(enabled); err != nil {
		return invalid("chart %s is not complete: %v; run helm dependency build before it becomes a Bundle", s.chart.Name(), err)
	}
	return nil
}

// enabledChart returns the chart of a request without the dependencies that the values disable. Helm changes a chart to find them.
func enabledChart(r Request, values map[string]any) (*chart.Chart, error) {
	made, err := makeSource(r)
	if err != nil {
		return nil, err
	}
	if err := util.ProcessDependencies(made.chart, values); err != nil {
		return nil, invalid("chart %s: %v", made.chart.Name(), err)
	}
	return made.chart, nil
}

func missingDependencies(c *chart.Chart) error {
	required := make([]chartapi.Dependency, 0, len(c.Metadata.Dependencies))
	for _, d := range c.Metadata.Dependencies {
		required = append(required, d)
	}
	return action.CheckDependencies(c, required)
}

// emptyChart returns the chart for a release that has none: named after the BundleDeployment, with a version that names the
// commit or else the files.
func emptyChart(r Request, files []fleet.BundleResource) (*chart.Chart, error) {
	const commitLength = 12
	id, _, err := content.Digest(files)
	if err != nil {
		return nil, invalid("%v", err)
	}
	if r.Commit != "" {
		id = "git-" + r.Commit[:min(commitLength, len(r.Commit))]
	}
	return &chart.Chart{Metadata: &chart.Metadata{APIVersion: chart.APIVersionV2, Name: cmp.Or(r.BundleDeployment, r.Name), Version: "v0.0.0+" + id}}, nil
}

// checkSchemas refuses a chart with a values.schema.json, also that of an enabled dependency, that refers to another file or URL: Helm would read it
// without limits, with the files and the network of the agent.
func (s chartSource) checkSchemas(r Request, values map[string]any) error {
	if r.helm().SkipSchemaValidation || checkSchemas(s.chart) == nil {
		return nil
	}
	enabled, err := enabledChart(r, values)
	if err != nil {
		return err
	}
	return checkSchemas(enabled)
}

func checkSchemas(c *chart.Chart) error {
	if len(c.Schema) > 0 {
		if err := compileSchema(c.Schema); err != nil {
			return &UnsupportedError{Field: "values.schema.json", Why: fmt.Sprintf("chart %s: %v; put all of the schema into that file, or set helm.skipSchemaValidation", c.Name(), err)}
		}
	}
	for _, dependency := range c.Dependencies() {
		if err := checkSchemas(dependency); err != nil {
			return err
		}
	}
	return nil
}

// compileSchema compiles a schema as Helm does, and returns an error if that fails or needs a file or URL.
func compileSchema(text []byte) (err error) {
	defer func() { // as Helm
		if p := recover(); p != nil {
			err = fmt.Errorf("unable to validate schema: %v", p)
		}
	}()
	schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	const name = "file:///values.schema.json"
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(noSchemas{})
	if err := compiler.AddResource(name, schema); err != nil {
		return err
	}
	_, err = compiler.Compile(name)
	return err
}

// noSchemas has no schemas but those of URNs, for which Helm has one that admits everything.
type noSchemas struct{}

// Load returns a schema.
func (noSchemas) Load(name string) (any, error) {
	if u, err := url.Parse(name); err == nil && u.Scheme == "urn" {
		return true, nil
	}
	return nil, errors.New("a schema must not refer to other files")
}
