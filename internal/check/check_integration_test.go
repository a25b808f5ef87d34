package check

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/golden"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/admission"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// broken maps each check to a set-up in which only this check fails. Each function breaks one thing until the end of its test.
var broken = map[string]func(*testing.T, *hall) Inputs{
	"hub-api": func(t *testing.T, h *hall) Inputs {
		in := h.inputs("")
		in.Hub.Host = testenv.ClosedPort(t)
		return in
	},
	"way-probe": func(t *testing.T, h *hall) Inputs {
		return h.probed(t, func(pod *corev1.Pod) { pod.Status = ended }, func(Inputs) []byte { return []byte("there is no command \"check\"") })
	},
	"hub-kinds": func(_ *testing.T, h *hall) Inputs {
		in := h.inputs("")
		in.Hub = h.Member.RESTConfig()
		return in
	},
	"hub-fields": func(t *testing.T, h *hall) Inputs {
		client, err := apiextensions.NewForConfig(h.Hub.RESTConfig())
		require.NoError(t, err)
		definitions := client.ApiextensionsV1().CustomResourceDefinitions()
		replace := func(ctx context.Context, spec apiextensionsv1.CustomResourceDefinitionSpec) {
			current, err := definitions.Get(ctx, "clusters.fleet.cattle.io", metav1.GetOptions{})
			require.NoError(t, err)
			current.Spec = spec
			_, err = definitions.Update(ctx, current, metav1.UpdateOptions{})
			require.NoError(t, err)
		}
		before, err := definitions.Get(t.Context(), "clusters.fleet.cattle.io", metav1.GetOptions{})
		require.NoError(t, err)
		t.Cleanup(func() { replace(contextOf(t), before.Spec) })
		pruning := before.DeepCopy()
		properties := pruning.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties
		spec := properties["spec"]
		spec.XPreserveUnknownFields = nil
		delete(spec.Properties, "quarantined")
		properties["spec"] = spec
		replace(t.Context(), pruning.Spec)
		return h.inputs("")
	},
	"hub-policies": func(t *testing.T, h *hall) Inputs {
		h.withoutPolicy(t)
		h.configure(t, "registration", map[string]any{"requirePolicies": true})
		return h.inputs("")
	},
	"hub-writes": func(t *testing.T, h *hall) Inputs {
		h.refuseWrites(t, admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.OperationAll},
			Rule:       admissionv1.Rule{APIGroups: []string{"coordination.k8s.io"}, APIVersions: []string{"*"}, Resources: []string{"leases"}},
		})
		return h.inputs("")
	},
	"hub-rights": func(t *testing.T, h *hall) Inputs {
		h.hubMayNot(t, "watch")
		return h.inputs("")
	},
	"hub-runs": func(t *testing.T, h *hall) Inputs {
		leases := h.Hub.Kubernetes.CoordinationV1().Leases(testenv.SystemNamespace)
		lease := testenv.RequireThere(t, leases.Get, registration.HubLease)
		held := lease.Spec.RenewTime
		change(t, leases.Get, leases.Update, registration.HubLease, func(l *leaseType) { l.Spec.RenewTime = ptr.To(metav1.NewMicroTime(held.Add(-2 * time.Hour))) })
		return h.inputs("")
	},
	"hub-config": func(t *testing.T, h *hall) Inputs {
		h.configure(t, "agentTLSMode", "loose")
		return h.inputs("")
	},
	"way-address": func(t *testing.T, h *hall) Inputs {
		h.configure(t, "members", map[string]any{})
		return h.inputs("")
	},
	"way-dns": func(t *testing.T, h *hall) Inputs {
		h.configure(t, "apiServerURL", "https://hub.invalid")
		return h.inputs("")
	},
	"way-proxy": func(t *testing.T, h *hall) Inputs {
		h.configure(t, "apiServerURL", "https://192.0.2.1:6443")
		return h.inputs("")
	},
	"way-tcp": func(t *testing.T, h *hall) Inputs {
		h.configure(t, "apiServerURL", testenv.ClosedPort(t))
		return h.inputs("")
	},
	"way-tls": func(t *testing.T, h *hall) Inputs {
		h.configure(t, "apiServerCA", h.Member.CA())
		return h.inputs("")
	},
	"way-server": func(t *testing.T, h *hall) Inputs {
		login := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>Log in</html>")) }))
		t.Cleanup(login.Close)
		maps := h.Hub.Kubernetes.CoreV1().ConfigMaps(testenv.SystemNamespace)
		h.configure(t, "apiServerURL", login.URL)
		config := testenv.RequireThere(t, maps.Get, registration.HubConfigMap).Data[registration.ConfigKey]
		change(t, maps.Get, maps.Update, registration.HubConfigMap, func(m *corev1.ConfigMap) {
			ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: login.Certificate().Raw})
			m.Data[registration.ConfigKey] = regexp.MustCompile(`apiServerCA: \S+`).ReplaceAllString(config, "apiServerCA: "+base64Of(ca))
		})
		return h.inputs("")
	},

	"fleet-clusters": func(t *testing.T, h *hall) Inputs {
		h.condition(t, "west", fleet.ConditionConnected, corev1.ConditionFalse, fleet.ReasonDisconnected, "no heartbeat")
		return h.inputs("")
	},
	"cluster-exists": func(_ *testing.T, h *hall) Inputs { return h.inputs("nobody") },
	"cluster-processed": func(t *testing.T, h *hall) Inputs {
		h.condition(t, "west", fleet.ConditionProcessed, corev1.ConditionFalse, fleet.ReasonNameConflict, "a namespace of that name exists")
		return h.inputs("west")
	},
	"cluster-not-quarantined": func(t *testing.T, h *hall) Inputs {
		clusters := h.Hub.Fleet.Clusters(h.Namespace)
		change(t, clusters.Get, clusters.Update, "west", func(c *fleet.Cluster) { c.Spec.Quarantined = true })
		return h.inputs("west")
	},
	"import-secret": func(t *testing.T, h *hall) Inputs {
		clusters := h.Hub.Fleet.Clusters(h.Namespace)
		change(t, clusters.Get, clusters.Update, "east", func(c *fleet.Cluster) { c.Spec.KubeConfigSecret = "nowhere" })
		return h.inputs("east")
	},
	"import-kubeconfig": func(t *testing.T, h *hall) Inputs {
		h.kubeconfigIs(t, []byte("nonsense"))
		return h.inputs("east")
	},
	"import-self-contained": func(t *testing.T, h *hall) Inputs {
		h.kubeconfig(t, func(_ *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) {
			*user = clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
				APIVersion: "client.authentication.k8s.io/v1", Command: "aws", InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
			}}
		})
		return h.inputs("east")
	},
	"import-address": func(t *testing.T, h *hall) Inputs {
		h.kubeconfig(t, func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.Server = "https://169.254.169.254" })
		return h.inputs("east")
	},
	"import-reaches": func(t *testing.T, h *hall) Inputs {
		h.condition(t, "east", fleet.ConditionImported, corev1.ConditionFalse, fleet.ReasonUnreachable, "no answer")
		h.kubeconfig(t, func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.Server = testenv.ClosedPort(t) })
		return h.inputs("east")
	},
	"import-rights": func(t *testing.T, h *hall) Inputs {
		namespace := h.Member.Namespace(t)
		testenv.Create(t, h.Member.Kubernetes.CoreV1().ServiceAccounts(namespace).Create, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "powerless"}})
		token := h.Member.TokenOf(t, namespace, "powerless")
		h.kubeconfig(t, func(_ *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) {
			*user = clientcmdapi.AuthInfo{Token: token}
		})
		return h.inputs("east")
	},

	"member-api": func(t *testing.T, h *hall) Inputs {
		in := h.across("")
		in.Member.Host = testenv.ClosedPort(t)
		return in
	},
	"agent-namespace": func(_ *testing.T, h *hall) Inputs { return h.across("nowhere") },
	"agent-deployment": func(t *testing.T, h *hall) Inputs {
		return h.across(h.installed(t, func(d *appsv1.Deployment, _ *corev1.Pod) { d.Spec.Replicas = ptr.To[int32](0) }))
	},
	"agent-pod": func(t *testing.T, h *hall) Inputs {
		return h.across(h.installed(t, func(_ *appsv1.Deployment, p *corev1.Pod) { p.Name = "" }))
	},
	"agent-scheduled": func(t *testing.T, h *hall) Inputs {
		return h.across(h.installed(t, func(_ *appsv1.Deployment, p *corev1.Pod) {
			p.Spec.NodeName = ""
			p.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/1 nodes are available: 1 Insufficient memory.",
			}}}
		}))
	},
	"agent-image": func(t *testing.T, h *hall) Inputs {
		return h.across(h.installed(t, container(waits("ImagePullBackOff", `Back-off pulling image: 403 Forbidden`))))
	},
	"agent-runs": func(t *testing.T, h *hall) Inputs {
		return h.across(h.installed(t, container(func(c *corev1.ContainerStatus) {
			waits("CrashLoopBackOff", "back-off 40s restarting failed container")(c)
			c.RestartCount = 3
			c.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}
		})))
	},
	"agent-secret": func(t *testing.T, h *hall) Inputs {
		namespace := h.installed(t)
		require.NoError(t, h.Member.Kubernetes.CoreV1().Secrets(namespace).Delete(t.Context(), registration.CredentialSecret, metav1.DeleteOptions{}))
		return h.across(namespace)
	},
	"agent-config": func(t *testing.T, h *hall) Inputs {
		namespace := h.installed(t)
		testenv.Create(t, h.Member.Kubernetes.CoreV1().ConfigMaps(namespace).Create, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: registration.AgentConfigMap}, Data: map[string]string{registration.ConfigKey: "agentTLSMode: loose"},
		})
		return h.across(namespace)
	},
	"agent-credential": func(t *testing.T, h *hall) Inputs {
		namespace := h.installed(t)
		secrets := h.Member.Kubernetes.CoreV1().Secrets(namespace)
		change(t, secrets.Get, secrets.Update, registration.CredentialSecret, func(s *corev1.Secret) {
			s.Data[registration.CredentialKubeconfig] = []byte("nonsense")
		})
		return h.across(namespace)
	},
	"agent-cluster": func(t *testing.T, h *hall) Inputs {
		namespace := h.installed(t)
		h.belongsTo(t, namespace, "copy-of-west")
		return h.across(namespace)
	},
	"agent-credential-lives": func(t *testing.T, h *hall) Inputs {
		namespace := h.installed(t)
		h.credential(t, namespace, forged(t, time.Now().Add(-time.Hour)))
		return h.across(namespace)
	},
	"agent-bootstrap": func(t *testing.T, h *hall) Inputs {
		namespace := h.installed(t)
		values := h.Hub.Values(t, h.Namespace, "westward")
		values.Token = ""
		h.registers(t, namespace, values)
		return h.across(namespace)
	},
	"agent-token": func(t *testing.T, h *hall) Inputs {
		namespace := h.installed(t)
		values := h.Hub.Values(t, h.Namespace, "westward")
		values.Token = forged(t, time.Now().Add(-time.Hour))
		h.registers(t, namespace, values)
		return h.across(namespace)
	},

	"token-exists": func(_ *testing.T, h *hall) Inputs {
		in := h.inputs("")
		in.Token = "nobody"
		return in
	},
	"token-ready": func(t *testing.T, h *hall) Inputs {
		in := h.inputs("")
		in.Token = "new"
		testenv.Create(t, h.Hub.Fleet.ClusterRegistrationTokens(h.Namespace).Create, &fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Name: in.Token}})
		return in
	},
	"token-lives": func(t *testing.T, h *hall) Inputs {
		in := h.inputs("")
		in.Token = "westward"
		tokens := h.Hub.Fleet.ClusterRegistrationTokens(h.Namespace)
		change(t, tokens.Get, tokens.UpdateStatus, in.Token, func(c *fleet.ClusterRegistrationToken) {
			c.Status.Expires = ptr.To(metav1.NewTime(time.Now().Add(-time.Hour)))
		})
		return in
	},
	"token-uses": func(t *testing.T, h *hall) Inputs {
		in := h.inputs("")
		in.Token = "westward"
		tokens := h.Hub.Fleet.ClusterRegistrationTokens(h.Namespace)
		change(t, tokens.Get, tokens.Update, in.Token, func(c *fleet.ClusterRegistrationToken) { c.Spec.UsageLimit = ptr.To[int32](1) })
		return in
	},
	"token-rights": func(t *testing.T, h *hall) Inputs {
		in := h.inputs("")
		in.Token = "westward"
		token := testenv.RequireThere(t, h.Hub.Fleet.ClusterRegistrationTokens(h.Namespace).Get, in.Token)
		h.withoutRights(t, h.Namespace, registration.TokenRoleName(registration.TokenServiceAccount(token.Name, string(token.UID))))
		return in
	},

	"way-clock": func(t *testing.T, h *hall) Inputs {
		in := h.across(h.installed(t))
		in.Member.Wrap(dated(time.Hour).Wrap)
		return in
	},
	"way-authenticated": func(t *testing.T, h *hall) Inputs {
		namespace := h.installed(t)
		h.credential(t, namespace, forged(t, time.Now().Add(23*time.Hour)))
		return h.across(namespace)
	},
	"way-authorised": func(t *testing.T, h *hall) Inputs {
		own := registration.ClusterNamespace(h.Namespace, "west")
		roles := testenv.List(t, h.Hub.Kubernetes.RbacV1().Roles(own).List, metav1.ListOptions{})
		for _, role := range roles.Items {
			h.withoutRights(t, own, role.Name)
		}
		return h.across(h.installed(t))
	},

	"cluster-imported": func(t *testing.T, h *hall) Inputs {
		h.condition(t, "east", fleet.ConditionImported, corev1.ConditionFalse, fleet.ReasonSettingsInvalid, "the settings of the agent contradict each other")
		return h.east(t)
	},
	"request-arrived": func(t *testing.T, h *hall) Inputs {
		in := h.across(h.installed(t))
		in.Cluster = "nobody"
		return in
	},
	"request-granted": func(t *testing.T, h *hall) Inputs {
		request := testenv.Create(t, h.Hub.Fleet.ClusterRegistrations(h.Namespace).Create, &fleet.ClusterRegistration{
			ObjectMeta: metav1.ObjectMeta{Name: "north"}, Spec: fleet.ClusterRegistrationSpec{ClientID: "north", ClientRandom: "north"},
		})
		t.Cleanup(func() {
			require.NoError(t, h.Hub.Fleet.ClusterRegistrations(h.Namespace).Delete(contextOf(t), "north", metav1.DeleteOptions{}))
		})
		request.Status.Conditions = []testenv.Generic{{
			Type: fleet.ConditionGranted, Status: corev1.ConditionUnknown, Reason: fleet.ReasonWaitingForApproval, Message: "the token requires an approval",
		}}
		testenv.Update(t, h.Hub.Fleet.ClusterRegistrations(h.Namespace).UpdateStatus, request)
		return h.inputs("north")
	},
	"cluster-registered": func(t *testing.T, h *hall) Inputs {
		h.condition(t, "west", fleet.ConditionRegistered, corev1.ConditionFalse, fleet.ReasonCredentialRevoked, "the ServiceAccount was deleted")
		return h.inputs("west")
	},
	"cluster-heartbeat": func(t *testing.T, h *hall) Inputs {
		h.status(t, "west", func(s *fleet.ClusterStatus) { s.Agent.LastSeen = metav1.NewTime(time.Now().Add(-2 * time.Hour)) })
		return h.inputs("west")
	},
	"cluster-credential": func(t *testing.T, h *hall) Inputs {
		h.status(t, "west", func(s *fleet.ClusterStatus) {
			s.Agent.CredentialExpires = ptr.To(metav1.NewTime(time.Now().Add(-time.Hour)))
		})
		return h.inputs("west")
	},
	"cluster-deploys": func(t *testing.T, h *hall) Inputs {
		h.status(t, "west", func(s *fleet.ClusterStatus) {
			s.Agent.DeploymentsStalled = "listing the Secrets of Helm releases on the member: forbidden"
		})
		return h.inputs("west")
	},
}

