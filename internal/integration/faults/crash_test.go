package faults

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// kubeconfigs is a namespace with kubeconfig Secrets that Clusters of every namespace may use.
const kubeconfigs = "fleet-default"

// A fault is injected at each write of the hub in turn, until two whole registrations need fewer writes. The result must be the same as
// without a fault.
func TestRegistrationsUnderFaults(t *testing.T) {
	sample.Long(t)
	_, member := testenv.Clusters(t)
	testenv.Sweep{Least: 40}.Run(t, func(t *testing.T, hub *testenv.Cluster) func(int, func()) {
		testenv.Create(t, hub.Kubernetes.CoreV1().Namespaces().Create, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: kubeconfigs}})
		hub.WriteSecret(t, kubeconfigs, "member", map[string][]byte{registration.KubeconfigValue: member.Kubeconfig()})
		t.Cleanup(func() {
			if !t.Failed() {
				requireNothingLeft(t, hub)
			}
		})
		registered := 0
		return func(_ int, strike func()) {
			strike()
			bothWays{hub: hub, member: member, ns: hub.Namespace(t), agentNS: member.Namespace(t)}.run(t)
			if registered++; registered%together == 0 {
				requireNothingLeft(t, hub)
			}
		}
	})
}

// together is how many registrations are removed at the same time: removing each one separately is slow, and a hub that starts checks all.
const together = 7

// bothWays is one manager-initiated and one agent-initiated registration. The test acts as the agents.
type bothWays struct {
	hub, member *testenv.Cluster
	ns, agentNS string
}

func (b bothWays) run(t *testing.T) {
	t.Helper()
	testenv.Create(t, b.hub.Fleet.ClusterRegistrationTokens(b.ns).Create, &fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Name: "tok"}})
	imported := testenv.Create(t, b.hub.Fleet.Clusters(b.ns).Create, &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "managed"},
		Spec: fleet.ClusterSpec{
			KubeConfigSecret: "member", KubeConfigSecretNamespace: kubeconfigs, AgentNamespace: b.agentNS,
		},
	})

	edge := b.hub.Request(t, b.ready(t, "tok"), fleet.ClusterRegistrationSpec{ClientID: "edge", ClientRandom: "r1-" + b.ns})
	managedValues, managed := b.registerManaged(t, imported)
	b.requireRegistered(t, b.ready(t, "tok"), edge, registration.ClusterName("edge"))
	b.requireRegistered(t, managedValues, managed, "managed")
	b.requireExactly(t, edge, managed)
}

// ready waits until the token is ready: from then on its Secret does not change.
func (b bothWays) ready(t *testing.T, token string) registration.Values {
	t.Helper()
	b.hub.WaitCondition(t, testenv.KindToken, b.ns, token, fleet.ConditionReady, "True")
	return b.hub.Values(t, b.ns, token)
}

// registerManaged registers in place of the agent that the hub installed.
func (b bothWays) registerManaged(t *testing.T, cluster *fleet.Cluster) (registration.Values, *fleet.ClusterRegistration) {
	t.Helper()
	latest := b.hub.ClusterCondition(t, b.ns, cluster.Name, fleet.ConditionImported, "True Imported")
	secret := testenv.RequireThere(t, b.member.Kubernetes.CoreV1().Secrets(b.agentNS).Get, registration.BootstrapSecret)
	config := testenv.RequireThere(t, b.member.Kubernetes.CoreV1().ConfigMaps(b.agentNS).Get, registration.AgentConfigMap)
	require.Contains(t, config.Data[registration.ConfigKey], latest.Spec.ClientID, "the agent has another identity than its Cluster")
	values := testenv.BootstrapValues(secret)
	return values, b.hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: latest.Spec.ClientID, ClientRandom: "r2"})
}

// requireRegistered reads the credential as the agent does and uses it.
func (b bothWays) requireRegistered(t *testing.T, values registration.Values, request *fleet.ClusterRegistration, cluster string) {
	t.Helper()
	granted, credential := b.hub.Granted(t, values, request)
	require.Equal(t, cluster, granted.Status.ClusterName)
	require.Equal(t, cluster, string(credential.Data[registration.CredentialClusterName]))
	namespace := registration.ClusterNamespace(b.ns, cluster)
	require.Equal(t, namespace, string(credential.Data[registration.CredentialDeploymentNamespace]))
	testenv.RequireMay(t, b.hub, string(credential.Data[registration.CredentialToken]),
		testenv.To("list", "bundledeployments.fleet.cattle.io", namespace, ""))
}

// requireExactly counts the objects that the hub created: no duplicates, and no unused objects.
func (b bothWays) requireExactly(t *testing.T, requests ...*fleet.ClusterRegistration) {
	t.Helper()
	edge, managed := registration.ClusterNamespace(b.ns, registration.ClusterName("edge")), registration.ClusterNamespace(b.ns, "managed")
	var uids []string
	for _, r := range requests {
		uids = append(uids, registration.RequestServiceAccount(r.Name, string(r.UID)))
	}
	want := []string{
		"2 Cluster in " + b.ns, "2 ClusterRegistration in " + b.ns, "2 ClusterRegistrationToken in " + b.ns,
		"1 Bundle in " + b.ns, "2 values Secret in " + b.ns, "2 ServiceAccount in " + b.ns, "4 Role in " + b.ns, "4 RoleBinding in " + b.ns,
		"1 ServiceAccount in " + edge, "1 RoleBinding in " + edge, "0 Role in " + edge, "0 Secret in " + edge,
		"1 ServiceAccount in " + managed, "1 RoleBinding in " + managed, "0 Role in " + managed, "0 Secret in " + managed,
		"2 reader Role", "2 reader RoleBinding", "2 answer Secret",
	}
	testenv.Eventually(t, func() (bool, string) {
		got := b.inventory(t, uids, edge, managed)
		return slices.Equal(got, want), fmt.Sprintf("there are %q, wanted %q", got, want)
	})
}

