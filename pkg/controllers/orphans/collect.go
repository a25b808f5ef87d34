package orphans

import (
	"context"
	"fmt"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// walk looks at everything the hub has made, and returns how many orphans it could not remove.
func (c *Collector) walk(ctx context.Context) (left int) {
	for _, k := range c.kinds {
		left += c.walkOver(ctx, k)
	}
	return left
}

// walkOver looks at one kind, in small steps: there may be tens of thousands, and the hub has better things to do.
func (c *Collector) walkOver(ctx context.Context, k kind) (left int) {
	all, err := k.made()
	if err != nil {
		logrus.Errorf("Looking for orphans of kind %s: %v", k.name, err)
		return 0
	}
	for i, m := range all {
		if i > 0 && i%batch == 0 {
			c.pause(ctx)
		}
		if ctx.Err() != nil {
			return left
		}
		if !c.settle(ctx, k, m) {
			left++
		}
	}
	c.Metrics.OrphansLeft.WithLabelValues(k.name).Set(float64(left))
	return left
}

func (c *Collector) pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-c.Clock.After(breath):
	}
}

// settle removes an object if it is an orphan. It is not settled when that cannot be told, does not work, or has to wait.
func (c *Collector) settle(ctx context.Context, k kind, m made) (settled bool) {
	if c.owners[m.owner.kind].cached(m.owner.namespace, m.owner.name) == nil || ctx.Err() != nil {
		return true
	}
	orphan, err := c.isOrphan(m.owner)
	settled = true
	if err == nil && orphan {
		settled, err = c.removeUnlessNeeded(ctx, k, m)
	}
	if err != nil {
		logrus.Warnf("Orphan %s %s/%s: %v", k.name, m.namespace, m.name, err)
	}
	return settled && err == nil
}

// removeUnlessNeeded leaves to an agent that is asked to leave what its request was given: without it the agent could not
// answer, and what it deployed would stay on the member.
func (c *Collector) removeUnlessNeeded(ctx context.Context, k kind, m made) (removed bool, err error) {
	if needed := c.owners[m.owner.kind].needed; needed != nil {
		is, err := needed(ctx, m.owner.namespace, m.owner.name)
		if err != nil || is {
			return false, err
		}
	}
	return true, c.remove(k, m)
}

// isOrphan asks the API server. Nothing but its word that there is no such owner makes an orphan: a cache may be behind, and
// any other answer says nothing. An owner of this name that is another object than the first is an owner too; what it makes
// has the same names, and its controller sees to it.
func (c *Collector) isOrphan(o owner) (bool, error) {
	err := c.owners[o.kind].live(o.namespace, o.name)
	switch {
	case err == nil:
		return false, nil
	case isMissing(err):
		return true, nil
	}
	return false, fmt.Errorf("looking for its owner, %s %s/%s: %w", o.kind, o.namespace, o.name, err)
}

// isMissing tells "there is no such object" from "there is no such kind", which has the same code but is not an answer about
// an object: without its CustomResourceDefinition every Cluster would seem to be gone.
func isMissing(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

func (c *Collector) remove(k kind, m made) error {
	err := k.remove(m)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // it is gone, or another one by now
		return nil
	case err != nil:
		return fmt.Errorf("removing it, for %s %s/%s is gone: %w", m.owner.kind, m.owner.namespace, m.owner.name, err)
	}
	c.Metrics.OrphansCollected.WithLabelValues(k.name).Inc()
	logrus.Infof("Removed %s %s/%s, which was made for %s %s/%s", k.name, m.namespace, m.name, m.owner.kind, m.owner.namespace, m.owner.name)
	return nil
}
