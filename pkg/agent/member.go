package agent

import (
	"context"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// member is the cluster the agent runs in, as far as registering needs it.
type member struct {
	namespace string
	core      kubernetes.Interface // requests, bounded in time
	watching  kubernetes.Interface // watches, which a bound would cut off
	rest      rest.Interface       // paths that are no objects; nil asks for none
	close     func()
}

func newMember(c Config) (*member, error) {
	bounded := rest.AddUserAgent(rest.CopyConfig(c.Member), "fleetagent/"+c.Version)
	bounded.Timeout = c.Timing.Request
	core, closeCore, err := newClientset(bounded)
	if err != nil {
		return nil, err
	}
	unbounded := rest.CopyConfig(bounded)
	unbounded.Timeout = 0
	watching, closeWatching, err := newClientset(unbounded)
	if err != nil {
		return nil, err
	}
	return &member{
		namespace: c.Namespace, core: core, watching: watching, rest: core.Discovery().RESTClient(),
		close: func() { closeCore(); closeWatching() },
	}, nil
}

func newClientset(c *rest.Config) (kubernetes.Interface, func(), error) {
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		return nil, nil, fmt.Errorf("the way to the member's API server: %w", err)
	}
	core, err := kubernetes.NewForConfigAndClient(c, client)
	return core, func() { closeIdle(client) }, err
}

func closeIdle(client *http.Client) {
	if client.Transport != nil {
		utilnet.CloseIdleConnectionsFor(client.Transport)
	}
}

// secret is nil when there is none of that name.
func (m *member) secret(ctx context.Context, name string) (*corev1.Secret, error) {
	secret, err := m.core.CoreV1().Secrets(m.namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading Secret %s/%s: %w", m.namespace, name, err)
	}
	return secret, nil
}

// configMap is nil when there is none of that name.
func (m *member) configMap(ctx context.Context, name string) (*corev1.ConfigMap, error) {
	configMap, err := m.core.CoreV1().ConfigMaps(m.namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading ConfigMap %s/%s: %w", m.namespace, name, err)
	}
	return configMap, nil
}

// agentConfig is the zero Config when there is no ConfigMap. One that cannot be read is an error: the defaults might trust
// more CAs than it does.
func (m *member) agentConfig(ctx context.Context) (config.Agent, error) {
	configMap, err := m.configMap(ctx, registration.AgentConfigMap)
	if err != nil || configMap == nil {
		return config.Agent{}, err
	}
	return config.ParseAgent(configMap.Data[registration.ConfigKey])
}

func (m *member) hubLocation(ctx context.Context) (*hubLocation, error) {
	configMap, err := m.configMap(ctx, registration.AgentHubConfigMap)
	return parseHubLocation(configMap), err
}

// clientID is the configured one, else the UID of the namespace kube-system, which lives as long as the cluster.
func (m *member) clientID(ctx context.Context, c config.Agent) (string, error) {
	if c.ClientID != "" {
		return c.ClientID, nil
	}
	namespace, err := m.core.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("reading Namespace %s, whose UID is the clientID when ConfigMap %s/%s gives none: %w",
			metav1.NamespaceSystem, m.namespace, registration.AgentConfigMap, err)
	}
	return string(namespace.UID), nil
}

// store writes the credential with one request, so that at no moment there is none.
func (m *member) store(ctx context.Context, credential *stored) error {
	older, err := m.secret(ctx, registration.CredentialSecret)
	if err != nil {
		return err
	}
	secret, err := credential.secret(m.namespace, older)
	if err != nil {
		return err
	}
	return m.write(ctx, secret, older != nil)
}

// write creates or updates; a conflict with another writer is an error, and the caller comes again.
func (m *member) write(ctx context.Context, secret *corev1.Secret, exists bool) error {
	secrets := m.core.CoreV1().Secrets(m.namespace)
	var err error
	if exists {
		_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
	} else {
		_, err = secrets.Create(ctx, secret, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("writing Secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	return nil
}

// remove deletes the Secret as it was read. One that was changed or made anew in between stays: nobody has looked at it.
func (m *member) remove(ctx context.Context, secret *corev1.Secret) error {
	if secret == nil {
		return nil
	}
	err := m.core.CoreV1().Secrets(m.namespace).Delete(ctx, secret.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &secret.UID, ResourceVersion: &secret.ResourceVersion},
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("deleting Secret %s/%s: %w", m.namespace, secret.Name, err)
	}
	return nil
}
