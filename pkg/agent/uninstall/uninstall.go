// Package uninstall removes the agent from its cluster after the hub has asked it to uninstall itself.
//
// Package deploy removes the releases, and then calls Begin, which annotates Secret fleet-agent. From then on the agent continues after every
// restart, although the hub deletes its Cluster and does not ask again. Run makes one object the owner of all the agent's others and deletes
// that object; Kubernetes' garbage collector deletes the rest. So the agent never needs a right that it has just deleted. Before that one
// request it deletes only the bootstrap Secret with which it registered earlier, because the agent can be killed, or be installed again, at
// any moment. If no object can own the others, it deletes them one by one.
package uninstall

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/pkg/agent/member"
	"github.com/muster-fleet/muster/pkg/agentmanifest"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/release"
)

// begunAnnotation on Secret fleet-agent means that the agent uninstalls itself. Its value is the UID of the bootstrap Secret that existed when the
// uninstallation began; a bootstrap Secret with another UID installs the agent again.
const (
	begunAnnotation = "muster.fleet.cattle.io/leaving"
	noBootstrap     = "-"
)

// Uninstaller removes one agent.
type Uninstaller struct {
	Member *member.Member
	// Scope is agent.Config.Scope; it is part of the labels of imported objects.
	Scope string
	Log   logrus.FieldLogger
}

// Begun reports whether the agent has begun to uninstall itself.
func Begun(credential *corev1.Secret) bool {
	return credential != nil && credential.Annotations[begunAnnotation] != ""
}

// InstalledAgain reports whether the bootstrap Secret was created after the uninstallation had begun.
func InstalledAgain(credential, bootstrap *corev1.Secret) bool {
	return credential.Annotations[begunAnnotation] != string(bootstrap.UID)
}

// Begin records the uninstallation on Secret fleet-agent. Before, only the Helm history of the agent's own release is deleted, and none of its
// other objects.
func (u *Uninstaller) Begin(ctx context.Context) error {
	secret, err := u.Member.Secret(ctx, registration.CredentialSecret)
	if err != nil || Begun(secret) {
		return err
	}
	if secret == nil {
		return fmt.Errorf("Secret %s/%s, on which the agent must note its uninstallation, does not exist", u.Member.Namespace, registration.CredentialSecret)
	}
	bootstrap, err := u.Member.Secret(ctx, registration.BootstrapSecret)
	if err != nil {
		return err
	}
	value := noBootstrap
	if bootstrap != nil {
		value = string(bootstrap.UID)
	}
	metav1.SetMetaDataAnnotation(&secret.ObjectMeta, begunAnnotation, value)
	return u.Member.WriteSecret(ctx, secret, true)
}

// Run removes the agent. confirm is called before the deletion and reads the objects again: it returns false if the agent was
// installed again in the meantime. removed is false then.
func (u *Uninstaller) Run(ctx context.Context, confirm func(context.Context) (bool, error)) (removed bool, err error) {
	owner, err := u.findOwner(ctx)
	if err != nil {
		return false, err
	}
	if owner != nil {
		if err := u.patchOwner(ctx, *owner, owner); err != nil {
			return false, err
		}
	}
	if err := u.deleteOldBootstrap(ctx); err != nil {
		return false, err
	}
	if confirmed, err := confirm(ctx); err != nil || !confirmed {
		return false, err
	}

	remaining := []agentmanifest.OwnedObject{}
	options := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}
	if owner != nil {
		object := agentmanifest.OwnedObject{Kind: owner.Kind, Name: owner.Name}
		if owner.Kind == "Deployment" { // the only one in a namespace
			object.Namespace = u.Member.Namespace
		}
		remaining = append(remaining, object)
		options.Preconditions = &metav1.Preconditions{UID: &owner.UID}
	} else if remaining, err = u.objects(ctx); err != nil { // delete them one by one
		return false, err
	}
	for _, object := range remaining {
		if err := u.client(object).Delete(ctx, object.Name, options); err != nil && !apierrors.IsNotFound(err) {
			return false, fmt.Errorf("deleting %s %s: %w", object.Kind, object.Name, err)
		}
	}
	u.Log.Infof("The agent is uninstalled: its objects in Namespace %s are being deleted, the Namespace stays", u.Member.Namespace)
	return true, nil
}

