package clusterimport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/transport"
)

const (
	// requestTimeout bounds one request to a member.
	requestTimeout = 15 * time.Second
)

// member is a connection to one member cluster with the rights of its kubeconfig.
type member struct {
	server      string
	fingerprint string // of the kubeconfig
	version     rest.Interface
	objects     dynamic.Interface
	transport   *http.Transport
	config      *rest.Config                            // the same connection, for libraries that want one of these
	agent       func(namespace string) (*member, error) // nil but on the hub's own cluster
}

// newMember prepares a connection; nothing is sent yet.
func newMember(kubeconfig *clientcmdapi.Config, mode config.TLSMode) (*member, error) {
	cfg, err := clientcmd.NewDefaultClientConfig(*kubeconfig, nil).ClientConfig()
	if err != nil {
		return nil, err
	}
	fingerprint, err := registration.StatusHash([]any{kubeconfig, mode})
	if err != nil {
		return nil, err
	}
	cfg.Timeout = requestTimeout
	cfg.QPS = -1 // a dozen requests, one after another, limit themselves
	cfg.UserAgent = "fleetcontroller"
	client, connections, err := newHTTPClient(cfg, mode)
	if err != nil {
		return nil, err
	}
	m, err := connect(cfg, client)
	if err == nil {
		m.fingerprint, m.transport = fingerprint, connections
	}
	return m, err
}

// connect makes the clients of a member.
func connect(cfg *rest.Config, client *http.Client) (*member, error) {
	greeter, err := discovery.NewDiscoveryClientForConfigAndClient(cfg, client)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfigAndClient(cfg, client)
	if err != nil {
		return nil, err
	}
	return &member{
		server: shown(cfg.Host), version: greeter.RESTClient(), objects: objects,
		config: &rest.Config{Host: cfg.Host, Transport: client.Transport, Timeout: cfg.Timeout, QPS: cfg.QPS},
	}, nil
}

// shown is a server's address without what only the server should see of it.
func shown(server string) string {
	address, err := url.Parse(server)
	if err != nil {
		return "the server of the kubeconfig"
	}
	return (&url.URL{Scheme: address.Scheme, Host: address.Host, Path: address.Path}).String()
}

var errInsecure = fmt.Errorf("it says insecure-skip-tls-verify, and agentTLSMode is %s: embed the member's CA instead, or set agentTLSMode to %s",
	config.TLSModeStrict, config.TLSModeSystemStore)

// newHTTPClient has a transport of its own, which can be closed: client-go's cache would keep one for every kubeconfig it
// ever saw. In mode system-store the CAs of the operating system count as well as the kubeconfig's. In mode strict those of the
// kubeconfig do; where it has none, it says itself that the system's are meant, but it may not say that none is needed.
func newHTTPClient(cfg *rest.Config, mode config.TLSMode) (*http.Client, *http.Transport, error) {
	if cfg.Insecure && mode == config.TLSModeStrict {
		return nil, nil, errInsecure
	}
	tlsConfig, err := rest.TLSConfigFor(cfg)
	if err != nil {
		return nil, nil, err
	}
	if tlsConfig == nil {
		tlsConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if mode == config.TLSModeSystemStore && tlsConfig.RootCAs != nil && !cfg.Insecure {
		if tlsConfig.RootCAs, err = withSystemRoots(cfg.CAData); err != nil {
			return nil, nil, err
		}
	}
	connections := transport.New(tlsConfig, cfg.Proxy)
	wrapped, err := rest.HTTPWrappersForConfig(cfg, transport.Steady{Next: connections})
	if err != nil {
		return nil, nil, err
	}
	return &http.Client{Transport: wrapped, Timeout: cfg.Timeout}, connections, nil
}

func withSystemRoots(ca []byte) (*x509.CertPool, error) {
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, err
	}
	roots.AppendCertsFromPEM(ca)
	return roots, nil
}

// greet finds out whether a Kubernetes API server answers. The discovery client's own method takes no context and would
// keep a hub from stopping.
func (m *member) greet(ctx context.Context) error {
	result := m.version.Get().AbsPath("/version").Do(ctx)
	if err := result.Error(); err != nil { // Raw would not say what the server wrote
		return err
	}
	body, err := result.Raw()
	if err != nil {
		return err
	}
	var info apiversion.Info
	if err := json.Unmarshal(body, &info); err != nil || info.GitVersion == "" {
		return errors.New("what answers is no Kubernetes API server")
	}
	return nil
}

