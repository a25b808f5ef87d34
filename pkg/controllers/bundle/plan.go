package bundle

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/Masterminds/semver/v3"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/content"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/bundle/templates"
	"github.com/muster-fleet/muster/pkg/controllers/internal/matching"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// plan is the spec of one generation of a Bundle, read and checked. It is computed once for all Clusters; afterwards only its cache changes.
type plan struct {
	// problem, if not nil, is why the Bundle is not deployed. Existing deployments stay.
	problem *problem
	// err, if not nil, is a temporary error. problem is set too, and the next pass computes the plan again.
	err error
	// content begins the deployment IDs: it is the name of the Content with the resources if hasContent, the name of an OCI artifact, or
	// empty if the agent downloads a chart. sum is the digest of the resources of a Content.
	content, sum string
	hasContent   bool

	uid          types.UID
	generation   int64
	labelSize    int  // in bytes; a change of labels is not a new generation
	isReduced    bool // the cache has dropped the spec, which it may have again in the same generation
	options      fleet.BundleDeploymentOptions
	isAgent      bool // the Bundle runs an agent
	allMatches   bool // the options of all targets that match are merged, and not only those of the first
	targets      []target
	restrictions []criteria
	ofGroups     []criteria // of the targets and restrictions that select ClusterGroups
	strategy     *strategy  // nil if all Clusters are updated at the same time
	commonSize   int        // of the other fields that each BundleDeployment has from the Bundle, as JSON

	rendering *matching.Limiter
	cache     planCache

	mu     sync.Mutex // read holds it until isRead; afterwards only cache changes
	isRead bool
}

// planCache has the options and variants that were computed from a plan. The mutex of memory guards it, and memory may empty it at
// any time to make room.
type planCache struct {
	memory    *memory
	namespace string // of the Bundle

	merged   map[string]mergedOptions // by the indexes of the targets
	variants map[string]variant       // by the indexes of the targets and the values of the labels in the options
	rendered map[key]renderedVariant  // by Cluster, if the values have templates
	size     int                      // in bytes
	isClosed bool                     // nothing is added: the plan was replaced, or is never kept
}

// variantSize is the memory of a variant without its values and without the part that it shares with its mergedOptions. The shared part is
// counted once, with the mergedOptions, so a variant is kept only together with them.
const variantSize = 1 << 10

// MaxSpecMemory limits the memory that the spec of a Bundle takes in the caches of the hub, without its resources. A larger one is dropped there.
const MaxSpecMemory = 8 << 20

// maxLabels limits the bytes of the labels of a Bundle. The caches of the hub have them for each BundleDeployment.
const maxLabels = 16 << 10

// maxSelecting limits the selectors of a Bundle, which the hub evaluates for each Cluster of the workspace.
const maxSelecting = 1000

// mergedOptions are the options of several targets in one.
type mergedOptions struct {
	options     fleet.BundleDeploymentOptions
	labelNames  []string // labels of the Cluster whose values replace Helm values
	hasTemplate bool     // the Helm values have templates
}

// renderedVariant is a variant whose templates were rendered for one Cluster.
type renderedVariant struct {
	inputs  [sha256.Size]byte // digest of the indexes of the targets and the fields of the Cluster
	variant variant
	err     error
	size    int
}

// problem is the reason and the message of the condition Ready of a Bundle that is not deployed.
type problem struct{ reason, message string }

type target struct {
	criteria
	doNotDeploy bool
	options     *fleet.BundleDeploymentOptions // of the Bundle
}

// variant is the options and the deployment ID for the Clusters that match the same targets and have the same values of the labels in the
// options. The Helm values are separate from the options: they are in a Secret.
type variant struct {
	options      fleet.BundleDeploymentOptions
	digest       fleet.FieldDigest // of the options
	size         int               // of the options and the values as JSON
	values       []byte            // a JSON object, nil if it is empty
	deploymentID string
}

// Values of spec.targetCustomizationMode.
const (
	firstMatch = "FirstMatch"
	allMatches = "AllMatches"
)

