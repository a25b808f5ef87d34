package testenv

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Kinds whose conditions ConditionOf reads.
const (
	KindCluster = "Cluster"
	KindRequest = "ClusterRegistration"
	KindToken   = "ClusterRegistrationToken"
)

// ConditionOf describes a condition of an object of one of these kinds, as Condition does.
func (c *Cluster) ConditionOf(kind, namespace, name, conditionType string) string {
	conditions, err := c.conditions(kind, namespace, name)
	if err != nil {
		return err.Error()
	}
	return Condition(conditions, conditionType)
}

func (c *Cluster) conditions(kind, namespace, name string) ([]Generic, error) {
	ctx := context.Background()
	switch kind {
	case KindCluster:
		o, err := c.Fleet.Clusters(namespace).Get(ctx, name, metav1.GetOptions{})
		return o.Status.Conditions, err
	case KindRequest:
		o, err := c.Fleet.ClusterRegistrations(namespace).Get(ctx, name, metav1.GetOptions{})
		return o.Status.Conditions, err
	case KindToken:
		o, err := c.Fleet.ClusterRegistrationTokens(namespace).Get(ctx, name, metav1.GetOptions{})
		return o.Status.Conditions, err
	}
	return nil, fmt.Errorf("kind %s has no conditions that tests look at", kind)
}

// WaitCondition waits until the condition begins with want, as Condition describes it, and returns the whole of it.
func (c *Cluster) WaitCondition(t testing.TB, kind, namespace, name, conditionType, want string) (got string) {
	t.Helper()
	Eventually(t, func() (bool, string) {
		got = c.ConditionOf(kind, namespace, name, conditionType)
		return strings.HasPrefix(got, want), fmt.Sprintf("condition %s of %s %s/%s is %q, want %q", conditionType, kind, namespace, name, got, want)
	})
	return got
}

// RequireEvents waits until events of that reason have been emitted about an object that often, and no more. They are sent
// beside everything else, so they may come later than what they tell of.
func (c *Cluster) RequireEvents(t testing.TB, namespace, name, reason string, want int) {
	t.Helper()
	Eventually(t, func() (bool, string) {
		got := c.EventCount(t, namespace, name, reason)
		return got >= want, fmt.Sprintf("there are %d events %s about %s/%s, want %d", got, reason, namespace, name, want)
	})
	require.Equal(t, want, c.EventCount(t, namespace, name, reason), "events %s about %s/%s", reason, namespace, name)
}

// EventCount is how often an event of that reason was emitted about an object.
func (c *Cluster) EventCount(t testing.TB, namespace, name, reason string) (count int) {
	t.Helper()
	for _, event := range c.Events(t, namespace, name) {
		if event.Reason == reason {
			count += max(int(event.Count), 1)
		}
	}
	return count
}

// Events are those about an object.
func (c *Cluster) Events(t testing.TB, namespace, name string) []corev1.Event {
	t.Helper()
	list, err := c.Kubernetes.CoreV1().Events(namespace).List(context.Background(), metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.name", name).String(),
	})
	require.NoError(t, err)
	return list.Items
}

// Bytes are the whole of an object, to see that nobody has touched it.
func Bytes(t testing.TB, object any) string {
	t.Helper()
	data, err := json.Marshal(object)
	require.NoError(t, err)
	return string(data)
}

// Ours selects what the hub made.
func Ours() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: fleet.ManagedLabel + "=" + fleet.ManagedValue}
}

// Managed lists all that carries the hub's label, as "Kind namespace/name".
func (c *Cluster) Managed(t testing.TB) []string {
	t.Helper()
	ctx, found := context.Background(), &listing{t: t}
	core, rbac := c.Kubernetes.CoreV1(), c.Kubernetes.RbacV1()
	found.add("Namespace")(core.Namespaces().List(ctx, Ours()))
	found.add("Secret")(core.Secrets("").List(ctx, Ours()))
	found.add("ServiceAccount")(core.ServiceAccounts("").List(ctx, Ours()))
	found.add("Role")(rbac.Roles("").List(ctx, Ours()))
	found.add("RoleBinding")(rbac.RoleBindings("").List(ctx, Ours()))
	found.add("ClusterRoleBinding")(rbac.ClusterRoleBindings().List(ctx, Ours()))
	return found.lines
}

// AskedFor lists the Clusters, requests, tokens and Bundles of all namespaces, as "Kind namespace/name".
func (c *Cluster) AskedFor(t testing.TB) []string {
	t.Helper()
	ctx, found, all := context.Background(), &listing{t: t}, metav1.ListOptions{}
	found.add(KindCluster)(c.Fleet.Clusters("").List(ctx, all))
	found.add(KindRequest)(c.Fleet.ClusterRegistrations("").List(ctx, all))
	found.add(KindToken)(c.Fleet.ClusterRegistrationTokens("").List(ctx, all))
	found.add("Bundle")(c.Fleet.Bundles("").List(ctx, all))
	return found.lines
}

type listing struct {
	t     testing.TB
	lines []string
}

// add returns what takes the result of a List.
func (l *listing) add(kind string) func(runtime.Object, error) {
	return func(list runtime.Object, err error) {
		require.NoError(l.t, err)
		require.NoError(l.t, meta.EachListItem(list, func(item runtime.Object) error {
			o := item.(metav1.Object)
			l.lines = append(l.lines, kind+" "+o.GetNamespace()+"/"+o.GetName())
			return nil
		}))
	}
}
