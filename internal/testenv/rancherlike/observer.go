package rancherlike

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Observer watches all Clusters and records every version that is a problem for the server or its users.
type Observer struct {
	mutex     sync.Mutex
	managed   []*Managed
	clientIDs map[types.UID]string
	addresses map[types.UID][]string
	problems  []string
}

// Observe watches until the test ends.
func (s *Server) Observe(t testing.TB) *Observer {
	t.Helper()
	o := &Observer{clientIDs: map[types.UID]string{}, addresses: map[types.UID][]string{}}
	ctx, stop := context.WithCancel(context.Background())
	watcher, err := s.Hub.Fleet.Clusters("").Watch(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	var done sync.WaitGroup
	done.Go(func() { o.run(ctx, watcher) })
	t.Cleanup(func() { stop(); watcher.Stop(); done.Wait() })
	return o
}

// Expect compares every version of the Cluster of m with the object that the server applies.
func (o *Observer) Expect(m *Managed) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.managed = append(o.managed, m)
}

// Problems are the problems of all versions.
func (o *Observer) Problems() []string {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return slices.Clone(o.problems)
}

// Addresses are the addresses of the hub that the agent of a Cluster has got, in order.
func (o *Observer) Addresses(uid types.UID) []string {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return slices.Clone(o.addresses[uid])
}

func (o *Observer) run(ctx context.Context, watcher watch.Interface) {
	for event := range watcher.ResultChan() {
		if cluster, ok := event.Object.(*fleet.Cluster); ok && event.Type != watch.Deleted {
			o.see(cluster)
		}
	}
	if ctx.Err() == nil {
		o.note("the watch ended early")
	}
}

func (o *Observer) note(format string, args ...any) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.problems = append(o.problems, fmt.Sprintf(format, args...))
}

func (o *Observer) see(c *fleet.Cluster) {
	o.seeConditions(c)
	o.seeClientID(c)
	o.seeAddress(c)
	for _, m := range o.known() {
		if m.Workspace == c.Namespace && m.Name == c.Name {
			o.compare(m, c)
		}
	}
}

func (o *Observer) known() []*Managed {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return slices.Clone(o.managed)
}

// red are the conditions that the server shows as errors if they are False.
var red = []string{fleet.ConditionRegistered, fleet.ConditionProcessed, "Reconciled"}

func (o *Observer) seeConditions(c *fleet.Cluster) {
	for _, condition := range c.Status.Conditions {
		if slices.Contains(red, condition.Type) && condition.Status == corev1.ConditionFalse {
			o.note("%s/%s is red: %s=False %s: %s", c.Namespace, c.Name, condition.Type, condition.Reason, condition.Message)
		}
	}
}

func (o *Observer) seeClientID(c *fleet.Cluster) {
	o.mutex.Lock()
	before := o.clientIDs[c.UID]
	o.clientIDs[c.UID] = c.Spec.ClientID
	o.mutex.Unlock()
	if before != "" && before != c.Spec.ClientID {
		o.note("%s/%s changed its clientID", c.Namespace, c.Name)
	}
}

func (o *Observer) seeAddress(c *fleet.Cluster) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	seen := o.addresses[c.UID]
	if address := c.Status.APIServerURL; address != "" && (len(seen) == 0 || seen[len(seen)-1] != address) {
		o.addresses[c.UID] = append(seen, address)
	}
}

// compare records changes of the fields that the server has applied.
func (o *Observer) compare(m *Managed, c *fleet.Cluster) {
	wanted, has := m.Cluster(), c.Spec.DeepCopy()
	has.ClientID, has.RedeployAgentGeneration = "", 0
	if !equality.Semantic.DeepEqual(*has, wanted.Spec) {
		o.note("%s/%s: the spec differs from the one that the server applied: %+v", c.Namespace, c.Name, c.Spec)
	}
	for key, value := range wanted.Labels {
		if c.Labels[key] != value {
			o.note("%s/%s: label %s is %q", c.Namespace, c.Name, key, c.Labels[key])
		}
	}
	for _, key := range []string{apply.LabelID, apply.LabelGVK, apply.LabelName, apply.LabelNamespace, apply.LabelApplied} {
		if c.Annotations[key] == "" {
			o.note("%s/%s: annotation %s is gone", c.Namespace, c.Name, key)
		}
	}
	if c.Labels[apply.LabelHash] == "" {
		o.note("%s/%s: label %s is gone", c.Namespace, c.Name, apply.LabelHash)
	}
}
