package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/inventory"
)

// farewell deletes the Cluster of west and looks on both sides for anything that is left of it.
func farewell(ctx context.Context, d *demo) (string, error) {
	a, err := d.named(d.west)
	if err != nil {
		return "", err
	}
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
	err = poll(ctx, func(ctx context.Context) (bool, error) { return true, d.checkGone(ctx, a) })
	if err != nil {
		return "", err
	}
	d.departed = append(d.departed, a.namespace+"/"+a.name)
	// How they stand is asked until they stand well: what they reported a moment ago may be out of date.
	err = poll(ctx, func(ctx context.Context) (bool, error) { return true, d.checkOthers(ctx) })
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("looked for on the hub:  %s: all gone\n%slooked for on %s: %s: all gone",
		inventory.Counted(onHub), indent, a.member.name, inventory.Counted(onMember)), nil
}

// named is the arrival of one of the members.
func (d *demo) named(member *cluster) (*arrival, error) {
	i := slices.IndexFunc(d.arrived, func(a arrival) bool { return a.member == member })
	if i < 0 {
		return nil, fmt.Errorf("%s has not registered", member.name)
	}
	return &d.arrived[i], nil
}

// words are what every object on the hub has in it that is of one Cluster only: its name, and the names of its requests,
// of which those of its rights are made.
func (d *demo) words(ctx context.Context, a *arrival) ([]string, error) {
	if a.words != nil {
		return a.words, nil
	}
	cluster, err := d.hub.admin.Fleet.Clusters(a.namespace).Get(ctx, a.name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	requests, err := d.hub.admin.Fleet.ClusterRegistrations(a.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	a.words = []string{a.name, cluster.Spec.ClientID}
	for _, r := range requests.Items {
		if r.Spec.ClientID == cluster.Spec.ClientID {
			a.words = append(a.words, r.Name)
		}
	}
	return a.words, nil
}

// mentions are the objects on the hub that are of a Cluster. The Bundle of the workload and the registration token, which
// remembers the last Cluster it was used for, are the person's own.
func (d *demo) mentions(ctx context.Context, a *arrival) ([]inventory.Thing, error) {
	words, err := d.words(ctx, a)
	if err != nil {
		return nil, err
	}
	all, err := inventory.Take(ctx, d.hub.plane.RESTConfig())
	if err != nil {
		return nil, err
	}
	delete(all, inventory.Thing{Kind: "Bundle", Namespace: workspace, Name: workload})
	delete(all, inventory.Thing{Kind: "ClusterRegistrationToken", Namespace: workspace, Name: tokenName})
	return all.Mentioning(words...), nil
}

// addedSince are the objects on the member that were not there before; the namespaces stay, for others may use them.
func (c *cluster) addedSince(ctx context.Context, before inventory.Inventory) ([]inventory.Thing, error) {
	now, err := inventory.Take(ctx, c.plane.RESTConfig())
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(now.Since(before), stays), nil
}

// stays: the namespaces with what is in each, and the node that the demo itself has made.
func stays(t inventory.Thing) bool {
	return inventory.OfNamespace(t) || t.Kind == "Node" || t.Kind == "CSINode"
}

func (d *demo) checkGone(ctx context.Context, a *arrival) error {
	_, err := d.hub.admin.Fleet.Clusters(a.namespace).Get(ctx, a.name, metav1.GetOptions{})
	switch {
	case err == nil:
		return fmt.Errorf("Cluster %s/%s is still there", a.namespace, a.name)
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

// checkOthers looks whether the clusters that stay are as they were.
func (d *demo) checkOthers(ctx context.Context) error {
	for i := range d.arrived {
		if slices.Contains(d.departed, d.arrived[i].namespace+"/"+d.arrived[i].name) {
			continue
		}
		if err := d.checkOne(ctx, &d.arrived[i]); err != nil {
			return err
		}
	}
	return nil
}

func left(where string, things []inventory.Thing) error {
	if len(things) == 0 {
		return nil
	}
	return fmt.Errorf("on %s is left: %s", where, inventory.List(things))
}

// patchCluster changes a Cluster as a person would.
func (c *cluster) patchCluster(ctx context.Context, a arrival, patch string) error {
	_, err := c.admin.Fleet.Clusters(a.namespace).Patch(ctx, a.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}
