package bundle

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// A hub that made the BundleDeployments before may have given the agent the right to read Secrets.
func TestReporter_quarantinedCluster(t *testing.T) {
	s := newStage(t)
	reporter := &Reporter{deploymentCache: cacheOf[*fleet.BundleDeployment](s), roles: s.rights}
	cluster := clusterNamed("alice")
	require.True(t, reporter.Reconcile(t.Context(), cluster).IsDone())
	assert.Empty(t, s.rights.secrets, "Fleet's own controllers need no Role")

	cluster.Spec.Quarantined = true
	require.True(t, reporter.Reconcile(t.Context(), cluster).IsDone())
	assert.Equal(t, [][]string{nil}, s.rights.secrets, "the agent may read no Secret")
	s.rights.secretsErr = errors.New("no answer")
	assert.Equal(t, s.rights.secretsErr, reporter.Reconcile(t.Context(), cluster).Err)
}
