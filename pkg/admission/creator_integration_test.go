package admission_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/admission"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

const other = "example.com/other"

var requestsResource = fleet.SchemeGroupVersion.WithResource("clusterregistrations")

func TestCreatorPolicy(t *testing.T) {
	sample.Long(t)
	s := sceneInForce(t)
	s.needsMutating()
	s.run("the API server records the creator, whatever the request claims", func(t *testing.T, s *scene) {
		for _, who := range []user{s.importer(), s.agentThatMayAsk("asks"), s.admin} {
			for title, said := range map[string]map[string]string{
				"nothing":         nil,
				"no annotations":  {},
				"something else":  {other: "stays"},
				"the truth":       {fleet.CreatorAnnotation: who.name},
				"nobody":          {fleet.CreatorAnnotation: ""},
				"somebody else":   {fleet.CreatorAnnotation: "system:serviceaccount:other:account", other: "stays"},
				"many characters": {fleet.CreatorAnnotation: string(make([]byte, 1000))},
			} {
				created, err := who.fleet.ClusterRegistrations(s.namespace).Create(t.Context(), s.request(said), metav1.CreateOptions{})
				require.NoError(t, err, "%s says %s", who.name, title)
				assert.Equal(t, who.name, created.Annotations[fleet.CreatorAnnotation], title)
				assert.Equal(t, said[other], created.Annotations[other], title)
			}
		}
	})
	s.run("however the request is encoded", func(t *testing.T, s *scene) {
		who := s.importer()
		requests := who.dynamic.Resource(requestsResource).Namespace(s.namespace)
		for title, annotations := range map[string]any{"null": nil, "empty": map[string]any{}, "a null in it": map[string]any{fleet.CreatorAnnotation: nil}} {
			created, err := requests.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "fleet.cattle.io/v1alpha1", "kind": "ClusterRegistration",
				"metadata": map[string]any{"generateName": "request-", "annotations": annotations}, "spec": map[string]any{},
			}}, metav1.CreateOptions{})
			require.NoError(t, err, title)
			assert.Equal(t, who.name, created.GetAnnotations()[fleet.CreatorAnnotation], title)
		}

		applied := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "fleet.cattle.io/v1alpha1", "kind": "ClusterRegistration",
			"metadata": map[string]any{"name": "applied", "annotations": map[string]any{fleet.CreatorAnnotation: "a lie"}}, "spec": map[string]any{},
		}}
		created, err := requests.Apply(t.Context(), "applied", applied, metav1.ApplyOptions{FieldManager: "test", Force: true})
		require.NoError(t, err)
		assert.Equal(t, who.name, created.GetAnnotations()[fleet.CreatorAnnotation])
		_, err = requests.Apply(t.Context(), "applied", applied, metav1.ApplyOptions{FieldManager: "test", Force: true})
		requireRefused(t, err, "cannot be added, changed or removed")
	})
	s.run("nobody changes the creator", func(t *testing.T, s *scene) {
		who := s.importer()
		created, err := who.fleet.ClusterRegistrations(s.namespace).Create(t.Context(), s.request(nil), metav1.CreateOptions{})
		require.NoError(t, err)
		for _, by := range []user{who, s.admin} {
			requests := by.fleet.ClusterRegistrations(s.namespace)
			for title, annotations := range map[string]any{
				"another":          map[string]any{fleet.CreatorAnnotation: "somebody else"},
				"empty":            map[string]any{fleet.CreatorAnnotation: ""},
				"removed":          map[string]any{fleet.CreatorAnnotation: nil},
				"removed with all": nil,
			} {
				_, err := requests.Patch(t.Context(), created.Name, types.MergePatchType, metadata(t, "annotations", annotations), metav1.PatchOptions{})
				requireRefused(t, err, "cannot be added, changed or removed")
				assert.ErrorContains(t, err, fleet.CreatorAnnotation, title)
			}
			changed := created.DeepCopy()
			changed.Annotations[fleet.CreatorAnnotation] = by.name + "-x"
			_, err := requests.Update(t.Context(), changed, metav1.UpdateOptions{})
			requireRefused(t, err, "cannot be added, changed or removed")
		}
		s.requireCreator(created.Name, who.name)
	})
	s.run("other fields of a request may change", func(t *testing.T, s *scene) {
		created, err := s.importer().fleet.ClusterRegistrations(s.namespace).Create(t.Context(), s.request(nil), metav1.CreateOptions{})
		require.NoError(t, err)
		requests := s.admin.fleet.ClusterRegistrations(s.namespace)
		_, err = requests.Patch(t.Context(), created.Name, types.MergePatchType, metadata(t, "annotations", map[string]any{other: "x"}), metav1.PatchOptions{})
		require.NoError(t, err)
		_, err = requests.Patch(t.Context(), created.Name, types.MergePatchType, metadata(t, "finalizers", []string{"example.com/x"}), metav1.PatchOptions{})
		require.NoError(t, err)
		_, err = requests.Patch(t.Context(), created.Name, types.MergePatchType, []byte(`{"status":{"granted":true}}`), metav1.PatchOptions{}, "status")
		require.NoError(t, err)
		require.NoError(t, requests.Delete(t.Context(), created.Name, metav1.DeleteOptions{}))
		_, err = requests.Patch(t.Context(), created.Name, types.MergePatchType, metadata(t, "finalizers", nil), metav1.PatchOptions{})
		require.NoError(t, err)
	})
	// Only the hub has the right to write the status of requests.
	s.run("a request is created without a status", func(t *testing.T, s *scene) {
		who := s.importer()
		asking := s.request(nil)
		asking.Status = fleet.ClusterRegistrationStatus{Granted: true, ClusterName: "mine"}
		created, err := who.fleet.ClusterRegistrations(s.namespace).Create(t.Context(), asking, metav1.CreateOptions{})
		require.NoError(t, err)
		assert.Zero(t, created.Status)
		_, err = who.fleet.ClusterRegistrations(s.namespace).Patch(t.Context(), created.Name, types.MergePatchType,
			[]byte(`{"status":{"granted":true,"approval":{"decision":"Approved"}}}`), metav1.PatchOptions{})
		require.NoError(t, err, "this identity has more rights than the hub gives")
		found, err := s.admin.fleet.ClusterRegistrations(s.namespace).Get(t.Context(), created.Name, metav1.GetOptions{})
		require.NoError(t, err)
		assert.Zero(t, found.Status)
		_, err = who.fleet.ClusterRegistrations(s.namespace).Patch(t.Context(), created.Name, types.MergePatchType,
			[]byte(`{"status":{"granted":true}}`), metav1.PatchOptions{}, "status")
		assert.True(t, apierrors.IsForbidden(err), "%v", err)
	})
	s.run("the size of a request is limited, whoever creates it", func(t *testing.T, s *scene) {
		for says, change := range map[string]func(*fleet.ClusterRegistration){
			"at most 16 finalizers and 16 owners": func(r *fleet.ClusterRegistration) {
				r.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: types.UID(strings.Repeat("u", 1000))}}
			},
			"at most 16 finalizers": func(r *fleet.ClusterRegistration) {
				for n := range 17 {
					r.Finalizers = append(r.Finalizers, fmt.Sprint("example.com/", n))
				}
			},
		} {
			request := s.request(nil)
			change(request)
			_, err := s.admin.fleet.ClusterRegistrations(s.namespace).Create(t.Context(), request, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			requireRefused(t, err, says)
		}
	})
	// Policy fleet-registration-request: an owner or a finalizer could block the deletion of the Cluster or of the request.
	s.run("a request of an agent blocks no deletion", func(t *testing.T, s *scene) {
		owner := s.cluster("owner")
		for says, change := range map[string]func(*fleet.ClusterRegistration){
			"must not have an owner": func(r *fleet.ClusterRegistration) {
				r.OwnerReferences = []metav1.OwnerReference{{
					APIVersion: fleet.SchemeGroupVersion.String(), Kind: "Cluster", Name: owner.Name, UID: owner.UID, BlockOwnerDeletion: ptr.To(true),
				}}
			},
			"must not have a finalizer": func(r *fleet.ClusterRegistration) { r.Finalizers = []string{"evil.example.com/stays"} },
			"must not have the label fleet.cattle.io/cluster-management": func(r *fleet.ClusterRegistration) {
				r.Labels = map[string]string{fleet.ClusterManagementLabel: "mine"}
			},
		} {
			request := s.request(nil)
			change(request)
			_, err := s.admin.fleet.ClusterRegistrations(s.namespace).Create(t.Context(), request.DeepCopy(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			require.NoError(t, err, "a person who restores a backup may")
			_, err = s.newImporter(says).fleet.ClusterRegistrations(s.namespace).Create(t.Context(), request, metav1.CreateOptions{})
			requireRefused(t, err, says)
		}
	})
}

// Without the mutating policy the API server would store the creator that the request claims.
func TestRequestWhileTheCreatorIsNotRecorded(t *testing.T) {
	sample.Long(t)
	s := newScene(t)
	s.needsMutating()
	s.inForce()
	s.remove("MutatingAdmissionPolicyBinding")
	requests := s.importer().fleet.ClusterRegistrations(s.namespace)
	for _, said := range []map[string]string{nil, {fleet.CreatorAnnotation: "a lie"}} {
		s.eventuallyRefused(func() error {
			_, err := requests.Create(t.Context(), s.request(said), metav1.CreateOptions{})
			return err
		}, "must name the user who creates the request")
	}
}

// Requests from before the policies have no recorded creator, and must not get one.
func TestCreatorPolicyAndOldRequests(t *testing.T) {
	sample.Long(t)
	s := newScene(t)
	s.needsMutating()
	s.remove()
	var old *fleet.ClusterRegistration
	var err error
	importer := s.importer()
	require.Eventually(t, func() bool { // the API server may apply the validating policy for a moment longer
		old, err = importer.fleet.ClusterRegistrations(s.namespace).Create(t.Context(), s.request(nil), metav1.CreateOptions{})
		return err == nil
	}, patience, poll)
	s.inForce()
	requests := s.admin.fleet.ClusterRegistrations(s.namespace)
	for _, value := range []string{"somebody", ""} {
		_, err = requests.Patch(t.Context(), old.Name, types.MergePatchType, metadata(t, "annotations", map[string]any{fleet.CreatorAnnotation: value}), metav1.PatchOptions{})
		requireRefused(t, err, "cannot be added, changed or removed")
	}
	_, err = requests.Patch(t.Context(), old.Name, types.MergePatchType, metadata(t, "annotations", map[string]any{other: "x"}), metav1.PatchOptions{})
	require.NoError(t, err)
	_, err = requests.Patch(t.Context(), old.Name, types.MergePatchType, []byte(`{"metadata":{"annotations":null,"labels":{"a":"b"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	s.requireCreator(old.Name, "")
}

// checksTokens installs the policies for an API server without MutatingAdmissionPolicies, and waits until they are in force.
func (s *scene) checksTokens() {
	s.Helper()
	s.remove()
	m, stop := s.start(true, (&wire{hide: []string{"v1", "v1beta1"}}).tap)
	defer stop()
	s.eventually(m, true)
}

// holder is the identity of a registration token of that name.
func (s *scene) holder(token string) user {
	s.Helper()
	register := rule("fleet.cattle.io", "clusterregistrationtokens", "register")
	register.ResourceNames = []string{registration.LabelValue(token)}
	return s.account(s.namespace, registration.TokenServiceAccount(token, "0c5bbf4e-1111-4222-8333-444455556666"),
		rule("fleet.cattle.io", "clusterregistrations", "create", "get", "update", "patch"), register)
}

func (s *scene) naming(token string) *fleet.ClusterRegistration {
	request := s.request(nil)
	request.Labels = map[string]string{fleet.RegistrationTokenLabel: registration.LabelValue(token)}
	return request
}

func TestRegistrationTokenPolicy(t *testing.T) {
	sample.Long(t)
	s := newScene(t)
	s.checksTokens()
	defer s.remove() // where mutating policies are served, the other tests expect those
	s.run("a request names the token that its creator holds, and no other", func(t *testing.T, s *scene) {
		long := strings.Repeat("long", 40)
		names := []string{"tok", "tok-2", "import-token-member", long + "a", long + "b"}
		holders := map[string]user{}
		for _, name := range names {
			holders[name] = s.holder(name)
		}
		for _, held := range names {
			requests := holders[held].fleet.ClusterRegistrations(s.namespace)
			for _, named := range names {
				created, err := requests.Create(t.Context(), s.naming(named), metav1.CreateOptions{})
				if named != held {
					requireRefused(t, err, "with which this user may not register")
					continue
				}
				require.NoError(t, err)
				assert.NotContains(t, created.Annotations, fleet.CreatorAnnotation)
			}
			_, err := requests.Create(t.Context(), s.request(nil), metav1.CreateOptions{})
			require.NoError(t, err, "an old agent names none")
		}
		_, err := s.admin.fleet.ClusterRegistrations(s.namespace).Create(t.Context(), s.naming("tok"), metav1.CreateOptions{})
		require.NoError(t, err, "a person who restores a backup may")
	})
	s.run("the token of another namespace does not count", func(t *testing.T, s *scene) {
		elsewhere := *s
		elsewhere.addNamespace()
		thief := elsewhere.holder("tok")
		s.allow(s.namespace, elsewhere.namespace, registration.TokenServiceAccount("tok", "0c5bbf4e-1111-4222-8333-444455556666"),
			[]rbacv1.PolicyRule{rule("fleet.cattle.io", "clusterregistrations", "create")})
		_, err := thief.fleet.ClusterRegistrations(s.namespace).Create(t.Context(), s.naming("tok"), metav1.CreateOptions{})
		requireRefused(t, err, "with which this user may not register")
	})
	s.run("an annotation names the creator or nobody", func(t *testing.T, s *scene) {
		who := s.holder("tok")
		requests := who.fleet.ClusterRegistrations(s.namespace)
		for creator, refused := range map[string]bool{who.name: false, "": true, "system:serviceaccount:other:account": true} {
			request := s.naming("tok")
			request.Annotations = map[string]string{fleet.CreatorAnnotation: creator}
			_, err := requests.Create(t.Context(), request, metav1.CreateOptions{})
			if refused {
				requireRefused(t, err, "must name the user who creates the request")
			} else {
				require.NoError(t, err)
			}
		}
	})
	s.run("nobody changes either of them later", func(t *testing.T, s *scene) {
		who := s.holder("tok")
		s.holder("other")
		for _, request := range []*fleet.ClusterRegistration{s.naming("tok"), s.request(nil)} {
			created, err := who.fleet.ClusterRegistrations(s.namespace).Create(t.Context(), request, metav1.CreateOptions{})
			require.NoError(t, err)
			for _, by := range []user{who, s.admin} {
				requests := by.fleet.ClusterRegistrations(s.namespace)
				for _, patch := range [][]byte{
					metadata(t, "labels", map[string]any{fleet.RegistrationTokenLabel: "other"}),
					metadata(t, "annotations", map[string]any{fleet.CreatorAnnotation: by.name}),
				} {
					_, err := requests.Patch(t.Context(), created.Name, types.MergePatchType, patch, metav1.PatchOptions{})
					requireRefused(t, err, "cannot be added, changed or removed")
				}
				_, err := requests.Patch(t.Context(), created.Name, types.MergePatchType, metadata(t, "annotations", map[string]any{other: "x"}), metav1.PatchOptions{})
				require.NoError(t, err)
			}
		}
	})
	s.run("the API server reports no warning about the expressions", func(t *testing.T, s *scene) {
		require.Eventually(t, func() bool {
			policy, err := s.admin.kubernetes.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(t.Context(), admission.RegistrationTokenPolicy, metav1.GetOptions{})
			require.NoError(t, err)
			if policy.Status.TypeChecking == nil {
				return false
			}
			require.Empty(t, policy.Status.TypeChecking.ExpressionWarnings)
			return true
		}, patience, poll)
	})
}

func (s *scene) requireCreator(request, want string) {
	s.Helper()
	found, err := s.admin.fleet.ClusterRegistrations(s.namespace).Get(s.Context(), request, metav1.GetOptions{})
	require.NoError(s, err)
	require.Equal(s, want, found.Annotations[fleet.CreatorAnnotation])
}

func metadata(t *testing.T, field string, value any) []byte {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{field: value}})
	require.NoError(t, err)
	return patch
}

// requireRefused requires the message of a policy: RBAC refuses with the same code.
func requireRefused(t *testing.T, err error, says string) {
	t.Helper()
	require.Error(t, err)
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, "ValidatingAdmissionPolicy")
	require.ErrorContains(t, err, says)
}

func (s *scene) newImporter(says string) user {
	s.Helper()
	return s.account(s.namespace, "import-token-"+registration.KeyHash(says), rule("fleet.cattle.io", "clusterregistrations", "create"))
}
