// Package member gives the agent access to the API server of its own cluster, the member: the Secrets and ConfigMaps in its
// namespace, events on its Deployment, and a watch on the Secrets and ConfigMaps that configure its registration.
package member

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/transport"
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

// WatchConfiguration watches the bootstrap Secret and the ConfigMaps that configure the registration of a running agent, until ctx ends. It
// sends to changed when one of them is created or changed, also for an object that exists at the start, and when Secret fleet-agent is deleted.
// The agent itself writes that Secret, and never deletes it while it works. The signal has no content: the receiver reads the objects.
// client-go retries failed watches.
func (m *Member) WatchConfiguration(ctx context.Context, changed chan<- struct{}) {
	core := m.Watching.CoreV1()
	secrets, configMaps := core.Secrets(m.Namespace), core.ConfigMaps(m.Namespace)
	var watches sync.WaitGroup
	signal := func() {
		select {
		case changed <- struct{}{}:
		default: // a signal is already waiting
		}
	}
	updated := func(older, newer any) { // also called for each object that a new list contains, changed or not
		if older.(metav1.Object).GetResourceVersion() != newer.(metav1.Object).GetResourceVersion() {
			signal()
		}
	}
	written := cache.ResourceEventHandlerFuncs{AddFunc: func(any) { signal() }, UpdateFunc: updated}
	deleted := cache.ResourceEventHandlerFuncs{DeleteFunc: func(any) { signal() }}
	watches.Go(func() {
		watchOne(ctx, m.Watching, secrets, registration.BootstrapSecret, &corev1.Secret{}, written)
	})
	watches.Go(func() {
		watchOne(ctx, m.Watching, secrets, registration.CredentialSecret, &corev1.Secret{}, deleted)
	})
	for _, name := range []string{registration.AgentHubConfigMap, registration.AgentConfigMap} {
		watches.Go(func() { watchOne(ctx, m.Watching, configMaps, name, &corev1.ConfigMap{}, written) })
	}
	watches.Wait()
}

// watchOne watches one object until ctx ends. It selects the object by its name on the API server, so that the other objects of the namespace
// are not transferred.
func watchOne[L runtime.Object](
	ctx context.Context, member any, client transport.ListWatcher[L], name string, kind runtime.Object, handler cache.ResourceEventHandler,
) {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	lw := transport.ListWatch(client, func(o *metav1.ListOptions) { o.FieldSelector = selector })
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(lw, member), ObjectType: kind, Handler: handler, Transform: withoutData,
	})
	informer.RunWithContext(ctx)
}

// withoutData keeps tokens out of the informer's store.
func withoutData(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.Secret:
		return &corev1.Secret{ObjectMeta: nameAndVersion(o)}, nil
	case *corev1.ConfigMap:
		return &corev1.ConfigMap{ObjectMeta: nameAndVersion(o)}, nil
	}
	return object, nil
}

func nameAndVersion(o metav1.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion()}
}

// RecordEvent writes an event on the agent's Deployment, where people look first. There is one Event object for each reason;
// it counts its occurrences, as Kubernetes' own events do.
func (m *Member) RecordEvent(ctx context.Context, at time.Time, kind, reason, message string) error {
	now := metav1.NewTime(at)
	events := m.Core.CoreV1().Events(m.Namespace)
	involved, _ := m.DeploymentReference(ctx) // an event without the UID is still listed
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: m.Namespace, Name: registration.AgentName + "." + strings.ToLower(reason)},
		InvolvedObject: involved,
		Type:           kind, Reason: reason, Message: Brief(message),
		Source:         corev1.EventSource{Component: registration.AgentName},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	_, err := events.Create(ctx, event, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	earlier, err := events.Get(ctx, event.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading Event %s/%s: %w", m.Namespace, event.Name, err)
	}
	earlier.InvolvedObject, earlier.Message = event.InvolvedObject, event.Message
	earlier.LastTimestamp, earlier.Count = now, earlier.Count+1
	_, err = events.Update(ctx, earlier, metav1.UpdateOptions{})
	return err
}

// DeploymentReference returns a reference to the agent's Deployment. The UID is empty if there is no Deployment or it cannot be read.
func (m *Member) DeploymentReference(ctx context.Context) (corev1.ObjectReference, error) {
	reference := corev1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: m.Namespace, Name: registration.AgentName}
	deployment, err := m.Core.AppsV1().Deployments(m.Namespace).Get(ctx, registration.AgentName, metav1.GetOptions{})
	switch {
	case err == nil:
		reference.UID = deployment.UID
	case !apierrors.IsNotFound(err):
		return reference, fmt.Errorf("reading Deployment %s/%s: %w", m.Namespace, registration.AgentName, err)
	}
	return reference, nil
}

// Brief cuts a text that may contain a page of HTML from a proxy, so that it fits into an event or a status.
func Brief(text string) string { return fleetstatus.Cut(text, 400) }