// warned maps each check that never fails to a set-up in which it warns.
var warned = map[string]func(*testing.T, *hall) Inputs{
	"fleet-requests": func(t *testing.T, h *hall) Inputs {
		broken["request-granted"](t, h)
		return h.inputs("")
	},
	"fleet-bundles": func(t *testing.T, h *hall) Inputs {
		h.bundlesNotReady(t)
		return h.inputs("")
	},
	"cluster-bundles": func(t *testing.T, h *hall) Inputs {
		h.bundlesNotReady(t)
		return h.inputs("west")
	},
	"cluster-versions": func(_ *testing.T, h *hall) Inputs {
		in := h.inputs("west")
		in.Version = "v9.9.9"
		return in
	},
}

// fromElsewhere contains set-ups in which only the user's machine lacks a connection. The check of that name warns, and no check fails.
var fromElsewhere = map[string]func(*testing.T, *hall) Inputs{
	"way-tcp": func(t *testing.T, h *hall) Inputs {
		broken["way-tcp"](t, h)
		return h.inputs("west")
	},
	"way-dns": func(t *testing.T, h *hall) Inputs {
		broken["way-dns"](t, h)
		return h.inputs("west")
	},
	"way-proxy": func(t *testing.T, h *hall) Inputs {
		broken["way-proxy"](t, h)
		return h.inputs("west")
	},
	"import-reaches": func(t *testing.T, h *hall) Inputs {
		h.kubeconfig(t, func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.Server = testenv.ClosedPort(t) })
		return h.inputs("east")
	},
	"way-tcp of a fleet whose agents are connected": func(t *testing.T, h *hall) Inputs {
		broken["way-tcp"](t, h)
		h.status(t, "west", func(s *fleet.ClusterStatus) { s.Agent.Hub.APIServerURL = h.address(t) })
		return h.inputs("")
	},
}

