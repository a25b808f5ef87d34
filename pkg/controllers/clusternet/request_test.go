package clusternet

import (
	"testing"
	"time"

	rbaccontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/rbac/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/muster-fleet/muster/pkg/admission"
	"github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
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
