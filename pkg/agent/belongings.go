package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/rancher/wrangler/v3/pkg/apply"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/pkg/agentmanifest"
	"github.com/muster-fleet/muster/pkg/registration"
)

// belonging is an object of the agent on its cluster, and the requests that leaving needs.
type belonging struct {
	kind, name string
	patch      func(ctx context.Context, data []byte) error
	remove     func(ctx context.Context, options metav1.DeleteOptions) error
}

type patcher[T any] func(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error)

type deleter func(ctx context.Context, name string, opts metav1.DeleteOptions) error

func belongs[T any](kind, name string, patch patcher[T], remove deleter) belonging {
	return belonging{
		kind: kind, name: name,
		patch: func(ctx context.Context, data []byte) error {
			_, err := patch(ctx, name, types.StrategicMergePatchType, data, metav1.PatchOptions{FieldManager: registration.FieldManager})
			return err
		},
		remove: func(ctx context.Context, options metav1.DeleteOptions) error { return remove(ctx, name, options) },
	}
}

// pack makes one object the owner of all the others and returns it, or nil when there is none that could be: then every
// object is removed by a request of its own.
func (m *member) pack(ctx context.Context, scope string) (*metav1.OwnerReference, error) {
	owner, err := m.owner(ctx)
	if err != nil || owner == nil {
		return nil, err
	}
	patch, err := ownerPatch(owner)
	if err != nil {
		return nil, err
	}
	return owner, m.patchAll(ctx, scope, *owner, patch)
}

// unpack takes away what pack has added.
func (m *member) unpack(ctx context.Context, scope string) error {
	owner, err := m.owner(ctx)
	if err != nil || owner == nil {
		return err
	}
	patch, err := ownerPatch(map[string]string{"$patch": "delete", "uid": string(owner.UID)})
	if err != nil {
		return err
	}
	return m.patchAll(ctx, scope, *owner, patch)
}

func ownerPatch(reference any) ([]byte, error) {
	return json.Marshal(map[string]any{"metadata": map[string]any{"ownerReferences": []any{reference}}})
}

func (m *member) patchAll(ctx context.Context, scope string, owner metav1.OwnerReference, patch []byte) error {
	all, err := m.belongings(ctx, scope)
	if err != nil {
		return err
	}
	for _, b := range all {
		if b.kind == owner.Kind && b.name == owner.Name {
			continue
		}
		if err := b.patch(ctx, patch); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("giving %s %s to its owner %s: %w", b.kind, b.name, owner.Name, err)
		}
	}
	return nil
}

// removeAll deletes the owner as it was seen, or, without one, everything: the credential Secret, which has the mark, last.
func (m *member) removeAll(ctx context.Context, owner *metav1.OwnerReference, scope string) error {
	all, err := m.belongings(ctx, scope)
	if err != nil {
		return err
	}
	options := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}
	if owner != nil {
		options.Preconditions = &metav1.Preconditions{UID: &owner.UID}
		all = slices.DeleteFunc(all, func(b belonging) bool { return b.kind != owner.Kind || b.name != owner.Name })
	}
	for _, b := range all {
		if err := b.remove(ctx, options); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting %s %s: %w", b.kind, b.name, err)
		}
	}
	return nil
}

// owner is the object whose deletion is the last thing that needs the rights it gives: the agent's ClusterRole, that of the
// chart, or its Deployment when its rights come from elsewhere.
func (m *member) owner(ctx context.Context) (*metav1.OwnerReference, error) {
	names := []string{agentmanifest.ClusterRoleName(m.namespace)}
	if chart, err := m.hasChartRole(ctx); err != nil {
		return nil, err
	} else if chart {
		names = append(names, agentmanifest.ChartClusterRole)
	}
	for _, name := range names {
		role, err := m.core.RbacV1().ClusterRoles().Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			return &metav1.OwnerReference{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole", Name: name, UID: role.UID}, nil
		} else if !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("reading ClusterRole %s: %w", name, err)
		}
	}
	reference, err := m.deploymentReference(ctx)
	if err != nil || reference.UID == "" {
		return nil, err
	}
	return &metav1.OwnerReference{APIVersion: reference.APIVersion, Kind: reference.Kind, Name: reference.Name, UID: reference.UID}, nil
}

// hasChartRole says whether the ClusterRole of the chart is this agent's: the name has no namespace in it.
func (m *member) hasChartRole(ctx context.Context) (bool, error) {
	binding, err := m.core.RbacV1().ClusterRoleBindings().Get(ctx, agentmanifest.ChartClusterRoleBinding, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("reading ClusterRoleBinding %s: %w", agentmanifest.ChartClusterRoleBinding, err)
	}
	return slices.ContainsFunc(binding.Subjects, func(s rbacv1.Subject) bool {
		return s.Kind == rbacv1.ServiceAccountKind && s.Namespace == m.namespace && s.Name == registration.AgentName
	}), nil
}

