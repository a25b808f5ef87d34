package registration

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	muster "github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/registration"
)

var sentLabels = map[string]string{
	"env": "prod", "example.com/team": "a",
	"fleet.cattle.io/created-by-agent-pod":      "fleet-agent-0",
	"fleet.cattle.io/cluster":                   "somebody-else",
	"fleet.cattle.io/managed":                   "true",
	"fleet.cattle.io/cluster-management":        "mine",
	"management.cattle.io/cluster-display-name": "somebody-else",
	"management.cattle.io/anything":             "x",
	"not a label":                               "x",
}

func TestNewCluster(t *testing.T) {
	s := testenv.ParallelStage(t)
	values := s.Token(t, "tok")
	request := s.Hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: "edge-6", ClientRandom: "r" + s.Namespace, ClusterLabels: sentLabels})
	request, _ = s.Hub.Granted(t, values, request)

	sum := sha256.Sum256([]byte("edge-6"))
	name := "cluster-" + hex.EncodeToString(sum[:])[:12]
	assert.Equal(t, name, request.Status.ClusterName)
	cluster := s.Cluster(t, name)
	assert.Equal(t, "edge-6", cluster.Spec.ClientID)
	assert.Equal(t, map[string]string{
		"fleet.cattle.io/cluster":              name,
		"env":                                  "prod",
		"example.com/team":                     "a",
		"fleet.cattle.io/created-by-agent-pod": "fleet-agent-0",
	}, cluster.Labels)
	granted := testenv.Condition(request.Status.Conditions, fleet.ConditionGranted)
	assert.Contains(t, granted, "True Granted")
	assert.Contains(t, granted, "management.cattle.io/anything", "the message names the labels that the agent did not get")
}

func TestAgentLabelsIgnored(t *testing.T) {
	sample.Long(t)
	s := testenv.NewStage(t)
	values := s.Token(t, "tok")
	settings := s.Hub.Reachable()
	settings["ignoreClusterRegistrationLabels"] = true
	s.Hub.Configure(t, settings)

	// The hub, which is not restarted, applies the change after a moment: register agents until one has no labels.
	attempt := 0
	testenv.Eventually(t, func() (bool, string) {
		attempt++
		clientID := "quiet-" + time.Duration(attempt).String()
		request := s.Hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: clientID, ClientRandom: "r" + s.Namespace, ClusterLabels: sentLabels})
		request, _ = s.Hub.Granted(t, values, request)
		labels := s.Cluster(t, request.Status.ClusterName).Labels
		return len(labels) == 1 && labels["fleet.cattle.io/cluster"] == request.Status.ClusterName, "the Cluster still got labels of its agent"
	})
}

func TestPreparedCluster(t *testing.T) {
	s := testenv.ParallelStage(t)
	prepared := s.CreateCluster(t, &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "prepared", Labels: map[string]string{"mine": "yes"}},
		Spec:       fleet.ClusterSpec{ClientID: "known"},
	})
	values := s.Token(t, "tok")
	request := s.Hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: "known", ClientRandom: "r" + s.Namespace, ClusterLabels: sentLabels})
	request, _ = s.Hub.Granted(t, values, request)

	assert.Equal(t, "prepared", request.Status.ClusterName)
	assert.True(t, request.Status.Granted)
	assert.Equal(t, []metav1.OwnerReference{{
		APIVersion: "fleet.cattle.io/v1alpha1", Kind: "Cluster", Name: "prepared", UID: prepared.UID,
	}}, request.OwnerReferences)
	assert.Equal(t, map[string]string{"mine": "yes"}, s.Cluster(t, "prepared").Labels, "labels are taken only at creation")
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", registration.ClusterName("known"))
}

