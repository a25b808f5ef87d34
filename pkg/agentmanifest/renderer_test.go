package agentmanifest_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/muster-fleet/muster/internal/fuzz"
	"github.com/muster-fleet/muster/pkg/agentmanifest"
)

func generation(value string) corev1.EnvVar { return corev1.EnvVar{Name: "GENERATION", Value: value} }

// own has changes of each option that may differ between agents with the same rendered template (namespace, scope, GENERATION), and of some options
// that need another template.
func own() map[string]func(*agentmanifest.Options) {
	return map[string]func(*agentmanifest.Options){
		"as it is":         func(*agentmanifest.Options) {},
		"a namespace":      func(o *agentmanifest.Options) { o.Namespace = "agents" },
		"a long namespace": func(o *agentmanifest.Options) { o.Namespace = strings.Repeat("n", 63) },
		"a scope":          func(o *agentmanifest.Options) { o.Scope = "scope" },
		"no scope":         func(o *agentmanifest.Options) { o.Scope = "" },
		"a generation":     func(o *agentmanifest.Options) { o.EnvVars = append([]corev1.EnvVar{generation("key/1")}, o.EnvVars...) },
		"another generation": func(o *agentmanifest.Options) {
			o.EnvVars = append([]corev1.EnvVar{generation("managed/2")}, o.EnvVars...)
		},
		"an empty generation":                     func(o *agentmanifest.Options) { o.EnvVars = append([]corev1.EnvVar{generation("")}, o.EnvVars...) },
		"a generation of the user":                func(o *agentmanifest.Options) { o.EnvVars = append(o.EnvVars, generation("theirs")) },
		"a generation of the hub and of the user": func(o *agentmanifest.Options) { o.EnvVars = []corev1.EnvVar{generation("ours"), generation("theirs")} },
		"a scope of the hub and of the user": func(o *agentmanifest.Options) {
			o.Scope, o.EnvVars = "s", []corev1.EnvVar{{Name: "AGENT_SCOPE", Value: "theirs"}}
		},
		"another setting": func(o *agentmanifest.Options) { o.HostNetwork = !o.HostNetwork },
		"no environment":  func(o *agentmanifest.Options) { o.EnvVars = nil },
	}
}

func TestRenderer_Render(t *testing.T) {
	renderer := agentmanifest.NewRenderer()
	for range 2 { // from the chart, then from memory
		for title, base := range map[string]func() agentmanifest.Options{"plain": plain, "full": full} {
			for change, apply := range own() {
				o := base()
				apply(&o)
				requireAsRendered(t, renderer, o, title+", "+change)
			}
		}
	}
}

func requireAsRendered(t *testing.T, renderer *agentmanifest.Renderer, o agentmanifest.Options, title string) {
	t.Helper()
	want, problem := agentmanifest.Render(o)
	got, err := renderer.Render(o)
	assert.Equal(t, problem == nil, err == nil, "%s: %v, %v", title, problem, err)
	assert.Equal(t, want, got, title)
}

func TestRenderer_Render_resultsAreCopies(t *testing.T) {
	renderer, o := agentmanifest.NewRenderer(), full()
	o.EnvVars = append([]corev1.EnvVar{generation("g")}, o.EnvVars...)
	first, err := renderer.Render(o)
	require.NoError(t, err)
	first[0].(*rbacv1.ClusterRole).Labels = map[string]string{"mine": "true"}
	first[4].(*appsv1.Deployment).Spec.Template.Spec.Containers[0].Env[0].Name = "CHANGED"
	requireAsRendered(t, renderer, o, "again")
	assert.Equal(t, generation("g"), o.EnvVars[0], "the options may belong to an informer's cache")
}

func TestRenderer_Render_errors(t *testing.T) {
	renderer := agentmanifest.NewRenderer()
	for _, change := range []func(*agentmanifest.Options){
		func(o *agentmanifest.Options) { o.Namespace = "" },
		func(o *agentmanifest.Options) { o.Image = "" },
		func(o *agentmanifest.Options) { o.DriftWorkers = "many" },
	} {
		o := plain()
		change(&o)
		_, want := agentmanifest.Render(o)
		objects, err := renderer.Render(o)
		require.EqualError(t, err, want.Error())
		assert.Empty(t, objects)
	}
}

func FuzzForms(f *testing.F) {
	fuzz.AddSeeds(f)
	renderer := agentmanifest.NewRenderer()
	f.Fuzz(func(t *testing.T, seed []byte) {
		var mine struct{ Namespace, Scope, Generation, Theirs string }
		fuzz.From(seed, "agents", "template", "cattle-fleet-system", "managed/3", "GENERATION", "AGENT_SCOPE").Fill(&mine)
		o := plain()
		o.Namespace, o.Scope = mine.Namespace, mine.Scope
		o.EnvVars = []corev1.EnvVar{generation(mine.Generation), {Name: mine.Theirs, Value: mine.Scope}}
		want, problem := agentmanifest.Render(o)
		if problem != nil {
			return // an invalid name, which the API server would reject
		}
		got, err := renderer.Render(o)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	})
}
