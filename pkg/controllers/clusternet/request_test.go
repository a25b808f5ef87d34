package clusternet

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	rbaccontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/rbac/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/muster-fleet/muster/pkg/admission"
	"github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	fakeclients "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/fake"
	clusternetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/clusters.clusternet.io/v1beta1"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

type inForce struct{ app.Admission }

func (inForce) State() admission.PolicyState { return admission.PolicyState{Since: noon} }

type noTokens struct {
	fleetcontrollers.ClusterRegistrationTokenCache
}

func (noTokens) List(string, labels.Selector) ([]*fleet.ClusterRegistrationToken, error) {
	return nil, nil
}

// No event enqueues a request when its token is created again.
func TestRegisterWithoutToken(t *testing.T) {
	h := handlerAt(clocktesting.NewFakeClock(noon))
	h.Config, h.Admission, h.tokens, h.Recheck = &config.Store{}, inForce{}, noTokens{}, time.Minute
	request := &v1beta1.ClusterRegistrationRequest{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(noon)}}
	d := h.register(t.Context(), request, "system:serviceaccount:clusters:token")
	assert.Equal(t, v1beta1.ResultDenied, d.status.Result)
	assert.Contains(t, d.status.ErrorMessage, fleet.ReasonTokenNotFound)
	assert.Equal(t, time.Minute, d.after)
}

type oneToken struct {
	fleetcontrollers.ClusterRegistrationTokenCache
	token *fleet.ClusterRegistrationToken
}

func (o oneToken) List(string, labels.Selector) ([]*fleet.ClusterRegistrationToken, error) {
	return []*fleet.ClusterRegistrationToken{o.token}, nil
}

// A request for which a quota leaves no room counts for the limits, and is not repeated by the queue.
func TestRegisterBeyondTheQuota(t *testing.T) {
	h := handlerAt(clocktesting.NewFakeClock(noon))
	token := &fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "token", UID: "uid"}}
	client := fakeclients.NewSimpleClientset()
	client.PrependReactor("create", "clusterregistrations", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "clusterregistrations"}, "x", errors.New("exceeded quota"))
	})
	h.Config, h.Admission, h.tokens, h.Recheck, h.FleetClient = &config.Store{}, inForce{}, oneToken{token: token}, time.Minute, client.FleetV1alpha1()
	creator := "system:serviceaccount:clusters:" + registration.TokenServiceAccount("token", "uid")
	request := &v1beta1.ClusterRegistrationRequest{ObjectMeta: metav1.ObjectMeta{
		CreationTimestamp: metav1.NewTime(noon), Annotations: map[string]string{fleet.CreatorAnnotation: creator},
	}}
	d := h.register(t.Context(), request, creator)
	require.NoError(t, d.err)
	assert.Contains(t, d.status.ErrorMessage, "exceeded quota")
	assert.Equal(t, time.Minute, d.after)
	request.Status = d.status
	counted, err := creatorOfUnregistered(request)
	require.NoError(t, err)
	assert.Equal(t, []string{creator, allCreators}, counted)
}

type storedRequests struct {
	clusternetcontrollers.ClusterRegistrationRequestCache
	all []*v1beta1.ClusterRegistrationRequest
}

func (s storedRequests) GetByIndex(_, creator string) (found []*v1beta1.ClusterRegistrationRequest, _ error) {
	for _, request := range s.all {
		if creators, _ := creatorOfUnregistered(request); slices.Contains(creators, creator) {
			found = append(found, request)
		}
	}
	return found, nil
}

// Who may create and delete tokens has any number of creators.
func TestLimitUnregistered(t *testing.T) {
	for name, row := range map[string]struct{ creators, each, deleted int }{
		"a few of one creator":           {1, registration.MostRefused, 0},
		"too many of one creator":        {1, registration.MostRefused + 2, 2},
		"as many as the limit of all":    {mostUnregistered / 100, 100, 0},
		"a few of each of many creators": {mostUnregistered/100 + 1, 100, 100},
	} {
		t.Run(name, func(t *testing.T) {
			h, stored, client := handlerAt(clocktesting.NewFakeClock(noon)), storedRequests{}, fakeclients.NewSimpleClientset()
			for creator := range row.creators {
				for n := range row.each {
					stored.all = append(stored.all, &v1beta1.ClusterRegistrationRequest{
						ObjectMeta: metav1.ObjectMeta{
							Name: fmt.Sprint(creator, "-", n), CreationTimestamp: metav1.NewTime(noon.Add(time.Duration(n) * time.Second)),
							Annotations: map[string]string{fleet.CreatorAnnotation: fmt.Sprint(creator)},
						},
						Status: v1beta1.ClusterRegistrationRequestStatus{ErrorMessage: fleet.ReasonTokenNotFound + ": x"},
					})
				}
			}
			h.requests, h.readerBindings, h.ClusternetClient = stored, noBindings{}, client.ClustersV1beta1()
			require.NoError(t, h.limitUnregistered(t.Context(), stored.all[0]))
			deleted := map[string]bool{}
			for _, action := range client.Actions() {
				deleted[action.(clienttesting.DeleteAction).GetName()] = true
			}
			assert.Len(t, deleted, row.deleted)
		})
	}
}

func TestMisnamedRequests(t *testing.T) {
	var m misnamedRequests
	_, logs := m.count(noon)
	assert.True(t, logs)
	for range 1000 {
		_, logs = m.count(noon.Add(time.Minute - 1))
		assert.False(t, logs)
	}
	others, logs := m.count(noon.Add(time.Minute))
	assert.True(t, logs)
	assert.Equal(t, 1000, others)
}

type noBindings struct {
	rbaccontrollers.ClusterRoleBindingCache
}

func (noBindings) Get(string) (*rbacv1.ClusterRoleBinding, error) {
	return nil, apierrors.NewNotFound(schema.GroupResource{}, "")
}

func TestApprovalsAreForgotten(t *testing.T) {
	clock := clocktesting.NewFakeClock(noon)
	h := handlerAt(clock)
	h.Passes, h.readerBindings = app.NewPasses(t.Context()), noBindings{}
	first := &v1beta1.ClusterRegistrationRequest{ObjectMeta: metav1.ObjectMeta{Name: "r", UID: "first"}}
	second := &v1beta1.ClusterRegistrationRequest{ObjectMeta: metav1.ObjectMeta{Name: "r", UID: "second"}}
	assert.Equal(t, unreadLifetime, h.untilRead(first, &fleet.Cluster{}).after)
	clock.Step(time.Minute)
	assert.Equal(t, unreadLifetime-time.Minute, h.untilRead(first, &fleet.Cluster{}).after)
	assert.Equal(t, unreadLifetime, h.untilRead(second, &fleet.Cluster{}).after)

	_, err := h.onRequest("r", nil) // somebody else has deleted it
	require.NoError(t, err)
	h.answered.Range(func(name, _ any) bool {
		assert.Fail(t, "it is remembered", name)
		return true
	})
}