func (b bothWays) inventory(t *testing.T, accounts []string, edge, managed string) []string {
	t.Helper()
	lines := []string{
		fmt.Sprintf("%d Cluster in %s", count(b.hub.Fleet.Clusters(b.ns).List(t.Context(), metav1.ListOptions{})), b.ns),
		fmt.Sprintf("%d ClusterRegistration in %s", count(b.hub.Fleet.ClusterRegistrations(b.ns).List(t.Context(), metav1.ListOptions{})), b.ns),
		fmt.Sprintf("%d ClusterRegistrationToken in %s", count(b.hub.Fleet.ClusterRegistrationTokens(b.ns).List(t.Context(), metav1.ListOptions{})), b.ns),
		fmt.Sprintf("%d Bundle in %s", count(b.hub.Fleet.Bundles(b.ns).List(t.Context(), metav1.ListOptions{})), b.ns),
		fmt.Sprintf("%d values Secret in %s", count(b.hub.Kubernetes.CoreV1().Secrets(b.ns).List(t.Context(), testenv.Ours())), b.ns),
		fmt.Sprintf("%d ServiceAccount in %s", count(b.hub.Kubernetes.CoreV1().ServiceAccounts(b.ns).List(t.Context(), testenv.Ours())), b.ns),
		fmt.Sprintf("%d Role in %s", count(b.hub.Kubernetes.RbacV1().Roles(b.ns).List(t.Context(), testenv.Ours())), b.ns),
		fmt.Sprintf("%d RoleBinding in %s", count(b.hub.Kubernetes.RbacV1().RoleBindings(b.ns).List(t.Context(), testenv.Ours())), b.ns),
	}
	for _, ns := range []string{edge, managed} {
		lines = append(lines,
			fmt.Sprintf("%d ServiceAccount in %s", count(b.hub.Kubernetes.CoreV1().ServiceAccounts(ns).List(t.Context(), testenv.Ours())), ns),
			fmt.Sprintf("%d RoleBinding in %s", count(b.hub.Kubernetes.RbacV1().RoleBindings(ns).List(t.Context(), testenv.Ours())), ns),
			fmt.Sprintf("%d Role in %s", count(b.hub.Kubernetes.RbacV1().Roles(ns).List(t.Context(), testenv.Ours())), ns),
			fmt.Sprintf("%d Secret in %s", count(b.hub.Kubernetes.CoreV1().Secrets(ns).List(t.Context(), testenv.Ours())), ns))
	}
	return append(lines, b.readers(t, accounts)...)
}

// readers counts the objects in namespaces outside of this test that were created for its requests.
func (b bothWays) readers(t *testing.T, accounts []string) []string {
	t.Helper()
	rbac, ctx := b.hub.Kubernetes.RbacV1(), t.Context()
	var readers []string
	for _, account := range accounts {
		readers = append(readers, registration.CredentialReaderName(account))
	}
	mine := func(o metav1.Object) bool {
		return o.GetAnnotations()[fleet.ClusterRegistrationNamespaceAnnotation] == b.ns
	}
	return []string{
		fmt.Sprintf("%d reader Role", matching(t, named(readers))(rbac.Roles(testenv.RegistrationNamespace).List(ctx, testenv.Ours()))),
		fmt.Sprintf("%d reader RoleBinding", matching(t, named(readers))(rbac.RoleBindings(testenv.RegistrationNamespace).List(ctx, testenv.Ours()))),
		fmt.Sprintf("%d answer Secret", matching(t, mine)(b.hub.Kubernetes.CoreV1().Secrets(testenv.RegistrationNamespace).List(ctx, testenv.Ours()))),
	}
}

func named(names []string) func(metav1.Object) bool {
	return func(o metav1.Object) bool { return slices.Contains(names, o.GetName()) }
}

func matching(t *testing.T, is func(metav1.Object) bool) func(runtime.Object, error) int {
	return func(list runtime.Object, err error) (n int) {
		require.NoError(t, err)
		require.NoError(t, meta.EachListItem(list, func(item runtime.Object) error {
			if is(item.(metav1.Object)) {
				n++
			}
			return nil
		}))
		return n
	}
}

// count is the length of a list, -1 if it cannot be read.
func count(list runtime.Object, err error) int {
	if err != nil {
		return -1
	}
	return meta.LenList(list)
}

// requireNothingLeft deletes all Clusters and tokens, and waits until everything that the hub created for them is deleted.
func requireNothingLeft(t *testing.T, hub *testenv.Cluster) {
	t.Helper()
	ctx := context.Background() // of a cleanup, too
	namespaces, err := hub.Kubernetes.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	for _, ns := range namespaces.Items {
		require.NoError(t, hub.Fleet.Clusters(ns.Name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
		require.NoError(t, hub.Fleet.ClusterRegistrationTokens(ns.Name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	}
	testenv.EventuallyWithin(t, 3*testenv.Patience, func() (bool, string) {
		left := append(hub.Managed(t), hub.AskedFor(t)...)
		return len(left) == 0, fmt.Sprintf("%d objects are left: %s", len(left), strings.Join(left[:min(len(left), 20)], ", "))
	})
}
