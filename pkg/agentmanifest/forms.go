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

// formsKept is for hubs whose Clusters have settings of their own; most have a few sorts of agents.
const formsKept = 128

// Forms render agents and remember them but for what each agent has of its own: its namespace, its scope and its GENERATION.
// Rendering a chart takes milliseconds, filling in a form takes microseconds.
type Forms struct{ cache *lru.Cache }

// NewForms remembers nothing yet.
func NewForms() *Forms { return &Forms{cache: lru.New(formsKept)} }

// Render gives what the function of that name gives.
func (f *Forms) Render(o Options) ([]runtime.Object, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	form, err := f.form(o)
	if err != nil {
		return Render(o) // which says what is wrong with this agent, not with a form
	}
	objects := make([]runtime.Object, len(form))
	for i, object := range form {
		objects[i] = object.DeepCopyObject()
		fillIn(objects[i], o)
	}
	return objects, nil
}

// form are the objects of an agent that has nothing of its own.
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

// hasGeneration: the hub's own variable comes before those of people, who may have one of the same name.
func hasGeneration(o Options) bool {
	return len(o.EnvVars) > 0 && o.EnvVars[0].Name == registration.GenerationEnv && o.EnvVars[0].ValueFrom == nil
}

func fillIn(object runtime.Object, o Options) {
	switch typed := object.(type) {
	case *rbacv1.ClusterRole:
		typed.Name = ClusterRoleName(o.Namespace)
	case *rbacv1.ClusterRoleBinding:
		typed.Name, typed.RoleRef.Name = ClusterRoleBindingName(o.Namespace), ClusterRoleName(o.Namespace)
		for i := range typed.Subjects {
			typed.Subjects[i].Namespace = o.Namespace
		}
	case *appsv1.Deployment:
		fillInEnv(typed.Spec.Template.Spec.Containers[0].Env, o)
	}
	// The error is of objects without metadata, which a chart does not render.
	if accessor, err := meta.Accessor(object); err == nil && accessor.GetNamespace() != "" {
		accessor.SetNamespace(o.Namespace)
	}
}

func fillInEnv(env []corev1.EnvVar, o Options) {
	set := func(name, value string) {
		if at := slices.IndexFunc(env, func(v corev1.EnvVar) bool { return v.Name == name }); at >= 0 {
			env[at].Value = value
		}
	}
	set(scopeEnv, o.Scope)
	if hasGeneration(o) {
		set(registration.GenerationEnv, o.EnvVars[0].Value)
	}
}

// scopeEnv is the variable in which the chart tells an agent its scope.
const scopeEnv = "AGENT_SCOPE"
