package clusterregistration

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	"github.com/rancher/wrangler/v3/pkg/generic"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/muster-fleet/muster/pkg/admission"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/backlog"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/fakecache"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/metrics"
	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	fakefleet "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/fake"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

const tokenUser = "system:serviceaccount:fleet-default:token-uid"

var (
	noon       = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	errTest    = errors.New("the API server is overloaded")
	inUse      = result.Stalled(fleet.ReasonClientIDInUse, "an agent has registered")
	denied     = result.Stalled(fleet.ReasonDenied, "no")
	requestKey = types.NamespacedName{Namespace: "fleet-default", Name: "request-abc"}
)

// scene is a handler whose caches and API servers are fakes, and a request of the holder of a token, of an agent that renews its
// credential, for an existing Cluster that no agent has registered for.
type scene struct {
	*handler
	request *fleet.ClusterRegistration
	cluster *fleet.Cluster
	token   *fleet.ClusterRegistrationToken

	delays   map[string]time.Duration // of the work queue of requests
	kube     *fake.Clientset
	fleet    *fakefleet.Clientset
	events   *record.FakeRecorder
	counting *tokenQueue
	// kindDeleted is whether the kind of requests was deleted.
	kindDeleted bool
	issued      []time.Duration // the lifetimes of the tokens that were issued
}

func newScene(t *testing.T) *scene {
	t.Helper()
	clock := clocktesting.NewFakeClock(noon)
	s := &scene{
		request: &fleet.ClusterRegistration{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "fleet-default", Name: "request-abc", UID: "0c5bbf4e", CreationTimestamp: metav1.NewTime(noon), ResourceVersion: "7",
				Labels:      map[string]string{fleet.RegistrationTokenLabel: "token"},
				Annotations: map[string]string{registration.RenewalAnnotation: "true", fleet.CreatorAnnotation: tokenUser},
			},
			Spec: fleet.ClusterRegistrationSpec{ClientID: "client", ClientRandom: "random"},
		},
		cluster: &fleet.Cluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: "fleet-default", Name: "member", UID: "c"}, Spec: fleet.ClusterSpec{ClientID: "client"},
		},
		token:    &fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet-default", Name: "token", UID: "uid"}},
		delays:   map[string]time.Duration{},
		events:   record.NewFakeRecorder(10),
		counting: &tokenQueue{},
	}
	s.handler = &handler{
		Context: &app.Context{
			SystemNamespace: "cattle-fleet-system", Clock: clock, Events: s.events, Metrics: metrics.New(nil), Passes: app.NewPasses(t.Context()),
			Config: config.NewStore(config.Hub{Registration: config.Registration{CredentialLifetime: metav1.Duration{Duration: time.Hour}}}),
			Fleet:  fleetQueues{tokens: s.counting}, Admission: policiesIn(admission.PolicyState{Since: noon}),
		},
		queue:    queue{delays: s.delays},
		requests: requestsOf(s.request),
		clusters: fakecache.With(s.cluster),
		tokens:   fakecache.With(s.token),
		secrets:  secretsOf(),
		accounts: fakecache.With[*corev1.ServiceAccount](),
		bindings: fakecache.With[*rbacv1.RoleBinding](),

		namespaces: namespaceOf{},
	}
	s.changes = &enqueue.Changes[changedDependencies]{Queue: s.queue, MarkAll: (*changedDependencies).markAll}
	s.handler.written.Clock, s.handler.writtenGrants.Clock, s.createdClusters.Clock, s.givenRights.Clock = clock, clock, clock, clock
	s.createdAnswers.Clock, s.deletedAnswers.Clock, s.lostAnswers = clock, clock, utilcache.NewExpiringWithClock(clock)
	s.replacedAnswers = utilcache.NewExpiringWithClock(clock)
	s.grantAttempts.Clock, s.writtenGrants.Timeout, s.grantAttempts.Timeout = clock, grantTimeout, grantTimeout
	s.Backlog = backlog.New(s.requests, s.clusters, clock, s.OriginPolicies)
	s.server(s.request, s.cluster)
	return s
}

