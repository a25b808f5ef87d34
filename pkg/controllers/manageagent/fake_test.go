package manageagent

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/content"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/fakecache"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
)

const system = "cattle-fleet-system"

var hubConfig = config.Hub{APIServerURL: "https://hub:6443", AgentImage: "rancher/fleet-agent:dev"}

// server stores Bundles as an API server does.
type server struct {
	told []string // patches of BundleDeployments
	fleetclient.BundleInterface
	bundles map[string]*fleet.Bundle
	writes  []string
	fails   map[string]error // by verb
	version int
}

var resource = schema.GroupResource{Group: "fleet.cattle.io", Resource: "bundles"}

func (s *server) store(bundle *fleet.Bundle) *fleet.Bundle {
	s.version++
	bundle.ResourceVersion = strconv.Itoa(s.version)
	if bundle.UID == "" {
		bundle.UID = types.UID("bundle-" + bundle.ResourceVersion)
	}
	s.bundles[bundle.Name] = bundle
	return bundle.DeepCopy()
}

func (s *server) write(verb string) error {
	s.writes = append(s.writes, verb)
	return s.fails[verb]
}

func (s *server) Create(_ context.Context, bundle *fleet.Bundle, _ metav1.CreateOptions) (*fleet.Bundle, error) {
	if err := s.write("create"); err != nil {
		return nil, err
	}
	if s.bundles[bundle.Name] != nil {
		return nil, apierrors.NewAlreadyExists(resource, bundle.Name)
	}
	bundle = bundle.DeepCopy()
	bundle.Spec.ResourcesDigest = "" // it is not sent
	return s.store(bundle), nil
}

func (s *server) Get(_ context.Context, name string, _ metav1.GetOptions) (*fleet.Bundle, error) {
	if err := s.fails["get"]; err != nil {
		return nil, err
	}
	if found := s.bundles[name]; found != nil {
		return found.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(resource, name)
}

func (s *server) Delete(_ context.Context, name string, options metav1.DeleteOptions) error {
	if err := s.write("delete"); err != nil {
		return err
	}
	found := s.bundles[name]
	if found == nil {
		return apierrors.NewNotFound(resource, name)
	}
	if options.Preconditions == nil || *options.Preconditions.UID != found.UID {
		return apierrors.NewConflict(resource, name, errors.New("another one"))
	}
	delete(s.bundles, name)
	return nil
}

func (s *server) Patch(_ context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*fleet.Bundle, error) {
	if err := s.write("patch"); err != nil {
		return nil, err
	}
	found := s.bundles[name]
	if found == nil {
		return nil, apierrors.NewNotFound(resource, name)
	}
	before, err := json.Marshal(found)
	if err != nil {
		return nil, err
	}
	after, err := jsonpatch.MergePatch(before, data)
	if err != nil {
		return nil, err
	}
	patched := &fleet.Bundle{}
	if err := json.Unmarshal(after, patched); err != nil {
		return nil, err
	}
	if patched.ResourceVersion != found.ResourceVersion {
		return nil, apierrors.NewConflict(resource, name, errors.New("older"))
	}
	return s.store(patched), nil
}

// clients are the typed clients of a server.
type clients struct {
	fleetclient.FleetV1alpha1Interface
	bundles *server
}

func (c clients) Bundles(string) fleetclient.BundleInterface { return c.bundles }

func (c clients) BundleDeployments(namespace string) fleetclient.BundleDeploymentInterface {
	return deployments{server: c.bundles, namespace: namespace}
}

// deployments notes the patches of BundleDeployments, of which none exists.
type deployments struct {
	fleetclient.BundleDeploymentInterface
	server    *server
	namespace string
}

func (d deployments) Patch(_ context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*fleet.BundleDeployment, error) {
	if err := d.server.fails["patch BundleDeployment"]; err != nil {
		return nil, err
	}
	d.server.told = append(d.server.told, d.namespace+"/"+name+" "+string(data))
	return nil, apierrors.NewNotFound(resource, name)
}

// stage is an AgentBundles with a fake server and fake caches.
type stage struct {
	*AgentBundles
	clock    *clocktesting.FakeClock
	server   *server
	cache    *fakecache.Cache[*fleet.Bundle]
	requests *fakecache.Cache[*fleet.ClusterRegistration]
}

func newStage(t *testing.T) *stage {
	t.Helper()
	o := &stage{
		clock:    clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0)),
		server:   &server{bundles: map[string]*fleet.Bundle{}, fails: map[string]error{}},
		cache:    fakecache.With[*fleet.Bundle](),
		requests: fakecache.With[*fleet.ClusterRegistration](),
	}
	o.AgentBundles = &AgentBundles{
		Context: &app.Context{Clock: o.clock, Config: config.NewStore(hubConfig), SystemNamespace: system, FleetClient: clients{bundles: o.server}},
		bundles: o.cache, requests: o.requests, manifests: newManifests(), written: expectations.New(clock.RealClock{}), created: expectations.New(clock.RealClock{}),
	}
	return o
}

// grant grants a request of the agent.
func (s *stage) grant() {
	s.requests.All = []*fleet.ClusterRegistration{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns"},
		Spec:       fleet.ClusterRegistrationSpec{ClientID: "id"},
		Status:     fleet.ClusterRegistrationStatus{Granted: true},
	}}
}

// catchUp makes the cache equal to the server, without the resources.
func (s *stage) catchUp() {
	s.cache.All = nil
	for _, bundle := range s.server.bundles {
		bundle = bundle.DeepCopy()
		content.WithoutResources(&bundle.Spec)
		s.cache.All = append(s.cache.All, bundle)
	}
}

// put stores a Bundle as another client would.
func (s *stage) put(bundle *fleet.Bundle) {
	s.server.store(bundle)
	s.catchUp()
}

// bundle is the Bundle of the Cluster on the server.
func (s *stage) bundle(t *testing.T) *fleet.Bundle {
	t.Helper()
	found := s.server.bundles["fleet-agent-c"]
	require.NotNil(t, found)
	return found
}

// forget drops the log of writes.
func (s *stage) forget() { s.server.writes = nil }

func (s *stage) wrote() []string { return slices.Clone(s.server.writes) }

// imported is a Cluster whose agent the hub has installed, is connected and follows its Bundle.
func imported() *fleet.Cluster {
	return &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "uid"},
		Spec:       fleet.ClusterSpec{ClientID: "id", KubeConfigSecret: "kbcfg"},
		Status: fleet.ClusterStatus{
			AgentDeployedGeneration: ptr.To(int64(0)),
			Import:                  &fleet.ImportStatus{AgentNamespace: system},
			Agent:                   fleet.AgentStatus{LastSeen: metav1.Now(), Namespace: system, Generation: "managed/0"},
			Conditions:              []genericcondition.GenericCondition{{Type: fleet.ConditionConnected, Status: corev1.ConditionTrue}},
		},
	}
}

// selfRegistered is a Cluster whose agent registered by itself.
func selfRegistered() *fleet.Cluster {
	c := imported()
	c.Spec.KubeConfigSecret, c.Status.AgentDeployedGeneration, c.Status.Import = "", nil, nil
	return c
}
