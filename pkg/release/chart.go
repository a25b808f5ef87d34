package release

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/action"
	chartapi "helm.sh/helm/v4/pkg/chart"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

const (
	chartFile = "Chart.yaml"
	// fetchedCharts is the folder into which tools that make Bundles put the charts they downloaded.
	fetchedCharts = ".chart/"
	overlays      = "overlays/"
	manifests     = "manifests/"
	// plainAnnotation marks the chart that makeChart puts around plain manifests.
	plainAnnotation = labelPrefix + "plain-manifests"
)

// nameMax is Helm's limit for release names: charts append to them, and names of Services have 63 characters.
const nameMax = 53

// Place returns the namespace and the name of the release of a BundleDeployment.
func Place(bundleDeployment string, o fleet.BundleDeploymentOptions) (namespace, name string) {
	name = bundleDeployment
	if o.Helm != nil {
		name = cmp.Or(o.Helm.ReleaseName, bundleDeployment)
	}
	return cmp.Or(o.TargetNamespace, o.DefaultNamespace, metav1.NamespaceDefault), shorten(name)
}

// shorten cuts a name that is too long. The digest of the whole distinguishes long names with the same beginning.
func shorten(name string) string {
	if len(name) <= nameMax {
		return name
	}
	const digestLength = 8
	sum := sha256.Sum256([]byte(name))
	return strings.TrimRight(name[:nameMax-digestLength-1], "-.") + "-" + hex.EncodeToString(sum[:])[:digestLength]
}

// makeChart returns the chart in the resources, or one around plain manifests.
func makeChart(r Request) (made *chart.Chart, isPlain bool, err error) {
	if err := checkSupported(r.Options, r.Resources); err != nil {
		return nil, false, err
	}
	if folder, found := chartFolder(r.helm().Chart, r.Resources); found {
		made, err = loadChart(folder, r.Resources)
		return made, false, err
	}
	if named := r.helm().Chart; named != "" {
		return nil, false, invalid("helm.chart is %q, but the Bundle has no file %s", named, path.Join(named, chartFile))
	}
	made, err = plainChart(r)
	return made, true, err
}

// checkSupported finds what this agent does not do before anything is done.
func checkSupported(o fleet.BundleDeploymentOptions, resources []fleet.BundleResource) error {
	fromRepository := false
	if h := o.Helm; h != nil && (h.Repo != "" || strings.Contains(h.Chart, "://")) {
		_, included := chartFolder(h.Chart, resources)
		fromRepository = !included
	}
	hasKustomization := slices.ContainsFunc(resources, func(r fleet.BundleResource) bool {
		return slices.Contains([]string{"kustomization.yaml", "kustomization.yml", "Kustomization"}, path.Base(r.Name))
	})
	for _, row := range []struct {
		asked      bool
		field, why string
	}{
		{o.Kustomize != nil && o.Kustomize.Dir != "", "kustomize", "build the manifests before they become a Bundle"},
		{hasKustomization, "kustomization.yaml", "build the manifests before they become a Bundle"},
		{o.YAML != nil && len(o.YAML.Overlays) > 0, "yaml.overlays", "put the overlaid manifests into a Bundle of their own"},
		{len(o.DownstreamResources) > 0, "downstreamResources", "put the ConfigMaps and Secrets into the Bundle"},
		{fromRepository, "helm.repo", "put the chart's files into the Bundle"},
	} {
		if row.asked {
			return &UnsupportedError{Field: row.field, Why: row.why}
		}
	}
	return nil
}

// chartFolder returns the folder of the chart among the resources; "" is their root.
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

// loadChart loads the chart in a folder. It refuses one whose dependencies are missing: an agent downloads nothing.
func loadChart(folder string, resources []fleet.BundleResource) (*chart.Chart, error) {
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
	required := make([]chartapi.Dependency, 0, len(loaded.Metadata.Dependencies))
	for _, d := range loaded.Metadata.Dependencies {
		required = append(required, d)
	}
	if err := action.CheckDependencies(loaded, required); err != nil {
		return nil, invalid("chart %s is not complete: %v; run helm dependency build before it becomes a Bundle", loaded.Name(), err)
	}
	return loaded, nil
}