// server replaces the API server by one with these objects, which issues tokens with the requested lifetime.
func (s *scene) server(objects ...runtime.Object) {
	var core, fleets []runtime.Object
	for _, object := range objects {
		switch object.(type) {
		case *fleet.ClusterRegistration, *fleet.Cluster:
			fleets = append(fleets, object)
		default:
			core = append(core, object)
		}
	}
	s.kube, s.fleet = fake.NewClientset(core...), fakefleet.NewSimpleClientset(fleets...)
	s.kube.PrependReactor("create", "serviceaccounts", func(action kubetesting.Action) (bool, runtime.Object, error) {
		request, ok := action.(kubetesting.CreateAction).GetObject().(*authenticationv1.TokenRequest)
		if !ok {
			return false, nil, nil
		}
		life := time.Duration(*request.Spec.ExpirationSeconds) * time.Second
		s.issued = append(s.issued, life)
		request.Status = authenticationv1.TokenRequestStatus{Token: bearer("uid", noon, noon.Add(life)), ExpirationTimestamp: metav1.NewTime(noon.Add(life))}
		return true, request, nil
	})
	s.kube.PrependReactor("create", "selfsubjectreviews", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, &authenticationv1.SelfSubjectReview{}, nil // an API server that does not say its time
	})
	s.Kubernetes, s.FleetClient = s.kube, s.fleet.FleetV1alpha1()
	s.Issuer = credential.Issuer{Client: s.kube.CoreV1(), Clock: s.Clock, Keys: s.Issuer.Keys}
	s.cacheSets() // never started: the caches stay empty
	s.identities.Kubernetes, s.identities.Clock = s.kube, s.Clock
	s.identities.KindDeleted = func(context.Context, string, metav1.Time, time.Time) (bool, error) { return s.kindDeleted, nil }
}

// cacheSets gives the sets new caches, which are empty until they are started.
func (s *scene) cacheSets() informers.SharedInformerFactory {
	caches := informers.NewSharedInformerFactory(s.kube, 0)
	s.sets = desiredset.New(s.kube, caches.Core().V1().ServiceAccounts().Informer(), caches.Coordination().V1().Leases().Informer(), caches.Rbac().V1().Roles().Informer(),
		caches.Rbac().V1().RoleBindings().Informer(), caches.Rbac().V1().ClusterRoleBindings().Informer())
	return caches
}

// bearer is a token of the ServiceAccount with that UID; a zero end is none.
func bearer(uid string, issued, expires time.Time) string { return signedBy("", uid, issued, expires) }

// signedBy returns a bearer token with the ID of the key that has signed it; "" leaves the ID out.
func signedBy(key, uid string, issued, expires time.Time) string {
	claims := jwt.MapClaims{"kubernetes.io": map[string]any{"serviceaccount": map[string]any{"name": "a", "uid": uid}}, "iat": issued.Unix()}
	if !expires.IsZero() {
		claims["exp"] = expires.Unix()
	}
	unsigned := jwt.NewWithClaims(jwt.SigningMethodHS256, claims)
	if key != "" {
		unsigned.Header["kid"] = key
	}
	token, err := unsigned.SignedString([]byte("k"))
	if err != nil {
		panic(err)
	}
	return token
}

// cannotRenew makes the agent of the request one that does not renew its credential, as Fleet's.
func (s *scene) cannotRenew() { delete(s.request.Annotations, registration.RenewalAnnotation) }

func (s *scene) configure(r config.Registration) {
	s.Config.Set(config.Hub{Registration: r})
	s.onConfigChange(config.Hub{}, s.Config.Get())
}

// grantRequest decides the request of the scene, and does not write its status.
func (s *scene) grantRequest(t *testing.T) (findings, result.Result) {
	t.Helper()
	found := findings{request: s.request, status: *s.request.Status.DeepCopy()}
	out := s.advance(t.Context(), &found)
	return found, out
}

// refuse carries out that the request is not granted.
func (s *scene) refuse(t *testing.T, out result.Result) result.Result {
	t.Helper()
	return s.carryOut(t.Context(), &findings{request: s.request, cluster: s.cluster}, out)
}

// credentialOf is the Secret as the hub writes it.
func (s *scene) credentialOf(request *fleet.ClusterRegistration, token string) *corev1.Secret {
	secret := s.answerSecret(request, map[string][]byte{registration.CredentialToken: []byte(token)})
	secret.Labels[fleet.ClusterLabel] = "member"
	return secret
}

func (s *scene) account() *corev1.ServiceAccount {
	return s.rights(s.request, s.cluster, nil)[0].(*corev1.ServiceAccount)
}

// earlier is a granted request of the same identity, with its credential, which no agent has used.
func (s *scene) earlier() (*fleet.ClusterRegistration, *corev1.Secret) {
	before := s.request.DeepCopy()
	before.Name, before.UID, before.Spec.ClientRandom, before.Status.Granted = "request-before", "before", "other", true
	return before, s.credentialOf(before, "bearer")
}

func (s *scene) haveCached(requests ...*fleet.ClusterRegistration) {
	s.handler.requests = requestsOf(append([]*fleet.ClusterRegistration{s.request}, requests...)...)
}