// importsFail contains set-ups in which import-reaches fails although the hub has not written that it cannot reach the member, with a part of
// the detail.
var importsFail = map[string]func(*testing.T, *hall) string{
	"the agent is silent, too": func(t *testing.T, h *hall) string {
		h.status(t, "east", func(s *fleet.ClusterStatus) { s.Agent.LastSeen = metav1.NewTime(time.Now().Add(-2 * time.Hour)) })
		h.kubeconfig(t, func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.Server = testenv.ClosedPort(t) })
		return "connection refused; the hub has reached it before, but the last heartbeat was 120m ago, the interval is 15m"
	},
	"neither the hub nor this machine trusts the certificate": func(t *testing.T, h *hall) string {
		h.condition(t, "east", fleet.ConditionImported, corev1.ConditionFalse, fleet.ReasonCertificateUntrusted, "signed by unknown authority")
		h.kubeconfig(t, func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.CertificateAuthorityData = h.Hub.CA() })
		return "certificate signed by unknown authority"
	},
}

// address returns apiServerURL of the hub's configuration.
func (h *hall) address(t *testing.T) string {
	t.Helper()
	configMap := testenv.RequireThere(t, h.Hub.Kubernetes.CoreV1().ConfigMaps(testenv.SystemNamespace).Get, registration.HubConfigMap)
	hub, _, err := config.ParseHub(configMap.Data[registration.ConfigKey])
	require.NoError(t, err)
	return hub.APIServerURL
}

