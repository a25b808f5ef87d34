package attacks

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	muster "github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Agents attack with the Leases to which they send heartbeats. Without the policies the API server stores what an agent writes into its own
// Lease; the hub reads little of it, and no attack goes beyond the agent's own Cluster.
func TestHostileLease(t *testing.T) {
	sample.Long(t)
	for name, withoutPolicies := range map[string]bool{"with the policies": false, "without the policies": true} {
		t.Run(name, func(t *testing.T) {
			s := testenv.EmptyStage(t)
			var options []func(*muster.Options)
			if withoutPolicies {
				options = append(options, s.Hub.WithoutAdmission(t))
			}
			s.Running = s.Hub.Hub(t, options...)
			values := s.Token(t, "shared")
			victim, hostile := withLease(t, s, values, "victim"), withLease(t, s, values, "hostile")
			thief := s.Hub.ClientFor(t, hostile.Bearer()).Kubernetes.CoordinationV1()
			patch := func(r testenv.Registered, patch string) error {
				return only(thief.Leases(r.ClusterNamespace()).Patch(t.Context(), r.Account(), types.MergePatchType, []byte(patch), metav1.PatchOptions{}))
			}
			forbidden(t, map[string]func() error{
				"renew the victim's Lease": func() error { return patch(victim, renewalOf("v2", time.Now())) },
				"read the victim's Lease": func() error {
					return only(thief.Leases(victim.ClusterNamespace()).Get(t.Context(), victim.Account(), metav1.GetOptions{}))
				},
				"list Leases": func() error {
					return only(thief.Leases(hostile.ClusterNamespace()).List(t.Context(), metav1.ListOptions{}))
				},
				"delete its Lease": func() error {
					return thief.Leases(hostile.ClusterNamespace()).Delete(t.Context(), hostile.Account(), metav1.DeleteOptions{})
				},
				"create a Lease": func() error {
					return only(thief.Leases(hostile.ClusterNamespace()).Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{}))
				},
				"take a Lease of the system": func() error {
					return only(thief.Leases(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{}))
				},
				"write the status of its Cluster itself": func() error {
					return only(s.Hub.ClientFor(t, hostile.Bearer()).Fleet.Clusters(s.Namespace).Patch(t.Context(), hostile.Request.Status.ClusterName,
						types.MergePatchType, []byte(`{"status":{"agent":{"version":"x"}}}`), metav1.PatchOptions{}, "status"))
				},
			})

			for what, metadata := range map[string]string{
				"a finalizer":                              `"finalizers":["example.com/x"]`,
				"a generated name":                         `"generateName":"` + strings.Repeat("x", 1_000_000) + `"`,
				"the label of the hub":                     `"labels":{"fleet.cattle.io/managed":null}`,
				"the Cluster of the victim":                `"annotations":{"` + fleet.ClusterAnnotation + `":"` + victim.Request.Status.ClusterName + `"}`,
				"an annotation that the hub does not read": `"annotations":{"x":"y"}`,
				"a report that is too long":                `"annotations":{"` + registration.LeaseReport + `":"` + strings.Repeat("x", 20000) + `"}`,
			} {
				write := func() error { return patch(hostile, `{"metadata":{`+metadata+`}}`) }
				if withoutPolicies { // an API server ends mutating and validating policies at different times
					testenv.Eventually(t, func() (bool, string) { err := write(); return err == nil, fmt.Sprint(what, ": ", err) })
				} else {
					require.ErrorContains(t, write(), "fleet-agent-lease", what)
				}
			}
			// The report claims the request of the victim, and a time in the far future.
			err := patch(hostile, renewalOf(`v2","registration":"`+victim.Request.Name+`","instance":"`+strings.Repeat("x", 100), time.Now().Add(1000*time.Hour)))
			require.NoError(t, err)
			s.EventuallyCluster(t, hostile.Request.Status.ClusterName, func(c *fleet.Cluster) (bool, string) {
				return c.Status.Agent.Registration == hostile.Request.Name && strings.HasPrefix(c.Status.Agent.Version, "v2"), "the hub does not read the report"
			})
			require.NoError(t, s.Hub.ClientFor(t, hostile.Bearer()).Kubernetes.CoordinationV1().RESTClient().Get().
				Namespace(hostile.ClusterNamespace()).Resource("leases").Name(hostile.Account()).Do(t.Context()).Error())

			lease, err := thief.Leases(hostile.ClusterNamespace()).Patch(t.Context(), hostile.Account(), types.MergePatchType,
				[]byte(`{"metadata":{"annotations":{"`+registration.LeaseReport+`":"[]"}}}`), metav1.PatchOptions{})
			require.NoError(t, err)
			assert.Empty(t, lease.ManagedFields, "an agent's report ends the record of field managers, and other writes do not begin it again")
			testenv.Eventually(t, func() (bool, string) {
				events, err := s.Hub.Kubernetes.CoreV1().Events(s.Namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=" + fleet.EventInvalidReport})
				return err == nil && len(events.Items) > 0 && events.Items[0].Type == corev1.EventTypeWarning, "no event about the report"
			})
			assert.Equal(t, victim.Request.Name, s.Cluster(t, victim.Request.Status.ClusterName).Status.Agent.Registration)

			// Nothing that the agent has written keeps its Lease.
			require.NoError(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Delete(t.Context(), hostile.Request.Name, metav1.DeleteOptions{}))
			testenv.Eventually(t, func() (bool, string) {
				_, err := s.Hub.Kubernetes.CoordinationV1().Leases(hostile.ClusterNamespace()).Get(t.Context(), hostile.Account(), metav1.GetOptions{})
				return apierrors.IsNotFound(err), "the Lease is still there"
			})
		})
	}
}

