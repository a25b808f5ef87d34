package testenv

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Get is the Get of a typed client.
type Get[T any] func(ctx context.Context, name string, options metav1.GetOptions) (T, error)

// RequireGone waits until an object does not exist.
func RequireGone[T any](t testing.TB, get Get[T], what, name string) {
	t.Helper()
	Eventually(t, func() (bool, string) {
		_, err := get(t.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), fmt.Sprintf("%s %s still exists (error: %v)", what, name, err)
	})
}

// RequireThere returns an object, which must exist.
func RequireThere[T any](t testing.TB, get Get[T], name string) T {
	t.Helper()
	object, err := get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return object
}

// List lists objects with the List of a typed client.
func List[T any](t testing.TB, list func(context.Context, metav1.ListOptions) (T, error), options metav1.ListOptions) T {
	t.Helper()
	objects, err := list(t.Context(), options)
	require.NoError(t, err)
	return objects
}

// Create creates an object with the Create of a typed client.
func Create[T any](t testing.TB, create func(context.Context, T, metav1.CreateOptions) (T, error), object T) T {
	t.Helper()
	created, err := create(t.Context(), object, metav1.CreateOptions{})
	require.NoError(t, err)
	return created
}

// Update updates an object with the Update or UpdateStatus of a typed client.
func Update[T any](t testing.TB, update func(context.Context, T, metav1.UpdateOptions) (T, error), object T) T {
	t.Helper()
	updated, err := update(t.Context(), object, metav1.UpdateOptions{})
	require.NoError(t, err)
	return updated
}

// EventuallyThere waits until an object exists, and returns it.
func EventuallyThere[T any](t testing.TB, get Get[T], name string) T {
	t.Helper()
	return EventuallyIs(t, get, name, func(T) (bool, string) { return true, "" })
}

// EventuallyIs waits until an object exists and check returns true, and returns the object. The text of check describes what it has found.
func EventuallyIs[T any](t testing.TB, get Get[T], name string, check func(T) (bool, string)) (found T) {
	t.Helper()
	Eventually(t, func() (bool, string) {
		object, err := get(context.WithoutCancel(t.Context()), name, metav1.GetOptions{})
		if err != nil {
			return false, fmt.Sprintf("%s: %v", name, err)
		}
		found = object
		return check(object)
	})
	return found
}