// hubKnows contains set-ups in which this machine cannot reach what the agent or the hub can reach. The check of that name fails, because the hub
// has written its cause.
var hubKnows = map[string]func(*testing.T, *hall) Inputs{
	"cluster-registered": func(t *testing.T, h *hall) Inputs {
		broken["way-tcp"](t, h)
		h.status(t, "west", func(s *fleet.ClusterStatus) {
			setCondition(s, fleet.ConditionRegistered, corev1.ConditionFalse, fleet.ReasonCredentialExpired, "it expired")
			setCondition(s, fleet.ConditionConnected, corev1.ConditionFalse, fleet.ReasonDisconnected, "no heartbeat")
		})
		return h.inputs("west")
	},
	"cluster-imported": func(t *testing.T, h *hall) Inputs {
		h.condition(t, "east", fleet.ConditionImported, corev1.ConditionFalse, fleet.ReasonUnauthorized, "the member rejects the kubeconfig")
		h.kubeconfig(t, func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.Server = testenv.ClosedPort(t) })
		return h.inputs("east")
	},
}

// withoutPolicy deletes an admission policy until the end of the test.
func (h *hall) withoutPolicy(t *testing.T) {
	t.Helper()
	client, err := dynamic.NewForConfig(h.Hub.RESTConfig())
	require.NoError(t, err)
	version, err := admission.ServedVersion(h.Hub.Kubernetes.Discovery())
	require.NoError(t, err)
	policies, err := admission.Objects(version)
	require.NoError(t, err)
	require.NoError(t, client.Resource(admission.Resource(policies[0])).Delete(t.Context(), policies[0].GetName(), metav1.DeleteOptions{}))
	t.Cleanup(func() {
		require.NoError(t, admission.Install(contextOf(t), client, policies[:1]))
		testenv.Eventually(t, func() (bool, string) { // an API server enforces a policy after a moment
			err := admission.Probe(contextOf(t), h.Hub.Fleet.ClusterRegistrations(h.Namespace))
			return err == nil, fmt.Sprint(err)
		})
	})
}

