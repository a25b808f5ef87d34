package release

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/provider"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/kustomize/kyaml/openapi"
	"sigs.k8s.io/yaml"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

const (
	kustomizationFile = "kustomization.yaml"
	// renderedFile is the file that gives kustomize the output of a chart.
	renderedFile = "fleet-manifests.yaml"
	// kustomizeRoot is the folder of the Bundle in the file system that kustomize sees.
	kustomizeRoot = "/bundle"
	// kustomizationsMax limits the kustomizations that one build includes: bases that double the objects at each level would fill the memory.
	kustomizationsMax = 1000
)

// kustomization is a folder with a kustomization.yaml, and the files that it may use.
type kustomization struct {
	folder string
	files  []fleet.BundleResource
}

// findKustomization returns the kustomization in the folder that the options name, or in the root; nil if there is none.
func findKustomization(r Request) (*kustomization, error) {
	folder := ""
	if r.Options.Kustomize != nil {
		folder = r.Options.Kustomize.Dir
	}
	file := strings.TrimPrefix(path.Join("/", folder, kustomizationFile), "/")
	if slices.ContainsFunc(r.Resources, func(r fleet.BundleResource) bool { return path.Clean(r.Name) == file }) {
		return &kustomization{folder: path.Dir(file), files: r.Resources}, nil
	}
	if folder != "" {
		return nil, invalid("kustomize.dir is %q, but the Bundle has no file %s", folder, file)
	}
	return nil, nil
}

// kustomizing admits one build at a time: kustomize keeps the schema of Kubernetes' kinds in package variables. It takes tens of MiB of memory,
// and is freed after each build.
var kustomizing sync.Mutex

// build returns the objects of the kustomization. Objects that a chart rendered become the first of its resources. kustomize
// gets the files of the Bundle only: no disk, no plugins, no downloads. Some malformed kustomizations make it panic, which must
// not end the agent.
func (k kustomization) build(rendered []*unstructured.Unstructured) (objects []*unstructured.Unstructured, err error) {
	defer func() {
		if p := recover(); p != nil {
			objects, err = nil, invalid("kustomize failed on a malformed kustomization or manifest: %v", p)
		}
	}()
	files := filesys.MakeFsInMemory()
	for _, file := range k.files {
		if err := files.WriteFile(path.Join(kustomizeRoot, path.Join("/", file.Name)), []byte(file.Content)); err != nil {
			return nil, invalid("%s: %v", file.Name, err)
		}
	}
	folder := path.Join(kustomizeRoot, k.folder)
	if len(rendered) > 0 {
		if err := addResource(files, folder, rendered); err != nil {
			return nil, err
		}
	}

	kustomizing.Lock()
	defer kustomizing.Unlock()
	defer openapi.ResetOpenAPI()
	checked := &checkedFiles{FileSystem: files}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(checked, folder)
	if checked.refused != nil { // kustomize says that a file is missing
		return nil, checked.refused
	}
	if err != nil {
		return nil, invalid("%s", strings.ReplaceAll(err.Error(), kustomizeRoot+"/", ""))
	}
	manifests, err := built.AsYaml()
	if err != nil {
		return nil, invalid("%v", err)
	}
	return decodeObjects(manifests)
}

// addResource writes objects into a file, and puts the file before the other resources of the kustomization in a folder.
func addResource(files filesys.FileSystem, folder string, objects []*unstructured.Unstructured) error {
	manifests, err := encodeObjects(objects)
	if err != nil {
		return err
	}
	file := path.Join(folder, kustomizationFile)
	data, err := files.ReadFile(file)
	if err != nil {
		return err
	}
	fields := map[string]any{}
	if err := yaml.Unmarshal(data, &fields); err != nil {
		return invalid("%s: %v", strings.TrimPrefix(file, kustomizeRoot+"/"), err)
	}
	resources, _ := fields["resources"].([]any)
	fields["resources"] = slices.Concat([]any{renderedFile}, resources)
	if data, err = yaml.Marshal(fields); err != nil {
		return err
	}
	if err := files.WriteFile(file, data); err != nil {
		return err
	}
	return files.WriteFile(path.Join(folder, renderedFile), manifests.Bytes())
}

