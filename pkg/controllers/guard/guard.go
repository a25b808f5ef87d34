// Package guard keeps a panic about one object from ending the hub, which serves all workspaces. The object would cause the same panic after
// each start.
package guard

import (
	"fmt"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"k8s.io/client-go/tools/cache"
)

// The parts of the hub that recover from panics, values of the label of Panics.
const (
	Pass      = "pass"      // a controller's pass over an object, with its goroutines
	Call      = "call"      // a call to a member
	Event     = "event"     // a handler of the events of a cache
	Transform = "transform" // the reduction of an object on its way into a cache
	Task      = "task"      // work in the background
)

// Panics counts the panics from which the hub has recovered, by part. All hubs of a process share it.
var Panics = prometheus.NewCounterVec(prometheus.CounterOpts{
	Namespace: "muster", Name: "panics_total",
	Help: "Panics from which the hub has recovered, each a bug that its log shows, by the part of the hub.",
}, []string{"part"})

func init() {
	for _, part := range []string{Pass, Call, Event, Transform, Task} {
		Panics.WithLabelValues(part) // a series that appears with its first increase shows no increase
	}
}

// Recover is deferred by a function that handles an object. It logs and counts a panic, and sets err, if not nil, to an error.
func Recover(part string, object any, err *error) {
	cause := recover()
	if cause == nil {
		return
	}
	Report(part, logrus.StandardLogger(), fmt.Sprintf("Panic (%s) about %s", part, describe(object)), cause)
	if err != nil {
		*err = fmt.Errorf("internal error in the hub (details in its log): %v", cause)
	}
}

// Report counts a panic, and logs what happened with its cause and the stack. A function that needs more than Recover calls it with the
// result of recover.
func Report(part string, log logrus.FieldLogger, what string, cause any) {
	Panics.WithLabelValues(part).Inc()
	log.Errorf("%s: %v\n%s", what, cause, debug.Stack())
}

// describe returns the type, namespace and name of an object, and no other field: a log must not contain the data of a Secret.
func describe(object any) string {
	key, err := cache.DeletionHandlingObjectToName(object)
	if err != nil {
		return fmt.Sprintf("%T", object)
	}
	return fmt.Sprintf("%T %s", object, key)
}
