package clusterimport

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/muster-fleet/muster/pkg/agentmanifest"
	"github.com/muster-fleet/muster/pkg/registration"
)

// install puts the plan onto the member. Nothing is deleted before what replaces it is there, so a connection that breaks
// anywhere leaves an agent that works.
func (m *member) install(ctx context.Context, p *plan) *failure {
	if err := m.greet(ctx); err != nil {
		return diagnose(m.server, "connecting to the member", err)
	}
	for _, object := range p.objects {
		if failure := m.put(ctx, p, object); failure != nil {
			return failure
		}
	}
	return m.removeAll(ctx, p.leftovers, "removing what is no longer wanted:")
}

// put applies one object of the plan. Between the bootstrap Secret and the Deployment, which restarts the agent, is the
// moment to drop a credential it would prefer to a new registration.
func (m *member) put(ctx context.Context, p *plan, object runtime.Object) *failure {
	if err := m.apply(ctx, object); err != nil {
		return diagnose(m.server, "installing "+describe(object), err)
	}
	secret, isSecret := object.(*corev1.Secret)
	if !isSecret || secret.Name != registration.BootstrapSecret || !p.anew {
		return nil
	}
	if err := m.dropForeignCredential(ctx, p); err != nil {
		return diagnose(m.server, "removing the credential of an agent that cannot be told to register anew", err)
	}
	return nil
}

func describe(object runtime.Object) string {
	kind := object.GetObjectKind().GroupVersionKind().Kind
	accessor, err := meta.Accessor(object)
	if err != nil {
		return kind
	}
	if accessor.GetNamespace() == "" {
		return fmt.Sprintf("%s %s", kind, accessor.GetName())
	}
	return fmt.Sprintf("%s %s/%s", kind, accessor.GetNamespace(), accessor.GetName())
}

// dropForeignCredential deletes a stored credential that does not say which registration it is of: agents of other
// releases use a stored credential as long as it works and would ignore the new registration. Agents of this release
// compare, and keep the old credential until the new one has worked.
func (m *member) dropForeignCredential(ctx context.Context, p *plan) error {
	secrets, err := m.resource("Secret", p.agentNamespace)
	if err != nil {
		return err
	}
	stored, err := secrets.Get(ctx, registration.CredentialSecret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	if _, ours, _ := unstructured.NestedString(stored.Object, "data", registration.BootstrapRegistration); ours {
		return nil
	}
	return m.remove(ctx, "Secret", p.agentNamespace, registration.CredentialSecret)
}

// clean ends the agent of a namespace and removes it. The namespace itself stays: others may use it.
func (m *member) clean(ctx context.Context, namespace string) *failure {
	if f := m.stop(ctx, namespace); f != nil {
		return f
	}
	return m.removeAll(ctx, agentObjects(namespace), "removing the agent's earlier")
}

func (m *member) removeAll(ctx context.Context, objects []named, doing string) *failure {
	for _, o := range objects {
		if err := m.remove(ctx, o.kind, o.namespace, o.name); err != nil {
			return diagnose(m.server, doing+" "+o.kind+" "+o.name, err)
		}
	}
	return nil
}

type named struct{ kind, namespace, name string }

// agentObjects begin with the Deployment, so that nothing makes the others again.
func agentObjects(namespace string) []named {
	return []named{
		{"Deployment", namespace, registration.AgentName},
		{"Secret", namespace, registration.CredentialSecret},
		{"Secret", namespace, registration.BootstrapSecret},
		{"ConfigMap", namespace, registration.AgentConfigMap},
		{"NetworkPolicy", namespace, "default-allow-all"},
		{"PodDisruptionBudget", namespace, agentmanifest.PodDisruptionBudgetName},
		{"ServiceAccount", namespace, registration.AgentName},
		{"ClusterRoleBinding", "", agentmanifest.ClusterRoleBindingName(namespace)},
		{"ClusterRole", "", agentmanifest.ClusterRoleName(namespace)},
	}
}
