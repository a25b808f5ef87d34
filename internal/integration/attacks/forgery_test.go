package attacks

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Labels decide what is deployed to a Cluster. Some come from the agent, some from its token and the others from the hub.
func TestForgedLabels(t *testing.T) {
	s := testenv.ParallelStage(t)
	values := s.Hub.Token(t, s.Namespace, "dev", fleet.ClusterRegistrationTokenSpec{Labels: map[string]string{"env": "dev"}})
	request := with("dev", "liar", "l"+s.Namespace)
	request.Spec.ClusterLabels = map[string]string{
		"env": "prod", "team": "a",
		fleet.ClusterLabel: "victim", fleet.ManagedLabel: fleet.ManagedValue, "fleet.cattle.io/cluster-management": "mine",
		"management.cattle.io/cluster-name": "local", "objectset.rio.cattle.io/hash": "x", "Fleet.cattle.io/x": "y", "a b": "c", "x": "é",
	}
	request, _ = s.Hub.Granted(t, values, sends(t, s, values, request))
	cluster := s.Cluster(t, request.Status.ClusterName)
	assert.Equal(t, map[string]string{"env": "dev", "team": "a", fleet.ClusterLabel: cluster.Name}, cluster.Labels)
	granted := testenv.Condition(request.Status.Conditions, fleet.ConditionGranted)
	for _, dropped := range []string{fleet.ClusterLabel, fleet.ManagedLabel, "management.cattle.io/cluster-name", "objectset.rio.cattle.io/hash", "a b"} {
		assert.Contains(t, granted, dropped)
	}
}

// Labels and annotations of the hub's own objects have no effect on a request. A request with an owner reference to a Cluster that does
// not exist is not granted: the hub treats it as one that Kubernetes will delete with its Cluster.
func TestForgedMetadata(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	values := s.Token(t, "shared")
	v := newVictim(t, s, values, "victim")
	request := with("shared", "liar", "l"+s.Namespace)
	request.Labels[fleet.ManagedLabel] = fleet.ManagedValue
	request.Annotations = map[string]string{
		fleet.ClusterAnnotation: v.cluster(), fleet.WorkspaceAnnotation: s.Namespace,
		fleet.ClusterRegistrationAnnotation: v.Request.Name, fleet.ClusterRegistrationNamespaceAnnotation: s.Namespace,
		"objectset.rio.cattle.io/id": "cluster-registration",
	}
	granted, _ := s.Hub.Granted(t, values, sends(t, s, values, request))
	assert.Equal(t, registration.ClusterName("liar"), granted.Status.ClusterName)

	owned := with("shared", "owned", "o"+s.Namespace)
	owned.Name = "owned"
	owned.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: fleet.SchemeGroupVersion.String(), Kind: "Cluster", Name: v.cluster(), UID: s.Cluster(t, v.cluster()).UID,
		BlockOwnerDeletion: ptr.To(true),
	}}
	stays, unseen := with("shared", "stays", "s"+s.Namespace), with("shared", "unseen", "u"+s.Namespace)
	stays.GenerateName, stays.Finalizers = "stays-", []string{"evil.example.com/stays"}
	unseen.GenerateName, unseen.Labels[fleet.ClusterManagementLabel] = "unseen-", "mine"
	requests := s.Hub.ClientFor(t, values.Token).Fleet.ClusterRegistrations(s.Namespace)
	forbidden(t, map[string]func() error{
		"keep the victim's Cluster from being deleted": func() error { return only(requests.Create(t.Context(), owned, metav1.CreateOptions{})) },
		"stay for ever":         func() error { return only(requests.Create(t.Context(), stays, metav1.CreateOptions{})) },
		"be ignored by the hub": func() error { return only(requests.Create(t.Context(), unseen, metav1.CreateOptions{})) },
	})
	owned, err := s.Hub.Fleet.ClusterRegistrations(s.Namespace).Create(t.Context(), owned, metav1.CreateOptions{})
	require.NoError(t, err, "where no policy is in force")
	refused(t, s, owned, fleet.ReasonNameConflict)
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", registration.ClusterName("owned"))
	v.undisturbed(t)
}

// Pairs of strings that give the same text when they are concatenated must have different hashes.
func TestConcatenationsThatCollide(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	values := s.Token(t, "shared")
	v := newVictim(t, s, values, "ab")
	collides := with("shared", "a", "b"+v.Request.Spec.ClientRandom)
	require.Equal(t, v.Secret.Name, registration.AnswerSecretName(collides.Spec.ClientID, collides.Spec.ClientRandom))
	refused(t, s, sends(t, s, values, collides), fleet.ReasonNameConflict)
	v.undisturbed(t)

	long := strings.Repeat("x", 100)
	first := newVictim(t, s, values, long+"first")
	refused(t, s, sends(t, s, values, with("shared", long+"second", "2"+s.Namespace)), fleet.ReasonClusterNameTaken)
	first.undisturbed(t)
}

const roleOfToken, bindingOfToken = "the Role of the token", "the RoleBinding of the token"

