package clusternetagent

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/agenttest"
	"github.com/muster-fleet/muster/internal/testenv"
)

// TestReactions has one row for each reaction of an unchanged agent. A request is written as its client, method, path and status code. The client is
// ded with the dedicated credential and boot with the bootstrap token; the code is 0 without an answer. <CRRS> and <CRR> are the
// ClusterRegistrationRequests and the one of the agent, <MCS> the ManagedClusters of its namespace, and <DN> its dedicated namespace.
func TestReactions(t *testing.T) {
	for name, row := range map[string]func(*scene){
		"R1: a restart sends the request again and changes nothing of it": func(s *scene) {
			s.options.ClusterName, s.options.ClusterLabels = "first", map[string]string{"env": "one"}
			s.registered()
			s.options.ClusterName, s.options.ClusterLabels = "second", map[string]string{"env": "two"}
			s.restart()
			s.sees("ded POST <CRRS> 409", "ded GET <CRR> 200")
			request, err := s.objects.Resource(Requests).Get(s.Context(), RequestName(s.member.ID()), metav1.GetOptions{})
			require.NoError(s, err)
			assert.Equal(s, map[string]any{
				"clusterId": s.member.ID(), "clusterName": "first", "clusterType": "StandardCluster", "syncMode": "Pull",
				"clusterLabels": map[string]any{"env": "one"},
			}, request.Object["spec"])
			assert.Equal(s, map[string]string{IDLabel: s.member.ID(), NameLabel: "first", RegisteredByLabel: AgentName}, request.GetLabels())
		},
		"R2: after any other error of the POST only the bootstrap token is used": func(s *scene) {
			s.registered()
			for _, code := range []int{401, 403, 404, 422, 500, 0} {
				s.end()
				refused := &testenv.Recorder{}
				refused.Inject(func(request *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
					switch {
					case request.Method != http.MethodPost || request.Header.Get("Authorization") == "Bearer "+s.options.Token:
						return send()
					case code == 0:
						return nil, errors.New("no connection")
					}
					return &http.Response{StatusCode: code, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("refused")), Request: request}, nil
				})
				s.options.Through = refused.On
				s.sent.Reset()
				s.start()
				s.sees(fmt.Sprint("ded POST <CRRS> ", code), "boot POST <CRRS> 409", "boot GET <CRR> 200")
			}
		},
		"R3: an error of the GET is repeated for ever, also when the request is gone": func(s *scene) {
			s.start()
			s.sees("boot POST <CRRS> 201", "boot GET <CRR> 200")
			s.deleteRequest()
			s.repeats("boot GET <CRR> 404", 3)
			assert.Equal(s, 1, s.sent.Count("POST"))
			s.end()
			s.sent.Reset()
			s.start()
			s.sees("boot POST <CRRS> 201", "boot GET <CRR> 200")
		},
		"R4: only Approved ends the wait": func(s *scene) {
			s.dedicated()
			s.managedCluster("member")
			s.start()
			for _, result := range []string{"", "Denied", "Failed", "Illegal"} {
				s.answer(map[string]any{"result": result, "errorMessage": "wait"})
				s.repeats("boot GET <CRR> 200", 2)
				_, stored := s.member.Credential()
				assert.False(s, stored, result)
			}
			s.answer(s.approval())
			s.repeats("ded PUT <MCS>/member/status 200", 1)
		},
		"R5: a wrong CA is stored, and ends at the bootstrap token": func(s *scene) {
			s.dedicated()
			s.managedCluster("member")
			s.start()
			wrong := s.approval()
			wrong["caCertificate"] = base64.StdEncoding.EncodeToString([]byte(agenttest.CA(s)))
			s.answer(wrong)
			s.repeats("ded GET <MCS> 0", 2)
			s.restart()
			s.sees("ded POST <CRRS> 0", "boot POST <CRRS> 409", "boot GET <CRR> 200")
		},
		"R6: with an empty token it is anonymous": func(s *scene) {
			s.dedicated()
			s.start()
			empty := s.approval()
			delete(empty, "token")
			s.answer(empty)
			s.repeats("ded GET <MCS> 401", 2)
			s.restart()
			s.sees("ded POST <CRRS> 401", "boot POST <CRRS> 409", "boot GET <CRR> 200")
		},
		"R7: a restart takes the token that is in the request now": func(s *scene) {
			s.registered()
			before, _ := s.member.Credential()
			s.answer(s.approval())
			s.repeats("ded PUT <MCS>/member/status 200", 2)
			during, _ := s.member.Credential()
			assert.Equal(s, before, during)
			s.restart()
			s.sees("ded POST <CRRS> 409", "ded GET <CRR> 200")
			s.has("ded GET <MCS> 200")
			after, _ := s.member.Credential()
			assert.NotEqual(s, before.Token, after.Token)
			assert.Equal(s, []string{before.URL, before.Namespace, before.ID}, []string{after.URL, after.Namespace, after.ID})
		},
		"R8: without its Secret, or with another URL, it is the bootstrap token that gets the credential": func(s *scene) {
			s.registered()
			s.end()
			s.member.DeleteCredential()
			s.sent.Reset()
			s.start()
			s.sees("boot POST <CRRS> 409", "boot GET <CRR> 200")
			s.has("ded GET <MCS> 200")
			s.options.HubURL += "/"
			s.restart()
			s.sees("boot POST <CRRS> 409", "boot GET <CRR> 200")
			s.has("ded GET <MCS> 200")
		},
		"R9: a running agent does not see that its request is deleted, and sends it again after a restart": func(s *scene) {
			s.registered()
			s.deleteRequest()
			s.repeats("ded PUT <MCS>/member/status 200", 2)
			s.restart()
			s.sees("ded POST <CRRS> 201", "ded GET <CRR> 200")
		},
		"R10: without its rights it sends heartbeats for ever, and again when it has them": func(s *scene) {
			s.registered()
			bindings, name := s.hub.Kubernetes.RbacV1().RoleBindings(s.namespace()), s.namespace()+"-agent"
			binding := testenv.RequireThere(s, bindings.Get, name)
			require.NoError(s, bindings.Delete(s.Context(), name, metav1.DeleteOptions{}))
			s.repeats("ded PUT <MCS>/member/status 403", 3)
			binding.ResourceVersion, binding.UID = "", ""
			testenv.Create(s, bindings.Create, binding)
			s.repeats("ded PUT <MCS>/member/status 200", 1)
			require.NoError(s, s.hub.Kubernetes.CoreV1().ServiceAccounts(s.namespace()).Delete(s.Context(), "agent", metav1.DeleteOptions{}))
			s.repeats("ded PUT <MCS>/member/status 401", 3)
			assert.Equal(s, 1, s.sent.Count("POST clusterregistrationrequests"))
		},
		"R11: a ManagedCluster that is deleted is missed for ever, and found if it has the same name again": func(s *scene) {
			s.registered()
			require.NoError(s, s.managedClusters().Delete(s.Context(), "member", metav1.DeleteOptions{}))
			s.repeats("ded PUT <MCS>/member/status 4", 2) // 404, and 409 with a GET 404 on Kubernetes 1.30
			s.managedCluster("other")
			s.repeats("ded PUT <MCS>/member/status 4", 2)
			s.managedCluster("member")
			s.repeats("ded PUT <MCS>/member/status 200", 1)
			s.never("PUT <MCS>/other")
		},
		"R12: without a ManagedCluster it lists them in each period": func(s *scene) {
			s.dedicated()
			s.start()
			s.answer(s.approval())
			s.repeats("ded GET <MCS> 200", 3)
			s.never("PUT <MCS>")
			s.managedCluster("late")
			s.repeats("ded PUT <MCS>/late/status 200", 1)
			assert.Equal(s, 1, s.sent.Count("POST clusterregistrationrequests"))
		},
		"R13: with another ID it sends another request, with the credential of the first": func(s *scene) {
			s.registered()
			s.end()
			first := s.namespace()
			s.member.LoseLease()
			s.sent.Reset()
			s.start()
			s.sees("ded POST <CRRS> 201", "ded GET <CRR> 403") // this hub lets an identity read only the request of its first ID
			assert.NotEqual(s, first, s.namespace())
		},
		"R14: two agents with one identity conflict in turn": func(s *scene) {
			s.registered()
			s.startOn(s.member.Clone(), s.options)
			s.repeats("ded PUT <MCS>/member/status 409", 2)
			s.repeats("ded PUT <MCS>/member/status 200", 2)
		},
		"R15: without the label patch there is no heartbeat": func(s *scene) {
			s.registered()
			roles := s.hub.Kubernetes.RbacV1().Roles(s.namespace())
			role := testenv.RequireThere(s, roles.Get, s.namespace()+"-agent")
			role.Rules[0].Verbs = []string{"list", "get"}
			testenv.Update(s, roles.Update, role)
			s.member.LabelNodes(map[string]string{"node.clusternet.io/zone": "one", "zone": "is not sent"})
			s.repeats("ded PATCH <MCS>/member 403", 1)
			before := s.sent.Count("PUT")
			s.repeats("ded PATCH <MCS>/member 403", 2)
			assert.Equal(s, before, s.sent.Count("PUT"))
			role.ResourceVersion, role.Rules[0].Verbs = "", []string{"list", "get", "patch"}
			testenv.Update(s, roles.Update, role)
			s.repeats("ded PATCH <MCS>/member 200", 1)
			current, err := s.managedClusters().Get(s.Context(), "member", metav1.GetOptions{})
			require.NoError(s, err)
			assert.Equal(s, map[string]string{IDLabel: s.member.ID(), "node.clusternet.io/zone": "one"}, current.GetLabels())
			s.repeats("ded PUT <MCS>/member/status 200", 1)
		},
		"R16: the next leader begins as a process that restarts": func(s *scene) {
			s.registered()
			s.end()
			next := &SentRequests{}
			s.sent, s.options.Sent = next, next
			s.start()
			s.sees("ded POST <CRRS> 409", "ded GET <CRR> 200")
			s.has("ded GET <MCS> 200")
		},
		"R17: a first heartbeat for which nothing is collected is sent one period later": func(s *scene) {
			s.options.Periods.Heartbeat = time.Hour
			s.registered() // sends the first at once
			s.options.NothingCollected = true
			s.restart()
			s.repeats("ded WATCH <DN>/descriptions 200", 1)
			s.never("PUT <MCS>")
		},
		"R18: what the hub adds to the status is lost, but not conditions of other types": func(s *scene) {
			s.registered()
			s.repeats("ded PUT <MCS>/member/status 200", 1)
			before := s.sent.Count("PUT " + s.fill("<MCS>") + "/member/status 409")
			_, err := s.managedClusters().Patch(s.Context(), "member", types.JSONPatchType, []byte(`[
				{"op": "add", "path": "/status/predictorAddress", "value": "by the hub"},
				{"op": "add", "path": "/status/conditions/-", "value": {
					"type": "ClusterInit", "status": "True", "reason": "ClusterInitDisabled", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}}]`), metav1.PatchOptions{}, "status")
			require.NoError(s, err)
			var status map[string]any
			s.eventually(func() (bool, string) {
				current, err := s.managedClusters().Get(s.Context(), "member", metav1.GetOptions{})
				require.NoError(s, err)
				status, _, _ = unstructured.NestedMap(current.Object, "status")
				return status["predictorAddress"] == nil, "the field of the hub is still there"
			})
			assert.Len(s, status["conditions"], 2)
			assert.Equal(s, before+1, s.sent.Count("PUT "+s.fill("<MCS>")+"/member/status 409"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			row(s)
			if s.process != nil {
				s.end()
			}
		})
	}
}