// refuseWrites installs a webhook without a server until the end of the test.
func (h *hall) refuseWrites(t *testing.T, rule admissionv1.RuleWithOperations) {
	t.Helper()
	webhooks := h.Hub.Kubernetes.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	testenv.Create(t, webhooks.Create, &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "gone"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "gone.example.com", ClientConfig: admissionv1.WebhookClientConfig{URL: ptr.To(testenv.ClosedPort(t))},
			Rules: []admissionv1.RuleWithOperations{rule}, FailurePolicy: ptr.To(admissionv1.Fail), SideEffects: ptr.To(admissionv1.SideEffectClassNone),
			NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: testenv.SystemNamespace}},
			AdmissionReviewVersions: []string{"v1"},
		}},
	})
	refuses := func(want bool) {
		testenv.Eventually(t, func() (bool, string) { // an API server reads webhooks after a moment
			_, err := h.Hub.Kubernetes.CoordinationV1().Leases(testenv.SystemNamespace).Patch(contextOf(t), registration.HubLease,
				types.MergePatchType, []byte("{}"), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
			return (err != nil) == want, fmt.Sprint(err)
		})
	}
	t.Cleanup(func() {
		require.NoError(t, webhooks.Delete(contextOf(t), "gone", metav1.DeleteOptions{}))
		refuses(false)
	})
	refuses(true)
}

