package uninstall

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/pkg/agentmanifest"
	"github.com/muster-fleet/muster/pkg/registration"
)

// clientOfObject sends requests about one object.
type clientOfObject struct {
	patch  func(ctx context.Context, data []byte) error
	delete func(ctx context.Context, options metav1.DeleteOptions) error
}

// client returns the client for the kind of the object.
func (u *Uninstaller) client(o agentmanifest.OwnedObject) clientOfObject {
	core, namespace := u.Member.Core, u.Member.Namespace
	switch o.Kind {
	case "ClusterRole":
		return clientFor(core.RbacV1().ClusterRoles(), o.Name)
	case "ClusterRoleBinding":
		return clientFor(core.RbacV1().ClusterRoleBindings(), o.Name)
	case "ConfigMap":
		return clientFor(core.CoreV1().ConfigMaps(namespace), o.Name)
	case "Deployment":
		return clientFor(core.AppsV1().Deployments(namespace), o.Name)
	case "Lease":
		return clientFor(core.CoordinationV1().Leases(namespace), o.Name)
	case "NetworkPolicy":
		return clientFor(core.NetworkingV1().NetworkPolicies(namespace), o.Name)
	case "PodDisruptionBudget":
		return clientFor(core.PolicyV1().PodDisruptionBudgets(namespace), o.Name)
	case "PriorityClass":
		return clientFor(core.SchedulingV1().PriorityClasses(), o.Name)
	case "Secret":
		return clientFor(core.CoreV1().Secrets(namespace), o.Name)
	case "ServiceAccount":
		return clientFor(core.CoreV1().ServiceAccounts(namespace), o.Name)
	}
	unknown := fmt.Errorf("the agent cannot remove objects of kind %s", o.Kind)
	return clientOfObject{
		patch:  func(context.Context, []byte) error { return unknown },
		delete: func(context.Context, metav1.DeleteOptions) error { return unknown },
	}
}

// objectClient is the part of a typed client that an uninstallation needs.
type objectClient[T any] interface {
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

func clientFor[T any](client objectClient[T], name string) clientOfObject {
	return clientOfObject{
		patch: func(ctx context.Context, data []byte) error {
			_, err := client.Patch(ctx, name, types.StrategicMergePatchType, data, metav1.PatchOptions{FieldManager: registration.FieldManager})
			return err
		},
		delete: func(ctx context.Context, options metav1.DeleteOptions) error {
			return client.Delete(ctx, name, options)
		},
	}
}
