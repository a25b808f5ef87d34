package app

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	lassolog "github.com/rancher/lasso/pkg/log"
	"github.com/rancher/wrangler/v3/pkg/generic"
	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/guard"
	"github.com/muster-fleet/muster/pkg/registration"
)

// passTimeout is the deadline of a pass. An API server that accepts connections and never answers would otherwise block all workers.
const passTimeout = 30 * time.Second

// Passes tracks the running passes of a hub. A work queue that is stopped does not wait for its workers. Passes does: after Wait, this hub
// writes nothing, and another hub may start.
type Passes struct {
	ctx context.Context

	mu      sync.Mutex
	running sync.WaitGroup
}

// NewPasses returns Passes that start no pass after the end of ctx.
func NewPasses(ctx context.Context) *Passes { return &Passes{ctx: ctx} }

// Context returns the context of one pass. It ends with the hub, and after 30 seconds.
func (p *Passes) Context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(p.ctx, passTimeout)
}

// Wait returns when the last pass has ended. Call it when ctx has ended.
func (p *Passes) Wait() {
	p.mu.Lock() // a pass that starts at this moment has either been added or sees the end of ctx
	defer p.mu.Unlock()
	p.running.Wait()
}

// Handler makes each call of a handler a pass. A panic becomes an error, and the work queue retries the object with backoff: a bug that
// one object triggers must not end the program, which may embed the hub.
func Handler[T runtime.Object](p *Passes, name string, handle generic.ObjectHandler[T]) generic.ObjectHandler[T] {
	handlers.Store(name, true)
	return func(key string, object T) (result T, err error) {
		if !p.begin() {
			return object, nil
		}
		defer p.running.Done()
		defer func() {
			if cause := recover(); cause != nil {
				guard.Report(guard.Pass, logOf(object, key), fmt.Sprintf("Handler %s panicked on %s", name, key), cause)
				result, err = object, fmt.Errorf("handler %s panicked: %v", name, cause)
			} else if err != nil && !apierrors.IsConflict(err) {
				logOf(object, key).Errorf("Handler %s failed on %s, trying again: %v", name, key, err)
			}
		}()
		return handle(key, object)
	}
}

// logOf returns a log whose lines have a field with the object that a handler is called for.
func logOf(object runtime.Object, key string) logrus.FieldLogger {
	switch object.(type) { // if the object does not exist, object is a typed nil
	case *fleet.Cluster:
		return logrus.WithField(registration.LogCluster, key)
	case *fleet.ClusterRegistration:
		return logrus.WithField(registration.LogRequest, key)
	case *fleet.ClusterRegistrationToken:
		return logrus.WithField(registration.LogToken, key)
	case *fleet.BundleDeployment:
		return logrus.WithField(registration.LogBundleDeployment, key)
	}
	return logrus.StandardLogger()
}

// handlers are the names of the hub's handlers.
var handlers sync.Map

var handlerInError = regexp.MustCompile(`handler (\S+): `)

// isOfHub reports whether lasso's text about a failed reconcile names only handlers of the hub. A program that embeds the hub may have others.
func isOfHub(text string) bool {
	named := handlerInError.FindAllStringSubmatch(text, -1)
	return strings.HasPrefix(text, "error syncing ") && len(named) > 0 &&
		!slices.ContainsFunc(named, func(match []string) bool { _, isOwn := handlers.Load(match[1]); return !isOwn })
}

// lasso logs the error of a handler once more, without the fields. This init runs after the one of wrangler, which sets the same variable.
func init() {
	lassolog.Errorf = func(format string, args ...any) {
		if text := fmt.Sprintf(format, args...); isOfHub(text) {
			logrus.Debug(text)
		} else {
			logrus.Error(text)
		}
	}
}

func (p *Passes) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return false
	}
	p.running.Add(1)
	return true
}