// lacksValues reports whether the problem is that the Helm values of the Bundle cannot be read, or not yet.
func (p *plan) lacksValues() bool {
	return p.problem != nil && p.problem.reason == fleet.ReasonValuesMissing
}

// newPlan returns the plan of a Bundle, which read has to complete.
func newPlan(b *fleet.Bundle, m *memory, rendering *matching.Limiter) *plan {
	return &plan{
		uid: b.UID, generation: b.Generation, labelSize: labelSize(b), isReduced: isReduced(b), rendering: rendering, cache: planCache{memory: m, namespace: b.Namespace},
	}
}

// labelSize returns the bytes of the labels of a Bundle.
func labelSize(b *fleet.Bundle) (size int) {
	for label, value := range b.Labels {
		size += len(label) + len(value)
	}
	return size
}

// isReduced reports whether the cache has dropped parts of a Bundle that determine its BundleDeployments.
func isReduced(b *fleet.Bundle) bool { return b.Spec.TooLarge || b.Spec.MetadataTooLarge }

// read reads the spec of the Bundle, once. That may take long, so plans calls it without its own lock, which the passes over other Bundles need.
func (p *plan) read(ctx context.Context, b *fleet.Bundle, values bundleValues) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isRead {
		return
	}
	complete, missing, err := values.addTo(ctx, b)
	p.readSpec(complete)
	if p.problem == nil {
		p.problem = missing
	}
	if err != nil {
		p.problem, p.err = &problem{fleet.ReasonValuesMissing, err.Error()}, err
	}
	p.isRead = true
}

