package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/inventory"
)

// deleteWest deletes the Cluster of west and checks that no object of it remains on the hub and the member.
func deleteWest(ctx context.Context, d *demo) (string, error) {
	i := slices.IndexFunc(d.registered, func(a registeredCluster) bool { return a.member == d.west })
	if i < 0 {
		return "", errors.New("west has not registered")
	}
	a := &d.registered[i]
	onHub, err := d.mentions(ctx, a)
	if err != nil {
		return "", err
	}
	onMember, err := d.west.addedSince(ctx, d.before)
	if err != nil {
		return "", err
	}
	if err := d.hub.admin.Fleet.Clusters(a.namespace).Delete(ctx, a.name, metav1.DeleteOptions{}); err != nil {
		return "", err
	}
	if err := poll(ctx, func(ctx context.Context) error { return d.checkGone(ctx, a) }); err != nil {
		return "", err
	}
	d.deleted = append(d.deleted, a.namespace+"/"+a.name)
	// The status can be out of date for a moment.
	if err := poll(ctx, d.checkOthers); err != nil {
		return "", err
	}
	return fmt.Sprintf("deleted on the hub:  %s\n%sdeleted on %s: %s",
		inventory.Counted(onHub), indent, a.member.name, inventory.Counted(onMember)), nil
}

// namesOf returns the names that the objects of one Cluster on the hub contain: its name, its clientID, and the names of its requests, from which
// the names of its Roles are derived.
func (d *demo) namesOf(ctx context.Context, a *registeredCluster) ([]string, error) {
	if a.names != nil {
		return a.names, nil
	}
	cluster, err := d.hub.admin.Fleet.Clusters(a.namespace).Get(ctx, a.name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	requests, err := d.hub.admin.Fleet.ClusterRegistrations(a.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	a.names = []string{a.name, cluster.Spec.ClientID}
	for _, r := range requests.Items {
		if r.Spec.ClientID == cluster.Spec.ClientID {
			a.names = append(a.names, r.Name)
		}
	}
	return a.names, nil
}

// mentions returns the objects on the hub that belong to a Cluster. The Bundle of the workload and the registration token do not belong to it,
// although the token's status names the last Cluster.
func (d *demo) mentions(ctx context.Context, a *registeredCluster) ([]inventory.Thing, error) {
	names, err := d.namesOf(ctx, a)
	if err != nil {
		return nil, err
	}
	all, err := inventory.Take(ctx, d.hub.plane.RESTConfig())
	if err != nil {
		return nil, err
	}
	delete(all, inventory.Thing{Kind: "Bundle", Namespace: workspace, Name: workload})
	delete(all, inventory.Thing{Kind: "ClusterRegistrationToken", Namespace: workspace, Name: tokenName})
	return all.Mentioning(names...), nil
}

// addedSince returns the new objects on the member, except those that stay.
func (c *cluster) addedSince(ctx context.Context, before inventory.Inventory) ([]inventory.Thing, error) {
	now, err := inventory.Take(ctx, c.plane.RESTConfig())
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(now.Since(before), stays), nil
}

// stays reports whether an object remains after a deletion: a namespace with its default objects, which others may use, or the demo's node.
func stays(t inventory.Thing) bool {
	return inventory.OfNamespace(t) || t.Kind == "Node" || t.Kind == "CSINode"
}

func (d *demo) checkGone(ctx context.Context, a *registeredCluster) error {
	_, err := d.hub.admin.Fleet.Clusters(a.namespace).Get(ctx, a.name, metav1.GetOptions{})
	switch {
	case err == nil:
		return fmt.Errorf("Cluster %s/%s still exists", a.namespace, a.name)
	case !apierrors.IsNotFound(err):
		return err
	}
	onHub, err := d.mentions(ctx, a)
	if err != nil {
		return err
	}
	onMember, err := a.member.addedSince(ctx, d.before)
	if err != nil {
		return err
	}
	return errors.Join(left("the hub", onHub), left(a.member.name, onMember))
}

// checkOthers checks that the other clusters have not changed.
func (d *demo) checkOthers(ctx context.Context) error {
	for i := range d.registered {
		if slices.Contains(d.deleted, d.registered[i].namespace+"/"+d.registered[i].name) {
			continue
		}
		if err := d.checkOne(ctx, &d.registered[i]); err != nil {
			return err
		}
	}
	return nil
}

func left(where string, things []inventory.Thing) error {
	if len(things) == 0 {
		return nil
	}
	return fmt.Errorf("left on %s: %s", where, inventory.List(things))
}