// checkedFiles refuses kustomizations after the first kustomizationsMax, and files that name files outside of the Bundle. It refuses nothing that
// kustomize does not read: a folder of the Bundle may be for other programs.
type checkedFiles struct {
	filesys.FileSystem
	kustomizations int
	refused        error // the first one
}

// ReadFile returns the content of a file.
func (c *checkedFiles) ReadFile(name string) ([]byte, error) {
	if isKustomization(name) {
		if c.kustomizations++; c.kustomizations > kustomizationsMax {
			c.refused = cmp.Or(c.refused, invalid("the kustomization includes more than %d others; check for bases that are included many times", kustomizationsMax))
		}
	}
	data, err := c.FileSystem.ReadFile(name)
	if err == nil {
		c.refused = cmp.Or(c.refused, c.checkLocal(name, data))
	}
	if c.refused != nil {
		return nil, fs.ErrPermission
	}
	return data, err
}

// remote matches the names that kustomize takes for a URL or a git repository.
var remote = regexp.MustCompile(`(?i)^(git::|https?://|ssh://|file://|github\.com[/:]|[a-z][a-z0-9-]*@)`)

// valueFields are the fields of kustomizations, and of the generators and transformers, whose strings may look like a URL and name no file.
var valueFields = []string{
	"annotations", "commonAnnotations", "commonLabels", "imageTag", "imageTags", "images", "labels", "literals", "sourceValue", "value",
}

// checkLocal refuses a kustomization, or the configuration of a generator or transformer, that names files outside of the Bundle: kustomize would
// download them without limits, or run git, and its HTTP client cannot be replaced. So the check decodes both as kustomize does, which ignores the
// case of fields and further documents, and refuses a URL in every field that is not a known value. kustomize uses the configurations in a file
// as they are, but could change those in a folder, which are refused.
func (c *checkedFiles) checkLocal(name string, data []byte) error {
	unsupported := func(format string, args ...any) error {
		why := strings.TrimPrefix(name, kustomizeRoot+"/") + " names " + fmt.Sprintf(format, args...)
		return &UnsupportedError{Field: "kustomize", Why: why}
	}
	checked := configurations(data)
	var k types.Kustomization
	if isKustomization(name) && k.Unmarshal(data) == nil { // otherwise kustomize returns the error
		for _, configuration := range slices.Concat(k.Generators, k.Transformers, k.Validators) {
			if c.IsDir(path.Join(path.Dir(name), configuration)) {
				return unsupported("the folder %s as a generator, transformer or validator; name the files in it", configuration)
			}
			checked = append(checked, configurations([]byte(configuration))...) // it may be in place of its file
		}
		text, err := json.Marshal(k)
		if err != nil {
			return err
		}
		var fields map[string]any
		if err := json.Unmarshal(text, &fields); err != nil {
			return err
		}
		checked = append(checked, fields)
	}
	for _, fields := range checked {
		if found := remoteFile(fields, ""); found != "" {
			return unsupported("%s; put the files into the Bundle", found)
		}
	}
	return nil
}

// configurations returns the configurations of kustomize's own generators and transformers in a text.
func configurations(text []byte) (found []map[string]any) {
	objects, err := resmap.NewFactory(provider.NewDefaultDepProvider().GetResourceFactory()).NewResMapFromBytes(text)
	if err != nil {
		return nil // kustomize returns the error if it needs the objects
	}
	for _, o := range objects.Resources() {
		if fields, err := o.Map(); err == nil && o.GetGvk().Version == konfig.BuiltinPluginApiVersion {
			found = append(found, fields)
		}
	}
	return found
}

func isKustomization(name string) bool {
	return slices.Contains(konfig.RecognizedKustomizationFileNames(), path.Base(name))
}

// remoteFile returns the first file outside of the Bundle that the value of a field may name; "" if there is none.
func remoteFile(value any, field string) string {
	switch value := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) { // the same error in each attempt
			if slices.Contains(valueFields, key) {
				continue
			}
			if found := remoteFile(value[key], key); found != "" {
				return found
			}
		}
	case []any:
		for _, item := range value {
			if found := remoteFile(item, field); found != "" {
				return found
			}
		}
	case string:
		_, file, _ := strings.Cut(value, "=") // the files of a generator may be KEY=FILE
		if remote.MatchString(value) || strings.EqualFold(field, "files") && remote.MatchString(file) {
			return value
		}
	}
	return ""
}
