package agent

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/agenttest"
	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	"github.com/muster-fleet/muster/pkg/agent/timing"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
	"github.com/muster-fleet/muster/pkg/registration"
)

// realHub does, on a real API server, what a Fleet hub does for an agent: it creates the token, grants requests with exactly the
// rights of the protocol, and revokes the earlier request. Each realHub has its own namespaces.
type realHub struct {
	t         *testing.T
	plane     *controlplane.ControlPlane
	core      kubernetes.Interface
	fleet     versioned.Interface
	workspace string // of Cluster and requests
	system    string // of the credential Secrets
	cluster   string // namespace of the BundleDeployments
}

const clusterName = "one"

func newRealHub(t *testing.T, plane *controlplane.ControlPlane) *realHub {
	t.Helper()
	config := plane.RESTConfig()
	core, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	fleetClient, err := versioned.NewForConfig(config)
	require.NoError(t, err)
	h := &realHub{t: t, plane: plane, core: core, fleet: fleetClient}
	h.workspace, h.system, h.cluster = h.namespace("workspace-"), h.namespace("registration-"), h.namespace("cluster-")
	_, err = h.fleet.FleetV1alpha1().Clusters(h.workspace).Create(t.Context(),
		&fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: clusterName}}, metav1.CreateOptions{})
	require.NoError(t, err)
	return h
}

func (h *realHub) namespace(prefix string) string {
	h.t.Helper()
	ns, err := h.core.CoreV1().Namespaces().Create(h.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix}}, metav1.CreateOptions{})
	require.NoError(h.t, err)
	return ns.Name
}

// token makes a registration token: a ServiceAccount that may create requests and nothing else.
func (h *realHub) token(name string) string {
	h.t.Helper()
	h.serviceAccount(h.t.Context(), h.workspace, name)
	h.allow(h.t.Context(), h.workspace, name, h.workspace, name, rbacv1.PolicyRule{
		Verbs: []string{"create"}, APIGroups: []string{fleet.SchemeGroupVersion.Group}, Resources: []string{"clusterregistrations"},
	})
	return h.issue(h.t.Context(), h.workspace, name)
}

func (h *realHub) serviceAccount(ctx context.Context, namespace, name string) {
	_, err := h.core.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	h.fine(err)
}

func (h *realHub) issue(ctx context.Context, namespace, serviceAccount string) string {
	answer, err := h.core.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, serviceAccount,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](3600)}}, metav1.CreateOptions{})
	if err != nil {
		h.fine(err)
		return ""
	}
	return answer.Status.Token
}

// allow binds one rule in namespace to a ServiceAccount of another.
func (h *realHub) allow(ctx context.Context, namespace, name, saNamespace, sa string, rules ...rbacv1.PolicyRule) {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
	_, err := h.core.RbacV1().Roles(namespace).Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
	h.fine(err)
	_, err = h.core.RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: meta,
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: saNamespace, Name: sa}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
	}, metav1.CreateOptions{})
	h.fine(err)
}

// fine ignores the errors of a repeated grant, of the end of the test, and of an outage.
func (h *realHub) fine(err error) {
	if err != nil && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) && hubclient.Classify(err) != hubclient.Unreachable {
		h.t.Logf("hub: %v", err)
	}
}

// grants grants requests until the test ends.
func (h *realHub) grants() {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			h.grantAll(ctx)
			timing.Pause(ctx, testClock, 20*time.Millisecond, nil)
		}
	}()
	h.t.Cleanup(func() { cancel(); <-ended })
}

func (h *realHub) grantAll(ctx context.Context) {
	for _, request := range h.requests(ctx) {
		name := registration.CredentialSecretName(request.Spec.ClientID, request.Spec.ClientRandom)
		if _, err := h.core.CoreV1().Secrets(h.system).Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			continue
		}
		h.grant(ctx, &request, name)
	}
}

