package admission_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/registration"
)

const reported = `{"status":{"namespace":"as-the-hub-says","agentMigrated":true,"conditions":[{"type":"Registered","status":"True"}],` +
	`"summary":{"ready":1,"desiredReady":1}}}`

// cluster creates a Cluster with the status that the hub writes.
func (s *scene) cluster(name string) *fleet.Cluster {
	s.Helper()
	clusters := s.admin.fleet.Clusters(s.namespace)
	_, err := clusters.Create(s.Context(), &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(s, err)
	cluster, err := clusters.Patch(s.Context(), name, types.MergePatchType, []byte(reported), metav1.PatchOptions{}, "status")
	require.NoError(s, err)
	return cluster
}

// clusterNames lead to a cluster namespace with the whole name of the Cluster, and to names that are shortened in either of two ways.
var clusterNames = []string{"short", strings.Repeat("long", 15), strings.Repeat("x", 29) + "." + strings.Repeat("y", 29)}

func TestAgentPolicies(t *testing.T) {
	sample.Long(t)
	s := sceneInForce(t)
	s.run("an agent writes status.agent", func(t *testing.T, s *scene) {
		for _, name := range clusterNames {
			s.cluster(name)
			clusters := s.agent(name).fleet.Clusters(s.namespace)
			now := time.Now().UTC().Format(time.RFC3339)
			for _, agent := range []string{
				`{"lastSeen":"` + now + `","namespace":"cattle-fleet-system"}`, // as Fleet's own agents do
				`{"lastSeen":"` + now + `","namespace":"cattle-fleet-system","instance":"a"}`,
				`{"namespace":null}`,
				`null`,
			} {
				cluster, err := clusters.Patch(t.Context(), name, types.MergePatchType, []byte(`{"status":{"agent":`+agent+`}}`), metav1.PatchOptions{}, "status")
				require.NoError(t, err, "%s: %s", name, agent)
				assert.Equal(t, "as-the-hub-says", cluster.Status.Namespace)
			}
		}
	})
	s.run("an agent writes status.agent where there is no status yet", func(t *testing.T, s *scene) {
		_, err := s.admin.dynamic.Resource(fleet.SchemeGroupVersion.WithResource("clusters")).Namespace(s.namespace).Create(t.Context(),
			&unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "fleet.cattle.io/v1alpha1", "kind": "Cluster", "metadata": map[string]any{"name": "bare"}, "spec": map[string]any{},
			}}, metav1.CreateOptions{})
		require.NoError(t, err)
		clusters := s.agent("bare").fleet.Clusters(s.namespace)
		_, err = clusters.Patch(t.Context(), "bare", types.MergePatchType, []byte(`{"status":{"namespace":"mine"}}`), metav1.PatchOptions{}, "status")
		requireRefused(t, err, "only status.agent of a Cluster")
		_, err = clusters.Patch(t.Context(), "bare", types.MergePatchType, []byte(`{"status":{"agent":{"namespace":"x"}}}`), metav1.PatchOptions{}, "status")
		require.NoError(t, err)
	})
	s.run("an agent writes nothing else of its Cluster", func(t *testing.T, s *scene) {
		for _, name := range clusterNames {
			before := s.cluster(name)
			clusters := s.agent(name).fleet.Clusters(s.namespace)
			for _, status := range []string{
				`{"namespace":"another"}`,
				`{"namespace":null}`,
				`{"namespace":"another","agent":{"namespace":"x"}}`,
				`{"conditions":[{"type":"Registered","status":"False"}]}`,
				`{"conditions":[]}`,
				`{"conditions":null}`,
				`{"agentMigrated":false}`,
				`{"cattleNamespaceMigrated":true}`,
				`{"agentDeployedGeneration":7}`,
				`{"summary":{"ready":2,"desiredReady":2}}`,
				`{"display":{"readyBundles":"7/7"}}`,
				`{"gitRepo":{"x":"y"},"readyGitRepos":7}`,
			} {
				_, err := clusters.Patch(t.Context(), name, types.MergePatchType, []byte(`{"status":`+status+`}`), metav1.PatchOptions{}, "status")
				requireRefused(t, err, "only status.agent of a Cluster")
			}
			emptied := before.DeepCopy()
			emptied.Status = fleet.ClusterStatus{}
			_, err := clusters.UpdateStatus(t.Context(), emptied, metav1.UpdateOptions{})
			requireRefused(t, err, "only status.agent of a Cluster")
			found, err := s.admin.fleet.Clusters(s.namespace).Get(t.Context(), name, metav1.GetOptions{})
			require.NoError(t, err)
			assert.Equal(t, before.Status, found.Status)
		}
	})
	s.run("the size of status.agent is limited", func(t *testing.T, s *scene) {
		s.cluster("c")
		clusters := s.agent("c").fleet.Clusters(s.namespace)
		fields := func(count int, value string) string {
			var all []string
			for n := range count {
				all = append(all, fmt.Sprintf("%q:%s", fmt.Sprint("f", n), value))
			}
			return "{" + strings.Join(all, ",") + "}"
		}
		long := strings.Repeat("x", 20000)
		for name, agent := range map[string]string{
			"a long text":             `{"version":"` + long + `"}`,
			"a long text below":       `{"apiServer":{"message":"` + long + `"}}`,
			"a long name":             `{"apiServer":{"` + long + `":1}}`,
			"many texts":              `{"capacity":` + fields(3000, "1") + `}`,
			"many texts below":        `{"hub":` + fields(60, `"`+strings.Repeat("x", 1000)+`"`) + `}`,
			"many numbers":            `{"nodes":` + fields(3000, "1") + `}`,
			"something deep":          `{"nodes":{"x":{"y":"z"}}}`,
			"a list":                  `{"nodes":{"x":[1]}}`,
			"half a megabyte, deeply": `{"hub":{"x":` + strings.Repeat(`{"a":`, 50) + `"` + strings.Repeat("x", 1<<19) + `"` + strings.Repeat("}", 50) + `}}`,
		} {
			_, err := clusters.Patch(t.Context(), "c", types.MergePatchType, []byte(`{"status":{"agent":`+agent+`}}`), metav1.PatchOptions{}, "status")
			require.Error(t, err, name)
			assert.True(t, apierrors.IsForbidden(err) || apierrors.IsInvalid(err), "%s: %v", name, err)
		}
		// The API server ends an expression after a number of steps, which would be another error, and each may take it long.
		_, err := clusters.Patch(t.Context(), "c", types.MergePatchType, []byte(`{"status":{"agent":{"nodes":`+fields(20000, "1")+`}}}`), metav1.PatchOptions{}, "status")
		requireRefused(t, err, "of at most 64 values each")
		full := `{"lastSeen":"2026-01-02T03:04:05Z","namespace":"cattle-fleet-system","checkinInterval":"15m0s","version":"v1","generation":"managed/7",` +
			`"kubernetesVersion":"v1.36.3","nodes":{"count":5000,"ready":4999},"capacity":{"cpu":"64","memory":"1Ti","pods":"110"},` +
			`"apiServer":{"ready":false,"message":"` + strings.Repeat("x", 1024) + `"},"clockSkew":"-3s","instance":"i","vouches":"request-x",` +
			`"hub":{"apiServerURL":"https://` + strings.Repeat("h", 1000) + `","pending":"` + strings.Repeat("x", 1024) + `"},"registration":"request-y",` +
			`"keptReleases":{"count":300,"names":"` + strings.Repeat("x", 2048) + `"}}`
		_, err = clusters.Patch(t.Context(), "c", types.MergePatchType, []byte(`{"status":{"agent":`+full+`}}`), metav1.PatchOptions{}, "status")
		require.NoError(t, err)
	})
	s.run("a write of the status changes neither metadata nor spec", func(t *testing.T, s *scene) {
		before := s.cluster("c")
		_, err := s.agent("c").fleet.Clusters(s.namespace).Patch(t.Context(), "c", types.MergePatchType, []byte(
			`{"metadata":{"labels":{"env":"prod"},"annotations":{"a":"b"},"finalizers":["x/y"]},"spec":{"clientID":"x"},"status":{"agent":{"namespace":"x"}}}`), metav1.PatchOptions{}, "status")
		require.NoError(t, err)
		after, err := s.admin.fleet.Clusters(s.namespace).Get(t.Context(), "c", metav1.GetOptions{})
		require.NoError(t, err)
		assert.Equal(t, before.Labels, after.Labels)
		assert.Equal(t, before.Annotations, after.Annotations)
		assert.Equal(t, before.Finalizers, after.Finalizers)
		assert.Equal(t, before.Spec, after.Spec)
	})
	s.run("others write the whole status", func(t *testing.T, s *scene) {
		s.cluster("c")
		rules := []string{"update", "patch"}
		for _, who := range []user{
			s.admin,
			s.account("hub-"+s.namespace, "fleet-controller", rule("fleet.cattle.io", "clusters/status", rules...)),
			s.account("cluster-api-"+s.namespace, "somebody", rule("fleet.cattle.io", "clusters/status", rules...)),
		} {
			_, err := who.fleet.Clusters(s.namespace).Patch(t.Context(), "c", types.MergePatchType,
				[]byte(`{"status":{"namespace":"`+strings.ReplaceAll(who.name, ":", "-")+`"}}`), metav1.PatchOptions{}, "status")
			require.NoError(t, err, who.name)
		}
	})
	s.run("an agent writes the status of its BundleDeployments", func(t *testing.T, s *scene) {
		namespace := registration.ClusterNamespace(s.namespace, "c")
		who := s.agent("c")
		deployments := s.admin.fleet.BundleDeployments(namespace)
		_, err := deployments.Create(t.Context(), &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = who.fleet.BundleDeployments(namespace).Patch(t.Context(), "b", types.MergePatchType,
			[]byte(`{"status":{"ready":true,"release":"a/b","conditions":[{"type":"Ready","status":"True"}]}}`), metav1.PatchOptions{}, "status")
		require.NoError(t, err)
	})
	s.run("an agent gets short-lived tokens of its own ServiceAccount", func(t *testing.T, s *scene) {
		s.account(s.namespace, "request-x") // the same name elsewhere
		for _, cluster := range clusterNames {
			who, namespace := s.agent(cluster), registration.ClusterNamespace(s.namespace, cluster)
			s.account(namespace, "neighbour")
			for _, try := range []struct {
				namespace, account string
				spec               authenticationv1.TokenRequestSpec
				refusal            string
			}{
				{namespace, "request-x", authenticationv1.TokenRequestSpec{}, ""},
				{namespace, "request-x", lasting(10 * time.Minute), ""},
				{namespace, "request-x", lasting(7 * 24 * time.Hour), ""},
				{namespace, "request-x", lasting(7*24*time.Hour + time.Second), "at most 7 days"},
				{namespace, "request-x", lasting(10 * 365 * 24 * time.Hour), "at most 7 days"},
				{namespace, "neighbour", authenticationv1.TokenRequestSpec{}, "own ServiceAccount only"},
				{s.namespace, "default", authenticationv1.TokenRequestSpec{}, "own ServiceAccount only"},
				{s.namespace, "request-x", authenticationv1.TokenRequestSpec{}, "own ServiceAccount only"},
				{namespace, "request-x", bound("Node", "node-1"), "without a boundObjectRef"},
				{namespace, "request-x", bound("Secret", "some"), "without a boundObjectRef"},
			} {
				reply, err := who.kubernetes.CoreV1().ServiceAccounts(try.namespace).CreateToken(t.Context(), try.account,
					&authenticationv1.TokenRequest{Spec: try.spec}, metav1.CreateOptions{})
				if try.refusal != "" {
					requireRefused(t, err, try.refusal)
					continue
				}
				require.NoError(t, err, "%+v", try)
				assert.NotEmpty(t, reply.Status.Token)
			}
		}
	})
	s.run("an agent gets tokens for the API server, whatever audience it names", func(t *testing.T, s *scene) {
		s.needsMutating()
		who := s.agent("c")
		accounts := who.kubernetes.CoreV1().ServiceAccounts(registration.ClusterNamespace(s.namespace, "c"))
		usual, err := accounts.CreateToken(t.Context(), "request-x", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.NotEmpty(t, usual.Spec.Audiences)
		for _, audiences := range [][]string{{}, {"vault"}, {usual.Spec.Audiences[0], "vault"}, usual.Spec.Audiences} {
			reply, err := accounts.CreateToken(t.Context(), "request-x",
				&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}, metav1.CreateOptions{})
			require.NoError(t, err)
			assert.Equal(t, usual.Spec.Audiences, reply.Spec.Audiences)
		}
	})
	s.run("an agent gets tokens for the audiences that the hub has recorded", func(t *testing.T, s *scene) {
		s.needsNoMutating()
		who := s.agent("c")
		accounts := who.kubernetes.CoreV1().ServiceAccounts(registration.ClusterNamespace(s.namespace, "c"))
		ask := func(audiences ...string) (*authenticationv1.TokenRequest, error) {
			return accounts.CreateToken(t.Context(), "request-x",
				&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}, metav1.CreateOptions{})
		}
		usual, err := ask()
		require.NoError(t, err, "nothing is recorded yet")
		own := usual.Spec.Audiences
		require.NotEmpty(t, own)
		_, err = s.admin.kubernetes.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{
			Name: registration.ClusterRoleAudience, Annotations: map[string]string{fleet.AudiencesAnnotation: strings.Join(append(own, "second"), "\n")},
		}}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.Eventually(t, func() bool { _, err := ask("vault"); return err != nil }, patience, poll)
		for _, audiences := range [][]string{{"vault"}, {own[0], "vault"}, {"vault", own[0]}, {own[0] + "\nsecond"}, {""}} {
			_, err := ask(audiences...)
			requireRefused(t, err, "for the API server only")
		}
		for _, audiences := range [][]string{{}, own, {"second"}} {
			_, err := ask(audiences...)
			require.NoError(t, err, "%v", audiences)
		}
	})
	s.run("an agent names only its own token in its Lease", func(t *testing.T, s *scene) {
		namespace := registration.ClusterNamespace(s.namespace, "c")
		first := s.account(namespace, "request-x", rule("coordination.k8s.io", "leases", "get", "patch"), rule("", "serviceaccounts/token", "create"))
		reply, err := first.kubernetes.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), "request-x", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		require.NoError(t, err)
		config := rest.CopyConfig(first.config)
		config.BearerToken = reply.Status.Token
		second := newUser(t, first.name, config)
		_, err = s.admin.kubernetes.CoordinationV1().Leases(namespace).Create(t.Context(),
			&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "request-x"}}, metav1.CreateOptions{})
		require.NoError(t, err)
		id := func(as user) string {
			claims, err := credential.Inspect(credential.Token(as.config.BearerToken))
			require.NoError(t, err)
			return strconv.Quote(claims.CredentialID)
		}
		write := func(as user, id string) error { // a heartbeat
			_, err := as.kubernetes.CoordinationV1().Leases(namespace).Patch(t.Context(), "request-x", types.MergePatchType, []byte(
				`{"metadata":{"annotations":{"`+registration.LeaseCredential+`":`+id+`}},"spec":{"holderIdentity":"i"}}`), metav1.PatchOptions{})
			return err
		}

		require.NoError(t, write(first, "null"), "an agent of an earlier release names no token")
		for _, other := range []string{id(second), `"JTI=1"`, `""`} {
			requireRefused(t, write(first, other), "only the ID of its own token")
		}
		require.NoError(t, write(first, id(first)))
		requireRefused(t, write(first, "null"), "only the ID of its own token")
		require.NoError(t, write(second, id(first)), "it is not changed")
		require.NoError(t, write(second, id(second)))
		requireRefused(t, write(second, id(first)), "only the ID of its own token")
		require.NoError(t, write(s.admin, "null"), "others may remove it")
	})
	s.run("others get tokens without these limits", func(t *testing.T, s *scene) {
		s.agent("c")
		account := func(namespace string) user {
			return s.account(namespace, "issuer", rule("", "serviceaccounts/token", "create"))
		}
		for _, who := range []user{account(s.namespace), account("cluster-api-" + s.namespace), s.admin} {
			_, err := who.kubernetes.CoreV1().ServiceAccounts(s.namespace).CreateToken(t.Context(), "issuer",
				&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"vault"}, ExpirationSeconds: lasting(30 * 24 * time.Hour).ExpirationSeconds}},
				metav1.CreateOptions{})
			require.NoError(t, err, who.name)
		}
		_, err := s.admin.kubernetes.CoreV1().ServiceAccounts(registration.ClusterNamespace(s.namespace, "c")).CreateToken(t.Context(), "request-x",
			&authenticationv1.TokenRequest{Spec: lasting(30 * 24 * time.Hour)}, metav1.CreateOptions{})
		require.NoError(t, err, "the hub issues as long as it is told to")
	})
	// The API server only warns about a mistake in an expression, which could refuse every request.
	s.run("the API server reports no warning about the expressions", func(t *testing.T, s *scene) {
		require.Eventually(t, func() bool {
			list, err := s.admin.kubernetes.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			for _, policy := range list.Items {
				if policy.Status.ObservedGeneration != policy.Generation || policy.Status.TypeChecking == nil {
					return false
				}
				require.Empty(t, policy.Status.TypeChecking.ExpressionWarnings, policy.Name)
			}
			return len(list.Items) >= 3
		}, patience, poll)
	})
}

func bound(kind, name string) authenticationv1.TokenRequestSpec {
	return authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: kind, Name: name}}
}

func lasting(d time.Duration) authenticationv1.TokenRequestSpec {
	seconds := int64(d.Seconds())
	return authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}
}