func TestRightsOfTheCredential(t *testing.T) {
	s := testenv.ParallelStage(t)
	values := s.Token(t, "tok")
	r := s.Register(t, values, "client-rights", "random")
	neighbour := s.Register(t, values, "client-neighbour", "random")
	cluster, own := r.Request.Status.ClusterName, r.ClusterNamespace()

	testenv.RequireRights(t, s.Hub, r.Bearer(), own, "get,list,watch bundledeployments", "update,patch bundledeployments/status")
	testenv.RequireRights(t, s.Hub, r.Bearer(), s.Namespace, "patch clusters/status "+cluster)
	for _, elsewhere := range []string{neighbour.ClusterNamespace(), testenv.RegistrationNamespace, "cattle-fleet-system", "default", "kube-system"} {
		testenv.RequireRights(t, s.Hub, r.Bearer(), elsewhere)
	}
	s.RequireHeartbeat(t, r, time.Now())
}

// The caches of the hub have a digest of what roles and bindings grant.
func TestChangedRights(t *testing.T) {
	s := testenv.ParallelStage(t)
	name := s.Register(t, s.Token(t, "tok"), "changed", "random").Request.Name
	roles, bindings := s.Hub.Kubernetes.RbacV1().Roles(s.Namespace), s.Hub.Kubernetes.RbacV1().RoleBindings(s.Namespace)
	wanted := testenv.RequireThere(t, roles.Get, name).Rules
	for _, rules := range [][]rbacv1.PolicyRule{nil, {{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}}} {
		role := testenv.RequireThere(t, roles.Get, name)
		role.Rules = rules
		testenv.Update(t, roles.Update, role)
		corrected := testenv.EventuallyIs(t, roles.Get, name, func(r *rbacv1.Role) (bool, string) {
			return reflect.DeepEqual(r.Rules, wanted), fmt.Sprint(r.Rules)
		})
		assert.Empty(t, corrected.GetSelfLink())
	}
	binding := testenv.RequireThere(t, bindings.Get, name)
	subjects := slices.Clone(binding.Subjects)
	binding.Subjects[0].Name = "default"
	testenv.Update(t, bindings.Update, binding)
	testenv.EventuallyIs(t, bindings.Get, name, func(b *rbacv1.RoleBinding) (bool, string) {
		return slices.Equal(b.Subjects, subjects), fmt.Sprint(b.Subjects)
	})
}

// unknownTime lets a hub take its own clock for that of the API server, which does not say its time.
func unknownTime(o *muster.Options) {
	r := &testenv.Recorder{}
	r.Inject(func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
		if strings.HasSuffix(req.URL.Path, "/selfsubjectreviews") {
			return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "selfsubjectreviews"}, "")
		}
		return send()
	})
	r.Wrap(o)
}

func TestCredentialSecretExpires(t *testing.T) {
	s := testenv.NewStage(t)
	r := s.Register(t, s.Token(t, "tok"), "forty", "random")
	s.Stop(t)
	secrets := s.Hub.Kubernetes.CoreV1().Secrets(testenv.RegistrationNamespace)

	young := s.Hub.Hub(t, testenv.Ahead(39*time.Minute), unknownTime)
	s.AwaitWork(t, "marker") // so the hub has finished the work of its start
	testenv.RequireThere(t, secrets.Get, r.Secret.Name)
	young.Stop(t)

	s.Hub.Hub(t, testenv.Ahead(41*time.Minute), unknownTime)
	testenv.RequireGone(t, secrets.Get, "Secret", r.Secret.Name)
	reader := registration.CredentialReaderName(r.Account())
	testenv.RequireGone(t, s.Hub.Kubernetes.RbacV1().RoleBindings(testenv.RegistrationNamespace).Get, "RoleBinding", reader)
	testenv.RequireGone(t, s.Hub.Kubernetes.RbacV1().Roles(testenv.RegistrationNamespace).Get, "Role", reader)
	testenv.RequireMay(t, s.Hub, r.Bearer(), testenv.To("list", "bundledeployments.fleet.cattle.io", r.ClusterNamespace(), ""))
	testenv.RequireThere(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Get, r.Request.Name)
}
