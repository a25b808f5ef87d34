package bundle

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/bundle/templates"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

func TestVariant_templates(t *testing.T) {
	east := clusterNamed("east")
	east.Labels = map[string]string{"env": "dev", "x": "${ .ClusterName }"}
	for name, row := range map[string]struct {
		values    map[string]any
		templates map[string]string
		want      string
		err       string
	}{
		"a label is no template": {values: map[string]any{"a": "global.fleet.clusterLabels.x", "b": "${ .ClusterName }"}, want: `{"a":"${ .ClusterName }","b":"east"}`},
		"templateValues":         {values: map[string]any{"a": "old", "b": "kept"}, templates: map[string]string{"a": "x: ${ .ClusterName }"}, want: `{"a":{"x":"east"},"b":"kept"}`},
		"templateValues alone":   {templates: map[string]string{"a": "${ .ClusterNamespace }"}, want: `{"a":"ws"}`},
		"an error":               {values: map[string]any{"a": "${ .ClusterLabels.none }"}, err: `map has no entry for key "none"`},
	} {
		t.Run(name, func(t *testing.T) {
			helm := &fleet.HelmOptions{TemplateValues: row.templates}
			if row.values != nil {
				helm.Values = &fleet.GenericMap{Data: row.values}
			}
			p := planOf(bundleWith(func(s *fleet.BundleSpec) { s.Helm, s.Targets = helm, []fleet.BundleTarget{{}} }))
			require.Nil(t, p.problem)
			v, err := p.variant(t.Context(), []int{0}, east)
			if row.err != "" {
				var failed *templates.RenderError
				require.ErrorAs(t, err, &failed)
				require.ErrorContains(t, err, row.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, row.want, string(v.values))
			assert.Equal(t, row.templates, v.options.Helm.TemplateValues, "Fleet's hub leaves them in the options")

			west := east.DeepCopy()
			west.Name = "west"
			_, err = p.variant(t.Context(), []int{0}, west)
			require.NoError(t, err)
			again, err := p.variant(t.Context(), []int{0}, east)
			require.NoError(t, err)
			assert.Equal(t, v, again)
		})
	}
}

func TestVariant_keepsNoMoreValuesThanItMay(t *testing.T) {
	sample.Long(t)
	values := map[string]any{"text": strings.Repeat("x", 1<<20-100), "label": "global.fleet.clusterLabels.l"}
	for name, values := range map[string]map[string]any{
		"labels":    values,
		"templates": {"text": values["text"], "label": "${ .ClusterLabels.l }"},
	} {
		t.Run(name, func(t *testing.T) {
			p := planOf(bundleWith(func(s *fleet.BundleSpec) {
				s.Helm, s.Targets = &fleet.HelmOptions{Values: &fleet.GenericMap{Data: values}}, []fleet.BundleTarget{{}}
			}))
			most := 0
			for i := range 20 { // 20 MB
				cluster := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: fmt.Sprint(i), Labels: map[string]string{"l": fmt.Sprint(i)}}}
				_, err := p.variant(t.Context(), []int{0}, cluster)
				require.NoError(t, err)
				held := 0
				for _, v := range p.cache.variants {
					held += len(v.values)
				}
				for _, r := range p.cache.rendered {
					held += len(r.variant.values)
				}
				most = max(most, held)
				require.LessOrEqual(t, held, p.cache.size)
				require.LessOrEqual(t, p.cache.size, maxWorkspace)
			}
			assert.Greater(t, most, maxWorkspace/2, "the hub keeps what it may")
		})
	}
}

// A pass that ends waits for no other pass of the workspace, keeps no error for the next pass, and writes no status.
func TestVariant_contextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		b, alice := withValues("${ .ClusterName }"), clusterNamed("alice")
		s.has(t, b, alice)
		p := s.plans.of(t.Context(), b)
		var ends []func()
		for range max(1, runtime.GOMAXPROCS(0)/2) {
			end, err := s.Matching.Begin(t.Context(), "ws")
			require.NoError(t, err)
			ends = append(ends, end)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := p.variant(ctx, []int{0}, alice)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		for _, end := range ends {
			end()
		}

		matches := []match{{alice, []int{0}, true}}
		_, err = s.summarize(ctx, b, p, matches, nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		b.Spec.RolloutStrategy = &fleet.RolloutStrategy{MaxUnavailable: new(intstr.FromInt32(1))}
		b.Generation++
		_, err = s.rollOut(ctx, b, s.plans.of(t.Context(), b), matches, s.groupsOf(b.Namespace))
		require.ErrorIs(t, err, context.DeadlineExceeded)

		assert.Empty(t, p.cache.rendered)
		v, err := p.variant(t.Context(), []int{0}, alice)
		require.NoError(t, err)
		assert.JSONEq(t, `{"v":"alice"}`, string(v.values))
	})
}

func failedWith(why string) fleet.BundleDeploymentStatus {
	return fleet.BundleDeploymentStatus{Conditions: []genericcondition.GenericCondition{condition(fleet.ConditionDeployed, corev1.ConditionFalse, why)}}
}

