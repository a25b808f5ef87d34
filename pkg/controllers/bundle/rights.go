package bundle

import (
	"context"
	"maps"
	"slices"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
)

// roles say which Contents the agent of a Cluster may read.
type roles interface {
	Allow(ctx context.Context, cluster *fleet.Cluster, contents []string) error
	Forbid(ctx context.Context, cluster *fleet.Cluster) error
	Unseen(cluster *fleet.Cluster) bool
}

// letRead lets the agent read the Contents of what is about to be written, before it is: an agent that is told of a
// BundleDeployment fetches its Content at once. What it has deployed already it does not fetch again, so that goes at the same
// time, with one write for both. Called again after a BundleDeployment could not be changed, it gives back what was taken away
// in vain: by then what is there counts as kept.
func (p *pass) letRead(ctx context.Context, intents []intent) error {
	names := p.others()
	for _, i := range intents {
		names = append(names, contentsOf(i.wanted)...)
	}
	return p.allow(ctx, names)
}

// others are the Contents of BundleDeployments that this pass does not write: those it keeps as they are, and those of
// somebody else.
func (p *pass) others() (names []string) {
	for _, name := range slices.Sorted(maps.Keys(p.existing)) {
		if d := p.existing[name]; p.kept[name] || !isOf(d, p.cluster.Namespace) {
			names = append(names, contentsOf(d)...)
		}
	}
	return names
}

func (p *pass) allow(ctx context.Context, contents []string) error {
	if len(contents) == 0 && len(p.existing) == 0 {
		return nil // most Clusters of a hub that deploys nothing; what is left of earlier ones names nothing that is there
	}
	err := p.roles.Allow(ctx, p.cluster, contents)
	if err == nil && p.roles.Unseen(p.cluster) {
		p.again = result.Earliest(p.again, expectations.Timeout)
	}
	return err
}
