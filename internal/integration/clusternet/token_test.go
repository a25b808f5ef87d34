package clusternet

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/cli"
	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

const mappedID = "abc123"

// A bootstrap token of Kubernetes registers clusters like the ClusterRegistrationToken that it belongs to.
func testBootstrapToken(t *testing.T, s *stage) {
	secret := func(id string) (token string) {
		testenv.Create(t, s.Hub.Kubernetes.CoreV1().Secrets(metav1.NamespaceSystem).Create, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id}, Type: corev1.SecretTypeBootstrapToken,
			StringData: map[string]string{
				"token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
				"auth-extra-groups": "system:bootstrappers:clusternet:register-cluster-token",
			},
		})
		return id + ".0123456789abcdef"
	}
	one := int32(1)
	s.Hub.Token(t, s.Namespace, "edge", fleet.ClusterRegistrationTokenSpec{UsageLimit: &one, Labels: map[string]string{"site": "north"}})
	p := s.peer(t, registration.Values{Token: secret(mappedID)})
	cluster := p.registered()
	assert.Equal(t, "north", cluster.Labels["site"])
	assert.Equal(t, int64(1), s.ReadyToken(t, "edge").Status.Uses)
	p.start()
	p.repeats("/status 200", 1)
	assert.Zero(t, p.sent.Count("boot "), "a restart needs the dedicated identity only")

	t.Log("the limit of the ClusterRegistrationToken applies")
	second := s.peer(t, registration.Values{Token: mappedID + ".0123456789abcdef"})
	second.start()
	second.waitingRequest("TokenUsedUp")
	s.says(t, second.id(), v1beta1.ResultDenied, "TokenUsedUp")

	t.Log("a bootstrap token that stands for nothing may do nothing")
	other := s.peer(t, registration.Values{Token: secret("abc124")})
	other.start()
	other.repeats("boot POST clusterregistrationrequests 403", 2)

	t.Log("nor one whose ClusterRegistrationToken is deleted")
	require.NoError(t, s.Hub.Fleet.ClusterRegistrationTokens(s.Namespace).Delete(t.Context(), "edge", metav1.DeleteOptions{}))
	third := s.peer(t, registration.Values{Token: mappedID + ".0123456789abcdef"})
	testenv.Eventually(t, func() (bool, string) {
		_, err := s.as(t, mappedID+".0123456789abcdef").ClusterRegistrationRequests().Create(t.Context(), &v1beta1.ClusterRegistrationRequest{
			ObjectMeta: metav1.ObjectMeta{Name: third.request()}, Spec: v1beta1.ClusterRegistrationRequestSpec{ClusterID: third.id()},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsForbidden(err), errorText(err)
	})
}

// The Secret that the command prints can be applied to a member, and its agent registers with it.
func testPrintedSecret(t *testing.T, s *stage) {
	file := filepath.Join(t.TempDir(), "hub.kubeconfig")
	require.NoError(t, os.WriteFile(file, s.Hub.Kubeconfig(), 0o600))
	var out bytes.Buffer
	app := cli.App(cli.Streams{Out: &out, Err: &out, Env: func(string) string { return "" }, Now: time.Now})
	require.NoError(t, app.RunContext(t.Context(), []string{
		"muster", "--kubeconfig", file, "-n", s.Namespace, "token", "create", "--usage-limit", "1", "--timeout", "2m", "-o", "clusternet", "printed",
	}))

	var printed corev1.Secret
	require.NoError(t, yaml.UnmarshalStrict(out.Bytes(), &printed))
	assert.Equal(t, "clusternet-system/clusternet-agent-cluster-registration", printed.Namespace+"/"+printed.Name)
	printed.Namespace = s.Member.Namespace(t)
	stored := testenv.Create(t, s.Member.Kubernetes.CoreV1().Secrets(printed.Namespace).Create, &printed)

	p := s.peer(t, registration.Values{Token: string(stored.Data["regToken"])})
	p.options.HubURL = string(stored.Data["parentURL"])
	p.registered()
	token := s.ReadyToken(t, "printed")
	assert.Equal(t, int64(1), token.Status.Uses)
	s.Hub.ClusterCondition(t, s.Namespace, p.cluster(), fleet.ConditionRegistered, "True")
}
