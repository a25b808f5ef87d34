package admission_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv/withkinds"
	"github.com/muster-fleet/muster/internal/testenv/withpolicies"
	"github.com/muster-fleet/muster/pkg/admission"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/crds"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

const (
	patience = time.Minute
	poll     = 100 * time.Millisecond
)

// user is a user of an API server.
type user struct {
	name       string
	config     *rest.Config
	kubernetes kubernetes.Interface
	fleet      fleetclient.FleetV1alpha1Interface
	dynamic    dynamic.Interface
}

func newUser(t *testing.T, name string, cfg *rest.Config) user {
	t.Helper()
	core, err := kubernetes.NewForConfig(cfg)
	require.NoError(t, err)
	kinds, err := versioned.NewForConfig(cfg)
	require.NoError(t, err)
	objects, err := dynamic.NewForConfig(cfg)
	require.NoError(t, err)
	return user{name: name, config: cfg, kubernetes: core, fleet: kinds.FleetV1alpha1(), dynamic: objects}
}

// scene is an API server with the kinds of the hub, its administrator, and a workspace that no other test has.
type scene struct {
	*testing.T
	plane     *controlplane.ControlPlane
	admin     user
	namespace string
}

func newScene(t *testing.T) *scene {
	t.Helper()
	return sceneOn(t, withkinds.Shared(t))
}

// sceneInForce is a scene on an API server that applies the policies. The tests that use it change no policy and run at the same time.
func sceneInForce(t *testing.T) *scene {
	t.Helper()
	t.Parallel()
	return sceneOn(t, withpolicies.Clean(t))
}

func sceneOn(t *testing.T, plane *controlplane.ControlPlane) *scene {
	t.Helper()
	extensions, err := apiextensions.NewForConfig(plane.RESTConfig())
	require.NoError(t, err)
	_, err = crds.Ensure(t.Context(), extensions)
	require.NoError(t, err)
	s := &scene{T: t, plane: plane, admin: newUser(t, "", plane.RESTConfig())}
	review, err := s.admin.kubernetes.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	require.NoError(t, err)
	s.admin.name = review.Status.UserInfo.Username
	s.addNamespace()
	return s
}

func (s *scene) addNamespace() {
	s.Helper()
	created, err := s.admin.kubernetes.CoreV1().Namespaces().Create(s.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "ws-"}}, metav1.CreateOptions{})
	require.NoError(s, err)
	s.namespace = created.Name
}

// run is a subtest with a namespace of its own.
func (s *scene) run(name string, test func(t *testing.T, s *scene)) {
	s.T.Run(name, func(t *testing.T) {
		own := *s
		own.T = t
		own.addNamespace()
		test(t, &own)
	})
}

// inForce installs the policies without a Monitor that would repair them. Policies of an earlier test must be out of force before: the API server
// applies changes some time later, and would seem to apply the new ones, and then none for a moment.
func (s *scene) inForce() {
	s.Helper()
	s.remove()
	require.Eventually(s, func() bool { return s.validates() == nil }, patience, poll)
	m, stop := s.start(true)
	defer stop()
	s.eventuallyLacks(m, "", "")
	s.eventually(m, true)
	s.validated()
}

// mutating reports whether the API server serves MutatingAdmissionPolicies.
func (s *scene) mutating() bool {
	s.Helper()
	version, err := admission.ServedVersion(s.admin.kubernetes.Discovery())
	require.NoError(s, err)
	return version != ""
}

func (s *scene) needsMutating() {
	s.Helper()
	if !s.mutating() {
		s.Skip("this version of Kubernetes serves no MutatingAdmissionPolicies")
	}
}

func (s *scene) needsNoMutating() {
	s.Helper()
	if s.mutating() {
		s.Skip("this version of Kubernetes sets the audiences itself")
	}
}

func (s *scene) eventuallyLacks(m *admission.Monitor, wantReason, wantText string) {
	s.Helper()
	require.Eventually(s, func() bool {
		state := m.State()
		return state.Reason == wantReason && strings.Contains(state.Message, wantText)
	}, patience, poll, "%v", m.State().Missing)
}

// validated waits for the validating policies: another admission plugin applies them, and it may see them later.
func (s *scene) validated() {
	s.Helper()
	s.eventuallyRefused(s.validates, "must not have a finalizer")
}

// validates sends a request that the validating policies refuse, in a dry run, and returns the error.
func (s *scene) validates() error {
	s.Helper()
	token := rest.CopyConfig(s.admin.config)
	token.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + s.namespace + ":token", Groups: []string{"system:masters"}}
	request := s.request(nil)
	request.Finalizers = []string{"test.example.com/finalizer"}
	_, err := newUser(s.T, "", token).fleet.ClusterRegistrations(s.namespace).Create(s.Context(), request, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// monitor runs until the test ends.
func (s *scene) monitor(install bool, change ...func(*admission.Options)) *admission.Monitor {
	s.Helper()
	m, stop := s.start(install, change...)
	s.Cleanup(stop)
	return m
}

func (s *scene) start(install bool, change ...func(*admission.Options)) (*admission.Monitor, func()) {
	s.Helper()
	options := admission.Options{RESTConfig: s.plane.RESTConfig(), Namespace: s.namespace, Install: install}
	for _, f := range change {
		f(&options)
	}
	m, err := admission.New(options)
	require.NoError(s, err)
	ctx, stop := context.WithCancel(context.Background())
	m.Start(ctx)
	return m, func() { stop(); m.Wait() }
}

func (s *scene) eventually(m *admission.Monitor, want bool) {
	s.Helper()
	require.Eventually(s, func() bool {
		return m.State().InForce() == want
	}, patience, poll, "in force must become %v; %s", want, m.State().Missing)
}

// account is a ServiceAccount with those rights in the workspace, as the user that its token makes.
func (s *scene) account(namespace, name string, rules ...rbacv1.PolicyRule) user {
	s.Helper()
	ctx := s.Context()
	_, err := s.admin.kubernetes.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		require.NoError(s, err)
	}
	accounts := s.admin.kubernetes.CoreV1().ServiceAccounts(namespace)
	_, err = accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(s, err)
	for _, target := range []string{s.namespace, namespace} {
		s.allow(target, namespace, name, rules)
		if namespace == s.namespace {
			break
		}
	}
	reply, err := accounts.CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(s, err)
	cfg := &rest.Config{Host: s.plane.URL(), BearerToken: reply.Status.Token, TLSClientConfig: rest.TLSClientConfig{CAData: s.plane.CA()}, QPS: -1}
	return newUser(s.T, "system:serviceaccount:"+namespace+":"+name, cfg)
}

