package attacks

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// scene is a namespace with one object that gets a bad input.
type scene struct {
	t           testing.TB
	hub, member *testenv.Cluster
	ns, agentNS string
	foreign     func() string // an object of another owner, encoded, which must not change
	before      string
}

// object is the name of the object under test in each scene.
const object = "x"

// bad is a kind of bad input, the condition that explains it, and how it is corrected while the hub runs.
type bad struct {
	name      string
	spoil     func(*scene)
	kind      string // of the object, testenv.KindCluster if empty
	condition string
	want      string       // status, reason and, after a colon, the beginning of the message
	says      string       // in the message
	correct   func(*scene) // nil if the object cannot be corrected
	corrected string       // like want
}

func (b bad) reason() string { return strings.Fields(strings.TrimSuffix(b.want, ":"))[1] }

func TestBadInputIsExplainedAndCorrected(t *testing.T) {
	hub, member := testenv.Clusters(t)
	hub.Configure(t, hub.Reachable())
	wire := &testenv.Recorder{}
	withoutPolicies := hub.WithoutAdmission(t) // with the policies, the API server records the creator of a request: the test, which is not the ServiceAccount of the token
	hub.Hub(t, wire.Wrap, testenv.FastRecheck, withoutPolicies)

	cases := sample.Some(t, 10, slices.Concat(badKubeconfigs(t), badRequests(), takenNames()))
	scenes := make([]*scene, len(cases))
	paths := make([]string, len(cases))
	for i, b := range cases {
		scenes[i] = &scene{t: t, hub: hub, member: member, ns: hub.Namespace(t), agentNS: member.Namespace(t)}
		paths[i] = "/namespaces/" + scenes[i].ns + "/"
		b.spoil(scenes[i])
		scenes[i].remember()
	}
	for i, b := range cases {
		t.Run(b.name, func(t *testing.T) { scenes[i].requireExplained(t, b) })
	}
	wire.RequireQuiet(t, 20, paths...)
	for i, b := range cases {
		t.Run(b.name+", reported once", func(t *testing.T) { scenes[i].requireReportedOnce(t, b) })
		if b.correct != nil {
			t.Run(b.name+", corrected", func(t *testing.T) { scenes[i].requireCorrected(t, b) })
		}
	}
}

func (s *scene) remember() {
	if s.foreign != nil {
		s.before = s.foreign()
	}
}

func (b bad) kindOf() string {
	if b.kind == "" {
		return testenv.KindCluster
	}
	return b.kind
}

func (s *scene) requireExplained(t *testing.T, b bad) {
	got := s.hub.WaitCondition(t, b.kindOf(), s.ns, object, b.condition, b.want)
	assert.Contains(t, got, b.says)
	testenv.Eventually(t, func() (bool, string) {
		return s.hub.EventCount(t, s.ns, object, b.reason()) > 0, "no event " + b.reason()
	})
}

func (s *scene) requireReportedOnce(t *testing.T, b bad) {
	assert.Equal(t, 1, s.hub.EventCount(t, s.ns, object, b.reason()), "events %s", b.reason())
	if s.foreign != nil {
		assert.Equal(t, s.before, s.foreign(), "an object of another owner has changed")
	}
}

func (s *scene) requireCorrected(t *testing.T, b bad) {
	s.t = t
	b.correct(s)
	s.hub.WaitCondition(t, b.kindOf(), s.ns, object, b.condition, b.corrected)
}

// cluster creates the Cluster under test, whose kubeconfig Secret is "kubeconfig".
func (s *scene) cluster(change ...func(*fleet.Cluster)) {
	cluster := &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: object},
		Spec:       fleet.ClusterSpec{KubeConfigSecret: "kubeconfig", AgentNamespace: s.agentNS},
	}
	for _, f := range change {
		f(cluster)
	}
	testenv.Create(s.t, s.hub.Fleet.Clusters(s.ns).Create, cluster)
}

// secret creates or updates the kubeconfig Secret.
func (s *scene) secret(data map[string][]byte) {
	s.hub.WriteSecret(s.t, s.ns, "kubeconfig", data)
}

func (s *scene) goodSecret() {
	s.secret(map[string][]byte{registration.KubeconfigValue: s.member.Kubeconfig()})
}

