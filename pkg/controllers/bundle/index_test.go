package bundle

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestDeploymentsOfBundle(t *testing.T) {
	const clusters = 1000
	s := newStage(t)
	app := everywhere()
	var ofApp []*fleet.BundleDeployment
	for n := range clusters {
		cluster := clusterNamed(fmt.Sprint("cluster-", n))
		agent := targetingAlice()
		agent.Name = registration.AgentBundleName(cluster.Name)
		ofAgent := deployed(t, agent, cluster)
		s.has(t, ofAgent)
		found, err := s.deploymentsOfBundle(keyOf(agent))
		require.NoError(t, err)
		require.Equal(t, []*fleet.BundleDeployment{ofAgent}, found)
		if n%100 == 0 {
			d := deployed(t, app, cluster)
			s.has(t, d)
			ofApp = append(ofApp, d)
		}
	}
	found, err := s.deploymentsOfBundle(keyOf(app))
	require.NoError(t, err)
	assert.ElementsMatch(t, ofApp, found)

	indexer := s.indexers[fmt.Sprintf("%T", found[0])]
	assert.LessOrEqual(t, len(indexer.ListIndexFuncValues(byAgentBundle.Name)), index.Buckets)
	assert.Equal(t, []string{"ws/app"}, indexer.ListIndexFuncValues(byBundle))

	// A Bundle of a user may have the name of an agent's Bundle, and be for other Clusters too.
	named := everywhere()
	named.Name = registration.AgentBundleName("cluster-1")
	other := deployed(t, named, clusterNamed("cluster-2"))
	s.has(t, other)
	found, err = s.deploymentsOfBundle(keyOf(named))
	require.NoError(t, err)
	assert.Len(t, found, 2)
	assert.Contains(t, found, other)
}
