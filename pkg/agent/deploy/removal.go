package deploy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// labelMax is the length from which on a key may be a shortened name.
const labelMax = 63

var errStillWanted = errors.New("the watch says that it is gone, and the hub that it is there")

// clear removes the releases of a BundleDeployment that is no longer wanted. Removing cannot be undone, so that what the
// watch knows is not enough for it.
func (d *deployer) clear(ctx context.Context, key string, it *item) {
	found := d.shelf.of(key)
	if len(found) > 0 {
		// Of a namespace that is deleted the objects go one after the other, the agent's own not first.
		if rest := d.Timing.Linger - d.goneFor(it); rest > 0 {
			d.queue.AddAfter(key, rest)
			return
		}
		held, err := d.mustStay(ctx, key)
		if err != nil {
			d.again(ctx, key, it, err)
			return
		}
		if held && !(key == d.own && d.alone(it)) {
			d.log(key).Info("Removing nothing: the agent's own BundleDeployment is gone too, without a farewell")
			d.queue.AddAfter(key, d.Timing.Hold)
			return
		}
	}
	for _, f := range found {
		if err := d.uninstall(ctx, key, f, f.Options()); err != nil {
			d.again(ctx, key, it, err)
			return
		}
	}
	d.items.drop(key)
}

// mustStay says whether to remove nothing for now, although the hub no longer has the BundleDeployment. When the agent's own
// is gone as well and nobody said farewell, all of the Cluster goes on the hub, because it moves to another workspace or
// because somebody deleted its namespace; what it runs is to stay. It is an error when the hub does not say for certain that
// the BundleDeployment is gone.
func (d *deployer) mustStay(ctx context.Context, key string) (bool, error) {
	gone, err := d.gone(ctx, key)
	if err != nil {
		return false, err
	}
	if !gone {
		return false, errStillWanted
	}
	if len(d.shelf.of(d.own)) == 0 {
		return false, nil // there never was one
	}
	return d.gone(ctx, d.own)
}

// alone says whether only the agent's own BundleDeployment went, for longer than it takes the others to go with it: the hub
// leaves the agent alone from now on, and without its own release nothing holds the removal of others.
func (d *deployer) alone(it *item) bool {
	wanted := slices.ContainsFunc(d.allBundles(), func(bd *fleet.BundleDeployment) bool { return bd.DeletionTimestamp == nil })
	return wanted && d.goneFor(it) >= d.Timing.Hold
}

func (d *deployer) goneFor(it *item) time.Duration {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.gone.IsZero() {
		it.gone = d.Clock.Now()
	}
	return d.since(it.gone)
}

// gone asks the hub itself. Only the answer of its API server counts: a proxy on the way says 404 too while it restarts.
func (d *deployer) gone(ctx context.Context, key string) (bool, error) {
	bd, err := d.Hub.FleetV1alpha1().BundleDeployments(d.Namespace).Get(ctx, key, metav1.GetOptions{})
	switch err = d.heard(err); {
	case err == nil:
		return bd.DeletionTimestamp != nil, nil
	case !missing(err, key):
		return false, fmt.Errorf("asking the hub whether BundleDeployment %s/%s is gone: %w", d.Namespace, key, err)
	case len(key) < labelMax:
		return true, nil
	}
	return d.unlisted(ctx, key)
}

// missing says that the API server knows no object of that name; it repeats the name, unlike others that answer 404.
func missing(err error, name string) bool {
	var answer apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &answer) || apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return false
	}
	details := answer.Status().Details
	return details != nil && details.Name == name
}

// unlisted looks for one whose name was too long for a key.
func (d *deployer) unlisted(ctx context.Context, key string) (bool, error) {
	list, err := d.listBundles(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	for _, bd := range list.Items {
		if registration.LabelValue(bd.Name) == key {
			return bd.DeletionTimestamp != nil, nil
		}
	}
	return true, nil
}