// belongings are the agent's objects, whether they exist or not, the credential Secret last. The bootstrap Secret is not
// among them: one that comes late must not go with the rest.
func (m *member) belongings(ctx context.Context, scope string) ([]belonging, error) {
	clusterWide, err := m.clusterWide(ctx, scope)
	if err != nil {
		return nil, err
	}
	secrets, err := m.secretNames(ctx, scope)
	if err != nil {
		return nil, err
	}
	all := append(m.namespaced(), clusterWide...)
	client := m.core.CoreV1().Secrets(m.namespace)
	for _, name := range secrets {
		all = append(all, belongs("Secret", name, client.Patch, client.Delete))
	}
	return all, nil
}

func (m *member) namespaced() []belonging {
	configMaps, accounts := m.core.CoreV1().ConfigMaps(m.namespace), m.core.CoreV1().ServiceAccounts(m.namespace)
	deployments, leases := m.core.AppsV1().Deployments(m.namespace), m.core.CoordinationV1().Leases(m.namespace)
	policies, budgets := m.core.NetworkingV1().NetworkPolicies(m.namespace), m.core.PolicyV1().PodDisruptionBudgets(m.namespace)
	return []belonging{
		belongs("ConfigMap", registration.AgentConfigMap, configMaps.Patch, configMaps.Delete),
		belongs("ConfigMap", registration.AgentHubConfigMap, configMaps.Patch, configMaps.Delete),
		belongs("NetworkPolicy", agentmanifest.NetworkPolicyName, policies.Patch, policies.Delete),
		belongs("PodDisruptionBudget", agentmanifest.PodDisruptionBudgetName, budgets.Patch, budgets.Delete),
		belongs("Lease", registration.AgentName, leases.Patch, leases.Delete),
		belongs("ServiceAccount", registration.AgentName, accounts.Patch, accounts.Delete),
		belongs("Deployment", registration.AgentName, deployments.Patch, deployments.Delete),
	}
}

func (m *member) clusterWide(ctx context.Context, scope string) ([]belonging, error) {
	roles, bindings := m.core.RbacV1().ClusterRoles(), m.core.RbacV1().ClusterRoleBindings()
	all := []belonging{
		belongs("ClusterRoleBinding", agentmanifest.ClusterRoleBindingName(m.namespace), bindings.Patch, bindings.Delete),
		belongs("ClusterRole", agentmanifest.ClusterRoleName(m.namespace), roles.Patch, roles.Delete),
	}
	chart, err := m.hasChartRole(ctx)
	if err != nil {
		return nil, err
	}
	if chart {
		all = append(all,
			belongs("ClusterRoleBinding", agentmanifest.ChartClusterRoleBinding, bindings.Patch, bindings.Delete),
			belongs("ClusterRole", agentmanifest.ChartClusterRole, roles.Patch, roles.Delete))
	}
	class, err := m.hasPriorityClass(ctx, scope)
	if class {
		classes := m.core.SchedulingV1().PriorityClasses()
		all = append(all, belongs("PriorityClass", agentmanifest.PriorityClassName, classes.Patch, classes.Delete))
	}
	return all, err
}

// hasPriorityClass says whether the class is this agent's: the name has no namespace in it.
func (m *member) hasPriorityClass(ctx context.Context, scope string) (bool, error) {
	class, err := m.core.SchedulingV1().PriorityClasses().Get(ctx, agentmanifest.PriorityClassName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("reading PriorityClass %s: %w", agentmanifest.PriorityClassName, err)
	}
	imported, err := importLabels(scope)
	if err != nil {
		return false, err
	}
	return labels.SelectorFromSet(imported).Matches(labels.Set(class.Labels)) ||
		class.Annotations["meta.helm.sh/release-namespace"] == m.namespace, nil
}

// importLabels are those the hub gives to what it installs on a member.
func importLabels(scope string) (labels.Set, error) {
	set, _, err := apply.GetLabelsAndAnnotations(registration.AgentBootstrapSetID(scope), nil)
	return set, err
}

// secretNames are the Secrets of the agent, of its import, and of its own Helm releases.
func (m *member) secretNames(ctx context.Context, scope string) ([]string, error) {
	imported, err := importLabels(scope)
	if err != nil {
		return nil, err
	}
	names := []string{registration.PendingSecret}
	for _, selector := range []labels.Set{imported, {"owner": "helm"}} {
		list, err := m.core.CoreV1().Secrets(m.namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
		if err != nil {
			return nil, fmt.Errorf("listing Secrets in Namespace %s: %w", m.namespace, err)
		}
		for _, secret := range list.Items {
			if goesWithTheAgent(&secret) {
				names = append(names, secret.Name)
			}
		}
	}
	return append(names, registration.CredentialSecret), nil
}

func goesWithTheAgent(secret *corev1.Secret) bool {
	if secret.Labels["owner"] == "helm" {
		release := secret.Labels["name"]
		return release == registration.AgentName || strings.HasPrefix(release, registration.AgentName+"-")
	}
	return secret.Name != registration.BootstrapSecret && secret.Name != registration.CredentialSecret
}
