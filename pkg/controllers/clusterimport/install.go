package clusterimport

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/muster-fleet/muster/pkg/agentmanifest"
	"github.com/muster-fleet/muster/pkg/registration"
)

// install applies the objects in their order and then deletes the leftovers. It deletes nothing before its replacement exists, so
// a connection that breaks at any point leaves a working agent.
func (m *memberClient) install(
	ctx context.Context, agentNamespace string, objects []runtime.Object, reregister bool, leftovers []agentmanifest.OwnedObject,
) *failure {
	newNamespace := false
	for _, object := range objects {
		created, err := m.apply(ctx, object)
		if err != nil {
			return diagnose(m.server, "installing "+describe(object), err)
		}
		if _, isNamespace := object.(*corev1.Namespace); isNamespace {
			newNamespace = created
		}
		// The Deployment, which restarts the agent, follows the bootstrap Secret. Before it restarts, delete a credential that
		// the agent would use instead of registering again. A namespace that did not exist has none.
		if secret, isSecret := object.(*corev1.Secret); isSecret && secret.Name == registration.BootstrapSecret && reregister && !newNamespace {
			if err := m.deleteUnmarkedCredential(ctx, agentNamespace); err != nil {
				return diagnose(m.server, "removing the credential of an agent that would not register again", err)
			}
		}
	}
	return m.removeAll(ctx, leftovers, "removing the unwanted")
}

func describe(object runtime.Object) string {
	kind := object.GetObjectKind().GroupVersionKind().Kind
	accessor, err := meta.Accessor(object)
	if err != nil {
		return kind
	}
	return kind + " " + cache.MetaObjectToName(accessor).String()
}

// deleteUnmarkedCredential deletes a stored credential that does not record for which registration it was issued. Fleet's agent
// stores such a credential, uses it as long as it works, and ignores the new registration. Muster's agents compare the registration
// and keep the old credential until the new one works.
func (m *memberClient) deleteUnmarkedCredential(ctx context.Context, agentNamespace string) error {
	secrets, err := m.resource("Secret", agentNamespace)
	if err != nil {
		return err
	}
	stored, err := secrets.Get(ctx, registration.CredentialSecret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	if _, marked, _ := unstructured.NestedString(stored.Object, "data", registration.BootstrapRegistrationKey); marked {
		return nil
	}
	return m.remove(ctx, "Secret", agentNamespace, registration.CredentialSecret)
}

func (m *memberClient) removeAll(ctx context.Context, objects []agentmanifest.OwnedObject, doing string) *failure {
	for _, o := range objects {
		if err := m.remove(ctx, o.Kind, o.Namespace, o.Name); err != nil {
			return diagnose(m.server, doing+" "+o.Kind+" "+o.Name, err)
		}
	}
	return nil
}
