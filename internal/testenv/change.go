package testenv

import (
	"time"

	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/pkg/controllers"
)

// WithBootstrap is a hub that registers its own cluster, when its configuration says so.
func WithBootstrap(o *controllers.Options) { o.DisableBootstrap = false }

// WithoutBundles is a hub beside which Fleet's own controllers work on Bundles, so that they have no finalizer of ours.
func WithoutBundles(o *controllers.Options) { o.DisableBundles = true }

// FastRecheck is a hub that soon looks again at what it does not watch.
func FastRecheck(o *controllers.Options) { o.Recheck = time.Second }

// Ahead is a hub whose clock is ahead by that much.
func Ahead(by time.Duration) func(*controllers.Options) {
	return func(o *controllers.Options) { o.Clock = shifted{by: by} }
}

// shifted is a clock that is ahead. Timers run as ever.
type shifted struct {
	clock.RealClock
	by time.Duration
}

func (s shifted) Now() time.Time { return s.RealClock.Now().Add(s.by) }

func (s shifted) Since(moment time.Time) time.Duration { return s.Now().Sub(moment) }