// kubeconfig is a bad input with this data in the kubeconfig Secret, corrected by a valid Secret.
func kubeconfig(name, want, says string, data func(*scene) map[string][]byte) bad {
	return bad{
		name: "kubeconfig Secret " + name, condition: fleet.ConditionImported, want: want, says: says, corrected: "True Imported",
		spoil: func(s *scene) {
			if data != nil {
				s.secret(data(s))
			}
			s.cluster()
		},
		correct: (*scene).goodSecret,
	}
}

func value(content func(*scene) []byte) func(*scene) map[string][]byte {
	return func(s *scene) map[string][]byte {
		return map[string][]byte{registration.KubeconfigValue: content(s)}
	}
}

func text(content string) func(*scene) map[string][]byte {
	return value(func(*scene) []byte { return []byte(content) })
}

func edited(edit func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo)) func(*scene) map[string][]byte {
	return value(func(s *scene) []byte { return testenv.EditKubeconfig(s.t, s.member.Kubeconfig(), edit) })
}

// badKubeconfigs has a case for each reason. TestParseKubeconfig in package clusterimport has all kubeconfigs that are refused.
func badKubeconfigs(t *testing.T) []bad {
	silent, closed, web := testenv.SilentServer(t), testenv.ClosedPort(t), webServer(t)
	return []bad{
		kubeconfig("missing", "Unknown WaitingForKubeconfig", "/kubeconfig", nil),
		kubeconfig("with garbage", "False KubeconfigInvalid", "is not a kubeconfig", text("\x00\x01 {[")),
		kubeconfig("with an exec plugin", "False KubeconfigInvalid", "runs a program", edited(withExec)),
		kubeconfig("for a closed port", "False Unreachable", "connection refused", value(func(s *scene) []byte {
			return testenv.At(s.t, s.member.Kubeconfig(), closed)
		})),
		kubeconfig("for a server that never answers", "False Unreachable", "retrying", value(func(s *scene) []byte {
			return testenv.At(s.t, s.member.Kubeconfig(), silent)
		})),
		kubeconfig("for a web server", "False MemberError", "not a Kubernetes API server", value(func(s *scene) []byte {
			return testenv.At(s.t, s.member.Kubeconfig(), web)
		})),
		kubeconfig("with the CA of another server", "False CertificateUntrusted", "not trusted", value(func(s *scene) []byte {
			return testenv.EditKubeconfig(s.t, s.member.Kubeconfig(), func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
				c.CertificateAuthorityData = s.hub.CA()
			})
		})),
		kubeconfig("with a credential the member refuses", "False Unauthorized", "renew it", value(func(s *scene) []byte {
			return s.member.UserKubeconfig("not-a-token")
		})),
		kubeconfig("with garbage as apiServerURL", "False APIServerURLInvalid", "kubeconfig Secret", func(s *scene) map[string][]byte {
			return map[string][]byte{
				registration.KubeconfigValue: s.member.Kubeconfig(), registration.KubeconfigAPIServerURL: []byte("hub.example.com"),
			}
		}),
		kubeconfig("with garbage as apiServerCA", "False APIServerCAInvalid", "kubeconfig Secret", func(s *scene) map[string][]byte {
			return map[string][]byte{
				registration.KubeconfigValue: s.member.Kubeconfig(), registration.KubeconfigAPIServerCA: []byte("garbage"),
			}
		}),
		forbiddenMember(), foreignKubeconfig(),
	}
}

func withExec(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
	u.Exec = &clientcmdapi.ExecConfig{APIVersion: "client.authentication.k8s.io/v1", Command: "/bin/true", InteractiveMode: "Never"}
}

// webServer answers every request with an HTML page.
func webServer(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("<html>It works!</html>"))
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// forbiddenMember is corrected on the member, which the hub does not watch: the next attempt succeeds.
func forbiddenMember() bad {
	return bad{
		name: "kubeconfig of a user without rights", condition: fleet.ConditionImported,
		want: "False Forbidden", says: "this right", corrected: "True Imported",
		spoil: func(s *scene) {
			s.secret(map[string][]byte{registration.KubeconfigValue: s.member.UserKubeconfig(s.memberAccount())})
			s.cluster()
		},
		correct: func(s *scene) {
			testenv.Create(s.t, s.member.Kubernetes.RbacV1().ClusterRoleBindings().Create, &rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: "importer-" + s.agentNS},
				Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: s.agentNS, Name: "importer"}},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			})
		},
	}
}

