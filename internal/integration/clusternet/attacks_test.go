package clusternet

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/clusternetagent"
	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// malformedStatuses are statuses of a ManagedCluster that its schema accepts, or once accepted, and that Go cannot decode, or the status of
// a Cluster does not admit.
var malformedStatuses = []string{
	`{"readyz":true,"lastObservedTime":"2026-01-01t00:00:00z"}`,
	`{"readyz":true,"lastObservedTime":"2026-01-01T00:00:00+99:99"}`,
	`{"readyz":true,"heartbeatFrequencySeconds":9223372036854775808}`,
	`{"readyz":true,"nodeStatistics":{"readyNodes":2147483648}}`,
	`{"readyz":true,"conditions":[{"type":"Ready","status":"True","reason":"ManagedClusterReady","message":"","lastTransitionTime":"2026-01-01t00:00:00z"}]}`,
	`{"readyz":true,"lastObservedTime":"2026-01-01T00:00:00Z","capacity":{"cpu":"1234567890123456789.123456789"}}`,
}

// testDefectsOfClusternetsHub has a test for each way in which agents and holders of a bootstrap token can harm the hub of Clusternet.
func testDefectsOfClusternetsHub(t *testing.T, s *stage) {
	values := s.Token(t, "tok")
	for name, row := range map[string]func(*testing.T){
		"a holder of a token does not get the credential of a registered cluster": func(t *testing.T) {
			victim := s.peer(t, values)
			victim.registered()
			thief := s.peer(t, s.Token(t, "thief"))
			thief.member = clusternetagent.MemberWithID(victim.id())
			thief.start()
			thief.repeats("boot GET <CRR>", 5)
			_, stolen := thief.member.Credential()
			assert.False(t, stolen)
			thief.stop()
			victim.beatsAgain()

			require.NoError(t, s.admin.ClusterRegistrationRequests().Delete(t.Context(), victim.request(), metav1.DeleteOptions{}))
			thief.start()
			s.says(t, victim.id(), v1beta1.ResultDenied, "ClientIDInUse")
			_, stolen = thief.member.Credential()
			assert.False(t, stolen)
			victim.beatsAgain()
		},
		"every approved request of many has its token and its CA": func(t *testing.T) {
			var peers []*peer
			for range 10 {
				p := s.peer(t, values)
				p.start()
				peers = append(peers, p)
			}
			for _, p := range peers {
				p.repeats("/status 200", 1)
				credential, _ := p.member.Credential()
				assert.NotEmpty(t, credential.Token)
				assert.Equal(t, s.Hub.CA(), *credential.CA)
				assert.Equal(t, 0, p.sent.Count(" 401"))
				p.stop()
			}
		},
		"names, labels and a namespace that Kubernetes refuses do not hold the request up": func(t *testing.T) {
			p := s.peer(t, values)
			p.options.ClusterName, p.options.ClusterNamespace = "A.b_C9", "kube-system"
			p.options.ClusterLabels = map[string]string{"not a/label/key": "x", "good": "yes", "bad": "not a value!"}
			cluster := p.registered()
			assert.Equal(t, "yes", cluster.Labels["good"])
			assert.NotContains(t, cluster.Labels, "bad")
			credential, _ := p.member.Credential()
			assert.Equal(t, p.namespace(), credential.Namespace)
		},
		"an agent cannot claim the ID of another by its labels": func(t *testing.T) {
			victim, p := s.peer(t, values), s.peer(t, values)
			victim.registered()
			p.options.ClusterLabels = map[string]string{v1beta1.ClusterIDLabel: victim.id(), "clusternet.io/created-by": "me", fleet.ClusterLabel: victim.cluster()}
			cluster := p.registered()
			for _, value := range cluster.Labels {
				assert.NotContains(t, []string{victim.id(), victim.cluster(), "me"}, value)
			}
			member := testenv.RequireThere(t, s.admin.ManagedClusters(p.namespace()).Get, p.request())
			assert.Equal(t, p.id(), member.Labels[v1beta1.ClusterIDLabel])
			list := testenv.List(t, s.admin.ManagedClusters("").List, metav1.ListOptions{LabelSelector: v1beta1.ClusterIDLabel + "=" + victim.id()})
			assert.Len(t, list.Items, 1)
		},
		"an agent reaches nothing of another": func(t *testing.T) {
			victim, p := s.peer(t, values), s.peer(t, values)
			victim.registered()
			p.registered()
			credential, _ := p.member.Credential()
			own := s.as(t, credential.Token)
			refused := func(err error) { t.Helper(); assert.True(t, apierrors.IsForbidden(err), "%v", err) }
			_, err := own.ClusterRegistrationRequests().Get(t.Context(), victim.request(), metav1.GetOptions{})
			refused(err)
			_, err = own.ClusterRegistrationRequests().List(t.Context(), metav1.ListOptions{})
			refused(err)
			_, err = own.ManagedClusters(victim.namespace()).List(t.Context(), metav1.ListOptions{})
			refused(err)
			_, err = own.kubernetes.CoreV1().Secrets(victim.namespace()).List(t.Context(), metav1.ListOptions{})
			refused(err)
			_, err = own.kubernetes.CoreV1().Secrets(p.namespace()).List(t.Context(), metav1.ListOptions{})
			refused(err)
			_, err = own.kubernetes.CoreV1().Secrets(testenv.RegistrationNamespace).List(t.Context(), metav1.ListOptions{})
			refused(err)
			boot := s.as(t, values.Token)
			_, err = boot.ClusterRegistrationRequests().List(t.Context(), metav1.ListOptions{})
			refused(err)
			_, err = boot.ManagedClusters(victim.namespace()).List(t.Context(), metav1.ListOptions{})
			refused(err)

			// An API server applies new admission policies after a moment.
			dry := []string{metav1.DryRunAll}
			for what, try := range map[string]func() error{
				"take the ID of another": func() error {
					_, err := own.ManagedClusters(p.namespace()).Patch(t.Context(), p.request(), types.MergePatchType,
						[]byte(`{"metadata":{"labels":{"`+v1beta1.ClusterIDLabel+`":"`+victim.id()+`"}}}`), metav1.PatchOptions{DryRun: dry})
					return err
				},
				"write a generated name": func() error {
					_, err := own.ManagedClusters(p.namespace()).Patch(t.Context(), p.request(), types.MergePatchType,
						[]byte(`{"metadata":{"generateName":"x"}}`), metav1.PatchOptions{DryRun: dry})
					return err
				},
				"add any number of managers": func() (err error) {
					for n := 0; n < 30 && err == nil; n++ {
						_, err = own.ManagedClusters(p.namespace()).Patch(t.Context(), p.request(), types.ApplyPatchType, []byte(
							`{"apiVersion":"clusters.clusternet.io/v1beta1","kind":"ManagedCluster","metadata":{"name":"`+p.request()+`","labels":{"a":"b"}}}`),
							metav1.PatchOptions{FieldManager: fmt.Sprint("manager-", n)})
					}
					return err
				},
				"write a list of managers": func() error {
					labels := make([]string, 1000)
					for n := range labels {
						labels[n] = fmt.Sprintf(`"f:label-%d":{}`, n)
					}
					entry := `{"manager":"m","operation":"Apply","apiVersion":"clusters.clusternet.io/v1beta1","fieldsType":"FieldsV1","fieldsV1":` +
						`{"f:metadata":{"f:labels":{` + strings.Join(labels, ",") + `}}}}`
					_, err := own.ManagedClusters(p.namespace()).Patch(t.Context(), p.request(), types.MergePatchType,
						[]byte(`{"metadata":{"labels":{"a":"c"},"managedFields":[`+entry+`]}}`), metav1.PatchOptions{DryRun: dry})
					return err
				},
				"write a list of managers into a request": func() error {
					fields := make([]string, 1000)
					for n := range fields {
						fields[n] = fmt.Sprintf(`"f:field-%d":{}`, n)
					}
					_, err := own.ClusterRegistrationRequests().Create(t.Context(), &v1beta1.ClusterRegistrationRequest{
						ObjectMeta: metav1.ObjectMeta{Name: p.request(), ManagedFields: []metav1.ManagedFieldsEntry{{
							Manager: "m", Operation: metav1.ManagedFieldsOperationApply, APIVersion: v1beta1.SchemeGroupVersion.String(),
							FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{` + strings.Join(fields, ",") + `}}`),
						}}},
						Spec: v1beta1.ClusterRegistrationRequestSpec{ClusterID: p.id()},
					}, metav1.CreateOptions{DryRun: dry})
					return err
				},
				"ask for another": func() error {
					_, err := own.ClusterRegistrationRequests().Create(t.Context(), &v1beta1.ClusterRegistrationRequest{
						ObjectMeta: metav1.ObjectMeta{Name: victim.request()}, Spec: v1beta1.ClusterRegistrationRequestSpec{ClusterID: victim.id()},
					}, metav1.CreateOptions{DryRun: dry})
					return err
				},
			} {
				testenv.Eventually(t, func() (bool, string) {
					err := try()
					return apierrors.IsForbidden(err), fmt.Sprintf("%s: %v", what, err)
				})
			}
		},
		"an agent cannot look alive with its clock, nor with the interval that it reports": func(t *testing.T) {
			p := s.peer(t, values)
			p.options.Forge = func(status map[string]any) {
				status["lastObservedTime"] = "2099-01-01T00:00:00Z"
				status["heartbeatFrequencySeconds"] = int64(1) << 40
			}
			p.registered()
			cluster := s.EventuallyCluster(t, p.cluster(), func(c *fleet.Cluster) (bool, string) {
				return c.Status.Agent.CheckinInterval != nil, "it has reported no interval"
			})
			assert.Less(t, time.Until(cluster.Status.Agent.LastSeen.Time), time.Minute)
			assert.LessOrEqual(t, cluster.Status.Agent.CheckinInterval.Duration, time.Hour)
		},
		"an agent cannot stop the heartbeats of others with a status that Go cannot decode": func(t *testing.T) {
			victim, p := s.peer(t, values), s.peer(t, values)
			victim.registered()
			p.registered()
			p.stop()
			credential, _ := p.member.Credential()
			taken := 0
			for _, status := range malformedStatuses {
				// The API server may have a heartbeat that is newer than the object here, and a typed client could not decode the answer.
				member := testenv.RequireThere(t, s.admin.ManagedClusters(p.namespace()).Get, p.request())
				body := `{"apiVersion":"clusters.clusternet.io/v1beta1","kind":"ManagedCluster","metadata":{"name":"` + p.request() +
					`","resourceVersion":"` + member.ResourceVersion + `"},"spec":{"clusterId":"` + p.id() + `","syncMode":"Pull"},"status":` + status + `}`
				err := s.as(t, credential.Token).RESTClient().Put().Namespace(p.namespace()).Resource("managedclusters").Name(p.request()).
					SubResource("status").SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(t.Context()).Error()
				if err == nil {
					taken++
				} else {
					assert.True(t, apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err), "%s: %v", status, err)
				}
			}
			assert.Positive(t, taken, "the API server accepted none of them")
			testenv.List(t, s.admin.ManagedClusters("").List, metav1.ListOptions{})
			victim.beatsAgain()
			p.start()
			p.beatsAgain()
		},
		"no credential rests on the hub": func(t *testing.T) {
			p := s.peer(t, values)
			p.registered()
			assert.Empty(t, s.secretsIn(t, p.namespace()), "the Secret of the agent is stored without its content")
			testenv.RequireGone(t, s.admin.ClusterRegistrationRequests().Get, "ClusterRegistrationRequest", p.request())
			credential, _ := p.member.Credential()
			for _, namespace := range []string{s.Namespace, p.namespace(), metav1.NamespaceDefault} {
				events := testenv.List(t, s.Hub.Kubernetes.CoreV1().Events(namespace).List, metav1.ListOptions{})
				assert.NotContains(t, testenv.Bytes(t, events), credential.Token)
			}
			requests := testenv.List(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).List, metav1.ListOptions{})
			assert.NotContains(t, testenv.Bytes(t, requests), credential.Token)
		},
		"an agent with another ID does not register it with the credential of the first": func(t *testing.T) {
			p := s.peer(t, values)
			p.registered()
			first := p.cluster()
			p.stop()
			p.member.LoseLease()
			p.start()
			p.repeats("/status 200", 1)
			assert.Positive(t, p.sent.Count("ded POST clusterregistrationrequests 403"))
			assert.Equal(t, 1, p.sent.Count("boot POST clusterregistrationrequests 201"))
			assert.NotEqual(t, first, p.cluster())
			s.Hub.ClusterCondition(t, s.Namespace, p.cluster(), fleet.ConditionConnected, "True")
		},
		"a clone of a member is the same Cluster": func(t *testing.T) {
			p := s.peer(t, values)
			p.registered()
			clone := s.peer(t, values)
			clone.member = p.member.Clone()
			clone.start()
			clone.repeats("/status 200", 2)
			p.repeats("/status 409", 1)
			p.repeats("/status 200", 2)
			assert.Zero(t, clone.sent.Count("boot "), "the clone has the credential")
		},
		"a request with another name than that of its agent is deleted": func(t *testing.T) {
			misnamed := testenv.Create(t, s.as(t, values.Token).ClusterRegistrationRequests().Create, &v1beta1.ClusterRegistrationRequest{
				ObjectMeta: metav1.ObjectMeta{Name: "x" + newID()}, Spec: v1beta1.ClusterRegistrationRequestSpec{ClusterID: newID()},
			})
			testenv.RequireGone(t, s.admin.ClusterRegistrationRequests().Get, "ClusterRegistrationRequest", misnamed.Name)
		},
		"a revoked bootstrap token registers no cluster": func(t *testing.T) {
			p := s.peer(t, s.Token(t, "short"))
			require.NoError(t, s.Hub.Fleet.ClusterRegistrationTokens(s.Namespace).Delete(t.Context(), "short", metav1.DeleteOptions{}))
			testenv.Eventually(t, func() (bool, string) {
				_, err := s.as(t, p.options.Token).ClusterRegistrationRequests().Get(t.Context(), "none", metav1.GetOptions{})
				return apierrors.IsUnauthorized(err), fmt.Sprint(err)
			})
			p.start()
			p.repeats("boot POST clusterregistrationrequests 401", 2)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row(t)
		})
	}
}

// An agent has several replicas, which elect a leader. If two replicas lead for a moment, they use the same identity and create no object twice.
func testTwoLeaders(t *testing.T, s *stage) {
	p := s.peer(t, s.Token(t, "tok"))
	q := *p
	q.sent = &clusternetagent.SentRequests{}
	q.options.Sent = q.sent
	var both sync.WaitGroup
	for _, leader := range []*peer{p, &q} {
		both.Go(leader.start)
	}
	both.Wait()
	p.repeats("/status 200", 1)
	q.repeats("/status 200", 1)
	p.beatsAgain()
	members := testenv.List(t, s.admin.ManagedClusters("").List, metav1.ListOptions{LabelSelector: v1beta1.ClusterIDLabel + "=" + p.id()})
	assert.Len(t, members.Items, 1)
	clusters := testenv.List(t, s.Hub.Fleet.Clusters(s.Namespace).List, metav1.ListOptions{})
	assert.Len(t, clusters.Items, 1)
}
