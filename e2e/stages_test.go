//go:build e2e

package e2e

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/pkg/registration"
)

// stage is a stage of a registration at which hub or agent is restarted or killed. A registration takes seconds, and a poll can miss a
// stage. A scene prolongs a stage: it withholds an object or a connection that the next stage needs.
type stage struct {
	name    string
	reached func(ctx context.Context, e *enrolled) (bool, error)
}

var hasNamespace = stage{"when the Cluster has its namespace", func(ctx context.Context, e *enrolled) (bool, error) {
	c, err := e.get(ctx)
	return err == nil && c.Status.Namespace != "", err
}}

// The status of the token of an import is written only when an agent registers with it, so it is ready when its values are there.
var hasToken = stage{"when the token is ready", func(ctx context.Context, e *enrolled) (bool, error) {
	_, err := e.s.hub.kube.CoreV1().Secrets(e.namespace).Get(ctx, registration.ImportTokenName(e.name), metav1.GetOptions{})
	return err == nil, err
}}

var installed = stage{"when the agent is installed", func(ctx context.Context, e *enrolled) (bool, error) {
	pods, err := e.on.pods(ctx, e.agentNamespace, agentPods)
	return len(pods) > 0, err
}}

var runs = stage{"when the agent runs", func(ctx context.Context, e *enrolled) (bool, error) {
	pods, err := e.on.pods(ctx, e.agentNamespace, agentPods)
	return len(pods) == 1 && len(pods[0].Status.ContainerStatuses) == 1 && pods[0].Status.ContainerStatuses[0].State.Running != nil, err
}}

var hasRequest = stage{"when the agent has created its request", func(ctx context.Context, e *enrolled) (bool, error) {
	requests, err := e.requests(ctx)
	return len(requests) > 0, err
}}

var granted = stage{"when the request is granted", func(ctx context.Context, e *enrolled) (bool, error) {
	requests, err := e.requests(ctx)
	return len(requests) > 0 && requests[0].Status.Granted, err
}}

var stored = stage{"when the agent has stored its credential", func(ctx context.Context, e *enrolled) (bool, error) {
	_, err := e.on.kube.CoreV1().Secrets(e.agentNamespace).Get(ctx, registration.CredentialSecret, metav1.GetOptions{})
	return err == nil, err
}}

var hasHeartbeat = stage{"when the first heartbeat has arrived", func(ctx context.Context, e *enrolled) (bool, error) {
	c, err := e.get(ctx)
	return err == nil && !c.Status.Agent.LastSeen.IsZero(), err
}}

// at waits for the stage.
func (e *enrolled) at(at stage) {
	e.s.Helper()
	e.s.until("the stage "+at.name, func(ctx context.Context) (bool, string) {
		reached, err := at.reached(ctx, e)
		if apierrors.IsNotFound(err) {
			err = nil
		}
		return seen(err, reached, "not yet")
	})
}

// cordon prevents new pods from being scheduled, at the latest until the scene ends.
func (s *scene) cordon(c *cluster) (uncordon func(context.Context) error) {
	s.Helper()
	uncordon = func(ctx context.Context) error { return c.setUnschedulable(ctx, false) }
	s.undo("uncordoning "+c.Name(), uncordon)
	s.fail(c.setUnschedulable(s.Context(), true))
	return uncordon
}

func (c *cluster) setUnschedulable(ctx context.Context, unschedulable bool) error {
	nodes, err := c.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, node := range nodes.Items {
		patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, unschedulable)
		if _, err := c.kube.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	return nil
}
