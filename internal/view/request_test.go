package view

import (
	"testing"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestTheStateOfARequest(t *testing.T) {
	const yes, no, unknown = corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown
	says := func(status corev1.ConditionStatus, reason string) func(*fleet.ClusterRegistration) {
		return func(r *fleet.ClusterRegistration) {
			r.Status.Conditions = []genericcondition.GenericCondition{condition("Granted", status, reason)}
		}
	}
	for name, test := range map[string]struct {
		change        func(*fleet.ClusterRegistration)
		state, reason string
	}{
		"new":                {func(*fleet.ClusterRegistration) {}, StateNew, ""},
		"waiting":            {says(unknown, "WaitingForApproval"), StateWaiting, "WaitingForApproval"},
		"refused":            {says(no, "ClientIDInUse"), StateRefused, "ClientIDInUse"},
		"granted":            {says(yes, "Granted"), StateGranted, ""},
		"without conditions": {func(r *fleet.ClusterRegistration) { r.Status.Granted = true }, StateGranted, ""},
		"granted and void": {func(r *fleet.ClusterRegistration) {
			r.Status.Granted = true
			says(no, "CredentialRevoked")(r)
		}, StateRefused, "CredentialRevoked"},
		"on its way out": {func(r *fleet.ClusterRegistration) { r.DeletionTimestamp = &metav1.Time{} }, StateDeleting, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := &fleet.ClusterRegistration{}
			test.change(r)
			v := OfRequest(r)
			assert.Equal(t, test.state, v.State)
			assert.Equal(t, test.reason, v.Reason)
		})
	}
}

func TestWhichClusterARequestIsAbout(t *testing.T) {
	r := &fleet.ClusterRegistration{Spec: fleet.ClusterRegistrationSpec{ClientID: "id"}}
	assert.Equal(t, registration.ClusterName("id"), OfRequest(r).Cluster, "the one that would be made")
	r.OwnerReferences = []metav1.OwnerReference{{Kind: "Other", Name: "x"}, {Kind: "Cluster", Name: "east"}}
	assert.Equal(t, "east", OfRequest(r).Cluster)
	r.Status.ClusterName = "west"
	assert.Equal(t, "west", OfRequest(r).Cluster)
}

func TestARequestSaysWhoMadeIt(t *testing.T) {
	created := metav1.Now()
	v := OfRequest(&fleet.ClusterRegistration{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "r", CreationTimestamp: created,
		Labels:      map[string]string{fleet.RegistrationTokenLabel: "tok"},
		Annotations: map[string]string{fleet.CreatorAnnotation: "system:serviceaccount:ns:tok-1"},
	}, Spec: fleet.ClusterRegistrationSpec{ClientID: "id", ClientRandom: "secret", ClusterLabels: map[string]string{"a": "b"}}})
	assert.Equal(t, Request{
		Namespace: "ns", Name: "r", Cluster: registration.ClusterName("id"), ClientID: "id", Token: "tok",
		Creator: "system:serviceaccount:ns:tok-1", Labels: map[string]string{"a": "b"}, State: StateNew, Message: notLookedAt, Created: &created,
	}, v)
}
