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

// EnvLender names the Unix socket of a Lender that serves all test binaries of one run. Without it each has a Lender of its own.
const EnvLender = "MUSTER_CONTROL_PLANES"

// borrowTimeout bounds the start of a control plane, which may have to build its binaries first.
const borrowTimeout = 15 * time.Minute

// Prepare changes a new control plane before its checkpoint is taken, such as by installing kinds. It runs once for each
// control plane.
type Prepare func(context.Context, *ControlPlane) error

// borrowed are the control planes of one test binary.
type borrowed struct {
	lender Lender

	mutex  sync.Mutex
	shared map[string]*sharedPlane
}

type sharedPlane struct {
	once     sync.Once
	plane    *ControlPlane
	giveBack func() // kept so that the connection to the Lender of another process stays open
	err      error

	mutex   sync.Mutex
	holders int // tests that Clean gave it to
}

// ofThisBinary is the one variable of this package: the tests of a package meet here, and the testing package offers no
// other place that lives as long as the test binary.
var ofThisBinary = &borrowed{shared: map[string]*sharedPlane{}}

// Shared returns the control plane of the given name, one per test binary, with a controller manager and with the content of
// its checkpoint. The name stands for what prepare does: give the same function with it in all packages. Tests keep apart
// by namespaces of their own, or by Reset. TestMain has to run the tests by RunTests.
func Shared(t testing.TB, name string, prepare ...Prepare) *ControlPlane {
	t.Helper()
	entry, err := ofThisBinary.share(name, prepare)
	if err != nil {
		t.Fatal(err)
	}
	return entry.plane
}

// Clean is Shared for tests that change what namespaces do not keep apart: it resets the control plane, unless another test
// that called Clean has not ended yet, such as one that this test is a part of. What a test has begun must end by its
// cleanups.
func Clean(t testing.TB, name string, prepare ...Prepare) *ControlPlane {
	t.Helper()
	plane, release, err := ofThisBinary.hold(name, prepare)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return plane
}

// Borrow is Shared for one test alone: nobody else has the control plane until the test has ended.
func Borrow(t testing.TB, name string, prepare ...Prepare) *ControlPlane {
	t.Helper()
	plane, giveBack, err := ofThisBinary.borrow(name, prepare)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(giveBack)
	return plane
}

// RunTests runs the tests of a package, stops the control planes they started, and returns the exit code:
//
//	func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }
//
// The logs of hubs and agents go to a file, which is kept and named when a test failed: thousands of lines would
// hide what went wrong.
func RunTests(m *testing.M) int {
	keep, err := divertLogs()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := ofThisBinary.stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	keep(code != 0)
	return code
}

func (b *borrowed) share(name string, prepare []Prepare) (*sharedPlane, error) {
	b.mutex.Lock()
	entry, ok := b.shared[name]
	if !ok {
		entry = &sharedPlane{}
		b.shared[name] = entry
	}
	b.mutex.Unlock()
	entry.once.Do(func() { entry.plane, entry.giveBack, entry.err = b.borrow(name, prepare) })
	return entry, entry.err
}

func (b *borrowed) hold(name string, prepare []Prepare) (plane *ControlPlane, release func(), err error) {
	entry, err := b.share(name, prepare)
	if err != nil {
		return nil, nil, err
	}
	entry.mutex.Lock()
	defer entry.mutex.Unlock()
	if entry.holders == 0 {
		ctx, cancel := context.WithTimeout(context.Background(), borrowTimeout)
		defer cancel()
		if err := entry.plane.Reset(ctx); err != nil {
			return nil, nil, err
		}
	}
	entry.holders++
	return entry.plane, func() {
		entry.mutex.Lock()
		defer entry.mutex.Unlock()
		entry.holders--
	}, nil
}

func (b *borrowed) borrow(name string, prepare []Prepare) (*ControlPlane, func(), error) {
	// Not the context of a test: a shared control plane outlives the test that happens to be first.
	ctx, cancel := context.WithTimeout(context.Background(), borrowTimeout)
	defer cancel()
	source := b.lender.borrow
	if socket := os.Getenv(EnvLender); socket != "" {
		source = func(ctx context.Context, name string) (*ControlPlane, func(), error) {
			return borrowFrom(ctx, socket, name)
		}
	}
	plane, giveBack, err := source(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	if plane.HasCheckpoint() {
		err = plane.Reset(ctx)
	} else {
		for _, f := range prepare {
			err = errors.Join(err, f(ctx, plane))
		}
		if err == nil {
			err = plane.Checkpoint(ctx)
		}
	}
	if err != nil {
		giveBack()
		return nil, nil, err
	}
	return plane, giveBack, nil
}

// stop gives everything back and stops the control planes of this binary's own Lender.
func (b *borrowed) stop() error {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	for _, entry := range b.shared {
		if entry.giveBack != nil {
			entry.giveBack()
		}
	}
	return b.lender.Stop()
}
