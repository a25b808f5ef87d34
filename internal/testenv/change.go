package testenv

import (
	"time"

	"k8s.io/utils/clock"

	muster "github.com/muster-fleet/muster/pkg/hub"
)

// WithBootstrap is a hub that registers its own cluster, when its configuration says so.
func WithBootstrap(o *muster.Options) { o.DisableBootstrap = false }

// WithoutBundles is a hub beside which Fleet's own controllers work on Bundles, so that they have no finalizer of ours.
func WithoutBundles(o *muster.Options) { o.DisableBundles = true }

// FastRecheck is a hub that soon looks again at what it does not watch.
func FastRecheck(o *muster.Options) { o.Recheck = time.Second }

// Ahead is a hub whose clock is ahead by that much.
func Ahead(by time.Duration) func(*muster.Options) {
	return func(o *muster.Options) { o.Clock = shifted{by: by} }
}

// shifted is a clock that is ahead. Timers run as ever.
type shifted struct {
	clock.RealClock
	by time.Duration
}

func (s shifted) Now() time.Time { return s.RealClock.Now().Add(s.by) }

func (s shifted) Since(moment time.Time) time.Duration { return s.Now().Sub(moment) }
