//go:build e2e

package e2e

import (
	"context"
	"errors"
	"slices"

	"github.com/muster-fleet/muster/internal/inventory"
)

// nothingLeft waits until no object of the cluster contains the word, apart from exceptions.
func (c *cluster) nothingLeft(ctx context.Context, word string, except ...func(inventory.Thing) bool) error {
	return waitFor(ctx, "nothing on "+c.Name()+" to mention "+word, func(ctx context.Context) (bool, string) {
		all, err := inventory.Take(ctx, c.config)
		if err != nil {
			return false, err.Error()
		}
		left := excepting(all.Mentioning(word), except)
		return len(left) == 0, "left: " + inventory.List(left)
	})
}

func excepting(things []inventory.Thing, except []func(inventory.Thing) bool) []inventory.Thing {
	return slices.DeleteFunc(things, func(t inventory.Thing) bool {
		return slices.ContainsFunc(except, func(f func(inventory.Thing) bool) bool { return f(t) })
	})
}

// finish removes the hub and waits until both clusters have no objects that they did not have before the suite.
func (s *suite) finish() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	if err := s.uninstallHub(ctx); err != nil {
		return err
	}
	var errs []error
	for _, c := range s.clusters() {
		errs = append(errs, c.asBefore(ctx, s.before[c]))
	}
	return errors.Join(errs...)
}

// asBefore waits until the cluster has no new objects, except those that Kubernetes creates itself.
func (c *cluster) asBefore(ctx context.Context, before inventory.Inventory) error {
	return waitFor(ctx, c.Name()+" to be as it was before", func(ctx context.Context) (bool, string) {
		now, err := inventory.Take(ctx, c.config)
		if err != nil {
			return false, err.Error()
		}
		left := excepting(now.Since(before), []func(inventory.Thing) bool{ofTheClusterItself})
		return len(left) == 0, "left: " + inventory.List(left)
	})
}

func ofTheClusterItself(t inventory.Thing) bool {
	return slices.Contains([]string{"Node", "CSINode", "ServiceCIDR"}, t.Kind) ||
		slices.Contains([]string{"kube-system", "kube-public", "kube-node-lease", "default"}, t.Namespace)
}
