package settings

import (
	"testing"

	"github.com/rancher/wrangler/v3/pkg/generic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	good = `{"agentImage":"x","registration":{"policy":[{"name":"n","expression":"request.spec.clientID == 'a'","action":"Deny"}]}}`
	bad  = `{"agentImage":"y","registration":{"policy":[{"name":"n","expression":"request.spec.(","action":"Deny"}]}}`
)

func configMap(document string) *corev1.ConfigMap {
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

func TestWatcherKeepsThePreviousConfigurationOfAnInvalidRule(t *testing.T) {
	c, events := hubWith(configMap(good))
	w, err := Load(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, "x", c.Config.Get().AgentImage)
	require.Len(t, c.Config.Get().Registration.Policy, 1)

	w.apply(configMap(bad))
	assert.Equal(t, "x", c.Config.Get().AgentImage)
	event := <-events.Events
	assert.Contains(t, event, "Warning ConfigInvalid the hub's configuration: registration.policy[0] (n): ")
	assert.Contains(t, event, "the previous configuration stays in effect")

	w.apply(configMap(`{"agentImage":"z"}`))
	assert.Equal(t, "z", c.Config.Get().AgentImage)
	assert.Empty(t, events.Events)
}

func TestLoadOfAnInvalidDocument(t *testing.T) {
	manual := config.Hub{Registration: config.Registration{Approval: fleet.ApprovalManual}}
	for name, row := range map[string]struct {
		document string
		want     config.Hub
	}{
		"an invalid rule":               {bad, manual},
		"not YAML":                      {"{", manual},
		"an error elsewhere":            {`{"agentTLSMode":"maybe"}`, config.Hub{}},
		"an error elsewhere, and rules": {`{"agentTLSMode":"maybe","registration":{"approval":"Auto"}}`, manual},
		"registration is not an object": {`{"registration":[]}`, manual},
	} {
		t.Run(name, func(t *testing.T) {
			c, events := hubWith(configMap(row.document))
			w, err := Load(t.Context(), c)
			require.NoError(t, err, "the hub starts")
			assert.Equal(t, row.want, c.Config.Get())
			assert.Contains(t, c.Config.Problem(), "the hub changes no agent until ConfigMap cattle-fleet-system/fleet-controller is corrected: ")
			w.apply(configMap(row.document))
			assert.Contains(t, <-events.Events, "the hub started with it, and changes no agent until it is corrected")
			assert.NotEmpty(t, c.Config.Problem())
			w.apply(configMap(good))
			assert.Empty(t, c.Config.Problem())
			assert.Empty(t, c.Config.Get().Registration.Approval, "the corrected document applies")
		})
	}
}

// kinds, controller and cache let Load list Clusters.
type kinds struct {
	fleetcontrollers.Interface
	controller controller
}

type controller struct {
	fleetcontrollers.ClusterController
	cache cache
}

type cache struct {
	fleetcontrollers.ClusterCache
	all []*fleet.Cluster
}

func (k kinds) Cluster() fleetcontrollers.ClusterController { return k.controller }

func (c controller) Cache() generic.CacheInterface[*fleet.Cluster] { return c.cache }

func (c cache) List(string, labels.Selector) ([]*fleet.Cluster, error) { return c.all, nil }

func TestLoadWithoutConfigMap(t *testing.T) {
	manual := config.Hub{Registration: config.Registration{Approval: fleet.ApprovalManual}}
	for name, row := range map[string]struct {
		last *fleet.ImportStatus
		want config.Hub
	}{
		"no cluster was imported":             {nil, config.Hub{}},
		"the Secret had the address":          {&fleet.ImportStatus{APIServerURLFromSecret: true}, config.Hub{}},
		"a deleted ConfigMap had the address": {&fleet.ImportStatus{}, manual},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := hubWith()
			all := []*fleet.Cluster{{Status: fleet.ClusterStatus{APIServerURL: "https://hub", Import: row.last}}}
			c.Fleet = kinds{controller: controller{cache: cache{all: all}}}
			w, err := Load(t.Context(), c)
			require.NoError(t, err)
			assert.Equal(t, row.want, c.Config.Get())
			assert.Equal(t, row.want.Registration.Approval != "", c.Config.Problem() != "")
			w.apply(configMap(good))
			assert.Equal(t, "x", c.Config.Get().AgentImage)
			assert.Empty(t, c.Config.Problem())
		})
	}
}
