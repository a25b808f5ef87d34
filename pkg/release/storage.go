package release

import (
	"errors"
	"fmt"

	chart "helm.sh/helm/v4/pkg/chart/v2"
	helmrelease "helm.sh/helm/v4/pkg/release"
	"helm.sh/helm/v4/pkg/release/common"
	helm "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/release/v1/util"
	"helm.sh/helm/v4/pkg/storage/driver"
)

// lean keeps a chart that was only wrapped around manifests without its files: the rendered manifest holds them already,
// and a Secret has room for them once.
type lean struct{ driver.Driver }

// Create stores a revision.
func (l lean) Create(key string, r helmrelease.Releaser) error { return l.Driver.Create(key, slim(r)) }

// Update stores a revision again.
func (l lean) Update(key string, r helmrelease.Releaser) error { return l.Driver.Update(key, slim(r)) }

func slim(r helmrelease.Releaser) helmrelease.Releaser {
	full, ok := r.(*helm.Release)
	if !ok || full.Chart == nil || full.Chart.Metadata == nil || full.Chart.Metadata.Annotations[wrapperAnnotation] == "" {
		return r
	}
	thin := *full
	thin.Chart = &chart.Chart{Metadata: full.Chart.Metadata}
	return &thin
}

// revisions are all kept of a release, oldest first; none when there is no such release.
func (o *operation) revisions(name string) ([]*helm.Release, error) {
	found, err := o.config.Releases.History(name)
	if errors.Is(err, driver.ErrReleaseNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the history of Helm release %s/%s: %w", o.namespace, name, err)
	}
	var all []*helm.Release
	for _, r := range found {
		if revision, ok := r.(*helm.Release); ok {
			all = append(all, revision)
		}
	}
	util.SortByRevision(all)
	return all, nil
}

func last(revisions []*helm.Release) *helm.Release {
	if len(revisions) == 0 {
		return nil
	}
	return revisions[len(revisions)-1]
}

// settle declares failed what somebody left in the middle: an agent that was killed, by its own Deployment say. Helm
// refuses to touch a release that is pending, and nobody else would ever finish it.
func (o *operation) settle(revisions []*helm.Release) error {
	r := last(revisions)
	if r == nil || settled(r.Info.Status) {
		return nil
	}
	r.Info.Status, r.Info.Description = common.StatusFailed, "Interrupted while "+string(r.Info.Status)
	if err := o.config.Releases.Update(r); err != nil {
		return fmt.Errorf("recovering Helm release %s/%s: %w", r.Namespace, r.Name, err)
	}
	return nil
}

// settled are the states from which Helm upgrades.
func settled(s common.Status) bool {
	return s == common.StatusDeployed || s == common.StatusFailed || s == common.StatusSuperseded
}