func TestForget(t *testing.T) {
	s := newStage(t)
	b := bundleWith(func(s *fleet.BundleSpec) {
		s.Helm = &fleet.HelmOptions{Values: &fleet.GenericMap{Data: map[string]any{"a": "${ .ClusterName }"}}}
		s.Targets = []fleet.BundleTarget{{ClusterSelector: selector("env", "prod")}}
	})
	p := s.plans.of(t.Context(), b)
	for _, name := range []string{"alice", "bob"} {
		_, err := p.variant(t.Context(), []int{0}, clusterNamed(name))
		require.NoError(t, err)
	}
	size := p.cache.size
	s.Forget("ws/alice")
	assert.Len(t, p.cache.rendered, 1)
	assert.Less(t, p.cache.size, size)
	s.Forget("other/alice")
	assert.Contains(t, p.cache.rendered, key{Namespace: "ws", Name: "bob"})
}

// The cache drops templateValues that are too large. The Bundle must not be deployed as if there were none.
func TestVariant_templateValuesTooLarge(t *testing.T) {
	p := planOf(withValues(`${ get .ClusterValues "none" | default "d" }`))
	alice := clusterNamed("alice")
	_, err := p.variant(t.Context(), []int{0}, alice)
	require.NoError(t, err)
	alice.Spec.TemplateValuesTooLarge = true
	_, err = p.variant(t.Context(), []int{0}, alice)
	require.ErrorContains(t, err, "spec.templateValues of the Cluster takes more than 1024 KiB")
}

// Each Cluster of the workspace has the error in its status, and the Bundle has several of them.
func TestReconcile_longTemplateError(t *testing.T) {
	s := newStage(t)
	broken := withValues("${ " + strings.Repeat("x", 1<<20) + " }")
	alice := clusterNamed("alice")
	s.has(t, alice, broken)
	cluster, out := s.reconcile(t, alice)
	assert.Equal(t, fleet.ReasonBundleInvalid, out.Reason)
	result.Set(&cluster.Status.Conditions, fleet.ConditionReady, out, noon)
	written, err := json.Marshal(cluster)
	require.NoError(t, err)
	assert.Less(t, len(written), 20<<10)
	assert.Less(t, len(s.shown(broken)), 1000)
}

func TestReconcileTemplateError(t *testing.T) {
	s := newStage(t)
	before, broken := targetingAlice(), withValues("${ .ClusterLabels.env }")
	broken.Generation = 2
	alice := clusterNamed("alice")
	s.has(t, alice, broken, isReady(deployed(t, before)))
	cluster, out := s.reconcile(t, alice)
	assert.Equal(t, []string{"enqueue Bundle app in 1s"}, s.taken(), "what is deployed stays, and the status of the Bundle reports the error")
	assert.Equal(t, fleet.ReasonBundleInvalid, out.Reason)
	assert.Contains(t, out.Message, "Bundle app: the Helm values cannot be rendered")
	assert.Equal(t, "1/1", cluster.Status.Display.ReadyBundles)
	assert.Contains(t, s.shown(broken), `0/1 ErrApplied(1) [Cluster ws/alice: the Helm values cannot be rendered: template: values:1:20: executing "values" at <.ClusterLabels.env>`)

	labelled := alice.DeepCopy()
	labelled.Labels = map[string]string{"env": "dev"}
	s.has(t, labelled)
	_, out = s.reconcile(t, labelled)
	require.NoError(t, out.Err)
	assert.JSONEq(t, `{"v":"dev"}`, string(s.liveSecret(t).Data["values"]))
}

// An error about one Bundle does not hide the Bundles that are not ready, and a pass that changes nothing has the same message.
func TestReconcile_errorBesideUnreadyBundles(t *testing.T) {
	for name, row := range map[string]struct {
		broken  *fleet.Bundle
		errors  map[string]error
		begins  string
		pending string // what the error says itself
	}{
		"a stalled error":   {withValues("${ .ClusterLabels.env }"), nil, "BundleInvalid Bundle broken: the Helm values cannot be rendered: ", ""},
		"a temporary error": {targetingAlice(), map[string]error{"create " + home + "/broken": errInternal}, "Error creating BundleDeployment " + home + "/broken: ", "WaitApplied(1) [Bundle broken]; "},
	} {
		t.Run(name, func(t *testing.T) {
			s, alice := newStage(t), clusterNamed("alice")
			s.errors = row.errors
			row.broken.Name = "broken"
			s.has(t, alice, row.broken)
			for bundle, change := range map[string]func(*fleet.BundleDeploymentStatus){
				"good":   func(*fleet.BundleDeploymentStatus) {},
				"failed": func(status *fleet.BundleDeploymentStatus) { *status = failedWith("no chart") },
				"slow":   func(status *fleet.BundleDeploymentStatus) { status.Ready = false },
				"slower": func(status *fleet.BundleDeploymentStatus) { status.Ready = false },
			} {
				b := targetingAlice()
				b.Name = bundle
				deployment := isReady(deployed(t, b))
				change(&deployment.Status)
				deployment.Status.Display = fleetstatus.Display(deployment.Spec, deployment.Status)
				s.has(t, b, deployment)
			}
			cluster, out := s.reconcile(t, alice)
			text := out.Reason + " " + out.Message
			assert.True(t, strings.HasPrefix(text, row.begins), text)
			unready := "; ErrApplied(1) [Bundle failed: no chart]; " + row.pending + "NotReady(2) [Bundle slow; Bundle slower]"
			assert.True(t, strings.HasSuffix(text, unready), text)
			_, again := s.reconcile(t, cluster)
			assert.Equal(t, []string{out.Reason, out.Message}, []string{again.Reason, again.Message})
		})
	}
}

