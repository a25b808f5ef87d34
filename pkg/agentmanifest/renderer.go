package agentmanifest

import (
	"encoding/json"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/lru"

	"github.com/muster-fleet/muster/pkg/registration"
)

// maxTemplates is the number of cached templates. Most hubs have a few kinds of agents; some have Clusters with their own settings.
const maxTemplates = 128

// Renderer renders agents. It caches each manifest without its individual fields (namespace, scope and GENERATION):
// rendering the chart takes milliseconds, and a copy with these fields set takes microseconds.
type Renderer struct{ cache *lru.Cache }

// NewRenderer returns a Renderer with an empty cache.
func NewRenderer() *Renderer { return &Renderer{cache: lru.New(maxTemplates)} }

// Render returns the same as the function Render.
func (r *Renderer) Render(o Options) ([]runtime.Object, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	template, err := r.template(o)
	if err != nil {
		return Render(o) // its error names this agent
	}
	objects := make([]runtime.Object, len(template))
	for i, object := range template {
		objects[i] = object.DeepCopyObject()
		setIndividual(objects[i], o)
	}
	return objects, nil
}

// template returns the objects of an agent with these options and empty individual fields.
func (r *Renderer) template(o Options) ([]runtime.Object, error) {
	blank := o
	blank.Namespace, blank.Scope, blank.EnvVars = "template", "", slices.Clone(o.EnvVars)
	if hasGeneration(o) {
		blank.EnvVars[0].Value = ""
	}
	key, err := registration.StatusHash(blank)
	if err != nil {
		return nil, err
	}
	if known, found := r.cache.Get(key); found {
		return known.([]runtime.Object), nil
	}
	template, err := Render(blank)
	if err == nil && blank.IsSmall() {
		r.cache.Add(key, template)
	}
	return template, err
}

// maxSmall limits the size of the JSON of small options. The options of a usual agent have 1 kB. The rendered objects take up to 25 times as much
// memory.
const maxSmall = 8 << 10

// IsSmall reports whether objects that were rendered with these options may be kept in memory. Users write options of up to 64 KiB, and a cache has
// hundreds of entries, which all workspaces share.
func (o Options) IsSmall() bool {
	data, err := json.Marshal(o)
	return err == nil && len(data) <= maxSmall
}

// setIndividual sets the individual fields of one object.
func setIndividual(object runtime.Object, o Options) {
	switch typed := object.(type) {
	case *rbacv1.ClusterRole:
		typed.Name = ClusterRoleName(o.Namespace)
	case *rbacv1.ClusterRoleBinding:
		typed.Name, typed.RoleRef.Name = ClusterRoleBindingName(o.Namespace), ClusterRoleName(o.Namespace)
		for i := range typed.Subjects {
			typed.Subjects[i].Namespace = o.Namespace
		}
	case *appsv1.Deployment:
		env := typed.Spec.Template.Spec.Containers[0].Env
		set := func(name, value string) {
			if at := slices.IndexFunc(env, func(v corev1.EnvVar) bool { return v.Name == name }); at >= 0 {
				env[at].Value = value
			}
		}
		set("AGENT_SCOPE", o.Scope)
		if hasGeneration(o) {
			set(registration.GenerationEnv, o.EnvVars[0].Value)
		}
	}
	if accessor, err := meta.Accessor(object); err == nil && accessor.GetNamespace() != "" {
		accessor.SetNamespace(o.Namespace)
	}
}

// hasGeneration reports whether the first variable is the hub's GENERATION. People may set one of the same name after it.
func hasGeneration(o Options) bool {
	return len(o.EnvVars) > 0 && o.EnvVars[0].Name == registration.GenerationEnv && o.EnvVars[0].ValueFrom == nil
}
