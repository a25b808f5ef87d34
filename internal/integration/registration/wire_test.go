package registration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// TestWire sends the requests that an unchanged agent of Fleet sent to its hub from its first start until it was idle, and when it was
// started again. It requires the recorded answers and the recorded content of the objects that the agent reads. A line of a recording has
// the identity, the verb, the path with names in capitals, and the code of the answer.
func TestWire(t *testing.T) {
	const clientID, clientRandom = "ws5d6zmslw988kqfrmbg5q9bddnwhlsn7cqz8txwtpmnqjdczwhzbj", "9zqj6jvvzbdr2z76gknfqk79dh7x2qx7k7g2pld6nxhpxv8hcmwb5j"
	assert.Equal(t, "c-daea6f21682ffe94b356a30fca6d24feb1b4cd928f7267509049aeca71cb6", registration.AnswerSecretName(clientID, clientRandom))
	assert.Equal(t, "cluster-fleet-default-m1-4817096b35d1", registration.ClusterNamespace("fleet-default", "m1"))
	assert.Equal(t, "cluster-fleet-default-cluster-764acf17d075-33c9212c3cf6", registration.ClusterNamespace("fleet-default", "cluster-764acf17d075"))

	sent := map[string]string{"env": "stage", "fleet.cattle.io/created-by-agent-pod": "hand-m2"}
	for name, start := range map[string]func(*testing.T, *testenv.Stage) (values registration.Values, clientID string, labels map[string]string){
		"24-manager-initiated": func(t *testing.T, s *testenv.Stage) (registration.Values, string, map[string]string) {
			agentNamespace := s.Member.Namespace(t)
			cluster := s.ImportInto(t, "m1", agentNamespace, func(c *fleet.Cluster) { c.Labels = map[string]string{"env": "dev", "part": "a"} })
			bootstrap := testenv.RequireThere(t, s.Member.Kubernetes.CoreV1().Secrets(agentNamespace).Get, registration.BootstrapSecret)
			return testenv.BootstrapValues(bootstrap), cluster.Spec.ClientID, map[string]string{"env": "dev", "part": "a"}
		},
		"27-agent-initiated": func(t *testing.T, s *testenv.Stage) (registration.Values, string, map[string]string) {
			id := "uid-of-" + s.Namespace
			labels := map[string]string{"fleet.cattle.io/cluster": registration.ClusterName(id)}
			for key, value := range sent {
				labels[key] = value
			}
			return s.Token(t, "tok"), id, labels
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := testenv.ParallelStage(t)
			values, id, labels := start(t, s)
			request := s.Hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: id, ClientRandom: clientRandom + s.Namespace, ClusterLabels: sent})
			request, credential := s.Hub.Granted(t, values, request)
			cluster := s.Cluster(t, request.Status.ClusterName)
			namespace := registration.ClusterNamespace(s.Namespace, cluster.Name)

			assert.Equal(t, labels, cluster.Labels)
			assert.Equal(t, []metav1.OwnerReference{{APIVersion: "fleet.cattle.io/v1alpha1", Kind: "Cluster", Name: cluster.Name, UID: cluster.UID}}, request.OwnerReferences)
			assert.Equal(t, corev1.SecretType("fleet.cattle.io/agent-credential"), credential.Type)
			assert.Equal(t, cluster.Name, credential.Labels["fleet.cattle.io/cluster"])
			assert.Equal(t, "true", credential.Labels["fleet.cattle.io/managed"])
			token := string(credential.Data["token"])
			assert.Equal(t, map[string][]byte{
				"clusterName": []byte(cluster.Name), "clusterNamespace": []byte(s.Namespace), "deploymentNamespace": []byte(namespace),
				"systemNamespace": []byte(testenv.SystemNamespace), "token": []byte(token),
			}, credential.Data)

			// This hub creates the Bundle of an agent after the first heartbeat, and Fleet's hub creates it with the Cluster.
			s.RequireHeartbeat(t, testenv.Registered{Values: values, Request: request, Secret: credential}, time.Now())
			own := registration.AgentBundleName(cluster.Name)
			deployment := testenv.EventuallyThere(t, s.Hub.Fleet.BundleDeployments(namespace).Get, own)
			content, _, _ := strings.Cut(deployment.Spec.DeploymentID, ":")
			names := strings.NewReplacer(
				"REGISTRATION-NAMESPACE", values.SystemRegistrationNamespace, "CLUSTER-NAMESPACE", namespace, "WORKSPACE", s.Namespace,
				"fleet-agent-CLUSTER", own, "CLUSTER", cluster.Name, "CREDENTIAL", credential.Name, "CONTENT", content,
			)
			var lines []byte
			for _, file := range []string{name, "25-restart"} { // the registered agent starts again
				more, err := os.ReadFile(filepath.Join("testdata", "wire", file+".txt"))
				require.NoError(t, err)
				lines = append(lines, more...)
			}
			identities := map[string]string{"import": values.Token, "request": token}
			sentRequests := 0
			for line := range strings.Lines(string(lines)) {
				var identity, verb, path string
				var want int
				_, err := fmt.Sscan(line, &identity, &verb, &path, &want)
				require.NoError(t, err, line)
				if verb == "create" || want == 403 { // it was created above; the agent asks until the request is granted
					continue
				}
				sentRequests++
				client := s.Hub.ClientFor(t, identities[identity]).Kubernetes.Discovery().RESTClient()
				path = names.Replace(path)
				fromList := false                             // as client-go: an API server without the feature WatchList refuses sendInitialEvents
				testenv.Eventually(t, func() (bool, string) { // an API server learns of rights after a moment
					r := client.Get()
					switch {
					case verb == "watch":
						r.Param("watch", "true").Param("timeoutSeconds", "1").Param("allowWatchBookmarks", "true")
						if !fromList {
							r.Param("sendInitialEvents", "true").Param("resourceVersionMatch", "NotOlderThan")
						}
					case verb == "patch" && strings.Contains(path, "/bundledeployments/"):
						r = client.Patch(types.MergePatchType).Body([]byte(`{"status":{"ready":true}}`))
					case verb == "patch":
						r = client.Patch(types.MergePatchType).Body([]byte(`{"status":{"agent":{"namespace":"cattle-fleet-system"}}}`))
					}
					got := 0
					err := r.AbsPath(path).Do(t.Context()).StatusCode(&got).Error()
					fromList = fromList || apierrors.IsInvalid(err)
					return got == want, fmt.Sprintf("%s %s %s answers %d, want %d: %v", identity, verb, path, got, want, err)
				})
			}
			assert.Greater(t, sentRequests, 12)
		})
	}
}