// A thief has copied the token of an agent and renewed it, and sends the heartbeats of the agent, with its instance.
func TestThiefWithTheInstanceOfTheAgent(t *testing.T) {
	s := testenv.ParallelStage(t)
	agent := withLease(t, s, s.Token(t, "shared"), "victim")
	id := func(token string) string {
		claims, err := credential.Inspect(credential.Token(token))
		require.NoError(t, err)
		return claims.CredentialID
	}
	beat := func(token, named string) error {
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}},"spec":{"renewTime":%q,"holderIdentity":"i"}}`,
			registration.LeaseCredential, named, time.Now().UTC().Format(metav1.RFC3339Micro))
		return only(s.Hub.ClientFor(t, token).Kubernetes.CoordinationV1().Leases(agent.ClusterNamespace()).Patch(t.Context(), agent.Account(), types.MergePatchType,
			[]byte(patch), metav1.PatchOptions{}))
	}
	original := agent.Bearer()
	require.NoError(t, beat(original, id(original)))
	reply, err := s.Hub.ClientFor(t, original).Kubernetes.CoreV1().ServiceAccounts(agent.ClusterNamespace()).CreateToken(t.Context(), agent.Account(),
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	renewed := reply.Status.Token
	require.NoError(t, beat(renewed, id(original)), "this does not change the name")
	require.NoError(t, beat(renewed, id(renewed)))
	require.ErrorContains(t, beat(renewed, id(original)), registration.LeasePolicy, "the thief cannot hide that")
	require.NoError(t, beat(original, id(original)))
	s.Hub.ClusterCondition(t, s.Namespace, agent.Request.Status.ClusterName, fleet.ConditionRegistered, "False CloneDetected")
	warned(t, s, agent.Request.Status.ClusterName, fleet.ReasonCloneDetected)
	message := fleetstatus.Condition(s.Cluster(t, agent.Request.Status.ClusterName).Status.Conditions, fleet.ConditionRegistered).Message
	assert.Contains(t, message, id(original))
	assert.Contains(t, message, id(renewed))
}

// renewalOf is a heartbeat of an agent of this version.
func renewalOf(version string, at time.Time) string {
	report := fmt.Sprintf(`{"version":"%s","namespace":"cattle-fleet-system"}`, version)
	return fmt.Sprintf(`{"metadata":{"annotations":{%q:%q},"managedFields":[{}]},"spec":{"renewTime":%q,"holderIdentity":"i"}}`,
		registration.LeaseReport, report, at.UTC().Format(metav1.RFC3339Micro))
}

// withLease registers an agent that sends its first heartbeat to its Lease.
func withLease(t *testing.T, s *testenv.Stage, values registration.Values, clientID string) testenv.Registered {
	t.Helper()
	request := with("shared", clientID, clientID+s.Namespace)
	request.Annotations = map[string]string{registration.RenewalAnnotation: "true", registration.LeaseAnnotation: "true"}
	latest, secret := s.Hub.Granted(t, values, sends(t, s, values, request))
	r := testenv.Registered{Values: values, Request: latest, Secret: secret}
	require.Equal(t, r.Account(), string(secret.Data[registration.CredentialLease]))
	_, err := s.Hub.ClientFor(t, r.Bearer()).Kubernetes.CoordinationV1().Leases(r.ClusterNamespace()).Patch(t.Context(), r.Account(), types.MergePatchType,
		[]byte(renewalOf("v1", time.Now())), metav1.PatchOptions{})
	require.NoError(t, err)
	s.EventuallyCluster(t, latest.Status.ClusterName, func(c *fleet.Cluster) (bool, string) {
		return c.Status.Agent.Version == "v1" && c.Status.Agent.Registration == latest.Name, "the heartbeat is not in the status"
	})
	return r
}
