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

// Guard closes the providers of a test binary that ends before its tests do. Go does not run cleanups then, and cgroups, directories and
// containers of a provider would be left.
type Guard struct {
	mutex sync.Mutex
	open  []Provider
}

// Add adds a provider to close.
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

// Run calls m.Run and returns the exit code. If the tests have to end early, it returns while they still run.
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

// EndEarly prints why the tests end early, closes the providers, and returns the exit code.
func EndEarly(early context.Context, closeAll func() error) int {
	fmt.Fprintf(os.Stderr, "e2e: FAILED: %v: removing the clusters\n", context.Cause(early))
	if errors.Is(context.Cause(early), errLate) {
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 2) // as Go prints at a timeout
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

// spare is the time that is reserved for removing the clusters.
const spare = time.Minute

// Early returns a context that ends when the test binary is interrupted, and shortly before Go ends it because of its timeout. Another
// interruption ends the binary at once, for example while a provider cannot be closed.
func Early() (context.Context, context.CancelFunc) {
	// The reader of the output may have been interrupted too, and writing to it would end this process. Ignoring the signal instead would
	// make all child processes ignore it.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	late := afterTests()
	go func() {
		var cause error
		select {
		case <-ctx.Done():
		case <-signals:
			cause = errInterrupted
		case <-late:
			cause = errLate
		}
		signal.Stop(signals)
		cancel(cause)
	}()
	return ctx, func() { cancel(context.Canceled) }
}

// afterTests never fires if the tests have no timeout, or one shorter than spare.
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