// memberAccount creates a ServiceAccount without rights on the member and returns its token.
func (s *scene) memberAccount() string {
	testenv.Create(s.t, s.member.Kubernetes.CoreV1().ServiceAccounts(s.agentNS).Create, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "importer"}})
	return s.member.TokenOf(s.t, s.agentNS, "importer")
}

func foreignKubeconfig() bad {
	var elsewhere string
	return bad{
		name: "kubeconfig Secret of another namespace", condition: fleet.ConditionImported,
		want: "False KubeconfigNotAllowed", says: fleet.KubeconfigAllowedAnnotation, corrected: "True Imported",
		spoil: func(s *scene) {
			elsewhere = s.hub.Namespace(s.t)
			s.hub.WriteSecret(s.t, elsewhere, "kubeconfig", map[string][]byte{registration.KubeconfigValue: s.member.Kubeconfig()})
			s.cluster(func(c *fleet.Cluster) { c.Spec.KubeConfigSecretNamespace = elsewhere })
		},
		correct: func(s *scene) {
			patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:"another, %s"}}}`, fleet.KubeconfigAllowedAnnotation, s.ns)
			testenv.Merge(s.t, s.hub.Kubernetes.CoreV1().Secrets(elsewhere).Patch, "kubeconfig", patch)
		},
	}
}

// request creates the ClusterRegistration under test.
func (s *scene) request(token string, spec fleet.ClusterRegistrationSpec) *fleet.ClusterRegistration {
	labels := map[string]string{}
	if token != "" {
		labels[fleet.RegistrationTokenLabel] = token
	}
	if spec.ClientRandom == "" {
		spec.ClientRandom = "random-" + s.ns
	}
	return testenv.Create(s.t, s.hub.Fleet.ClusterRegistrations(s.ns).Create, &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{Name: object, Labels: labels}, Spec: spec,
	})
}

// requestAgain replaces a request, because a request does not count for a token that was created after it.
func (s *scene) requestAgain(token string, spec fleet.ClusterRegistrationSpec) {
	require.NoError(s.t, s.hub.Fleet.ClusterRegistrations(s.ns).Delete(context.Background(), object, metav1.DeleteOptions{}))
	s.request(token, spec)
}

func (s *scene) token(name string) {
	testenv.Create(s.t, s.hub.Fleet.ClusterRegistrationTokens(s.ns).Create, &fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

func (s *scene) dropToken(name string) {
	require.NoError(s.t, s.hub.Fleet.ClusterRegistrationTokens(s.ns).Delete(context.Background(), name, metav1.DeleteOptions{}))
}

// known creates a Cluster with this clientID.
func (s *scene) known(name, clientID string) {
	testenv.Create(s.t, s.hub.Fleet.Clusters(s.ns).Create, &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: fleet.ClusterSpec{ClientID: clientID},
	})
}

func badRequests() []bad {
	granted := func(b bad) bad {
		b.kind, b.condition, b.corrected = testenv.KindRequest, fleet.ConditionGranted, "True Granted"
		return b
	}
	edge := fleet.ClusterRegistrationSpec{ClientID: "edge"}
	return []bad{
		granted(bad{
			name: "request that names a token which does not exist", want: "False TokenNotFound", says: "tok",
			spoil:   func(s *scene) { s.request("tok", edge) },
			correct: func(s *scene) { s.token("tok"); s.requestAgain("tok", edge) },
		}),
		granted(bad{
			name: "request that names no token where there are none", want: "False TokenUnknown", says: "has 0",
			spoil:   func(s *scene) { s.request("", edge) },
			correct: func(s *scene) { s.token("tok"); s.requestAgain("", edge) },
		}),
		granted(bad{
			name: "request that names no token where there are several", want: "False TokenUnknown", says: "has 2",
			spoil:   func(s *scene) { s.token("one"); s.token("two"); s.request("", edge) },
			correct: func(s *scene) { s.dropToken("one") },
		}),
		granted(bad{
			name: "clientID of two Clusters", want: "False ClientIDAmbiguous", says: "first, second",
			spoil: func(s *scene) {
				s.token("tok")
				s.known("first", "edge")
				s.known("second", "edge")
				s.request("tok", edge)
			},
			correct: func(s *scene) {
				testenv.Merge(s.t, s.hub.Fleet.Clusters(s.ns).Patch, "second", `{"spec":{"clientID":"other"}}`)
			},
		}),
		granted(bad{
			name: "clientID whose Cluster name is taken", want: "False ClusterNameTaken", says: registration.ClusterName("edge"),
			spoil: func(s *scene) {
				s.token("tok")
				s.known(registration.ClusterName("edge"), "other")
				s.request("tok", edge)
			},
			correct: func(s *scene) {
				require.NoError(s.t, s.hub.Fleet.Clusters(s.ns).Delete(context.Background(), registration.ClusterName("edge"), metav1.DeleteOptions{}))
			},
		}),
		{
			name: "request without a clientID", kind: testenv.KindRequest, condition: fleet.ConditionGranted,
			want: "False ClientIDEmpty", says: "clientID",
			spoil: func(s *scene) { s.token("tok"); s.request("tok", fleet.ClusterRegistrationSpec{}) },
			// a request is immutable: the agent creates another one
		},
	}
}

func takenNames() []bad {
	ctx := context.Background()
	edge := fleet.ClusterRegistrationSpec{ClientID: "edge"}
	return []bad{
		{
			name: "taken name of a token's values Secret", kind: testenv.KindToken, condition: fleet.ConditionReady,
			want: "False NameConflict", says: "delete it", corrected: "True TokenReady",
			spoil:   func(s *scene) { s.foreignSecret(s.ns, object); s.token(object) },
			correct: func(s *scene) { s.dropSecret(s.ns, object) },
		},
		{
			name: "taken name of a request's Role", kind: testenv.KindRequest, condition: fleet.ConditionGranted,
			want: "False NameConflict", says: "Role", corrected: "True Granted",
			spoil: func(s *scene) { s.foreignRole(); s.token("tok"); s.request("tok", edge) },
			correct: func(s *scene) {
				require.NoError(s.t, s.hub.Kubernetes.RbacV1().Roles(s.ns).Delete(ctx, object, metav1.DeleteOptions{}))
			},
		},
		{
			name: "taken name of an answer Secret", kind: testenv.KindRequest, condition: fleet.ConditionGranted,
			want: "False NameConflict", says: "another clientRandom", corrected: "True Granted",
			spoil: func(s *scene) {
				s.foreignSecret(testenv.RegistrationNamespace, registration.AnswerSecretName("edge", "random-"+s.ns))
				s.token("tok")
				s.request("tok", edge)
			},
			correct: func(s *scene) {
				s.dropSecret(testenv.RegistrationNamespace, registration.AnswerSecretName("edge", "random-"+s.ns))
			},
		},
		{
			name: "taken name of a cluster namespace", condition: fleet.ConditionProcessed,
			want: "False NameConflict", says: "delete the Namespace", corrected: "True Processed",
			spoil: func(s *scene) { s.foreignNamespace(); s.goodSecret(); s.cluster() },
			correct: func(s *scene) {
				name := registration.ClusterNamespace(s.ns, object)
				require.NoError(s.t, s.hub.Kubernetes.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}))
			},
		},
		{
			name: "taken name of an import token", condition: fleet.ConditionImported,
			want: "False NameConflict", says: "delete it", corrected: "True Imported",
			spoil:   func(s *scene) { s.token(registration.ImportTokenName(object)); s.goodSecret(); s.cluster() },
			correct: func(s *scene) { s.dropToken(registration.ImportTokenName(object)) },
		},
	}
}

func (s *scene) foreignSecret(namespace, name string) {
	s.hub.WriteSecret(s.t, namespace, name, map[string][]byte{"password": []byte("of somebody else")})
	s.foreign = readerOf(s, s.hub.Kubernetes.CoreV1().Secrets(namespace).Get, name)
}

// readerOf returns a function that reads an object.
func readerOf[T any](s *scene, get testenv.Get[T], name string) func() string {
	return func() string { return testenv.Bytes(s.t, testenv.RequireThere(s.t, get, name)) }
}

func (s *scene) dropSecret(namespace, name string) {
	require.NoError(s.t, s.hub.Kubernetes.CoreV1().Secrets(namespace).Delete(context.Background(), name, metav1.DeleteOptions{}))
}

func (s *scene) foreignRole() {
	roles := s.hub.Kubernetes.RbacV1().Roles(s.ns)
	testenv.Create(s.t, roles.Create, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: object},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}},
	})
	s.foreign = readerOf(s, roles.Get, object)
}

func (s *scene) foreignNamespace() {
	name := registration.ClusterNamespace(s.ns, object)
	namespaces := s.hub.Kubernetes.CoreV1().Namespaces()
	testenv.Create(s.t, namespaces.Create, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	s.foreign = readerOf(s, namespaces.Get, name)
}
