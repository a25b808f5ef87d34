package clusterimport

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// stopTimeout is how long the Pods of an agent are waited for: what a Pod gets to end by itself, and a little for its node to
// say so. One whose node is dead stays for ever, and does nothing.
const stopTimeout = 35 * time.Second

// agentPods finds the Pods of an agent, of any release.
var agentPods = metav1.ListOptions{LabelSelector: "app=" + registration.AgentName}

// stop removes the agent's Deployment and waits until its Pods have ended: an agent in the middle of deploying its own Bundle
// would put back what is removed, the Deployment included. Whoever calls it removes the Deployment once more afterwards.
func (m *member) stop(ctx context.Context, namespace string) *failure {
	if f := m.removeAll(ctx, []named{{"Deployment", namespace, registration.AgentName}}, "removing the agent's"); f != nil {
		return f
	}
	pods, err := m.resource("Pod", namespace)
	if err != nil {
		return failed(fleet.ReasonError, "%s", err)
	}
	found, err := pods.List(ctx, agentPods)
	if err != nil {
		return diagnose(m.server, "removing the agent's Pods: looking for them", err)
	}
	if len(found.Items) == 0 {
		return nil
	}
	if err := awaitNone(ctx, pods); err != nil {
		logrus.Infof("The Pods of the agent in namespace %s at %s have not ended: %v", namespace, m.server, err)
	}
	return nil
}

// awaitNone returns when no Pod of the agent is left, or with an error when that takes too long.
func awaitNone(ctx context.Context, pods dynamic.ResourceInterface) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	var known cache.Store
	none := func() bool { return len(known.List()) == 0 }
	_, err := watchtools.UntilWithSync(ctx, podsOf(pods), &unstructured.Unstructured{},
		func(store cache.Store) (bool, error) {
			known = store
			return none(), nil
		},
		func(watch.Event) (bool, error) { return none(), nil })
	return err
}

func podsOf(pods dynamic.ResourceInterface) cache.ListerWatcher {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.LabelSelector = agentPods.LabelSelector
			return pods.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector = agentPods.LabelSelector
			return pods.Watch(ctx, options)
		},
	}
}
