package release

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// kustomized returns the names of the objects of these files, with a chart of one template if it is not empty.
func kustomized(t *testing.T, folder, rendered string, files ...string) (string, error) {
	t.Helper()
	r := Request{Name: "app"}
	r.Options.Kustomize = &fleet.KustomizeOptions{Dir: folder}
	for i := 0; i < len(files); i += 2 {
		r.Resources = append(r.Resources, fleet.BundleResource{Name: files[i], Content: files[i+1]})
	}
	made, err := makeSource(r)
	if err != nil {
		return "", err
	}
	objects, err := made.complete([]byte(rendered))
	var names []string
	for _, o := range objects {
		names = append(names, o.GetName())
	}
	return strings.Join(names, " "), err
}

func TestKustomization(t *testing.T) {
	const chart = "apiVersion: v2\nname: app\nversion: 1.0.0\n"
	a, b := configMap("a", "k", "v"), configMap("b", "k", "v")
	for name, row := range map[string]struct {
		folder, rendered string
		files            []string
		want             string // names, or the error
	}{
		"in the root":                            {"", "", []string{"kustomization.yaml", "{resources: [a.yaml], namePrefix: x-}", "a.yaml", a, "b.yaml", b}, "x-a"},
		"in the folder overlays":                 {"overlays/dev", "", []string{"overlays/dev/kustomization.yaml", "resources: [../../base]", "base/kustomization.yaml", "resources: [a.yaml]", "base/a.yaml", a}, "a"},
		"over a chart":                           {"", a, []string{"Chart.yaml", chart, "kustomization.yaml", "{resources: [b.yaml], nameSuffix: -x}", "b.yaml", b}, "a-x b-x"},
		"over a chart, in a folder":              {"k", a, []string{"Chart.yaml", chart, "k/kustomization.yaml", "nameSuffix: -x"}, "a-x"},
		"in a folder without a name":             {"", "", []string{"sub/kustomization.yaml", "resources: [a.yaml]", "sub/a.yaml", a}, "a"},
		"missing":                                {"k", "", []string{"a.yaml", a}, `kustomize.dir is "k", but the Bundle has no file k/kustomization.yaml`},
		"a missing file":                         {"", "", []string{"kustomization.yaml", "resources: [a.yaml]"}, "accumulating resources from 'a.yaml': 'a.yaml' doesn't exist"},
		"a file outside of a base":               {"k", "", []string{"k/kustomization.yaml", "resources: [../a.yaml]", "a.yaml", a}, "is not in or below"},
		"a patch that is null":                   {"", "", []string{"kustomization.yaml", "{resources: [a.yaml], patchesJson6902: [null]}", "a.yaml", a}, "kustomize failed on a malformed kustomization"},
		"a URL":                                  {"", "", []string{"kustomization.yaml", "resources: ['https://x/a.yaml']"}, "kustomize is not supported: kustomization.yaml names https://x/a.yaml; put the files into the Bundle"},
		"a git repository":                       {"k", "", []string{"k/kustomization.yaml", "components: ['github.com/o/r//c?ref=v1']"}, "k/kustomization.yaml names github.com/o/r//c?ref=v1"},
		"a generator with a URL":                 {"", "", []string{"kustomization.yaml", "configMapGenerator: [{name: g, files: ['k=https://x/a']}]"}, "names k=https://x/a"},
		"a generator in place":                   {"", "", []string{"kustomization.yaml", "generators:\n- |-\n  apiVersion: builtin\n  kind: ConfigMapGenerator\n  metadata: {name: g}\n  files: ['https://x/a']\n"}, "names https://x/a"},
		"a generator in a file":                  {"", "", []string{"kustomization.yaml", "generators: [g.yaml]", "g.yaml", "apiVersion: builtin\nkind: ConfigMapGenerator\nmetadata: {name: g}\nfiles: ['https://x/a']\n"}, "names https://x/a"},
		"a generator in a text file":             {"", "", []string{"kustomization.yaml", "generators: [g.txt]", "g.txt", "apiVersion: builtin\nkind: ConfigMapGenerator\nmetadata: {name: g}\nfiles: ['https://x/a']\n"}, "names https://x/a"},
		"a base with a URL":                      {"", "", []string{"kustomization.yaml", "resources: [base]", "base/kustomization.yaml", "resources: ['https://x/a.yaml']"}, "base/kustomization.yaml names https://x/a.yaml"},
		"several URLs: the same error each time": {"", "", []string{"kustomization.yaml", "{resources: ['https://x/r'], components: ['https://x/c'], crds: ['https://x/d'], transformers: ['https://x/t']}"}, "names https://x/c"},
		"a URL that is not used":                 {"", "", []string{"kustomization.yaml", "{resources: [a.yaml], namePrefix: used-}", "a.yaml", a, "other/kustomization.yaml", "resources: ['https://x/a.yaml']"}, "used-a"},
		"a URL beside a folder":                  {"k", "", []string{"k/kustomization.yaml", "{resources: [a.yaml], namePrefix: used-}", "k/a.yaml", a, "kustomization.yaml", "resources: ['https://x/a.yaml']"}, "used-a"},
		"a URL that is a value":                  {"", "", []string{"kustomization.yaml", "{resources: [a.yaml], commonAnnotations: {docs: 'https://x'}}", "a.yaml", a}, "a"},
		"a plugin":                               {"", "", []string{"kustomization.yaml", "generators: [g.yaml]", "g.yaml", "apiVersion: x/v1\nkind: Own\nmetadata: {name: g}\n"}, "external plugins disabled"},
	} {
		t.Run(name, func(t *testing.T) {
			names, err := kustomized(t, row.folder, row.rendered, row.files...)
			if err != nil {
				require.ErrorContains(t, err, row.want)
				return
			}
			assert.Equal(t, row.want, names)
		})
	}
}

// TestKustomization_bomb has bases that double the objects at each level.
func TestKustomization_bomb(t *testing.T) {
	files := []string{"kustomization.yaml", "resources: [a0, b0]"}
	const levels = 12
	for i := range levels {
		next := strings.Replace("resources: [../aN, ../bN]", "N", string(rune('a'+i)), 2)
		for _, folder := range []string{"a", "b"} {
			name := folder + "0"
			if i > 0 {
				name = folder + string(rune('a'+i-1))
			}
			if i == levels-1 {
				next = "configMapGenerator: [{name: m, options: {disableNameSuffixHash: true}}]"
			}
			files = append(files, name+"/kustomization.yaml", "namePrefix: "+folder+"\n"+next)
		}
	}
	_, err := kustomized(t, "", "", files...)
	require.ErrorContains(t, err, "the kustomization includes more than 1000 others")
}