// A request has the name of an object of the hub.
func TestRequestNamedAfterAnotherObject(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	values := s.Token(t, "shared")
	v := newVictim(t, s, values, "victim")
	account := registration.TokenServiceAccount("shared", string(s.ReadyToken(t, "shared").UID))
	before := everything(t, s)
	for like, name := range map[string]string{
		"the account of the token": account, roleOfToken: registration.TokenRoleName(account), bindingOfToken: registration.TokenRoleBindingName(account),
		"the account of the victim": v.Account(), "an agent": registration.AgentName, "the Cluster of the victim": v.cluster(),
		"the token": "shared", "every ServiceAccount": "default", "nothing, at length": strings.Repeat("n", 253),
	} {
		t.Run(like, func(t *testing.T) {
			request := with("shared", "like "+like, like+s.Namespace)
			request.Name = name
			request = sends(t, s, values, request)
			if like == roleOfToken || like == bindingOfToken { // the hub makes a Role and a RoleBinding of the name of the request
				s.Hub.WaitCondition(t, testenv.KindRequest, s.Namespace, name, fleet.ConditionGranted, "False NameConflict")
				warned(t, s, name, fleet.ReasonNameConflict)
				return
			}
			s.Hub.Granted(t, values, request)
		})
	}
	after := everything(t, s)
	for object, was := range before {
		assert.Equal(t, was, after[object], object)
	}
	v.undisturbed(t)
}

// everything lists the Roles, RoleBindings and ServiceAccounts of the workspace with their versions.
func everything(t *testing.T, s *testenv.Stage) map[string]string {
	t.Helper()
	found, ctx, all := map[string]string{}, t.Context(), metav1.ListOptions{}
	roles, err := s.Hub.Kubernetes.RbacV1().Roles(s.Namespace).List(ctx, all)
	require.NoError(t, err)
	for _, o := range roles.Items {
		found["Role "+o.Name] = o.ResourceVersion
	}
	bindings, err := s.Hub.Kubernetes.RbacV1().RoleBindings(s.Namespace).List(ctx, all)
	require.NoError(t, err)
	for _, o := range bindings.Items {
		found["RoleBinding "+o.Name] = o.ResourceVersion
	}
	serviceAccounts, err := s.Hub.Kubernetes.CoreV1().ServiceAccounts(s.Namespace).List(ctx, all)
	require.NoError(t, err)
	for _, o := range serviceAccounts.Items {
		found["ServiceAccount "+o.Name] = o.ResourceVersion
	}
	return found
}

// A request that is too large is refused by the API server, whoever sends it, or costs no more than a small one.
func TestOversizedRequests(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	values := s.Token(t, "shared")
	v := newVictim(t, s, values, "victim")
	requests := s.Hub.ClientFor(t, values.Token).Fleet.ClusterRegistrations(s.Namespace)
	labels := func(count int, value string) map[string]string {
		all := map[string]string{}
		for n := range count {
			all[fmt.Sprintf("label-%d", n)] = value
		}
		return all
	}
	for name, spec := range map[string]fleet.ClusterRegistrationSpec{
		"an identity of a megabyte":   {ClientID: strings.Repeat("x", 1<<20)},
		"a random of a megabyte":      {ClientID: "x", ClientRandom: strings.Repeat("x", 1<<20)},
		"a label of four megabytes":   {ClientID: "x", ClientRandom: "x", ClusterLabels: labels(1, strings.Repeat("x", 4<<20))},
		"a label of half a megabyte":  {ClientID: "x", ClientRandom: "x", ClusterLabels: labels(1, strings.Repeat("x", 1<<19))},
		"a key of half a megabyte":    {ClientID: "x", ClientRandom: "x", ClusterLabels: map[string]string{strings.Repeat("k", 1<<19): "x"}},
		"tens of thousands of labels": {ClientID: "x", ClientRandom: "x", ClusterLabels: labels(20000, "")},
		"thousands of labels":         {ClientID: "x", ClientRandom: "x", ClusterLabels: labels(5000, "")},
		"more labels than are kept":   {ClientID: "x", ClientRandom: "x", ClusterLabels: labels(257, "")},
		"a label of 64 KiB":           {ClientID: "x", ClientRandom: "x", ClusterLabels: labels(1, strings.Repeat("x", 1<<16))},
	} {
		request := with("shared", "", "")
		request.GenerateName, request.Spec = "request-", spec
		for creator, client := range map[string]fleetclient.ClusterRegistrationInterface{
			"an agent": requests, "a user": s.Hub.Fleet.ClusterRegistrations(s.Namespace),
		} {
			_, err := client.Create(t.Context(), request, metav1.CreateOptions{})
			assert.True(t, apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsRequestEntityTooLargeError(err), "%s of %s: %v", name, creator, err)
		}
	}
	request := with("shared", "x", "x")
	request.GenerateName, request.Annotations = "request-", map[string]string{"a": strings.Repeat("x", 4096)}
	_, err := requests.Create(t.Context(), request, metav1.CreateOptions{})
	assert.True(t, apierrors.IsForbidden(err), "an annotation of 4 KiB: %v", err)
	for name, sent := range map[string]map[string]string{
		"hundreds":         labels(250, "value"),
		"hundreds invalid": labels(250, "no value"),
		"a-long-one":       labels(1, strings.Repeat("x", 1<<13)),
		"keys":             {strings.Repeat("k", 1<<13): "x"},
	} {
		request := with("shared", name, name+s.Namespace)
		request.Spec.ClusterLabels = sent
		granted, _ := s.Hub.Granted(t, values, sends(t, s, values, request))
		said := testenv.Condition(granted.Status.Conditions, fleet.ConditionGranted)
		assert.Less(t, len(said), 4096, "%s: the message", name)
		assert.NotEqual(t, "True Granted: ", said, "%s: the agent reads it", name)
		size := len(testenv.Bytes(t, s.Cluster(t, granted.Status.ClusterName)))
		assert.Less(t, size, 64<<10, "%s: the Cluster", name)
	}
	v.undisturbed(t)
}