// Cancel undoes the changes of Run before the deletion, after the agent was installed again. It removes the annotation last: while the annotation
// exists, a restart continues with the rest.
func (u *Uninstaller) Cancel(ctx context.Context) error {
	u.Log.Infof("Secret %s/%s was created after the hub had asked the agent to uninstall itself: the agent stays and registers again",
		u.Member.Namespace, registration.BootstrapSecret)
	owner, err := u.findOwner(ctx)
	if err != nil {
		return err
	}
	if owner != nil {
		if err := u.patchOwner(ctx, *owner, map[string]string{"$patch": "delete", "uid": string(owner.UID)}); err != nil {
			return err
		}
	}
	secret, err := u.Member.Secret(ctx, registration.CredentialSecret)
	if err != nil || secret == nil {
		return err
	}
	delete(secret.Annotations, begunAnnotation)
	return u.Member.WriteSecret(ctx, secret, true)
}

// findOwner returns the object whose deletion must be the agent's last request, because it gives the agent its rights: its
// ClusterRole, the ClusterRole of the chart, or the binding of one of them. If the rights come from elsewhere, it is the PriorityClass of the
// agent, or else its Deployment: Kubernetes does not accept an owner in a namespace for the objects without one. nil if none of them exists.
func (u *Uninstaller) findOwner(ctx context.Context) (*metav1.OwnerReference, error) {
	roles, bindings := []string{agentmanifest.ClusterRoleName(u.Member.Namespace)}, []string{agentmanifest.ClusterRoleBindingName(u.Member.Namespace)}
	if chart, err := u.ownsChartRole(ctx); err != nil {
		return nil, err
	} else if chart {
		roles, bindings = append(roles, agentmanifest.ChartClusterRole), append(bindings, agentmanifest.ChartClusterRoleBinding)
	}
	for _, candidates := range []struct {
		kind  string
		names []string
	}{{"ClusterRole", roles}, {"ClusterRoleBinding", bindings}} {
		for _, name := range candidates.names {
			object, err := u.client(agentmanifest.OwnedObject{Kind: candidates.kind, Name: name}).Get(ctx, name, metav1.GetOptions{})
			if err == nil {
				return &metav1.OwnerReference{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: candidates.kind, Name: name, UID: object.UID}, nil
			} else if !apierrors.IsNotFound(err) {
				return nil, fmt.Errorf("reading %s %s: %w", candidates.kind, name, err)
			}
		}
	}
	if class, err := u.priorityClass(ctx); err != nil {
		return nil, err
	} else if class != nil {
		return &metav1.OwnerReference{APIVersion: schedulingv1.SchemeGroupVersion.String(), Kind: "PriorityClass", Name: class.Name, UID: class.UID}, nil
	}
	reference, err := u.Member.DeploymentReference(ctx)
	if err != nil || reference.UID == "" {
		return nil, err
	}
	return &metav1.OwnerReference{APIVersion: reference.APIVersion, Kind: reference.Kind, Name: reference.Name, UID: reference.UID}, nil
}

// patchOwner patches ownerReferences of all objects but the owner: reference adds the owner or removes it.
func (u *Uninstaller) patchOwner(ctx context.Context, owner metav1.OwnerReference, reference any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"ownerReferences": []any{reference}}})
	if err != nil {
		return err
	}
	objects, err := u.objects(ctx)
	if err != nil {
		return err
	}
	for _, object := range objects {
		if object.Kind == owner.Kind && object.Name == owner.Name {
			continue
		}
		_, err := u.client(object).Patch(ctx, object.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: registration.FieldManager})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("changing the owner of %s %s: %w", object.Kind, object.Name, err)
		}
	}
	return nil
}

func (u *Uninstaller) client(o agentmanifest.OwnedObject) metadata.ResourceInterface {
	client := u.Member.Metadata.Resource(agentmanifest.Resources[o.Kind])
	if o.Namespace == "" {
		return client
	}
	return client.Namespace(o.Namespace)
}

// deleteOldBootstrap deletes the bootstrap Secret that existed when the uninstallation began.
func (u *Uninstaller) deleteOldBootstrap(ctx context.Context) error {
	credential, err := u.Member.Secret(ctx, registration.CredentialSecret)
	if err != nil {
		return err
	}
	bootstrap, err := u.Member.Secret(ctx, registration.BootstrapSecret)
	if err != nil || bootstrap == nil || !Begun(credential) || InstalledAgain(credential, bootstrap) {
		return err
	}
	return u.Member.DeleteSecret(ctx, bootstrap)
}

