package clusterregistration

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
)

// turns lets the requests of one identity be judged one after another: two passes at the same time would both find that
// nobody holds it. The zero turns is ready to use.
type turns struct{ taken sync.Map }

// untilNextTurn is how long a request steps back that finds another one in its place, and as much again at random.
const untilNextTurn = 50 * time.Millisecond

// take returns nil when another request of that identity is being looked at. Nobody waits for it: the worker has other work.
func (t *turns) take(request *fleet.ClusterRegistration) (done func()) {
	key := index.Key(request.Namespace, request.Spec.ClientID)
	if _, taken := t.taken.LoadOrStore(key, true); taken {
		return nil
	}
	return func() { t.taken.Delete(key) }
}

func nextTurn() time.Duration { return wait.Jitter(untilNextTurn, 1) }
