package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/klog/v2"
)

// EnvLender names the Unix socket of a Lender for all test binaries of a run. Without it, each test binary has its own Lender.
const EnvLender = "MUSTER_CONTROL_PLANES"

// borrowTimeout limits the start of a control plane, including the time to build its programs.
const borrowTimeout = 15 * time.Minute

// Prepare changes a new control plane before its checkpoint, for example installs kinds. It runs once for each control plane.
type Prepare func(context.Context, *ControlPlane) error

// borrowed has the control planes of a test binary.
type borrowed struct {
	lender Lender

	mutex  sync.Mutex
	shared map[string]*sharedPlane
}

type sharedPlane struct {
	once sync.Once

	mutex    sync.Mutex // guards the fields below
	plane    *ControlPlane
	giveBack func() // kept so that the connection to the Lender of another process stays open
	err      error
	holders  int // number of running tests that got it from Clean
}

// ofThisBinary is a global variable because the testing package has no other place for objects that the tests of a package share.
var ofThisBinary = &borrowed{shared: map[string]*sharedPlane{}}

// Shared returns the control plane with this name, of which each test binary has one, with the objects of its checkpoint. All packages must
// pass the same prepare functions for a name. Tests use different namespaces. TestMain must call RunTests.
func Shared(t testing.TB, name string, prepare ...Prepare) *ControlPlane {
	t.Helper()
	SkipShort(t)
	entry := ofThisBinary.share(name, prepare)
	entry.mutex.Lock()
	defer entry.mutex.Unlock()
	if entry.err != nil {
		t.Fatal(entry.err)
	}
	return entry.plane
}

// Clean is Shared for tests that change objects outside of a namespace of their own. It resets the control plane, unless another test that
// called Clean still runs, such as the parent of this test. All clients of a test must end in its cleanups.
func Clean(t testing.TB, name string, prepare ...Prepare) *ControlPlane {
	t.Helper()
	SkipShort(t)
	plane, release, err := ofThisBinary.hold(name, prepare)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return plane
}

// Borrow returns a control plane that no other test has until this test has ended.
func Borrow(t testing.TB, name string, prepare ...Prepare) *ControlPlane {
	t.Helper()
	SkipShort(t)
	plane, giveBack, err := ofThisBinary.borrow(name, prepare)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(giveBack)
	return plane
}

// Own is Borrow for tests that stop the API server or restore etcd, which only the process can do that has started the control plane. Tests of
// a package with the same name use the same control plane one after another. They must pass the same options.
func Own(t testing.TB, o Options) *ControlPlane {
	t.Helper()
	SkipShort(t)
	plane, giveBack, err := borrowFor(func(ctx context.Context) (*ControlPlane, func(), error) {
		return ofThisBinary.lender.borrowWith(ctx, o)
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(giveBack)
	return plane
}

// SkipShort skips a test that needs API servers if go test has the flag -short. The first such test builds Kubernetes.
func SkipShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("it needs API servers, which -short leaves out")
	}
}

// RunTests runs the tests of a package, stops the control planes that they started, and returns the exit code:
//
//	func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }
//
// The logs of hubs and agents are written to a file, because thousands of lines would hide the failure. The file is kept if a test failed.
func RunTests(m *testing.M) int {
	// The file is not closed: goroutines that end with the process may still log.
	log, err := os.CreateTemp("", "muster-test-*.log")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	logrus.SetOutput(log)
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(log, nil)))
	// This variable is for the processes that the tests start, as in hack/lend.
	if err := os.Setenv("GOMAXPROCS", "1"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := ofThisBinary.stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	if code == 0 {
		_ = os.Remove(log.Name())
	} else {
		fmt.Fprintf(os.Stderr, "The log of hubs and agents: %s\n", log.Name())
	}
	return code
}

func (b *borrowed) share(name string, prepare []Prepare) *sharedPlane {
	b.mutex.Lock()
	entry, ok := b.shared[name]
	if !ok {
		entry = &sharedPlane{}
		b.shared[name] = entry
	}
	b.mutex.Unlock()
	entry.once.Do(func() { entry.plane, entry.giveBack, entry.err = b.borrow(name, prepare) })
	return entry
}

func (b *borrowed) hold(name string, prepare []Prepare) (plane *ControlPlane, release func(), err error) {
	entry := b.share(name, prepare)
	entry.mutex.Lock()
	defer entry.mutex.Unlock()
	if entry.err == nil && entry.plane.isBroken() {
		// The Reset before an earlier test failed, and with it that test. The others get another control plane.
		entry.giveBack()
		entry.plane, entry.giveBack, entry.err = b.borrow(name, prepare)
	}
	if entry.err != nil {
		return nil, nil, entry.err
	}
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
	return borrowFor(func(ctx context.Context) (*ControlPlane, func(), error) {
		if socket := os.Getenv(EnvLender); socket != "" {
			// The other process reads these. Go caches the results of tests by the variables that the tests themselves read, and a
			// result on one version of Kubernetes is not valid for another.
			_, _ = os.Getenv(EnvBinaries), os.Getenv(EnvMemberBinaries)
			return borrowFrom(ctx, socket, name)
		}
		return b.lender.borrow(ctx, name)
	}, prepare)
}

// borrowFor borrows a control plane from a Lender, and gives it the objects of its checkpoint.
func borrowFor(source func(context.Context) (*ControlPlane, func(), error), prepare []Prepare) (*ControlPlane, func(), error) {
	// This is not the context of a test, because a shared control plane is used by other tests later.
	ctx, cancel := context.WithTimeout(context.Background(), borrowTimeout)
	defer cancel()
	for {
		plane, giveBack, err := source(ctx)
		if err != nil {
			return nil, nil, err
		}
		if plane.hasCheckpoint() {
			err = plane.Reset(ctx)
		} else {
			for _, f := range prepare {
				err = errors.Join(err, f(ctx, plane))
			}
			if err == nil {
				err = plane.Checkpoint(ctx)
			}
		}
		if err == nil {
			return plane, giveBack, nil
		}
		broken := plane.isBroken()
		giveBack()
		if !broken || ctx.Err() != nil {
			return nil, nil, err
		}
		// Tests must not fail because of what tests of another package have left.
		fmt.Fprintf(os.Stderr, "another control plane is used: %v\n", err)
	}
}

// stop returns all control planes and stops the Lender of this test binary.
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