// objects returns all objects of the agent, whether they exist or not. Secret fleet-agent, which has the annotation, is the last one. The bootstrap
// Secret is not among them: if it is created now, it installs the agent again and must stay.
func (u *Uninstaller) objects(ctx context.Context) ([]agentmanifest.OwnedObject, error) {
	var all []agentmanifest.OwnedObject
	if chart, err := u.ownsChartRole(ctx); err != nil {
		return nil, err
	} else if chart {
		all = append(all,
			agentmanifest.OwnedObject{Kind: "ClusterRoleBinding", Name: agentmanifest.ChartClusterRoleBinding},
			agentmanifest.OwnedObject{Kind: "ClusterRole", Name: agentmanifest.ChartClusterRole})
	}
	if class, err := u.priorityClass(ctx); err != nil {
		return nil, err
	} else if class != nil {
		all = append(all, agentmanifest.OwnedObject{Kind: "PriorityClass", Name: agentmanifest.PriorityClassName})
	}
	secrets, err := u.listSecrets(ctx)
	if err != nil {
		return nil, err
	}
	all = append(all, secrets...)
	for _, object := range agentmanifest.OwnedObjects(u.Member.Namespace) {
		if object.Name != registration.BootstrapSecret {
			all = append(all, object)
		}
	}
	return all, nil
}

// ownsChartRole reports whether the ClusterRole of the chart is this agent's: its name does not contain a namespace.
func (u *Uninstaller) ownsChartRole(ctx context.Context) (bool, error) {
	name := agentmanifest.ChartClusterRoleBinding
	binding, err := u.Member.Core.RbacV1().ClusterRoleBindings().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("reading ClusterRoleBinding %s: %w", name, err)
	}
	return slices.Contains(binding.Subjects, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: u.Member.Namespace, Name: registration.AgentName}), nil
}

// priorityClass returns the PriorityClass if it is only this agent's, and nil otherwise: its name does not contain a namespace.
func (u *Uninstaller) priorityClass(ctx context.Context) (*schedulingv1.PriorityClass, error) {
	class, err := u.Member.Core.SchedulingV1().PriorityClasses().Get(ctx, agentmanifest.PriorityClassName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("reading PriorityClass %s: %w", agentmanifest.PriorityClassName, err)
	}
	if owned, err := agentmanifest.OwnsPriorityClass(class, u.Member.Namespace, u.Scope); err != nil || !owned {
		return nil, err
	}
	agents, err := u.Member.Core.AppsV1().Deployments(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: agentmanifest.DeploymentFieldSelector})
	if apierrors.IsForbidden(err) {
		return nil, nil // a Role of a person allows less; another agent may need the PriorityClass
	} else if err != nil {
		return nil, fmt.Errorf("listing the Deployments of agents: %w", err)
	}
	for _, other := range agents.Items {
		if other.Namespace != u.Member.Namespace && other.Spec.Template.Spec.PriorityClassName == class.Name {
			return nil, nil // the API server would refuse the Pods of that agent
		}
	}
	return class, nil
}

// listSecrets returns the Secrets without a fixed name: of the import, and of the agent's own Helm releases, which the chart and the agent's
// Bundle create.
func (u *Uninstaller) listSecrets(ctx context.Context) ([]agentmanifest.OwnedObject, error) {
	imported, _, err := agentmanifest.ImportMarks(u.Scope)
	if err != nil {
		return nil, err
	}
	credential, err := u.Member.Secret(ctx, registration.CredentialSecret)
	if err != nil {
		return nil, err
	}
	releases := []string{registration.AgentName}
	if credential != nil {
		cluster := string(credential.Data[registration.CredentialClusterName])
		_, managed := release.Place(registration.AgentBundleName(cluster), fleet.BundleDeploymentOptions{})
		releases = append(releases, managed)
	}
	var found []agentmanifest.OwnedObject
	for _, selector := range []labels.Set{imported, {"owner": "helm"}} {
		list, err := u.Member.Core.CoreV1().Secrets(u.Member.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
		if err != nil {
			return nil, fmt.Errorf("listing Secrets in Namespace %s: %w", u.Member.Namespace, err)
		}
		for _, secret := range list.Items {
			if isAgentsSecret(&secret, releases) {
				found = append(found, agentmanifest.OwnedObject{Kind: "Secret", Namespace: u.Member.Namespace, Name: secret.Name})
			}
		}
	}
	return found, nil
}

func isAgentsSecret(secret *corev1.Secret, releases []string) bool {
	if secret.Labels["owner"] == "helm" {
		return slices.Contains(releases, secret.Labels["name"])
	}
	return secret.Name != registration.BootstrapSecret && secret.Name != registration.CredentialSecret
}