// hubMayNot removes a verb from the rules of the hub for its own kinds, until the end of the test.
func (h *hall) hubMayNot(t *testing.T, verb string) {
	t.Helper()
	in := h.inputs("")
	await := func(want Verdict) {
		testenv.Eventually(t, func() (bool, string) { // an API server reads roles after a moment
			found := hubRightsGranted(contextOf(t), newKnowledge(in))
			return found.Verdict == want, found.Detail
		})
	}
	t.Cleanup(func() { await(Pass) })
	roles := h.Hub.Kubernetes.RbacV1().ClusterRoles()
	change(t, roles.Get, roles.Update, registration.HubName, func(r *rbacv1.ClusterRole) {
		for n, rule := range r.Rules {
			if rule.APIGroups[0] == fleet.SchemeGroupVersion.Group {
				r.Rules[n].Verbs = slices.DeleteFunc(rule.Verbs, func(v string) bool { return v == verb })
			}
		}
	})
	await(Fail)
}

func (h *hall) withoutRights(t *testing.T, namespace, role string) {
	t.Helper()
	roles := h.Hub.Kubernetes.RbacV1().Roles(namespace)
	change(t, roles.Get, roles.Update, role, func(r *rbacv1.Role) { r.Rules = nil })
}

// Every check has a set-up in which it fails, and it is the only one: otherwise the first line would name another cause.
func TestChecksFailAlone(t *testing.T) {
	sample.Long(t)
	h := newHall(t)
	h.versionOf(t, "west", "v1.2.3")

	for name, in := range map[string]Inputs{"the hub": h.inputs(""), "across": h.across(h.installed(t)), "an import": h.east(t), "the hub alone": h.inputs("west")} {
		in.Version = "v1.2.3"
		good := Run(t.Context(), in)
		assert.Equal(t, Pass, good.Result, "%s: %s", name, screen(good))
	}
	good := Run(t.Context(), h.across(h.installed(t)))
	requireGolden(t, "healthy.txt", screen(good))

	for id, prepare := range fromElsewhere {
		t.Run("from elsewhere "+id, func(t *testing.T) {
			d := Run(t.Context(), prepare(t, h))
			assert.Equal(t, Warn, d.Result, screen(d))
			name, _, _ := strings.Cut(id, " ")
			assert.Contains(t, d.Summary, "("+name+")")
		})
	}
	for id, prepare := range hubKnows {
		t.Run("known to the hub "+id, func(t *testing.T) {
			d := Run(t.Context(), prepare(t, h))
			assert.Equal(t, Fail, d.Result, screen(d))
			assert.Contains(t, d.Summary, "("+id+")")
		})
	}

	for name, prepare := range importsFail {
		t.Run("import-reaches, "+name, func(t *testing.T) {
			want := prepare(t, h)
			d := Run(t.Context(), h.inputs("east"))
			assert.Contains(t, d.Summary, "Failed: "+categoryImport+" (import-reaches): ", screen(d))
			assert.Contains(t, d.Summary, want)
		})
	}

	t.Run("policies", h.requirePolicies)
	h.requireProbes(t)
	for _, c := range Table() {
		want, prepare := Fail, broken[c.ID]
		if prepare == nil {
			want, prepare = Warn, warned[c.ID]
		}
		t.Run(c.ID, func(t *testing.T) {
			require.NotNil(t, prepare, "there is no set-up in which the check fails")
			d := Run(t.Context(), prepare(t, h))
			var failed []string
			for _, line := range d.Checks {
				if line.Result == want && line.SkippedBecause == "" {
					failed = append(failed, line.ID)
				}
				if line.SkippedBecause != "" {
					assert.Equal(t, c.ID, line.SkippedBecause, "%s was skipped", line.ID)
				}
			}
			if c.ID == "hub-rights" {
				assert.Contains(t, d.Summary, "fleet-controller may not watch clusters.fleet.cattle.io; watch clusterregistrations.fleet.cattle.io; ")
			}
			if c.ID == "hub-api" {
				assert.NotContains(t, screen(d), categoryToken, "nobody asked about a token")
			}
			if want == Fail {
				assert.Equal(t, []string{c.ID}, failed, screen(d))
			} else {
				assert.Contains(t, failed, c.ID, screen(d))
			}
			assert.Equal(t, want, d.Result)
			assert.Contains(t, d.Summary, "("+c.ID+")")
			assert.NotContains(t, screen(d), "eyJ", "the beginning of a token")
			if c.ID == "agent-runs" {
				requireGolden(t, "broken.txt", screen(d))
			}
		})
	}
}