func (s *scene) allow(target, namespace, name string, rules []rbacv1.PolicyRule) {
	s.Helper()
	rbac := s.admin.kubernetes.RbacV1()
	meta := metav1.ObjectMeta{Name: namespace + "-" + name}
	_, err := rbac.Roles(target).Create(s.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
	require.NoError(s, err)
	_, err = rbac.RoleBindings(target).Create(s.Context(), &rbacv1.RoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
	}, metav1.CreateOptions{})
	require.NoError(s, err)
	if len(rules) == 0 {
		return
	}
	// The API server learns of the Role and the binding from a watch.
	resource, subresource, _ := strings.Cut(rules[0].Resources[0], "/")
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "system:serviceaccount:" + namespace + ":" + name,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: target, Verb: rules[0].Verbs[0], Group: rules[0].APIGroups[0], Resource: resource, Subresource: subresource,
		},
	}}
	require.Eventually(s, func() bool {
		answer, err := s.admin.kubernetes.AuthorizationV1().SubjectAccessReviews().Create(s.Context(), review, metav1.CreateOptions{})
		return err == nil && answer.Status.Allowed
	}, patience, poll, "the API server does not apply the rights of %s/%s in namespace %s", namespace, name, target)
}

// allowEverywhere gives an account rights that are bound to no namespace.
func (s *scene) allowEverywhere(name, namespace, account string, rules ...rbacv1.PolicyRule) {
	s.Helper()
	rbac := s.admin.kubernetes.RbacV1()
	meta := metav1.ObjectMeta{Name: name}
	_, err := rbac.ClusterRoles().Create(s.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
	require.NoError(s, err)
	_, err = rbac.ClusterRoleBindings().Create(s.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}},
	}, metav1.CreateOptions{})
	require.NoError(s, err)
}

func rule(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

// importer is the identity of a registration token, with additional rights.
func (s *scene) importer() user {
	s.Helper()
	return s.account(s.namespace, "import-token-x", rule("fleet.cattle.io", "clusterregistrations", "create", "get", "update", "patch"))
}

// agent is the identity of a registered agent of a Cluster of the workspace, with additional rights.
func (s *scene) agent(cluster string) user {
	s.Helper()
	return s.account(registration.ClusterNamespace(s.namespace, cluster), "request-x",
		rule("fleet.cattle.io", "clusters/status", "update", "patch"),
		rule("fleet.cattle.io", "clusters", "get"),
		rule("fleet.cattle.io", "bundledeployments/status", "patch", "update"),
		rule("", "serviceaccounts/token", "create"))
}

func (s *scene) request(annotations map[string]string) *fleet.ClusterRegistration {
	return &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "request-", Annotations: annotations},
		Spec:       fleet.ClusterRegistrationSpec{ClientID: "id", ClientRandom: "random"},
	}
}

// agentThatMayAsk is an agent with the right to create requests, which the hub gives to no agent.
func (s *scene) agentThatMayAsk(cluster string) user {
	s.Helper()
	return s.account(registration.ClusterNamespace(s.namespace, cluster), "request-x", rule("fleet.cattle.io", "clusterregistrations", "create"))
}

// remove deletes the policies and bindings, or those of that kind, and waits until the API server no longer applies them.
func (s *scene) remove(kinds ...string) {
	s.Helper()
	for _, policy := range append(objects(s.T, "v1"), objects(s.T, "")...) {
		if len(kinds) > 0 && !slices.Contains(kinds, policy.GetKind()) {
			continue
		}
		err := s.admin.dynamic.Resource(admission.Resource(policy)).Delete(s.Context(), policy.GetName(), metav1.DeleteOptions{})
		if !apierrors.IsNotFound(err) {
			require.NoError(s, err)
		}
	}
	mutating := len(kinds) == 0 || strings.HasPrefix(kinds[0], admission.KindMutating)
	require.Eventually(s, func() bool {
		err := admission.Probe(s.Context(), s.admin.fleet.ClusterRegistrations(s.namespace))
		return !mutating || errors.Is(err, admission.ErrNotApplied) || len(kinds) > 0 && err != nil
	}, patience, poll)
}

func (s *scene) eventuallyRefused(try func() error, says string) {
	s.Helper()
	require.Eventually(s, func() bool {
		err := try()
		return err != nil && strings.Contains(err.Error(), says)
	}, patience, poll)
}