func TestVariant_sharesTheOptions(t *testing.T) {
	for name, value := range map[string]string{"labels": "global.fleet.clusterLabels.l", "templates": "${ .ClusterLabels.l }"} {
		t.Run(name, func(t *testing.T) {
			p := planOf(bundleWith(func(s *fleet.BundleSpec) {
				s.Helm, s.Targets = &fleet.HelmOptions{Values: &fleet.GenericMap{Data: map[string]any{"label": value}}}, []fleet.BundleTarget{{}}
				s.DownstreamResources = []fleet.DownstreamResource{{Kind: "Secret", Name: "s"}}
			}))
			of := func(label string) variant {
				v, err := p.variant(t.Context(), []int{0}, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: label, Labels: map[string]string{"l": label}}})
				require.NoError(t, err)
				require.JSONEq(t, `{"label":"`+label+`"}`, string(v.values))
				return v
			}
			first, second := of("first"), of("second")
			assert.Same(t, &first.options.DownstreamResources[0], &second.options.DownstreamResources[0], "the options of a Bundle may be large")
			assert.NotEqual(t, first.deploymentID, second.deploymentID)
		})
	}
}

// The caches of the hub pack large values.
func TestVariant_packedValues(t *testing.T) {
	lines := make([]any, 400)
	for i := range lines {
		lines[i] = fmt.Sprintf("line <%d> & more", i)
	}
	east := clusterNamed("east")
	east.Labels = map[string]string{"env": "dev"}
	east.Spec.TemplateValues = &fleet.GenericMap{Data: map[string]any{"region": "eu", "lines": lines}}
	for name, row := range map[string]struct {
		value    any
		inTarget map[string]any
		isPacked bool // while the plan keeps them
	}{
		"text":                         {"text", nil, true},
		"small values in the target":   {"text", map[string]any{"b": int64(1)}, true},
		"large values in the target":   {"text", map[string]any{"other": lines}, true},
		"empty values":                 {map[string]any{"a": []any{}, "b": map[string]any{}, "c": nil}, nil, true},
		"a label":                      {labelPrefix + "env", nil, false},
		"a label in the target":        {"text", map[string]any{"b": labelPrefix + "env"}, false},
		"a template":                   {"${ .ClusterName } in ${ .ClusterValues.region } ${ index .ClusterValues.lines 3 }", nil, false},
		"a template beside the target": {"${ .ClusterLabels.env }", map[string]any{"b": lines}, false},
	} {
		t.Run(name, func(t *testing.T) {
			decoded := bundleWith(func(s *fleet.BundleSpec) {
				s.Helm = &fleet.HelmOptions{ReleaseName: "r", Values: &fleet.GenericMap{Data: map[string]any{"a": row.value, "lines": lines, "big": int64(9007199254740993)}}}
				s.Targets = []fleet.BundleTarget{{ClusterName: "east"}}
				if row.inTarget != nil {
					s.Targets[0].Helm = &fleet.HelmOptions{Values: &fleet.GenericMap{Data: row.inTarget}}
				}
			})
			want, err := planOf(decoded).variant(t.Context(), []int{0}, east)
			require.NoError(t, err)
			require.Greater(t, len(want.values), 4000)

			packed, packedCluster := decoded.DeepCopy(), east.DeepCopy()
			packed.Spec.Helm.Values.Pack()
			require.Positive(t, packed.Spec.Helm.Values.PackedSize())
			if row.inTarget != nil {
				packed.Spec.Targets[0].Helm.Values.Pack()
			}
			packedCluster.Spec.TemplateValues.Pack()
			require.Positive(t, packedCluster.Spec.TemplateValues.PackedSize())
			before, p := packed.DeepCopy(), planOf(packed)
			for range 2 { // the second one is kept
				got, err := p.variant(t.Context(), []int{0}, packedCluster)
				require.NoError(t, err)
				assert.Equal(t, want, got)
			}
			require.Len(t, p.cache.merged, 1)
			for _, merged := range p.cache.merged {
				assert.Equal(t, row.isPacked, hasPacked(merged.options))
			}
			assert.Equal(t, before, packed, "the object in the cache stays packed")
		})
	}
}
