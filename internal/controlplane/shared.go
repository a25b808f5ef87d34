package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"
)

// sharedPlanes are the control planes of one test binary, by name.
type sharedPlanes struct {
	mutex  sync.Mutex
	planes map[string]*sharedPlane
}

type sharedPlane struct {
	once  sync.Once
	plane *ControlPlane
	err   error
}

// shared is the one variable of this package: tests of a package meet here, and the testing package offers no other
// place that lives as long as the test binary.
var shared = &sharedPlanes{planes: map[string]*sharedPlane{}}

// Shared returns the control plane of the given name, one per test binary, with a controller manager. The first call
// starts it; opts change its Options then and are ignored later. Tests keep apart by namespaces of their own. TestMain
// has to run the tests by RunTests, which stops it.
func Shared(t testing.TB, name string, opts ...func(*Options)) *ControlPlane {
	t.Helper()
	o := Options{Name: name, ControllerManager: true}
	for _, opt := range opts {
		opt(&o)
	}
	plane, err := shared.get(o)
	if err != nil {
		t.Fatal(err)
	}
	return plane
}

// RunTests runs the tests of a package, stops the control planes they shared, and returns the exit code:
//
//	func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }
//
// What hubs and agents log meanwhile goes into a file, which is kept and named when a test failed: thousands of lines would
// hide what went wrong.
func RunTests(m *testing.M) int {
	keep, err := divertLogs()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := shared.stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	keep(code != 0)
	return code
}

func (s *sharedPlanes) get(o Options) (*ControlPlane, error) {
	entry := s.entry(o.Name)
	entry.once.Do(func() {
		// Not the test's context: the control plane outlives the test that happens to be first. A first build of the
		// binaries belongs to it, which takes minutes.
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
		defer cancel()
		entry.plane, entry.err = Start(ctx, o)
	})
	return entry.plane, entry.err
}

func (s *sharedPlanes) entry(name string) *sharedPlane {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	entry, ok := s.planes[name]
	if !ok {
		entry = &sharedPlane{}
		s.planes[name] = entry
	}
	return entry
}

// stop ends all of them at once and forgets them.
func (s *sharedPlanes) stop() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var wg sync.WaitGroup
	errs := make(chan error, len(s.planes))
	for _, entry := range s.planes {
		if entry.plane != nil {
			wg.Go(func() { errs <- entry.plane.Stop() })
		}
	}
	wg.Wait()
	close(errs)
	s.planes = map[string]*sharedPlane{}
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	return errors.Join(all...)
}