func TestFirstStart(t *testing.T) {
	s := newScene(t)
	s.options.Socket, s.options.SyncMode = true, "Dual"
	s.member.LabelNodes(map[string]string{"node.clusternet.io/zone": "one"})
	s.registered()
	s.sees("boot POST <CRRS> 201", "boot GET <CRR> 200")
	for _, line := range []string{
		"ded GET <MCS> 200", "ded PATCH <MCS>/member 200", "ded PUT <MCS>/member/status 200", "ded POST <DN>/secrets 201",
		"ded GET <DN>/helmreleases 200", "ded GET <DN>/descriptions 200", "ded GET <DN>/helmcharts 200",
		"ded WATCH <DN>/helmreleases 200", "ded WATCH <DN>/descriptions 200", "ded WATCH <DN>/helmcharts 200",
		"ded GET sockets/" + s.member.ID() + " 403",
	} {
		s.has(line)
	}
	current, err := s.managedClusters().Get(t.Context(), "member", metav1.GetOptions{})
	require.NoError(t, err)
	status, _, _ := unstructured.NestedMap(current.Object, "status")
	assert.Equal(t, []any{"v1.31.4+k3s1", true, true, int64(0)},
		[]any{status["k8sVersion"], status["readyz"], status["appPusher"], status["heartbeatFrequencySeconds"]})

	s.member.SetHealthy(false)
	s.eventually(func() (bool, string) {
		current, err := s.managedClusters().Get(t.Context(), "member", metav1.GetOptions{})
		require.NoError(t, err)
		conditions, _, _ := unstructured.NestedSlice(current.Object, "status", "conditions")
		reason := conditions[0].(map[string]any)["reason"]
		return reason == "ManagedClusterNotReady", "the reason is still ManagedClusterReady"
	})
	s.end()
}

