package agentmanifest

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/lru"

	"github.com/muster-fleet/muster/pkg/registration"
)

// formsKept is the number of cached forms. Most hubs have a few kinds of agents; some have Clusters with settings of their own.
const formsKept = 128

// Forms caches rendered agents without their individual fields: the namespace, the scope and the GENERATION. Rendering the
// chart takes milliseconds, a copy with these fields set takes microseconds.
type Forms struct{ cache *lru.Cache }

// NewForms returns an empty cache.
func NewForms() *Forms { return &Forms{cache: lru.New(formsKept)} }

// Render returns the same as the function Render.
func (f *Forms) Render(o Options) ([]runtime.Object, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	form, err := f.form(o)
	if err != nil {
		return Render(o) // its error names this agent
	}
	objects := make([]runtime.Object, len(form))
	for i, object := range form {
		objects[i] = object.DeepCopyObject()
		setIndividual(objects[i], o)
	}
	return objects, nil
}

// form returns the objects of an agent with these options and empty individual fields.
func (f *Forms) form(o Options) ([]runtime.Object, error) {
	blank := o
	blank.Namespace, blank.Scope, blank.EnvVars = "form", "", slices.Clone(o.EnvVars)
	if hasGeneration(o) {
		blank.EnvVars[0].Value = ""
	}
	key, err := registration.StatusHash(blank)
	if err != nil {
		return nil, err
	}
	if known, found := f.cache.Get(key); found {
		return known.([]runtime.Object), nil
	}
	form, err := Render(blank)
	if err == nil {
		f.cache.Add(key, form)
	}
	return form, err
}

// hasGeneration reports whether the first variable is the hub's GENERATION. People may set one of the same name after it.
func hasGeneration(o Options) bool {
	return len(o.EnvVars) > 0 && o.EnvVars[0].Name == registration.GenerationEnv && o.EnvVars[0].ValueFrom == nil
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
