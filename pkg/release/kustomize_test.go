package release

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
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
		"URLs that are values": {"", "", []string{
			"kustomization.yaml", "resources: [a.yaml]\ntransformers: [t.yaml]\nimages: [{name: x, newName: github.com/o/r}]\nlabels: [{pairs: {mail: a@b.c}}]\n" +
				"configMapGenerator: [{name: g, literals: ['a=https://x', 'u@h=v'], options: {disableNameSuffixHash: true, annotations: {docs: 'https://x'}}}]\n" +
				"patches: [{target: {name: a}, patch: \"- op: add\\n  path: /data/docs\\n  value: 'k=https://x'\\n\"}]\n",
			"a.yaml", a, "t.yaml", "apiVersion: builtin\nkind: AnnotationsTransformer\nmetadata: {name: t}\nannotations: {docs: 'https://x'}\nfieldSpecs: [{path: metadata/annotations, create: true}]\n",
		}, "a g"},
		"a plugin": {"", "", []string{"kustomization.yaml", "generators: [g.yaml]", "g.yaml", "apiVersion: x/v1\nkind: Own\nmetadata: {name: g}\n"}, "external plugins disabled"},
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

// A build must send no request, whatever kustomize takes for the name of a file: its HTTP client has no limits.
func TestKustomization_requests(t *testing.T) {
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		_, _ = w.Write([]byte(configMap("loaded", "k", "v")))
	}))
	t.Cleanup(server.Close)
	generator := "apiVersion: builtin\nkind: ConfigMapGenerator\nmetadata: {name: g}\n"
	a := configMap("a", "k", "v")
	for name, files := range map[string][]string{
		"a field":                              {"kustomization.yaml", "resources: [URL]"},
		"a field in another case":              {"kustomization.yaml", "Resources: [URL]"},
		"a field of a generator, other case":   {"kustomization.yaml", "configMapGenerator: [{name: x, Files: ['a=URL']}]"},
		"a generator in a file, other case":    {"kustomization.yaml", "generators: [g.yaml]", "g.yaml", generator + "Files: ['a=URL']\n"},
		"before a document that is not a map":  {"kustomization.yaml", "resources: ['URL']\n---\n[1]\n"},
		"a replacement":                        {"kustomization.yaml", "{resources: [a.yaml], replacements: [{path: 'URL'}]}", "a.yaml", a},
		"a schema":                             {"kustomization.yaml", "{resources: [a.yaml], openapi: {path: 'URL'}}", "a.yaml", a},
		"a value to add":                       {"kustomization.yaml", "{resources: [a.yaml], transformers: [t.yaml]}", "a.yaml", a, "t.yaml", "apiVersion: builtin\nkind: ValueAddTransformer\nmetadata: {name: t}\ntargetFilePath: URL\n"},
		"a validator":                          {"kustomization.yaml", "{resources: [a.yaml], validators: [t.yaml]}", "a.yaml", a, "t.yaml", "apiVersion: builtin\nkind: ValueAddTransformer\nmetadata: {name: t}\ntargetFilePath: URL\n"},
		"a list of generators":                 {"kustomization.yaml", "generators: [g.yaml]", "g.yaml", "apiVersion: v1\nkind: AnyList\nitems: [{apiVersion: builtin, kind: ConfigMapGenerator, metadata: {name: g}, files: ['a=URL']}]\n"},
		"a generator in a folder, patched":     {"kustomization.yaml", "generators: [g]", "g/g.yaml", generator, "g/kustomization.yaml", "resources: [g.yaml]\npatches: [{target: {name: g}, patch: \"- op: add\\n  path: /files\\n  value: ['a=URL']\\n\"}]\n"},
		"a generator named as a kustomization": {"kustomization.yaml", "generators: [g/Kustomization]", "g/Kustomization", generator + "files: ['a=URL']\n"},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range files {
				files[i] = strings.ReplaceAll(files[i], "URL", server.URL+"/x")
			}
			requests.Store(0)
			_, err := kustomized(t, "", "", files...)
			var unsupported *UnsupportedError
			require.ErrorAs(t, err, &unsupported)
			assert.Zero(t, requests.Load())
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
