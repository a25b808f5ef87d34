package privilege

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	clusternetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/clusters.clusternet.io/v1beta1"
	muster "github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/registration"
)

// A Clusternet agent has most rights while it can read its answer. The test reviews them with its registration token and with its own
// credential.
func TestRightsOfClusternetAgents(t *testing.T) {
	sample.Long(t)
	hub, _ := testenv.Clusters(t)
	hub.NeedsMutatingPolicies(t)
	install := hub.InstallChart(t, map[string]any{
		"apiServerURL": hub.URL(), "apiServerCA": string(hub.CA()), "clusternet": map[string]any{"enabled": true},
		"bootstrap": map[string]any{"enabled": false},
	})
	s := &testenv.Stage{Hub: hub, Namespace: hub.Namespace(t)}
	s.Running = hub.Hub(t, install, func(o *muster.Options) { o.Clusternet = true })
	hub.AwaitClusternetAdmission(t)

	// Register a cluster, and read its answer.
	const id = "6a5ba9ed-1b5f-4b3e-9a4e-0d6a5f0f4a11"
	config := rest.AnonymousClientConfig(hub.RESTConfig())
	config.BearerToken = s.Token(t, "shared-tok").Token
	client, err := clusternetclient.NewForConfig(config)
	require.NoError(t, err)
	var request *v1beta1.ClusterRegistrationRequest
	testenv.Eventually(t, func() (bool, string) {
		request, err = client.ClusterRegistrationRequests().Create(t.Context(), &v1beta1.ClusterRegistrationRequest{
			ObjectMeta: metav1.ObjectMeta{Name: v1beta1.RequestPrefix + id}, Spec: v1beta1.ClusterRegistrationRequestSpec{ClusterID: id},
		}, metav1.CreateOptions{})
		return err == nil, fmt.Sprint(err)
	})
	testenv.Eventually(t, func() (bool, string) {
		answer, err := client.ClusterRegistrationRequests().Get(t.Context(), request.Name, metav1.GetOptions{})
		return err == nil && answer.Status.Result == v1beta1.ResultApproved, fmt.Sprint(err)
	})
	granted := testenv.RequireThere(t, hub.Fleet.ClusterRegistrations(s.Namespace).Get, registration.ClusternetRequestName(string(request.UID)))

	token, account := s.ReadyToken(t, "shared-tok"), registration.RequestServiceAccount(granted.Name, string(granted.UID))
	tokenAccount := registration.TokenServiceAccount(token.Name, string(token.UID))
	namespace := registration.ClusterNamespace(s.Namespace, granted.Status.ClusterName)
	places := []place{
		{namespace, "cluster-own"},
		{s.Namespace, "workspace"},
		{testenv.RegistrationNamespace, testenv.RegistrationNamespace},
		{testenv.SystemNamespace, testenv.SystemNamespace},
	}
	plain := strings.NewReplacer(request.Name, "REQUEST-OWN", tokenAccount, "SERVICEACCOUNT-OF-TOKEN", "shared-tok", "TOKEN-OWN", account, "SERVICEACCOUNT-OWN")
	all, chosen := served(t, hub), sample.OneIn(t, 100)
	everybodys := everybodys(t, hub, chosen, all)
	for title, who := range map[string]identity{
		"clusternet-import": {s.Namespace, tokenAccount},
		"clusternet-agent":  {namespace, account},
	} {
		t.Run(title, func(t *testing.T) {
			requireGolden(t, "testdata/"+title+".golden", asker{hub, chosen, who}.table(t, places, all, everybodys, plain), all)
		})
	}
	t.Run("clusternet-hub", func(t *testing.T) { // what hub.golden does not contain
		others, err := os.ReadFile("testdata/hub.golden")
		require.NoError(t, err)
		known := strings.SplitAfter(string(others), "\n")
		table := asker{hub, chosen, identity{testenv.SystemNamespace, "fleet-controller"}}.table(t, nil, all, everybodys, plain)
		more := slices.DeleteFunc(strings.SplitAfter(table, "\n"), func(line string) bool {
			return !strings.HasPrefix(line, "#") && slices.Contains(known, line)
		})
		requireGolden(t, "testdata/clusternet-hub.golden", strings.Join(more, ""), all)
	})
}
