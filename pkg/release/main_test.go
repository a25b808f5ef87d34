package release

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/internal/controlplane"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/transport"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

var owner = Owner{Namespace: "cattle-fleet-system", Workspace: "fleet-default", ClusterName: "one"}

// member is a real cluster, and a namespace of it for one test.
type member struct {
	*Client
	t         *testing.T
	namespace string
	core      kubernetes.Interface
}

func onMember(t *testing.T, wrap ...func(*rest.Config)) *member {
	t.Helper()
	config := rest.CopyConfig(controlplane.Shared(t, "member").RESTConfig())
	core, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	for _, f := range wrap {
		f(config)
	}
	client, err := New(config)
	require.NoError(t, err)
	namespace, err := core.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "release-"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	return &member{Client: client, t: t, namespace: namespace.Name, core: core}
}

// through returns an option of onMember: a function that sends the requests of the client.
func through(send transport.Sender) func(*rest.Config) {
	return func(c *rest.Config) { c.Wrap(send.Wrap) }
}

// store creates a Secret of a revision, as a user can who may write Secrets in the namespace.
func (m *member) store(secret *corev1.Secret) {
	m.t.Helper()
	secret.Namespace = m.namespace
	_, err := m.core.CoreV1().Secrets(m.namespace).Create(m.t.Context(), secret, metav1.CreateOptions{})
	require.NoError(m.t, err)
}

// request deploys files, which are pairs of name and content, under the name "app".
func (m *member) request(files ...string) Request {
	r := Request{Namespace: m.namespace, Name: "app", BundleDeployment: "app", Labels: owner.LabelsFor("app", "one"), ServiceAccountNamespace: m.namespace}
	r.Options.DefaultNamespace = m.namespace
	for i := 0; i < len(files); i += 2 {
		r.Resources = append(r.Resources, fleet.BundleResource{Name: files[i], Content: files[i+1]})
	}
	return r
}

func (m *member) deploy(r Request) Deployed {
	m.t.Helper()
	d, err := m.Deploy(m.t.Context(), r)
	require.NoError(m.t, err)
	return d
}

func (m *member) configMap(name string) *corev1.ConfigMap {
	m.t.Helper()
	found, err := m.core.CoreV1().ConfigMaps(m.namespace).Get(context.Background(), name, metav1.GetOptions{})
	require.NoError(m.t, err)
	return found
}

func (m *member) configMaps() (names []string) {
	m.t.Helper()
	list, err := m.core.CoreV1().ConfigMaps(m.namespace).List(context.Background(), metav1.ListOptions{})
	require.NoError(m.t, err)
	for _, o := range list.Items {
		if o.Name != "kube-root-ca.crt" {
			names = append(names, o.Name)
		}
	}
	return names
}

// configMap returns the manifest of a ConfigMap.
func configMap(name, key, value string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: " + name + "\ndata:\n  " + key + ": " + value + "\n"
}
