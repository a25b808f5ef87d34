package settings

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	good = `{"agentImage":"x","registration":{"policy":[{"name":"n","expression":"request.spec.clientID == 'a'","action":"Deny"}]}}`
	bad  = `{"agentImage":"y","registration":{"policy":[{"name":"n","expression":"request.spec.(","action":"Deny"}]}}`
)

func saying(document string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "cattle-fleet-system", Name: registration.HubConfigMap},
		Data:       map[string]string{registration.ConfigKey: document},
	}
}

func hubWith(objects ...*corev1.ConfigMap) (*app.Context, *record.FakeRecorder) {
	client, events := fake.NewClientset(), record.NewFakeRecorder(5)
	for _, o := range objects {
		_ = client.Tracker().Add(o)
	}
	return &app.Context{Kubernetes: client, Config: &config.Store{}, Events: events, SystemNamespace: "cattle-fleet-system"}, events
}

func TestARuleThatIsNoneKeepsTheConfigurationBeforeIt(t *testing.T) {
	c, events := hubWith(saying(good))
	w, err := Load(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, "x", c.Config.Get().AgentImage)
	require.Len(t, c.Config.Get().Registration.Policy, 1)

	w.take(saying(bad))
	assert.Equal(t, "x", c.Config.Get().AgentImage)
	event := <-events.Events
	assert.Contains(t, event, "Warning ConfigInvalid the hub's configuration: registration.policy[0] (n): ")
	assert.Contains(t, event, "the configuration before it stays in force")

	w.take(saying(`{"agentImage":"z"}`))
	assert.Equal(t, "z", c.Config.Get().AgentImage)
	assert.Empty(t, events.Events)
}

func TestAHubThatCannotReadItsRulesAtItsStartLetsNobodyInByItself(t *testing.T) {
	manual := config.Hub{Registration: config.Registration{Approval: fleet.ApprovalManual}}
	for name, row := range map[string]struct {
		document string
		want     config.Hub
	}{
		"a rule that is none":              {bad, manual},
		"no YAML":                          {"{", manual},
		"a mistake that is not about it":   {`{"agentTLSMode":"maybe"}`, config.Hub{}},
		"both":                             {`{"agentTLSMode":"maybe","registration":{"approval":"Auto"}}`, manual},
		"a registration that is no object": {`{"registration":[]}`, manual},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := hubWith(saying(row.document))
			w, err := Load(t.Context(), c)
			require.NoError(t, err, "it starts")
			assert.Equal(t, row.want, c.Config.Get())
			w.take(saying(good))
			assert.Empty(t, c.Config.Get().Registration.Approval, "as soon as it is corrected, it is in force")
		})
	}
}

func TestThereMayBeNoConfiguration(t *testing.T) {
	c, _ := hubWith()
	_, err := Load(t.Context(), c)
	require.NoError(t, err)
	assert.Equal(t, config.Hub{}, c.Config.Get())
}