// A policy that the hub does not require disconnects nobody. Those of another release are not compared.
func (h *hall) requirePolicies(t *testing.T) {
	in := h.inputs("")
	in.Version = "v9.9.9"
	finding := func(t *testing.T) Line {
		t.Helper()
		line, made := Run(t.Context(), in).Line("hub-policies")
		require.True(t, made)
		return line
	}
	otherRelease := func(t *testing.T) {
		t.Helper()
		maps := h.Hub.Kubernetes.CoreV1().ConfigMaps(testenv.SystemNamespace)
		change(t, maps.Get, maps.Update, registration.HubConfigMap, func(m *corev1.ConfigMap) {
			m.Annotations = map[string]string{fleet.VersionAnnotation: "v1.2.3"}
		})
	}
	policies := h.Hub.Kubernetes.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	t.Run("changed", func(t *testing.T) {
		all := testenv.List(t, policies.List, metav1.ListOptions{})
		require.NotEmpty(t, all.Items)
		change(t, policies.Get, policies.Update, all.Items[0].Name, func(p *admissionv1.ValidatingAdmissionPolicy) { p.Spec.Validations[0].Message = "another" })
		line := finding(t)
		assert.Equal(t, Warn, line.Result)
		assert.Contains(t, line.Detail, "differs from the one of this hub")
		assert.NotContains(t, line.Detail, admission.Remedy, "it is the hint")
		otherRelease(t)
		line = finding(t)
		assert.Equal(t, Pass, line.Result)
		assert.Equal(t, "those of chart fleet v1.2.3; this muster is v9.9.9, so only their existence was checked", line.Detail)
	})
	t.Run("missing", func(t *testing.T) {
		otherRelease(t)
		h.withoutPolicy(t)
		assert.Equal(t, Warn, finding(t).Result)
	})
}