func (p *plan) readSpec(b *fleet.Bundle) {
	if b.Spec.MetadataTooLarge {
		p.problem = &problem{fleet.ReasonBundleInvalid, registration.TooLarge(b.Spec.Excess, registration.MetadataTooLarge) + "; what was deployed before stays as it is"}
		return
	}
	if b.Spec.TooLarge {
		p.problem = &problem{fleet.ReasonBundleInvalid, registration.TooLarge(b.Spec.Excess, fmt.Sprintf(
			"the spec takes more than %d MiB of memory without its resources; use several Bundles, or fewer targets and values", MaxSpecMemory>>20)) +
			"; nothing of it is deployed, and what was deployed before stays as it is"}
		return
	}
	p.options, p.isAgent = b.Spec.BundleDeploymentOptions, agentspec.IsAgentBundle(b)
	p.allMatches = b.Spec.TargetCustomizationMode == allMatches
	_, dependsOn := digestOf(b.Spec.DependsOn, nil)
	_, helmOp := digestOf(b.Spec.HelmOpOptions, nil)
	p.commonSize = dependsOn + helmOp
	var invalid []error
	if p.commonSize += p.labelSize; p.labelSize > maxLabels && agentspec.ClusterOfBundle(b) == "" { // the Bundle of an agent has one BundleDeployment
		invalid = append(invalid, fmt.Errorf("metadata.labels has %d bytes; each BundleDeployment has the labels of its Bundle, and they may have %d",
			p.labelSize, maxLabels))
	}
	selectors := map[string]*groupSelector{}
	for i := range b.Spec.Targets {
		t := &b.Spec.Targets[i]
		c, err := newCriteria(t.ClusterName, t.ClusterSelector, t.ClusterGroup, t.ClusterGroupSelector)
		if err != nil {
			invalid = append(invalid, fmt.Errorf("spec.targets[%d].%w", i, err))
		}
		c = shareSelectors(selectors, c)
		p.targets = append(p.targets, target{criteria: c, doNotDeploy: t.DoNotDeploy, options: &t.BundleDeploymentOptions})
		if c.selectsGroups() {
			p.ofGroups = append(p.ofGroups, c)
		}
	}
	for i, r := range b.Spec.TargetRestrictions {
		c, err := newCriteria(r.ClusterName, r.ClusterSelector, r.ClusterGroup, r.ClusterGroupSelector)
		if err != nil {
			invalid = append(invalid, fmt.Errorf("spec.targetRestrictions[%d].%w", i, err))
		}
		c = shareSelectors(selectors, c)
		p.restrictions = append(p.restrictions, c)
		if c.selectsGroups() {
			p.ofGroups = append(p.ofGroups, c)
		}
	}
	var err error
	if p.strategy, err = newStrategy(b.Spec.RolloutStrategy); err != nil {
		invalid = append(invalid, err)
	}
	sources := sourcesOfBundle(b)
	if len(sources) > maxSources {
		invalid = append(invalid, fmt.Errorf("spec and spec.targets name %d Secrets and ConfigMaps in downstreamResources; they may name %d; use several Bundles",
			len(sources), maxSources))
		sources = nil
	}
	for _, r := range sources {
		if r.kind != secretKind && r.kind != configMapKind || r.name == "" {
			invalid = append(invalid, fmt.Errorf("spec.downstreamResources has kind %q and name %q; the kind must be Secret or ConfigMap, with a name", r.kind, r.name))
		}
	}
	selecting := 0
	for _, t := range p.targets {
		if t.clusterName == "" || t.selectsGroups() {
			selecting++
		}
	}
	for _, r := range p.restrictions {
		if r.clusterName == "" {
			selecting++
		}
	}
	if p.strategy != nil {
		selecting += len(p.strategy.partitions)
	}
	if selecting > maxSelecting {
		invalid = append(invalid, fmt.Errorf(
			"spec.targets, spec.targetRestrictions and spec.rolloutStrategy.partitions have %d entries that select Clusters by label or group; "+
				"they may have %d; use several Bundles", selecting, maxSelecting))
	}
	if len(b.Name) > validation.DNS1123LabelMaxLength {
		invalid = append(invalid, fmt.Errorf("metadata.name has %d characters; a label of the BundleDeployment has the name, and allows %d",
			len(b.Name), validation.DNS1123LabelMaxLength))
	}
	switch mode := b.Spec.TargetCustomizationMode; mode {
	case "", firstMatch, allMatches:
	default:
		invalid = append(invalid, fmt.Errorf("spec.targetCustomizationMode is %q; it must be %s or %s", mode, firstMatch, allMatches))
	}
	if err := errors.Join(invalid...); err != nil {
		p.problem = &problem{fleet.ReasonBundleInvalid, err.Error()}
		return
	}
	switch {
	case b.Spec.ContentsID != "":
		p.content = b.Spec.ContentsID
	case b.Spec.HelmOpOptions != nil:
		// The controller of HelmOps replaces a range of versions by the version to deploy. Until then nothing is deployed: agents
		// would choose versions of their own.
		if helm := b.Spec.Helm; helm != nil && helm.Version != "" {
			if _, err := semver.NewVersion(helm.Version); err != nil {
				p.problem = &problem{fleet.ReasonBundleInvalid, fmt.Sprintf("spec.helm.version %q is not the version of one chart: %v; see the status of the HelmOp", helm.Version, err)}
			}
		}
	default:
		p.hasContent = true
		if p.content, p.sum, err = content.DigestOf(b.Spec); err != nil {
			p.problem = &problem{fleet.ReasonBundleInvalid, fmt.Sprintf("spec.resources: %v", err)}
		}
	}
}

// variant merges the options of the chosen targets into those of the Bundle, for a Cluster. Of several targets the first has
// precedence. Most Clusters share a variant, so it is kept. If the Helm values have templates, each Cluster has a variant of its own. A pass calls it
// for thousands of Clusters, so it returns an error when ctx has ended.
func (p *plan) variant(ctx context.Context, chosen []int, cluster *fleet.Cluster) (variant, error) {
	if err := ctx.Err(); err != nil {
		return variant{}, err
	}
	merged, err := p.mergedOptions(ctx, chosen)
	if err != nil {
		return variant{}, err
	}
	if fleetstatus.KeepsWorkloads(cluster) && !p.isAgent {
		merged.options.KeepResources = true
	}
	if merged.hasTemplate {
		return p.renderedVariant(ctx, merged, chosen, cluster)
	}

	shared := fmt.Sprint(chosen, merged.options.KeepResources)
	for _, name := range merged.labelNames {
		shared += fmt.Sprintf(" %q", cluster.Labels[name])
	}
	p.cache.memory.mu.Lock()
	v, known := p.cache.variants[shared]
	p.cache.memory.mu.Unlock()
	if known {
		return v, nil
	}
	if v, err = p.newVariant(merged.options, cluster.Labels); err != nil {
		return variant{}, err
	}
	p.cache.memory.mu.Lock()
	defer p.cache.memory.mu.Unlock()
	if kept, known := p.cache.variants[shared]; known {
		return kept, nil // another pass was faster
	}
	if _, kept := p.cache.merged[fmt.Sprint(chosen)]; kept && p.cache.memory.add(&p.cache, variantSize+len(shared)+len(v.values)) {
		put(&p.cache.variants, shared, v)
	}
	return v, nil
}