// AwaitHeartbeat waits until the agent of a Cluster has sent a heartbeat after this time, to its Lease or to the status.
func (c *Cluster) AwaitHeartbeat(t testing.TB, namespace, name string, after time.Time) {
	t.Helper()
	Eventually(t, func() (bool, string) {
		cluster, err := c.Fleet.Clusters(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		leases, err := c.Kubernetes.CoordinationV1().Leases(registration.ClusterNamespace(namespace, name)).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		last := view.LastHeartbeat(&cluster.Status.Agent.LastSeen, leases.Items)
		return last.After(after), fmt.Sprintf("the last heartbeat of Cluster %s/%s was at %s", namespace, name, last)
	})
}

// Merge applies a JSON merge patch with the Patch of a typed client. The document is a string, or something that is encoded as JSON.
func Merge[T any](
	t testing.TB, patch func(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (T, error),
	name string, document any, subresources ...string,
) {
	t.Helper()
	text, ok := document.(string)
	if !ok {
		text = Bytes(t, document)
	}
	_, err := patch(context.WithoutCancel(t.Context()), name, types.MergePatchType, []byte(text), metav1.PatchOptions{}, subresources...)
	require.NoError(t, err)
}

// Kinds for ConditionOf.
const (
	KindCluster = "Cluster"
	KindRequest = "ClusterRegistration"
	KindToken   = "ClusterRegistrationToken"
)

// ConditionOf describes a condition of an object as Condition does.
func (c *Cluster) ConditionOf(kind, namespace, name, conditionType string) string {
	ctx := context.Background()
	var conditions []Generic
	var err error
	switch kind {
	case KindCluster:
		var o *fleet.Cluster
		o, err = c.Fleet.Clusters(namespace).Get(ctx, name, metav1.GetOptions{})
		conditions = o.Status.Conditions
	case KindRequest:
		var o *fleet.ClusterRegistration
		o, err = c.Fleet.ClusterRegistrations(namespace).Get(ctx, name, metav1.GetOptions{})
		conditions = o.Status.Conditions
	case KindToken:
		var o *fleet.ClusterRegistrationToken
		o, err = c.Fleet.ClusterRegistrationTokens(namespace).Get(ctx, name, metav1.GetOptions{})
		conditions = o.Status.Conditions
	}
	if err != nil {
		return err.Error()
	}
	return Condition(conditions, conditionType)
}

// WaitCondition waits until the description of a condition begins with want, and returns the description.
func (c *Cluster) WaitCondition(t testing.TB, kind, namespace, name, conditionType, want string) (got string) {
	t.Helper()
	Eventually(t, func() (bool, string) {
		got = c.ConditionOf(kind, namespace, name, conditionType)
		return strings.HasPrefix(got, want), fmt.Sprintf("condition %s of %s %s/%s is %q, want %q", conditionType, kind, namespace, name, got, want)
	})
	return got
}

// RequireEvents waits until an object has the given number of events with a reason, and fails if it has more. Events are sent
// asynchronously, so they can come later than the change that they report.
func (c *Cluster) RequireEvents(t testing.TB, namespace, name, reason string, want int) {
	t.Helper()
	Eventually(t, func() (bool, string) {
		got := c.EventCount(t, namespace, name, reason)
		return got >= want, fmt.Sprintf("there are %d events %s about %s/%s, want %d", got, reason, namespace, name, want)
	})
	require.Equal(t, want, c.EventCount(t, namespace, name, reason), "events %s about %s/%s", reason, namespace, name)
}

// EventCount is the number of events with a reason about an object.
func (c *Cluster) EventCount(t testing.TB, namespace, name, reason string) (count int) {
	t.Helper()
	for _, event := range c.Events(t, namespace, name) {
		if event.Reason == reason {
			count += max(int(event.Count), 1)
		}
	}
	return count
}

// Events are the events about an object.
func (c *Cluster) Events(t testing.TB, namespace, name string) []corev1.Event {
	t.Helper()
	list, err := c.Kubernetes.CoreV1().Events(namespace).List(context.Background(), metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.name", name).String(),
	})
	require.NoError(t, err)
	return list.Items
}

// Bytes is the JSON of an object, to compare it with a later version.
func Bytes(t testing.TB, object any) string {
	t.Helper()
	data, err := json.Marshal(object)
	require.NoError(t, err)
	return string(data)
}

// Ours selects the objects that the hub has created.
func Ours() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: fleet.ManagedLabel + "=" + fleet.ManagedValue}
}

// Managed lists the objects with the hub's label as "Kind namespace/name", without the binding that all agents share.
func (c *Cluster) Managed(t testing.TB) []string {
	t.Helper()
	ctx, found := context.Background(), &listing{t: t}
	core, rbac := c.Kubernetes.CoreV1(), c.Kubernetes.RbacV1()
	found.add("Namespace")(core.Namespaces().List(ctx, Ours()))
	found.add("Secret")(core.Secrets("").List(ctx, Ours()))
	found.add("ServiceAccount")(core.ServiceAccounts("").List(ctx, Ours()))
	found.add("Role")(rbac.Roles("").List(ctx, Ours()))
	found.add("RoleBinding")(rbac.RoleBindings("").List(ctx, Ours()))
	ours := Ours()
	ours.FieldSelector = fields.OneTermNotEqualSelector("metadata.name", registration.ClusterRoleContent).String()
	found.add("ClusterRoleBinding")(rbac.ClusterRoleBindings().List(ctx, ours))
	return found.lines
}

// AskedFor lists the Clusters, requests, tokens and Bundles of all namespaces as "Kind namespace/name".
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

// add returns a function that takes the results of a List.
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