// plainChart makes a chart around plain manifests. Each template only includes a file, so that braces in a manifest are not
// interpreted. The prefix of its name keeps Helm from taking it for a partial or for notes.
func plainChart(r Request) (*chart.Chart, error) {
	made := &chart.Chart{Metadata: &chart.Metadata{
		APIVersion: chart.APIVersionV2, Name: r.Name, Version: "v0.0.0", Type: "application",
		Annotations: map[string]string{plainAnnotation: "true"},
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
		template := "templates/" + path.Join(path.Dir(name), "m-"+strings.TrimSuffix(path.Base(name), path.Ext(name))+".yaml")
		made.Files = append(made.Files, &common.File{Name: manifests + name, Data: []byte(resource.Content)})
		made.Templates = append(made.Templates, &common.File{Name: template, Data: fmt.Appendf(nil, "{{ .Files.Get %q }}", manifests+name)})
	}
	return made, nil
}

// isManifest excludes files that have the extension of a manifest and no objects: values, and the description of the Bundle.
func isManifest(name string, valuesFiles []string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(name)) &&
		name != "fleet.yaml" && name != "fleet.yml" && !strings.HasPrefix(name, overlays) &&
		!slices.ContainsFunc(valuesFiles, func(file string) bool { return path.Clean(file) == name })
}

// values merges the values of the Bundle's files, of the options, of ConfigMaps and Secrets on the cluster and of the request;
// later ones win.
func (c *Client) values(ctx context.Context, r Request) (map[string]any, error) {
	var layers []map[string]any
	for _, file := range r.helm().ValuesFiles {
		at := slices.IndexFunc(r.Resources, func(r fleet.BundleResource) bool { return path.Clean(r.Name) == path.Clean(file) })
		if at < 0 {
			return nil, invalid("helm.valuesFiles names %s, which is not in the Bundle", file)
		}
		layer, err := parseValues([]byte(r.Resources[at].Content), "file "+file+" of the Bundle")
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	if values := r.helm().Values; values != nil {
		layers = append(layers, values.DeepCopy().Data)
	}
	for _, from := range r.helm().ValuesFrom {
		if ref := from.ConfigMapKeyRef; ref != nil {
			layer, err := c.valuesFrom(ctx, "ConfigMap", r.Namespace, *ref)
			if err != nil {
				return nil, err
			}
			layers = append(layers, layer)
		}
		if ref := from.SecretKeyRef; ref != nil {
			layer, err := c.valuesFrom(ctx, "Secret", r.Namespace, *ref)
			if err != nil {
				return nil, err
			}
			layers = append(layers, layer)
		}
	}
	return mergeValues(append(layers, r.Values)), nil
}

// valuesFrom reads the values in a ConfigMap or Secret. A missing one is no InvalidError: another Bundle may create it.
func (c *Client) valuesFrom(ctx context.Context, kind, namespace string, ref fleet.KeySelector) (map[string]any, error) {
	namespace, key := cmp.Or(ref.Namespace, namespace), cmp.Or(ref.Key, "values.yaml")
	var data []byte
	var found bool
	var err error
	if kind == "Secret" {
		secret, getErr := c.core.CoreV1().Secrets(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err = getErr; err == nil {
			data, found = secret.Data[key]
		}
	} else {
		configMap, getErr := c.core.CoreV1().ConfigMaps(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err = getErr; err == nil {
			var text string
			text, found = configMap.Data[key]
			data = []byte(text)
		}
	}
	source := kind + " " + namespace + "/" + ref.Name
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("helm.valuesFrom names %s, which does not exist on this cluster", source)
	case err != nil:
		return nil, fmt.Errorf("helm.valuesFrom: %w", err)
	case !found:
		return nil, fmt.Errorf("helm.valuesFrom names key %s of %s, which it does not have", key, source)
	}
	return parseValues(data, source)
}

func parseValues(data []byte, source string) (map[string]any, error) {
	values, err := common.ReadValues(data)
	if err != nil {
		return nil, invalid("%s contains no valid values: %v", source, err)
	}
	return values, nil
}

func mergeValues(layers []map[string]any) map[string]any {
	merged := map[string]any{}
	for _, layer := range layers {
		if merged = util.MergeTables(layer, merged); merged == nil {
			merged = map[string]any{}
		}
	}
	return merged
}