// If the user lacks rights, the result is unknown and not a failure.
func TestCheckWithoutRights(t *testing.T) {
	hub := testenv.SharedCluster(t, "hub")
	hub.Configure(t, hub.Reachable())
	namespace := hub.Namespace(t)
	testenv.Create(t, hub.Kubernetes.CoreV1().ServiceAccounts(namespace).Create, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "powerless"}})
	powerless := rest.AnonymousClientConfig(hub.RESTConfig())
	powerless.BearerToken = hub.TokenOf(t, namespace, "powerless")
	d := Run(t.Context(), Inputs{Hub: powerless, Namespace: namespace, Cluster: "west", Now: time.Now})
	require.Equal(t, ExitUnknown, d.ExitCode(), screen(d))
	require.True(t, strings.HasPrefix(d.Summary, "Could not find out: Cluster on the hub (cluster-exists): "), d.Summary)
	require.Equal(t, []string{"hub-writes", "hub-rights", "hub-runs", "hub-config", "hub-policies"}, d.LeftOut)
}

// The pod connects to the hub, and the Job is always deleted.
func (h *hall) requireProbes(t *testing.T) {
	t.Helper()
	results := func(in Inputs) []byte { // those of fleetagent check in the pod
		var out bytes.Buffer
		assert.NoError(t, Run(t.Context(), Inputs{Member: in.Member, AgentNamespace: in.AgentNamespace, Version: in.Version, Now: in.Now}).PrintJSON(&out))
		return out.Bytes()
	}
	for name, row := range map[string]struct {
		status func(*corev1.Pod)
		output func(Inputs) []byte
		want   string
	}{
		"good": {func(pod *corev1.Pod) { pod.Status = ended }, results, "No check failed, 1 of "},
		"the pod finds the failing hop": {func(pod *corev1.Pod) { pod.Status = ended }, func(Inputs) []byte {
			return []byte(`{"checks":[{"id":"way-dns","category":"` + categoryWay + `","check":"the name of the hub is resolved","result":"fail","detail":"no such host"}]}`)
		}, "Failed: " + categoryWay + " (way-dns): no such host"},
		"no image": {func(pod *corev1.Pod) {
			pod.Status = waiting("ImagePullBackOff", "no route to the registry")
		}, nil, "Failed: " + categoryWay + " (way-probe): Job "},
		"interrupted": {nil, nil, ""},
	} {
		t.Run("probe, "+name, func(t *testing.T) {
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			if row.status == nil {
				row.status = func(*corev1.Pod) { interrupt() }
			}
			d := Run(ctx, h.probed(t, row.status, row.output))
			assert.Contains(t, d.Summary, row.want, screen(d))
			if name == "no image" {
				assert.Contains(t, d.Summary, "image registry.example.com/fleet-agent:v1: ImagePullBackOff: no route to the registry")
			}
		})
	}
}

func (h *hall) versionOf(t *testing.T, cluster, version string) {
	t.Helper()
	testenv.Merge(t, h.Hub.Fleet.Clusters(h.Namespace).Patch, cluster, `{"status":{"agent":{"version":"`+version+`"}}}`, "status")
	testenv.Merge(t, h.Hub.Fleet.Clusters(h.Namespace).Patch, "east", `{"status":{"agent":{"version":"`+version+`"}}}`, "status")
}

func screen(d Diagnosis) string {
	var out bytes.Buffer
	d.Print(&out, false)
	return out.String()
}

// requireGolden compares a transcript with a file. What differs from run to run is replaced.
func requireGolden(t *testing.T, name, text string) {
	t.Helper()
	for _, r := range [][2]string{
		{`127\.0\.0\.1:\d+`, "HUB:6443"},
		{`ws-\w+`, "WORKSPACE"},
		{`Kubernetes v[\d.]+`, "Kubernetes VERSION"},
		{`CA [0-9a-f]{12}`, "CA DIGEST"},
		{`system:serviceaccount:\S+`, "system:serviceaccount:ACCOUNT"},
		{`\b\d+[smh]\w* (left|ago)`, "AGE $1"},
		{`cluster-WORKSPACE\S*`, "CLUSTER-NAMESPACE"},
	} {
		text = regexp.MustCompile(r[0]).ReplaceAllString(text, r[1])
	}
	golden.Equal(t, "testdata/"+name, text)
}
