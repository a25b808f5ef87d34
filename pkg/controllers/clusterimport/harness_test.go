package clusterimport

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/lru"

	"github.com/muster-fleet/muster/pkg/agentmanifest"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/fakecache"
	"github.com/muster-fleet/muster/pkg/controllers/internal/finalizing"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/metrics"
	fleetfake "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/fake"
	"github.com/muster-fleet/muster/pkg/registration"
)

func pemOf(certificate *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})
}

// loopback lets the hub call the members of these tests.
var loopback = config.Members{AllowedCIDRs: config.CIDRs{netip.MustParsePrefix("127.0.0.0/8")}}

var hubConfig = config.Hub{APIServerURL: "https://hub:6443", AgentImage: "rancher/fleet-agent:dev", Members: loopback}

// harness is an Importer whose caches, clients, clock and member a test controls.
type harness struct {
	*Importer
	requests *fakecache.Cache[*fleet.ClusterRegistration]
	tokens   *fakecache.Cache[*fleet.ClusterRegistrationToken]
	values   *fakecache.Cache[*corev1.Secret] // of the tokens
	clusters *fakecache.Cache[*fleet.Cluster]
	clock    *clocktesting.FakeClock
	kube     *fake.Clientset
	fleet    *fleetfake.Clientset
}

func newHarness(t *testing.T, objects ...runtime.Object) *harness {
	t.Helper()
	h := &harness{
		requests: fakecache.With[*fleet.ClusterRegistration](), tokens: fakecache.With[*fleet.ClusterRegistrationToken](),
		values: fakecache.With[*corev1.Secret](), clusters: fakecache.With[*fleet.Cluster](),
		kube: fake.NewClientset(objects...), fleet: fleetfake.NewSimpleClientset(),
	}
	calls := newTestCalls(t)
	h.clock = calls.clock
	h.Importer = &Importer{
		Context: &app.Context{
			Metrics:    metrics.New(nil),
			Kubernetes: h.kube, FleetClient: h.fleet.FleetV1alpha1(), Config: config.NewStore(hubConfig), Clock: calls.clock, SystemNamespace: system,
			Agent:          app.AgentSettings{Image: "muster-fleet/fleet-agent:dev"},
			SecretMetadata: cache.NewSharedIndexInformer(nil, &metav1.PartialObjectMetadata{}, 0, cache.Indexers{}),
		},
		clusters: h.clusters, tokens: h.tokens, createdTokens: expectations.New(calls.clock), secrets: h.values,
		pullSecretDigests: lru.New(maxPullSecretDigests), renderer: agentmanifest.NewRenderer(), requests: h.requests, calls: calls.memberCalls,
	}
	for _, object := range objects {
		if secret, ok := object.(*corev1.Secret); ok {
			h.see(t, secret)
		}
	}
	return h
}

// Reconcile is a pass over a Cluster that is not deleted.
func (h *harness) Reconcile(ctx context.Context, cluster *fleet.Cluster) result.Result {
	defer h.BeginPass(cluster)()
	return h.Importer.Reconcile(ctx, cluster)
}

// Uninstall is a pass over a deleted Cluster.
func (h *harness) Uninstall(ctx context.Context, cluster *fleet.Cluster, deadline time.Time) (finalizing.Farewell, error) {
	defer h.BeginPass(cluster)()
	return h.Importer.Uninstall(ctx, cluster, deadline)
}

// AgentBelongsTo is a pass over a deleted Cluster.
func (h *harness) AgentBelongsTo(ctx context.Context, cluster *fleet.Cluster, others []*fleet.Cluster) (belongs, canAsk bool, err error) {
	defer h.BeginPass(cluster)()
	return h.Importer.AgentBelongsTo(ctx, cluster, others)
}

// see puts a version of a Secret into the cache of versions.
func (h *harness) see(t *testing.T, secret *corev1.Secret) {
	t.Helper()
	require.NoError(t, h.SecretMetadata.GetStore().Add(&metav1.PartialObjectMetadata{ObjectMeta: *secret.ObjectMeta.DeepCopy()}))
}

// giveToken makes the import token of a Cluster as the controller of tokens would.
func (h *harness) giveToken(t *testing.T, cluster *fleet.Cluster) {
	t.Helper()
	name := registration.ImportTokenName(cluster.Name)
	h.tokens.All = append(h.tokens.All, &fleet.ClusterRegistrationToken{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cluster.Namespace, Name: name, UID: "token",
			OwnerReferences: []metav1.OwnerReference{{Kind: "Cluster", Name: cluster.Name, UID: cluster.UID}},
		},
	})
	h.values.All = append(h.values.All, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: name, OwnerReferences: []metav1.OwnerReference{{UID: "token"}}},
		Type:       registration.SecretTypeValues, Data: map[string][]byte{registration.ValuesKey: encoded(t, someValues())},
	})
}

// leaveOut leaves the data of the Secret of the token out of the cache, as the cache of the hub does with large data.
func (h *harness) leaveOut(data map[string][]byte) {
	live := h.values.All[0].DeepCopy()
	h.values.All[0].Data, live.Data = nil, data
	_ = h.kube.Tracker().Add(live)
}

func someValues() registration.Values {
	return registration.Values{
		Workspace: "ns", APIServerURL: "https://hub:6443", Token: "bearer", TokenName: "import-token-c",
		SystemRegistrationNamespace: "cattle-fleet-clusters-system",
	}
}

func encoded(t *testing.T, values registration.Values) []byte {
	t.Helper()
	data, err := registration.EncodeValues(values)
	require.NoError(t, err)
	return data
}

// planInput is what an installPlan is made of. Its Cluster has no agent yet.
type planInput struct {
	*harness
	hub     config.Hub
	cluster *fleet.Cluster
	facts   facts
	info    hubInfo
	values  *registration.Values
}

// plan returns the plan for a first import, and its rendered objects; change is applied to its input before.
func plan(t *testing.T, change func(*planInput)) (*installPlan, []runtime.Object) {
	t.Helper()
	values := someValues()
	in := &planInput{
		harness: newHarness(t), hub: hubConfig, cluster: installed(), values: &values,
		facts: facts{registrationID: "uid", manifestHash: "m"},
		info:  hubInfo{apiServerURL: "https://hub:6443", tlsMode: config.TLSModeStrict, gcInterval: metav1.Duration{Duration: 15 * time.Minute}},
	}
	in.cluster.Status.AgentDeployedGeneration = nil
	if change != nil {
		change(in)
	}
	in.facts.agentNamespace = agentspec.Namespace(in.Context, in.cluster)
	in.Config.Set(in.hub)
	pull, out := in.pullSecrets(t.Context(), in.hub, in.cluster)
	require.True(t, out.IsDone(), out.Message)
	made, err := in.Importer.plan(in.hub, in.cluster, in.facts, in.info, in.values, pull)
	require.NoError(t, err)
	copies, out := in.pullSecretCopies(t.Context(), pull.names, in.facts.agentNamespace)
	require.True(t, out.IsDone(), out.Message)
	objects, err := made.render(in.renderer, copies)
	require.NoError(t, err)
	return made, objects
}