// mergedOptions merges the options of the chosen targets into those of the Bundle. The values that all variants share are packed; those that have templates or
// stand for labels stay decoded while they are kept, because they are needed for each Cluster.
func (p *plan) mergedOptions(ctx context.Context, chosen []int) (mergedOptions, error) {
	shared := fmt.Sprint(chosen)
	p.cache.memory.mu.Lock()
	merged, known := p.cache.merged[shared]
	p.cache.memory.mu.Unlock()
	if known {
		return merged, nil
	}
	options, isPacked := []fleet.BundleDeploymentOptions{p.options}, hasPacked(p.options)
	for _, i := range slices.Backward(chosen) {
		options = append(options, *p.targets[i].options)
		isPacked = isPacked || hasPacked(*p.targets[i].options)
	}
	if isPacked { // they may take thousands of times the memory when they are decoded
		end, err := p.rendering.Begin(ctx, p.cache.namespace)
		if err != nil {
			return mergedOptions{}, err
		}
		defer end()
	}
	var err error
	if merged.options, err = mergeOptions(options...); err != nil {
		return mergedOptions{}, err
	}
	if merged.hasTemplate = templates.AreIn(merged.options.Helm); valuesOf(merged.options) != nil {
		replaceLabels(valuesOf(merged.options).Map(), func(name string) string {
			merged.labelNames = append(merged.labelNames, name)
			return ""
		})
		if !merged.hasTemplate && merged.labelNames == nil {
			valuesOf(merged.options).Pack()
		}
	}
	size, err := sizeOfOptions(merged.options)
	if err != nil {
		return mergedOptions{}, err
	}
	p.cache.memory.mu.Lock()
	defer p.cache.memory.mu.Unlock()
	if kept, known := p.cache.merged[shared]; known {
		return kept, nil
	}
	if p.cache.memory.add(&p.cache, len(shared)+size) {
		put(&p.cache.merged, shared, merged)
	}
	return merged, nil
}

// valuesOf returns the Helm values in options, which may be packed; nil if there are none.
func valuesOf(options fleet.BundleDeploymentOptions) *fleet.GenericMap {
	if options.Helm == nil {
		return nil
	}
	return options.Helm.Values
}

func hasPacked(options fleet.BundleDeploymentOptions) bool { return valuesOf(options).PackedSize() > 0 }

// sizeOfOptions estimates the memory that options take.
func sizeOfOptions(options fleet.BundleDeploymentOptions) (size int, err error) {
	if hasPacked(options) {
		helm := *options.Helm
		size, helm.Values = helm.Values.PackedSize(), nil
		options.Helm = &helm
	}
	text, err := json.Marshal(options)
	return size + decodedSize(text), err
}