func (m *member) close() {
	if m.transport != nil { // the hub's own connections are not this member's to close
		m.transport.CloseIdleConnections()
	}
}

// asAgent is the same member with the rights of the agent in that namespace: on the hub's own cluster the hub may install an
// agent, but only the agent itself may do whatever it was asked to do. Elsewhere the kubeconfig is for all of it.
func (m *member) asAgent(namespace string) (*member, error) {
	if m.agent == nil {
		return m, nil
	}
	return m.agent(namespace)
}

// resources are the kinds an agent consists of. Knowing them saves a discovery for each import.
var resources = map[string]schema.GroupVersionResource{
	"Namespace":           {Version: "v1", Resource: "namespaces"},
	"Secret":              {Version: "v1", Resource: "secrets"},
	"ConfigMap":           {Version: "v1", Resource: "configmaps"},
	"ServiceAccount":      {Version: "v1", Resource: "serviceaccounts"},
	"ClusterRole":         {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	"ClusterRoleBinding":  {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
	"Deployment":          {Group: "apps", Version: "v1", Resource: "deployments"},
	"Pod":                 {Version: "v1", Resource: "pods"},
	"NetworkPolicy":       {Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"},
	"PriorityClass":       {Group: "scheduling.k8s.io", Version: "v1", Resource: "priorityclasses"},
	"Lease":               {Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
	"PodDisruptionBudget": {Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
}

func (m *member) resource(kind, namespace string) (dynamic.ResourceInterface, error) {
	gvr, known := resources[kind]
	if !known {
		return nil, fmt.Errorf("no resource is known for kind %s", kind)
	}
	if namespace == "" {
		return m.objects.Resource(gvr), nil
	}
	return m.objects.Resource(gvr).Namespace(namespace), nil
}

// apply makes the object as given, whoever made it before: on a member the agent's objects may be of an earlier import, of
// another release or of the chart.
func (m *member) apply(ctx context.Context, object runtime.Object) error {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	kind := object.GetObjectKind().GroupVersionKind().Kind
	client, err := m.resource(kind, accessor.GetNamespace())
	if err != nil {
		return err
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return err
	}
	unstructured.RemoveNestedField(content, "status")
	apply := func() error {
		_, err := client.Apply(ctx, accessor.GetName(), &unstructured.Unstructured{Object: content},
			metav1.ApplyOptions{FieldManager: registration.FieldManager, Force: true})
		return err
	}
	if err = apply(); !blocked(kind, content, err) {
		return err
	}
	if err := m.makeWay(ctx, kind, accessor.GetNamespace(), accessor.GetName()); err != nil {
		return err
	}
	return apply()
}

// makeWay changes what is there so that the object can be applied: the value of a PriorityClass cannot be changed, and a
// Deployment that is to have strategy Recreate must first lose the settings for rolling updates, which the API server
// filled in and nobody owns.
func (m *member) makeWay(ctx context.Context, kind, namespace, name string) error {
	if kind == "PriorityClass" {
		return m.remove(ctx, kind, namespace, name)
	}
	client, err := m.resource(kind, namespace)
	if err != nil {
		return err
	}
	recreate := []byte(`{"spec":{"strategy":{"type":"Recreate","rollingUpdate":null}}}`)
	_, err = client.Patch(ctx, name, types.MergePatchType, recreate, metav1.PatchOptions{FieldManager: registration.FieldManager})
	return err
}

func blocked(kind string, content map[string]any, err error) bool {
	strategy, _, _ := unstructured.NestedString(content, "spec", "strategy", "type")
	return apierrors.IsInvalid(err) &&
		(kind == "PriorityClass" || kind == "Deployment" && strategy == string(appsv1.RecreateDeploymentStrategyType))
}

// remove deletes an object, if it is there.
func (m *member) remove(ctx context.Context, kind, namespace, name string) error {
	client, err := m.resource(kind, namespace)
	if err != nil {
		return err
	}
	err = client.Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