// fails lets the API servers answer a verb with an error.
func (s *scene) fails(verb, resource string, err error) {
	react := func(kubetesting.Action) (bool, runtime.Object, error) { return true, nil, err }
	s.kube.PrependReactor(verb, resource, react)
	s.fleet.PrependReactor(verb, resource, react)
}

// writes returns verb, resource and name of each write to the API servers, except those of Roles and their bindings.
func (s *scene) writes() (all []string) {
	for _, action := range append(s.fleet.Actions(), s.kube.Actions()...) {
		if action.GetVerb() != "get" && action.GetSubresource() == "" && action.GetResource().Resource != "selfsubjectreviews" && action.GetResource().Group != rbacv1.GroupName {
			name := ""
			if named, ok := action.(interface{ GetName() string }); ok && action.GetVerb() != "create" {
				name = " " + named.GetName()
			}
			all = append(all, action.GetVerb()+" "+action.GetResource().Resource+name)
		}
	}
	return all
}

func (s *scene) stored(t *testing.T, secret *corev1.Secret) *corev1.Secret {
	t.Helper()
	latest, err := s.kube.CoreV1().Secrets(secret.Namespace).Get(t.Context(), secret.Name, metav1.GetOptions{})
	require.NoError(t, err)
	return latest
}

func text(out result.Result) string { return string(out.Status()) + " " + out.Reason }

func conditionText(conditions fleetstatus.Conditions, conditionType string) string {
	c := fleetstatus.Condition(conditions, conditionType)
	return string(c.Status) + " " + c.Reason
}

func notFound(name string) error { return apierrors.NewNotFound(schema.GroupResource{}, name) }

func requestsOf(all ...*fleet.ClusterRegistration) *fakecache.Cache[*fleet.ClusterRegistration] {
	c := fakecache.With(all...)
	c.AddIndexer(refusedByCreator, (&handler{Context: &app.Context{}}).creatorOfRefused)
	return c
}

func secretsOf(all ...*corev1.Secret) *fakecache.Cache[*corev1.Secret] {
	c := fakecache.With(all...)
	secretsByRequest.AddTo(c)
	return c
}

func failing[T generic.RuntimeMetaObject](err error) *fakecache.Cache[T] {
	return &fakecache.Cache[T]{Err: err}
}

// namespaceOf is a cache with one Namespace, or none.
type namespaceOf struct {
	corecontrollers.NamespaceCache
	*corev1.Namespace
}

func (c namespaceOf) Get(name string) (*corev1.Namespace, error) {
	if c.Namespace == nil || c.Namespace.Name != name {
		return nil, notFound(name)
	}
	return c.Namespace, nil
}

// haveNamespace puts a Namespace into the cache that names the Cluster and has this key. The digest of "key" is on the Cluster, which
// has no status.
func (s *scene) haveNamespace(key string) *corev1.Namespace {
	digest := sha256.Sum256([]byte("key"))
	s.cluster.Annotations = map[string]string{fleet.NamespaceDigestAnnotation: hex.EncodeToString(digest[:])}
	s.cluster.Status.Namespace = ""
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: clusterNamespace(s.cluster), Annotations: map[string]string{
		fleet.ClusterAnnotation: s.cluster.Name, fleet.WorkspaceAnnotation: s.cluster.Namespace, fleet.NamespaceKeyAnnotation: key,
	}}}
	s.namespaces = namespaceOf{Namespace: namespace}
	return namespace
}

// queue records when requests are enqueued.
type queue struct {
	fleetcontrollers.ClusterRegistrationController
	delays map[string]time.Duration
}

func (q queue) EnqueueAfter(namespace, name string, delay time.Duration) {
	q.delays[namespace+"/"+name] = delay
}

// fleetQueues has the work queue of tokens.
type fleetQueues struct {
	fleetcontrollers.Interface
	tokens *tokenQueue
}

func (f fleetQueues) ClusterRegistrationToken() fleetcontrollers.ClusterRegistrationTokenController {
	return f.tokens
}

type tokenQueue struct {
	fleetcontrollers.ClusterRegistrationTokenController
	delays []time.Duration
}

func (q *tokenQueue) EnqueueAfter(_, _ string, delay time.Duration) {
	q.delays = append(q.delays, delay)
}

// policies are the admission policies of a hub.
type policies struct {
	admission.PolicyState
	changed func()
}

func (p *policies) State() admission.PolicyState { return p.PolicyState }
func (p *policies) OnChange(f func())            { p.changed = f }

func policiesIn(state admission.PolicyState) *policies { return &policies{PolicyState: state} }