// renderedVariant renders the templates for a Cluster. It keeps an error as well, because a retry with the same inputs fails again.
func (p *plan) renderedVariant(ctx context.Context, merged mergedOptions, chosen []int, cluster *fleet.Cluster) (variant, error) {
	fields, err := json.Marshal([]any{chosen, merged.options.KeepResources, templates.Inputs(cluster), cluster.Spec.TemplateValuesTooLarge})
	if err != nil {
		return variant{}, err
	}
	inputs := sha256.Sum256(fields)
	p.cache.memory.mu.Lock()
	last, known := p.cache.rendered[keyOf(cluster)]
	p.cache.memory.mu.Unlock()
	if known && last.inputs == inputs {
		return last.variant, last.err
	}

	end, err := p.rendering.Begin(ctx, cluster.Namespace) // the values take many times their size until they are JSON again
	if err != nil {
		return variant{}, err
	}
	defer end()
	rendered := renderedVariant{inputs: inputs, size: variantSize}
	options, helm := merged.options, *merged.options.Helm
	options.Helm = &helm
	if helm.Values, err = templates.Render(ctx, merged.options.Helm, cluster); ctx.Err() != nil {
		return variant{}, ctx.Err()
	} else if err != nil {
		rendered.err = err
		rendered.size += len(rendered.err.Error())
	} else {
		rendered.variant, rendered.err = p.newVariant(options, cluster.Labels)
		rendered.size += len(rendered.variant.values)
	}
	p.cache.memory.mu.Lock()
	defer p.cache.memory.mu.Unlock()
	p.cache.forgetRendered(keyOf(cluster))
	if _, kept := p.cache.merged[fmt.Sprint(chosen)]; kept && p.cache.memory.add(&p.cache, rendered.size) {
		put(&p.cache.rendered, keyOf(cluster), rendered)
	}
	return rendered.variant, rendered.err
}

// put adds to a map that does not exist while it is empty, so that an empty cache takes no memory.
func put[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[k] = v
}

// newVariant replaces the Helm values that stand for labels of a Cluster, computes the deployment ID, and takes the values out of the
// options. All variants share the rest of the options.
func (p *plan) newVariant(options fleet.BundleDeploymentOptions, clusterLabels map[string]string) (variant, error) {
	// Agents of Fleet require the object helm, also for plain manifests.
	helm := fleet.HelmOptions{}
	if options.Helm != nil {
		helm = *options.Helm
		options.Helm = &helm
	}
	if helm.Values != nil && helm.Values.PackedSize() == 0 { // mergedOptions packs only values that have nothing to replace
		replaced, _ := replaceLabels(helm.Values.Data, func(name string) string { return clusterLabels[name] }).(map[string]any)
		helm.Values = &fleet.GenericMap{Data: replaced}
	}
	// The deployment ID does not cover the labels and annotations of the namespace that a target sets.
	identifying := options
	identifying.NamespaceLabels, identifying.NamespaceAnnotations = p.options.NamespaceLabels, p.options.NamespaceAnnotations
	id, err := content.DeploymentID(p.content, identifying)
	if err != nil {
		return variant{}, err
	}
	options.Helm = &helm
	values, err := takeValues(&options)
	digest, size := digestOf(options, options.DownstreamResources)
	if !options.KeepResources { // the hub sets it for the removal of a Cluster, which the limit must not refuse
		size += len(`"keepResources":true,`)
	}
	return variant{options: options, digest: digest, size: size + len(values), values: values, deploymentID: id}, err
}

// labelPrefix begins a Helm value that stands for a label of the Cluster: global.fleet.clusterLabels.NAME.
const labelPrefix = "global.fleet.clusterLabels."

// replaceLabels returns a value in which each text that stands for a label of the Cluster is replaced, at any depth.
func replaceLabels(value any, labelOf func(name string) string) any {
	switch v := value.(type) {
	case string:
		if name, found := strings.CutPrefix(v, labelPrefix); found {
			return labelOf(name)
		}
	case map[string]any:
		replaced := map[string]any{}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			replaced[key] = replaceLabels(v[key], labelOf)
		}
		return replaced
	case []any:
		replaced := make([]any, 0, len(v))
		for _, inner := range v {
			replaced = append(replaced, replaceLabels(inner, labelOf))
		}
		return replaced
	}
	return value
}

// forgetRendered drops the variant of a Cluster. The caller has locked memory.
func (c *planCache) forgetRendered(k key) {
	if last, known := c.rendered[k]; known {
		delete(c.rendered, k)
		c.memory.subtract(c, last.size)
	}
}

