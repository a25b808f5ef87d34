package identities

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Three agents race for two uses, and the hub is hit at each of its writes in turn, until there are no more of them: two win,
// and two uses are counted.
func TestAHubThatIsHitAtAnyWriteCountsEachUseOnce(t *testing.T) {
	t.Parallel() // each blow has a hub of its own
	for _, blow := range []testenv.Blow{testenv.Kill, testenv.Fail, testenv.Drop} {
		t.Run(strings.Fields(string(blow))[0], func(t *testing.T) {
			t.Parallel()
			hub := testenv.OwnCluster(t, "counting")
			hub.Configure(t, hub.Reachable())
			supervised := hub.SupervisedHub(t)
			for n := 1; ; n += testenv.Stride() {
				namespace := hub.Namespace(t)
				values := hub.Token(t, namespace, "twice", fleet.ClusterRegistrationTokenSpec{UsageLimit: ptr.To(int32(2))})
				hub.WaitCondition(t, testenv.KindToken, namespace, "twice", fleet.ConditionReady, "True")
				supervised.Strike(blow, n)
				reasons, clusters := decided(t, hub, storm(t, hub, values, 3))
				require.Equal(t, map[string]int{"Granted:": 2, "TokenUsedUp:": 1}, reasons, "after %s", supervised.Struck())
				token := tokenOf(t, hub, values)
				require.EqualValues(t, 2, token.Status.Uses, "after %s", supervised.Struck())
				require.Contains(t, clusters, token.Status.LastCluster)
				if supervised.Struck() == "" {
					require.Greater(t, n, 15, "so few writes cannot be two registrations")
					t.Logf("fewer than %d writes; the hub was started %d times", n, supervised.Starts())
					return
				}
			}
		})
	}
}
