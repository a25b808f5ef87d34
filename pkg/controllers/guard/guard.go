// Package guard keeps a mistake in one handler from ending the program, which may be somebody else's server.
package guard

import (
	"fmt"
	"runtime/debug"

	"github.com/rancher/wrangler/v3/pkg/generic"
	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/runtime"
)

// Handler turns a panic of the handler into an error, so that the object is tried again with backoff like after any other
// error, and all other objects go on.
func Handler[T runtime.Object](name string, handle generic.ObjectHandler[T]) generic.ObjectHandler[T] {
	return func(key string, object T) (result T, err error) {
		defer func() {
			if cause := recover(); cause != nil {
				logrus.Errorf("Handler %s panicked on %s: %v\n%s", name, key, cause, debug.Stack())
				result, err = object, fmt.Errorf("handler %s panicked: %v", name, cause)
			}
		}()
		return handle(key, object)
	}
}