// extended are the lists of options to which an override adds its values, as the hub of Fleet does.
var extended = [][2]string{{"helm", "valuesFrom"}, {"diff", "comparePatches"}, {"yaml", "overlays"}}

// mergeOptions overrides options by those that follow, as JSON: objects are merged, the lists in extended are appended, and other values are replaced. A field that
// an override does not set keeps its value. correctDrift is replaced as a whole: JSON leaves out what is false in it, and an override must be able to
// turn it off.
func mergeOptions(options ...fleet.BundleDeploymentOptions) (merged fleet.BundleDeploymentOptions, err error) {
	all := map[string]any{}
	for _, o := range options {
		text, err := json.Marshal(o)
		if err != nil {
			return merged, err
		}
		var fields map[string]any
		if err := json.Unmarshal(text, &fields); err != nil {
			return merged, err
		}
		for _, path := range extended {
			before, _ := all[path[0]].(map[string]any)
			after, _ := fields[path[0]].(map[string]any)
			earlier, _ := before[path[1]].([]any)
			if added, _ := after[path[1]].([]any); len(earlier) > 0 && len(added) > 0 {
				after[path[1]] = append(earlier, added...)
			}
		}
		if fields["correctDrift"] != nil {
			delete(all, "correctDrift")
		}
		mergeInto(all, fields)
	}
	text, err := json.Marshal(all)
	if err != nil {
		return merged, err
	}
	err = json.Unmarshal(text, &merged)
	return merged, err
}

// mergeInto adds the fields to the others, of which it makes no copy: a Bundle may have a thousand targets, and ten thousands of Helm values.
func mergeInto(all, fields map[string]any) {
	for name, value := range fields {
		before, hasObject := all[name].(map[string]any)
		after, isObject := value.(map[string]any)
		if hasObject && isObject {
			mergeInto(before, after)
		} else {
			all[name] = value
		}
	}
}

// plans has the plan of each Bundle.
type plans struct {
	memory    *memory
	values    bundleValues
	rendering *matching.Limiter
	mu        sync.Mutex
	byKey     map[key]*plan
}

func newPlans(c *app.Context) *plans {
	return &plans{memory: newMemory(maxWorkspace, maxTotal), values: bundleValues{c.Kubernetes}, rendering: &c.Matching, byKey: map[key]*plan{}}
}

// of returns the plan of a Bundle, and computes it if the Bundle has changed. The plan of an agent's Bundle is not kept: no other Cluster
// needs it, and it would take as much memory as three objects in a cache, for each Cluster.
func (p *plans) of(ctx context.Context, b *fleet.Bundle) *plan {
	if agentspec.ClusterOfBundle(b) != "" {
		p.forget(keyOf(b)) // there may be a plan from before it was the Bundle of an agent
		once := newPlan(b, p.memory, p.rendering)
		once.cache.isClosed = true
		once.read(ctx, b, p.values)
		return once
	}
	found := p.find(b)
	found.read(ctx, b, p.values)
	if found.err != nil {
		p.forgetOnly(keyOf(b), found)
	}
	return found
}

// find returns the plan of a Bundle, which may not be read yet.
func (p *plans) find(b *fleet.Bundle) *plan {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.byKey[keyOf(b)]
	if known != nil && known.uid == b.UID && known.generation == b.Generation && known.labelSize == labelSize(b) && known.isReduced == isReduced(b) {
		return known
	}
	if known != nil {
		p.memory.close(&known.cache)
	}
	made := newPlan(b, p.memory, p.rendering)
	p.byKey[keyOf(b)] = made
	return made
}

// forget drops the plan of a Bundle that was deleted, or whose values have changed.
func (p *plans) forget(k key) { p.forgetOnly(k, nil) }

// forgetOnly drops the plan of a Bundle unless it is another one by now; nil stands for any.
func (p *plans) forgetOnly(k key, outdated *plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.byKey[k]; known != nil && (outdated == nil || known == outdated) {
		p.memory.close(&known.cache)
		delete(p.byKey, k)
	}
}
