package release

import (
	"context"
	"fmt"
	"strconv"

	helmcommon "helm.sh/helm/v4/pkg/release/common"
	helm "helm.sh/helm/v4/pkg/release/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/muster-fleet/muster/pkg/transport"
)

// Labels that Helm itself puts on the Secret of a revision.
const (
	helmOwner   = "owner"
	helmName    = "name"
	helmVersion = "version"
	helmStatus  = "status"
)

var secrets = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

// Found is one revision of a release, as far as its labels tell.
type Found struct {
	// Namespace, Name and Version identify the revision.
	Namespace, Name string
	Version         int
	// Deployed says that this revision is what is on the cluster; otherwise it failed, was interrupted or is history.
	Deployed bool
	// Labels are those of the Secret.
	Labels map[string]string
}

// FoundIn reads a revision from the Secret that keeps it; its labels are enough.
func FoundIn(secret metav1.Object) Found {
	l := secret.GetLabels()
	version, _ := strconv.Atoi(l[helmVersion])
	return Found{
		Namespace: secret.GetNamespace(), Name: l[helmName], Version: version, Labels: l,
		Deployed: l[helmStatus] == string(helmcommon.StatusDeployed),
	}
}

// Options are those with which to remove the release.
func (f Found) Options() Options { return OptionsFrom(f.Labels) }

// Newest keeps the last revision of each release.
func Newest(all []Found) []Found {
	type place struct{ namespace, name string }
	at := map[place]int{}
	var newest []Found
	for _, f := range all {
		i, known := at[place{f.Namespace, f.Name}]
		switch {
		case !known:
			at[place{f.Namespace, f.Name}] = len(newest)
			newest = append(newest, f)
		case f.Version > newest[i].Version:
			newest[i] = f
		}
	}
	return newest
}

// List finds the releases whose history carries the labels, in all namespaces, the newest revision of each.
func (c *Client) List(ctx context.Context, selector labels.Selector) ([]Found, error) {
	list, err := c.meta.Resource(secrets).List(ctx, metav1.ListOptions{LabelSelector: ofHelm(selector).String()})
	if err != nil {
		return nil, fmt.Errorf("looking for Helm releases: %w", err)
	}
	all := make([]Found, 0, len(list.Items))
	for i := range list.Items {
		all = append(all, FoundIn(&list.Items[i]))
	}
	return Newest(all), nil
}

// Revisions watches the Secrets that List looks at, without what is in them.
func (c *Client) Revisions(selector labels.Selector) cache.ListerWatcher {
	text := ofHelm(selector).String()
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = text
			return c.meta.Resource(secrets).List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = text
			return transport.Watch(ctx, o, c.meta.Resource(secrets).Watch)
		},
	}
}

func ofHelm(selector labels.Selector) labels.Selector {
	owner, err := labels.NewRequirement(helmOwner, selection.Equals, []string{"helm"})
	if err != nil {
		return labels.Nothing()
	}
	return selector.Add(*owner)
}

// Get reads what a revision consists of, as Deploy returns it. It is nil when there is no such revision.
func (c *Client) Get(ctx context.Context, f Found) (*Deployed, error) {
	op, err := c.operation(ctx, f.Namespace, identity{})
	if err != nil {
		return nil, err
	}
	kept, err := op.config.Releases.Get(f.Name, f.Version)
	if err != nil {
		return nil, fmt.Errorf("reading Helm release %s/%s: %w", f.Namespace, f.Name, err)
	}
	r, ok := kept.(*helm.Release)
	if !ok {
		return nil, fmt.Errorf("reading Helm release %s/%s: unknown type %T", f.Namespace, f.Name, kept)
	}
	deployed, err := op.deployed(r)
	return &deployed, err
}
