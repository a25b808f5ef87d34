package clusterimport

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"testing"
	"time"

	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/lru"

	"github.com/muster-fleet/muster/pkg/agentmanifest"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func pemOf(certificate *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})
}

var hubConfig = config.Hub{APIServerURL: "https://hub:6443", AgentImage: "rancher/fleet-agent:dev"}

// store answers for the caches and the client of tokens; err, if set, is its only answer.
type store struct {
	fleetcontrollers.ClusterRegistrationTokenController
	fleetcontrollers.ClusterRegistrationTokenCache
	tokens  map[string]*fleet.ClusterRegistrationToken
	created []*fleet.ClusterRegistrationToken
	err     error
}

type tokenCache struct {
	fleetcontrollers.ClusterRegistrationTokenCache
	*store
}

func (s tokenCache) Get(_, name string) (*fleet.ClusterRegistrationToken, error) {
	if token := s.tokens[name]; token != nil {
		return token, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "clusterregistrationtokens"}, name)
}

type tokenClient struct {
	fleetcontrollers.ClusterRegistrationTokenController
	*store
}

func (s tokenClient) Create(token *fleet.ClusterRegistrationToken) (*fleet.ClusterRegistrationToken, error) {
	s.created = append(s.created, token)
	return token, s.err
}

type secretCache struct {
	corecontrollers.SecretCache
	secrets map[string]*corev1.Secret
}

func (s secretCache) Get(_, name string) (*corev1.Secret, error) {
	if secret := s.secrets[name]; secret != nil {
		return secret, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
}

// requests answers for the cache of ClusterRegistrations.
type requests struct {
	all      []*fleet.ClusterRegistration
	notFound error
}

func (r *requests) GetByIndex(string, string) ([]*fleet.ClusterRegistration, error) {
	return r.all, r.notFound
}

// bundleDeployments are those on the hub, by name.
type bundleDeployments struct {
	names []string
	err   error
}

func (d *bundleDeployments) Get(namespace, name string, _ metav1.GetOptions) (*fleet.BundleDeployment, error) {
	if d.err != nil || slices.Contains(d.names, namespace+"/"+name) {
		return &fleet.BundleDeployment{}, d.err
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "bundledeployments"}, name)
}

// office is a Step whose caches, clock and member a test holds.
type office struct {
	*Step
	tokens *store
	values secretCache
	requests
	deployments bundleDeployments
	clock       *clocktesting.FakeClock
	kube        *fake.Clientset
	ended       chan struct{} // one for each call to a member that has ended
}

func newOffice(t *testing.T, objects ...runtime.Object) *office {
	t.Helper()
	o := &office{
		tokens: &store{tokens: map[string]*fleet.ClusterRegistrationToken{}},
		values: secretCache{secrets: map[string]*corev1.Secret{}},
		kube:   fake.NewClientset(objects...),
	}
	b := newBench(t)
	o.clock, o.ended = b.clock, make(chan struct{}, 100)
	versions := &secretVersions{informer: cache.NewSharedIndexInformer(nil, &metav1.PartialObjectMetadata{}, 0, cache.Indexers{})}
	o.Step = &Step{
		Context: &app.Context{
			Kubernetes: o.kube, Config: config.NewStore(hubConfig), Clock: b.clock, SystemNamespace: system,
			Agent: app.AgentSettings{Image: "muster-fleet/fleet-agent:dev"},
		},
		tokens: tokenClient{store: o.tokens}, known: tokenCache{store: o.tokens}, made: expectations.New(b.clock), values: o.values, secrets: versions, pool: b.pool,
		digests: lru.New(digestsKept), forms: agentmanifest.NewForms(), requests: &o.requests, deployments: &o.deployments,
	}
	for _, object := range objects {
		if secret, ok := object.(*corev1.Secret); ok {
			o.see(t, secret)
		}
	}
	return o
}

// see puts a version of a Secret into the cache of versions.
func (o *office) see(t *testing.T, secret *corev1.Secret) {
	t.Helper()
	require.NoError(t, o.secrets.informer.GetStore().Add(&metav1.PartialObjectMetadata{ObjectMeta: *secret.ObjectMeta.DeepCopy()}))
}

// giveToken makes the import token of a Cluster as the controller of tokens would.
func (o *office) giveToken(t *testing.T, cluster *fleet.Cluster) {
	t.Helper()
	name := registration.ImportTokenName(cluster.Name)
	o.tokens.tokens[name] = &fleet.ClusterRegistrationToken{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cluster.Namespace, Name: name, OwnerReferences: []metav1.OwnerReference{{Kind: "Cluster", Name: cluster.Name, UID: cluster.UID}},
		},
		Status: fleet.ClusterRegistrationTokenStatus{SecretName: name},
	}
	o.values.secrets[name] = &corev1.Secret{Data: map[string][]byte{registration.ValuesKey: encoded(t, someValues())}}
}

func someValues() registration.Values {
	return registration.Values{
		ClusterNamespace: "ns", APIServerURL: "https://hub:6443", Token: "bearer", TokenName: "import-token-c",
		SystemRegistrationNamespace: "cattle-fleet-clusters-system",
	}
}

func encoded(t *testing.T, values registration.Values) []byte {
	t.Helper()
	data, err := registration.EncodeValues(values)
	require.NoError(t, err)
	return data
}

// newPass is a pass that has read its kubeconfig Secret.
func newPass(t *testing.T, secret *corev1.Secret) *pass {
	t.Helper()
	o := newOffice(t)
	return &pass{
		Step: o.Step, cluster: installed(), hub: hubConfig, secret: secret,
		facts:  facts{registrationFor: "uid", manifest: "m"},
		wanted: delivery{apiServerURL: "https://hub:6443", tlsMode: config.TLSModeStrict, gcInterval: metav1.Duration{Duration: 15 * time.Minute}},
	}
}

// planned is what a pass over a fresh Cluster would install.
func planned(t *testing.T, change func(*pass)) *plan {
	t.Helper()
	p := newPass(t, kubeconfigSecret(nil))
	p.cluster.Status.AgentDeployedGeneration = nil
	if change != nil {
		change(p)
	}
	values := someValues()
	made, out := p.plan(context.Background(), &values)
	require.NotNil(t, made, out.Message)
	return made
}
