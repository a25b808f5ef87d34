package bundle

import (
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/content"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/registration"
)

// plan is what a generation of a Bundle asks for, worked out once for all Clusters.
type plan struct {
	// problem, if any, keeps the Bundle from being deployed or changed; what is deployed of it stays.
	problem *problem
	// content is the name of the Content with the resources, sum their digest.
	content, sum string

	uid          types.UID
	generation   int64
	options      fleet.BundleDeploymentOptions
	all          bool // that match, not only the first
	targets      []target
	restrictions []criteria

	mu       sync.Mutex
	variants map[string]variant
}

// problem is why a Bundle is not deployed.
type problem struct{ reason, message string }

type target struct {
	criteria
	skip    bool
	options fleet.BundleDeploymentOptions
}

// variant is a Bundle as the targets that match a Cluster want it.
type variant struct {
	options      fleet.BundleDeploymentOptions
	deploymentID string
}

const (
	firstMatch = "FirstMatch"
	allMatches = "AllMatches"
)

func newPlan(b *fleet.Bundle) *plan {
	p := &plan{
		uid: b.UID, generation: b.Generation, options: b.Spec.BundleDeploymentOptions, variants: map[string]variant{},
		all: b.Spec.TargetCustomizationMode == allMatches,
	}
	err := errors.Join(p.readTargets(b.Spec.Targets), p.readRestrictions(b.Spec.TargetRestrictions), checkMode(b.Spec.TargetCustomizationMode))
	if err != nil {
		p.problem = &problem{fleet.ReasonBundleInvalid, err.Error()}
		return p
	}
	if fields := unsupported(b.Spec); len(fields) > 0 {
		p.problem = &problem{fleet.ReasonUnsupported, tellUnsupported(fields)}
		return p
	}
	if p.content, p.sum, err = content.Digest(b.Spec.Resources); err != nil {
		p.problem = &problem{fleet.ReasonBundleInvalid, fmt.Sprintf("spec.resources: %v", err)}
	}
	return p
}

func (p *plan) readTargets(targets []fleet.BundleTarget) (problems error) {
	for i, t := range targets {
		c, err := parseCriteria(t.ClusterName, t.ClusterSelector, t.ClusterGroup, t.ClusterGroupSelector)
		if err != nil {
			problems = errors.Join(problems, fmt.Errorf("spec.targets[%d].%w", i, err))
		}
		p.targets = append(p.targets, target{criteria: c, skip: t.DoNotDeploy, options: t.BundleDeploymentOptions})
	}
	return problems
}

func (p *plan) readRestrictions(restrictions []fleet.BundleTargetRestriction) (problems error) {
	for i, r := range restrictions {
		c, err := parseCriteria(r.ClusterName, r.ClusterSelector, r.ClusterGroup, r.ClusterGroupSelector)
		if err != nil {
			problems = errors.Join(problems, fmt.Errorf("spec.targetRestrictions[%d].%w", i, err))
		}
		p.restrictions = append(p.restrictions, c)
	}
	return problems
}

func checkMode(mode string) error {
	switch mode {
	case "", firstMatch, allMatches:
		return nil
	}
	return fmt.Errorf("spec.targetCustomizationMode is %q; it must be %s or %s", mode, firstMatch, allMatches)
}

// choose returns the targets whose options apply to a Cluster; none, when the Bundle is not for it. b is the Bundle of the
// plan as it is now.
func (p *plan) choose(b *fleet.Bundle, m member) (chosen []int) {
	if p.problem != nil || isOfOtherAgent(b, m) || !p.mayGoTo(m) {
		return nil
	}
	for i, t := range p.targets {
		if !t.match(m) {
			continue
		}
		if t.skip {
			return nil
		}
		chosen = append(chosen, i)
		if !p.all {
			break
		}
	}
	return chosen
}

// isOfOtherAgent says whether this is the Bundle of the agent of another Cluster. Two Clusters may answer to one name, the
// second by its display name, and the agent of one must not run on the other.
func isOfOtherAgent(b *fleet.Bundle, m member) bool {
	return agentspec.IsBundle(b) && b.Name != registration.AgentBundleName(m.name)
}

func (p *plan) mayGoTo(m member) bool {
	for _, r := range p.restrictions {
		if r.match(m) {
			return true
		}
	}
	return len(p.restrictions) == 0
}

// variant merges the options of the chosen targets into those of the Bundle. Most Clusters share one, so it is kept.
func (p *plan) variant(chosen []int) (variant, error) {
	key := fmt.Sprint(chosen)
	p.mu.Lock()
	defer p.mu.Unlock()
	if v, known := p.variants[key]; known {
		return v, nil
	}
	var overrides []fleet.BundleDeploymentOptions
	for _, i := range chosen {
		overrides = append(overrides, p.targets[i].options)
	}
	options, err := mergeOptions(p.options, overrides...)
	if err != nil {
		return variant{}, err
	}
	id, err := content.DeploymentID(p.content, options)
	if err != nil {
		return variant{}, err
	}
	p.variants[key] = variant{options: options, deploymentID: id}
	return p.variants[key], nil
}

// plans are those of all Bundles, by their keys.
type plans struct {
	mu    sync.Mutex
	known map[key]*plan
}

func (p *plans) of(b *fleet.Bundle) *plan {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := keyOf(b)
	if known := p.known[k]; known != nil && known.uid == b.UID && known.generation == b.Generation {
		return known
	}
	if p.known == nil {
		p.known = map[key]*plan{}
	}
	p.known[k] = newPlan(b)
	return p.known[k]
}

func (p *plans) forget(k key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, k)
}