// grant creates the rights first and the Secret last: a Secret that exists means that the request is granted.
func (h *realHub) grant(ctx context.Context, request *fleet.ClusterRegistration, secret string) {
	sa := registration.RequestServiceAccount(request.Name, string(request.UID))
	group := fleet.SchemeGroupVersion.Group
	h.serviceAccount(ctx, h.cluster, sa)
	h.allow(ctx, h.workspace, request.Name, h.cluster, sa, rbacv1.PolicyRule{
		Verbs: []string{"patch"}, APIGroups: []string{group}, Resources: []string{"clusters/status"}, ResourceNames: []string{clusterName},
	})
	h.allow(ctx, h.cluster, request.Name, h.cluster, sa,
		rbacv1.PolicyRule{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{group}, Resources: []string{"bundledeployments"}})
	h.allow(ctx, h.system, sa, h.workspace, request.Labels[fleet.RegistrationTokenLabel], rbacv1.PolicyRule{
		Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{secret},
	})
	token := h.issue(ctx, h.cluster, sa)
	if token == "" {
		return
	}
	_, err := h.core.CoreV1().Secrets(h.system).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: secret}, Type: registration.SecretTypeCredential,
		StringData: map[string]string{
			registration.CredentialToken: token, registration.CredentialDeploymentNamespace: h.cluster,
			registration.CredentialClusterNamespace: h.workspace, registration.CredentialClusterName: clusterName,
			registration.CredentialSystemNamespace: "cattle-fleet-system",
		},
	}, metav1.CreateOptions{})
	h.fine(err)
	h.revokeOlder(ctx, request)
}

// revokeOlder deletes what the same agent had before, as a hub does when it grants.
func (h *realHub) revokeOlder(ctx context.Context, granted *fleet.ClusterRegistration) {
	for _, request := range h.requests(ctx) {
		if request.Spec.ClientID != granted.Spec.ClientID || request.Name == granted.Name {
			continue
		}
		if !request.CreationTimestamp.After(granted.CreationTimestamp.Time) {
			h.fine(h.fleet.FleetV1alpha1().ClusterRegistrations(h.workspace).Delete(ctx, request.Name, metav1.DeleteOptions{}))
			h.revoke(ctx, registration.RequestServiceAccount(request.Name, string(request.UID)))
		}
	}
}

func (h *realHub) revoke(ctx context.Context, serviceAccount string) {
	h.fine(h.core.CoreV1().ServiceAccounts(h.cluster).Delete(ctx, serviceAccount, metav1.DeleteOptions{}))
}

// revokeAll revokes all credentials. The API server caches valid tokens for some seconds; revokeAll returns when it rejects this
// token.
func (h *realHub) revokeAll(token string) {
	h.t.Helper()
	for _, request := range h.requests(h.t.Context()) {
		h.revoke(h.t.Context(), registration.RequestServiceAccount(request.Name, string(request.UID)))
	}
	log, _ := agenttest.Log(h.t)
	dialer := &hubclient.Dialer{Timing: *agenttest.Quick(), Clock: testClock, Log: log}
	holder, err := dialer.Dial(hubclient.Access{
		Endpoint: hubclient.Endpoint{Server: h.plane.URL(), CA: h.plane.CA(), Mode: "strict"}, Token: token, Namespace: h.cluster,
	})
	require.NoError(h.t, err)
	defer holder.Close()
	require.Eventually(h.t, func() bool { return hubclient.Classify(holder.Probe(h.t.Context())) == hubclient.Rejected }, patience, 100*time.Millisecond)
}

func (h *realHub) requests(ctx context.Context) []fleet.ClusterRegistration {
	list, err := h.fleet.FleetV1alpha1().ClusterRegistrations(h.workspace).List(ctx, metav1.ListOptions{})
	if err != nil {
		h.fine(err)
		return nil
	}
	return list.Items
}

// lastSeen is the time of the last heartbeat, zero if there was none, and the agent's namespace.
func (h *realHub) lastSeen() (time.Time, string) {
	cluster, err := h.fleet.FleetV1alpha1().Clusters(h.workspace).Get(context.Background(), clusterName, metav1.GetOptions{})
	if err != nil {
		return time.Time{}, fmt.Sprint(err)
	}
	return cluster.Status.Agent.LastSeen.Time, cluster.Status.Agent.Namespace
}

// seenIn asserts that there was a heartbeat from an agent in the namespace.
func (h *realHub) seenIn(namespace string) bool {
	seen, from := h.lastSeen()
	return !seen.IsZero() && assert.Equal(h.t, namespace, from)
}
