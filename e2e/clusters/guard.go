package clusters

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/pprof"
	"sync"
	"syscall"
	"time"
)

// Guard closes the providers of a test binary that ends before its tests do. Go runs no cleanup then, and what a provider made
// outside of this process would stay: cgroups, folders, containers.
type Guard struct {
	mutex sync.Mutex
	open  []Provider
}

// Add has the provider closed.
func (g *Guard) Add(p Provider) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.open = append(g.open, p)
}

func (g *Guard) close() error {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	var all []error
	for _, p := range g.open {
		all = append(all, p.Close())
	}
	return errors.Join(all...)
}

// Run is m.Run under guard, and returns the exit code. It returns early where the tests have to end early: they go on until the
// process ends.
func (g *Guard) Run(m interface{ Run() int }) int {
	early, cancel := Early()
	defer cancel()
	code := make(chan int, 1)
	go func() { code <- m.Run() }()
	select {
	case all := <-code:
		return all
	case <-early.Done():
		return EndEarly(early, g.close)
	}
}

// EndEarly says why the tests end before their time, closes, and returns the exit code.
func EndEarly(early context.Context, closeAll func() error) int {
	fmt.Fprintf(os.Stderr, "e2e: FAILED: %v: removing the clusters\n", context.Cause(early))
	if errors.Is(context.Cause(early), errLate) {
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 2) // what Go's own end would have said
	}
	if err := closeAll(); err != nil {
		fmt.Fprintf(os.Stderr, "e2e: removing the clusters: %v\n", err)
	}
	return 1
}

var (
	errInterrupted = errors.New("interrupted")
	errLate        = errors.New("the tests are out of time")
)

// spare is what is left of the time of the tests to remove all clusters.
const spare = time.Minute

// Early returns a context that ends when somebody interrupts this test binary, and shortly before Go would end it because its
// tests are out of time.
func Early() (context.Context, context.CancelFunc) {
	// Whoever reads what we say may have been interrupted as well, and without this we would end with the first word. To ignore
	// the signal instead would have every program we start ignore it, too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	late := afterTests()
	go func() {
		select {
		case <-ctx.Done():
			signal.Stop(signals)
		case <-signals:
			cancel(errInterrupted)
		case <-late:
			cancel(errLate)
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}

// afterTests is never when the tests have no deadline, or one too near for anything.
func afterTests() <-chan time.Time {
	flag.Parse()
	timeout := flag.Lookup("test.timeout")
	if timeout == nil {
		return nil
	}
	if limit, ok := timeout.Value.(flag.Getter).Get().(time.Duration); ok && limit > spare {
		return time.After(limit - spare)
	}
	return nil
}