func TestDeployerSecret(t *testing.T) {
	s := newScene(t)
	s.registered()
	secrets := s.hub.Kubernetes.CoreV1().Secrets(s.namespace())
	secret := testenv.EventuallyThere(t, secrets.Get, DeployerSecret)
	assert.Equal(t, []string{Finalizer}, secret.Finalizers)
	testenv.Merge(t, secrets.Patch, DeployerSecret, `{"data":null,"metadata":{"finalizers":null}}`)

	s.restart()
	testenv.EventuallyIs(t, secrets.Get, DeployerSecret, func(secret *corev1.Secret) (bool, string) {
		return string(secret.Data["token"]) == DeployerToken && len(secret.Finalizers) == 1, "it is not replaced"
	})

	testenv.Merge(t, secrets.Patch, DeployerSecret, `{"metadata":{"annotations":{"clusternet.io/autoupdate":"false"}}}`)
	s.restart()
	s.repeats("ded POST <DN>/secrets 409", 2)
	s.never("PUT <DN>/secrets")
	s.never("<DN>/descriptions")
	s.repeats("ded PUT <MCS>/member/status 200", 1) // heartbeats do not wait for it
	s.end()
}

func TestRefusedKinds(t *testing.T) {
	s := newScene(t)
	s.registered()
	roles := s.hub.Kubernetes.RbacV1().Roles(s.namespace())
	role := testenv.RequireThere(t, roles.Get, s.namespace()+"-agent")
	rules := role.Rules
	role.Rules = role.Rules[:4]
	role = testenv.Update(t, roles.Update, role)
	s.restart()
	s.repeats("ded GET <DN>/helmcharts 403", 2)
	role.Rules = rules
	testenv.Update(t, roles.Update, role)
	s.repeats("ded WATCH <DN>/helmcharts 200", 1)
	s.end()
}

func TestEndOfTheProcess(t *testing.T) {
	t.Run("a bootstrap token of another form", func(t *testing.T) {
		require.ErrorContains(t, Run(t.Context(), NewMember(), Options{HubURL: agenttest.HubURL, Token: "secret"}), "neither the form")
	})
	t.Run("a CA that is not PEM, at each start", func(t *testing.T) {
		s := newScene(t)
		s.dedicated()
		s.start()
		approval := s.approval()
		approval["caCertificate"] = base64.StdEncoding.EncodeToString([]byte("not PEM"))
		s.answer(approval)
		require.ErrorContains(t, <-s.process.ended, "the credential is stored")
		require.ErrorContains(t, <-s.start().ended, "the stored credential")
		s.member.DeleteCredential()
		s.answer(s.approval())
		s.start()
		s.repeats("ded GET <MCS> 200", 1)
		s.end()
	})
	t.Run("without a CA it does not verify the certificate", func(t *testing.T) {
		s := newScene(t)
		s.dedicated()
		s.managedCluster("member")
		s.start()
		approval := s.approval()
		delete(approval, "caCertificate")
		s.answer(approval)
		s.repeats("ded PUT <MCS>/member/status 200", 1)
		s.end()
	})
}
