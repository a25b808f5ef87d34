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

// WaitCondition waits until the condition begins with want, as Condition describes it.
func (c *Cluster) WaitCondition(t testing.TB, kind, namespace, name, conditionType, want string) {
	t.Helper()
	Eventually(t, func() (bool, string) {
		got := c.ConditionOf(kind, namespace, name, conditionType)
		return strings.HasPrefix(got, want), fmt.Sprintf("condition %s of %s %s/%s is %q, want %q", conditionType, kind, namespace, name, got, want)
	})
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

// Managed lists all that carries the hub's label, as "Kind namespace/name".
func (c *Cluster) Managed(t testing.TB) (found []string) {
	t.Helper()
	ctx, ours := context.Background(), metav1.ListOptions{LabelSelector: fleet.ManagedLabel + "=" + fleet.ManagedValue}
	core, rbac := c.Kubernetes.CoreV1(), c.Kubernetes.RbacV1()
	add := func(kind string) func(runtime.Object, error) {
		return func(list runtime.Object, err error) {
			require.NoError(t, err)
			require.NoError(t, meta.EachListItem(list, func(item runtime.Object) error {
				o := item.(metav1.Object)
				found = append(found, kind+" "+o.GetNamespace()+"/"+o.GetName())
				return nil
			}))
		}
	}
	add("Namespace")(core.Namespaces().List(ctx, ours))
	add("Secret")(core.Secrets("").List(ctx, ours))
	add("ServiceAccount")(core.ServiceAccounts("").List(ctx, ours))
	add("Role")(rbac.Roles("").List(ctx, ours))
	add("RoleBinding")(rbac.RoleBindings("").List(ctx, ours))
	add("ClusterRoleBinding")(rbac.ClusterRoleBindings().List(ctx, ours))
	return found
}
