package deploy

import (
	"context"
	"errors"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
)

// ErrFarewell is what Run returns when the hub has said farewell and everything the agent deployed is gone.
var ErrFarewell = errors.New("everything deployed was removed because the hub says farewell")

// Workers when nobody says how many.
const (
	DefaultWorkers      = 50
	DefaultDriftWorkers = 50
)

// DefaultResync is how often everything is compared when nobody says.
const DefaultResync = 15 * time.Minute

// Config is what Run needs.
type Config struct {
	// Hub sends requests to the hub, each bounded in time; Watching sends watches, which a bound would cut off.
	Hub, Watching versioned.Interface
	// HubCore reads the Secrets with values on the hub.
	HubCore kubernetes.Interface
	// Namespace is that of the BundleDeployments on the hub.
	Namespace string
	// ClusterNamespace and ClusterName are the Cluster on the hub.
	ClusterNamespace, ClusterName string
	// Member is how to reach the API server of the member, without a timeout, which would cut off watches.
	Member *rest.Config
	// AgentNamespace is the agent's own on the member.
	AgentNamespace string
	// Workers deploy, DriftWorkers compare; 0 is the default.
	Workers, DriftWorkers int
	// Resync is how often everything is compared with the cluster, whatever events there were; 0 is DefaultResync.
	Resync time.Duration
	// Judge is told how each request to the hub ended. An error of it ends Run: it says that the hub certainly refuses the
	// credential. nil judges nothing.
	Judge func(error) error
	// Leaving is told that everything is gone after a farewell, before the hub is: the hub forgets the agent then, and an
	// agent that dies between the two would know of nothing. Its error keeps the hub from being told. nil does nothing.
	Leaving func(context.Context) error
	// Log, Clock and Timing have defaults.
	Log    logrus.FieldLogger
	Clock  clock.WithTicker
	Timing Timing
}

// Timing are the durations; the zero value of each is its default.
type Timing struct {
	// RetryFirst and RetryMax bound the growing pause between two attempts at what failed.
	RetryFirst, RetryMax time.Duration
	// CorrectFirst and CorrectMax bound the growing pause between two corrections of one release: somebody else may want
	// an object to be otherwise just as firmly.
	CorrectFirst, CorrectMax time.Duration
	// Settle is from an event of a deployed object to the status that shows it: many events make one write.
	Settle time.Duration
	// Grace is what an operation is given to finish when the agent is stopped.
	Grace time.Duration
	// Linger is from the end of a BundleDeployment to the removal of what it deployed: if the whole Cluster goes on the hub,
	// that is to be seen by then.
	Linger time.Duration
	// Hold is between two looks at whether what must stay, because the whole Cluster is gone on the hub, may be removed.
	Hold time.Duration
	// Operation bounds one deployment, in addition to the timeout in its options.
	Operation time.Duration
}

func (t Timing) withDefaults() Timing {
	set := func(d *time.Duration, fallback time.Duration) {
		if *d == 0 {
			*d = fallback
		}
	}
	set(&t.RetryFirst, 2*time.Second)
	set(&t.RetryMax, 10*time.Minute)
	set(&t.CorrectFirst, 5*time.Second)
	set(&t.CorrectMax, 10*time.Minute)
	set(&t.Settle, 300*time.Millisecond)
	set(&t.Grace, 5*time.Second)
	set(&t.Linger, 5*time.Second)
	set(&t.Hold, time.Minute)
	set(&t.Operation, 10*time.Minute)
	return t
}

func (c Config) withDefaults() Config {
	c.Workers = positive(c.Workers, DefaultWorkers)
	c.DriftWorkers = positive(c.DriftWorkers, DefaultDriftWorkers)
	if c.Resync <= 0 {
		c.Resync = DefaultResync
	}
	if c.Judge == nil {
		c.Judge = func(error) error { return nil }
	}
	if c.Leaving == nil {
		c.Leaving = func(context.Context) error { return nil }
	}
	if c.Log == nil {
		c.Log = logrus.StandardLogger()
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	c.Timing = c.Timing.withDefaults()
	return c
}

func positive(n, fallback int) int {
	if n > 0 {
		return n
	}
	return fallback
}

const (
	jitter = 0.2
	factor = 2
	steps  = 100 // enough to reach any limit; the pause stays there
)

func backoff(first, limit time.Duration) *wait.Backoff {
	return &wait.Backoff{Duration: first, Cap: limit, Factor: factor, Jitter: jitter, Steps: steps}
}

// lingering is a context that ends a while after its parent, so that what was begun can be finished.
func lingering(parent context.Context, c clock.WithTicker, grace time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(parent))
	stop := context.AfterFunc(parent, func() {
		timer := c.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-timer.C():
			cancel(context.Cause(parent))
		case <-ctx.Done():
		}
	})
	return ctx, func() { stop(); cancel(nil) }
}
