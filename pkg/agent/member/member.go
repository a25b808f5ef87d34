// Package member gives the agent access to the API server of its own cluster, the member: the Secrets and ConfigMaps in its
// namespace, events on its Deployment, and a watch on the Secrets and ConfigMaps that configure its registration.
package member

import (
	"context"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Member is the API server of the cluster in which the agent runs.
type Member struct {
	// Namespace is the agent's own.
	Namespace string
	// Core sends requests with a timeout, Watching sends watches, which a timeout would cut off.
	Core, Watching kubernetes.Interface
	// Metadata sends requests about the metadata of objects of any kind, with a timeout.
	Metadata metadata.Interface
	// REST reads non-resource paths, such as /readyz; nil if the client cannot.
	REST rest.Interface

	close func() // nil if a test has made the clients
}

// New prepares the connections; nothing is sent yet. The caller closes the Member.
func New(c *rest.Config, namespace, userAgent string, requestTimeout time.Duration) (*Member, error) {
	bounded := rest.AddUserAgent(rest.CopyConfig(c), userAgent)
	bounded.Timeout = requestTimeout
	core, client, err := newClientset(bounded)
	if err != nil {
		return nil, err
	}
	objects, err := metadata.NewForConfigAndClient(bounded, client)
	if err != nil {
		return nil, err
	}
	unbounded := rest.CopyConfig(bounded)
	unbounded.Timeout = 0
	watching, watchClient, err := newClientset(unbounded)
	if err != nil {
		return nil, err
	}
	return &Member{
		Namespace: namespace, Core: core, Watching: watching, Metadata: objects, REST: core.Discovery().RESTClient(),
		close: func() { closeIdle(client); closeIdle(watchClient) },
	}, nil
}

// Close closes idle connections.
func (m *Member) Close() {
	if m.close != nil {
		m.close()
	}
}

// Secret returns nil if there is no Secret of that name.
func (m *Member) Secret(ctx context.Context, name string) (*corev1.Secret, error) {
	secret, err := m.Core.CoreV1().Secrets(m.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading Secret %s/%s: %w", m.Namespace, name, err)
	}
	return secret, nil
}

// WriteSecret creates the Secret, or updates it if it exists. A conflict with another writer is an error; the caller reads
// the Secret again and retries.
func (m *Member) WriteSecret(ctx context.Context, secret *corev1.Secret, exists bool) error {
	secrets := m.Core.CoreV1().Secrets(m.Namespace)
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

// DeleteSecret deletes the Secret in the version that was read. A Secret that was changed or recreated since then stays, and
// the deletion fails: its new content has not been considered. A nil Secret is already gone.
func (m *Member) DeleteSecret(ctx context.Context, secret *corev1.Secret) error {
	if secret == nil {
		return nil
	}
	err := m.Core.CoreV1().Secrets(m.Namespace).Delete(ctx, secret.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &secret.UID, ResourceVersion: &secret.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting Secret %s/%s: %w", m.Namespace, secret.Name, err)
	}
	return nil
}

// ConfigMap returns nil if there is no ConfigMap of that name.
func (m *Member) ConfigMap(ctx context.Context, name string) (*corev1.ConfigMap, error) {
	configMap, err := m.Core.CoreV1().ConfigMaps(m.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading ConfigMap %s/%s: %w", m.Namespace, name, err)
	}
	return configMap, nil
}

// AgentConfig reads ConfigMap fleet-agent; without it the zero value applies. A ConfigMap that cannot be parsed is an error:
// the defaults may trust more CAs than its settings.
func (m *Member) AgentConfig(ctx context.Context) (c config.Agent, found bool, err error) {
	configMap, err := m.ConfigMap(ctx, registration.AgentConfigMap)
	if err != nil || configMap == nil {
		return config.Agent{}, false, err
	}
	c, err = config.ParseAgent(configMap.Data[registration.ConfigKey])
	return c, err == nil, err
}

// ClientID returns the configured clientID, or else the UID of Namespace kube-system, which exists as long as the cluster.
func (m *Member) ClientID(ctx context.Context, c config.Agent) (string, error) {
	if c.ClientID != "" {
		return c.ClientID, nil
	}
	namespace, err := m.Core.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("reading Namespace %s, whose UID is the clientID because ConfigMap %s/%s sets none: %w",
			metav1.NamespaceSystem, m.Namespace, registration.AgentConfigMap, err)
	}
	return string(namespace.UID), nil
}

func newClientset(c *rest.Config) (kubernetes.Interface, *http.Client, error) {
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		return nil, nil, fmt.Errorf("connecting to the member's API server: %w", err)
	}
	core, err := kubernetes.NewForConfigAndClient(c, client)
	return core, client, err
}

func closeIdle(client *http.Client) {
	if client.Transport != nil {
		utilnet.CloseIdleConnectionsFor(client.Transport)
	}
}
