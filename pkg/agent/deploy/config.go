package deploy

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
)

// ErrUninstall is the error of Run after the hub asked the agent to uninstall itself and everything the agent deployed is removed.
var ErrUninstall = errors.New("everything deployed was removed because the hub asked the agent to uninstall itself")

// Default numbers of workers.
const (
	DefaultWorkers      = 50
	DefaultDriftWorkers = 50
)

// DefaultCompareInterval is the default of Config.CompareInterval.
const DefaultCompareInterval = 15 * time.Minute

// Config is the input of Run.
type Config struct {
	// Hub sends requests to the hub with a timeout. Watching sends watches, which a timeout would cut off.
	Hub, Watching versioned.Interface
	// HubCore reads on the hub the Secrets with Helm values and with logins for downloads, and the Secrets and ConfigMaps to copy.
	HubCore kubernetes.Interface
	// HubID is credential.Stored.HubID. If it differs from that of the last run, releases whose BundleDeployment is missing stay.
	HubID string
	// Namespace is the namespace of the BundleDeployments on the hub.
	Namespace string
	// Workspace, the namespace of the Cluster, and ClusterName identify the Cluster on the hub.
	Workspace, ClusterName string
	// Member connects to the API server of the member. It has no timeout, which would cut off watches.
	Member *rest.Config
	// AgentNamespace is the agent's namespace on the member.
	AgentNamespace string
	// Scope distinguishes several agents of one cluster; it is part of the marks on the deployed objects.
	Scope string
	// Workers deploy, DriftWorkers compare; 0 means the default.
	Workers, DriftWorkers int
	// CompareInterval is the interval at which the objects of all releases are compared with the cluster, independent of events; 0 means DefaultCompareInterval.
	CompareInterval time.Duration
	// CompareIntervalChanged receives each new value of CompareInterval; nil if it does not change.
	CompareIntervalChanged <-chan time.Duration
	// CheckRejection is called with the result of each request to the hub. It returns an error if it is certain that the hub rejects the
	// credential; that error ends Run. nil accepts every result.
	CheckRejection func(error) error
	// BeginUninstall is called once everything is removed because the hub asked for it, before the agent reports that to the hub. The hub deletes its
	// record of the agent on that report; an agent that is killed in between must find its own record. If BeginUninstall fails, nothing is
	// reported. nil does nothing.
	BeginUninstall func(context.Context) error
	// ReportKept is called with the releases that stay because the hub was restored from a backup, or is another one, and has no BundleDeployment for
	// them, as namespace/name in alphabetical order; it may be called again with the same ones. nil does nothing.
	ReportKept func(releases []string)
	// ReportStalled is called with the reason why nothing is deployed, when that has lasted for Timing.Stalled, and with an empty text when the
	// reason is gone; it may be called again with the same text. nil does nothing.
	ReportStalled func(text string)
	// Log, Clock and Timing have defaults.
	Log    logrus.FieldLogger
	Clock  clock.WithTicker
	Timing Timing
}

// Timing has the durations; a zero value means the default.
type Timing struct {
	// RetryFirst and RetryMax are the first and the longest pause between attempts after a failure.
	RetryFirst, RetryMax time.Duration
	// CorrectFirst and CorrectMax are the first and the longest pause between corrections of one release: another controller
	// may keep changing the same object.
	CorrectFirst, CorrectMax time.Duration
	// Settle is the delay from an event of a deployed object to the status that shows it, so that many events cause one write.
	Settle time.Duration
	// Grace is the time an operation gets to finish when the agent is stopped.
	Grace time.Duration
	// RemovalDelay is the delay from the end of a BundleDeployment to the removal of its release. If the whole Cluster is deleted on
	// the hub, the agent's own BundleDeployment is gone by then as well.
	RemovalDelay time.Duration
	// Elsewhere is the time that an agent in another namespace gets to report on its BundleDeployment. After that, this agent reports that it
	// ignores the BundleDeployment.
	Elsewhere time.Duration
	// Depend is the interval at which a BundleDeployment that waits for others is checked, in addition to the checks after their events.
	Depend time.Duration
	// RemovalRecheck is the interval at which a removal that must not happen yet is checked again, see decideRemoval.
	RemovalRecheck time.Duration
	// RemovalAlone is how long the agent's own BundleDeployment must be gone while others exist, until the agent takes itself for one that the hub no
	// longer manages; RemovalRecheck if the hub has said so with UnmanagedAnnotation. A restart does not begin again.
	RemovalAlone time.Duration
	// Operation is the time limit of one deployment, in addition to the timeout in its options.
	Operation time.Duration
	// Stalled is the time for which a step without which nothing is deployed must fail, before that is reported.
	Stalled time.Duration
}

func (c Config) withDefaults() Config {
	setDefault(&c.Workers, DefaultWorkers)
	setDefault(&c.DriftWorkers, DefaultDriftWorkers)
	setDefault(&c.CompareInterval, DefaultCompareInterval)
	if c.CheckRejection == nil {
		c.CheckRejection = func(error) error { return nil }
	}
	if c.BeginUninstall == nil {
		c.BeginUninstall = func(context.Context) error { return nil }
	}
	if c.ReportKept == nil {
		c.ReportKept = func([]string) {}
	}
	if c.ReportStalled == nil {
		c.ReportStalled = func(string) {}
	}
	c.Log = cmp.Or[logrus.FieldLogger](c.Log, logrus.StandardLogger())
	c.Clock = cmp.Or[clock.WithTicker](c.Clock, clock.RealClock{})
	setDefault(&c.Timing.RetryFirst, 2*time.Second)
	setDefault(&c.Timing.RetryMax, 10*time.Minute)
	setDefault(&c.Timing.CorrectFirst, 5*time.Second)
	setDefault(&c.Timing.CorrectMax, 10*time.Minute)
	setDefault(&c.Timing.Settle, 300*time.Millisecond)
	setDefault(&c.Timing.Grace, 5*time.Second)
	setDefault(&c.Timing.RemovalDelay, 5*time.Second)
	setDefault(&c.Timing.Elsewhere, time.Minute)
	setDefault(&c.Timing.Depend, 15*time.Second)
	setDefault(&c.Timing.RemovalRecheck, time.Minute)
	setDefault(&c.Timing.RemovalAlone, 24*time.Hour)
	setDefault(&c.Timing.Operation, 10*time.Minute)
	setDefault(&c.Timing.Stalled, time.Minute)
	return c
}

func setDefault[T int | time.Duration](value *T, fallback T) {
	if *value <= 0 {
		*value = fallback
	}
}

// withGrace returns a context that ends a grace period after its parent, so that a running operation can finish.
func withGrace(parent context.Context, c clock.WithTicker, grace time.Duration) (context.Context, context.CancelFunc) {
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
