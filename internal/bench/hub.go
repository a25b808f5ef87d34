package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"github.com/muster-fleet/muster/internal/process"
)

// hub is the hub that is measured.
type hub interface {
	pids() []int
	// restart ends the hub and starts it again. It returns errNoRestart if the bench cannot do that.
	restart(ctx context.Context) error
	// stop ends the hub if the bench has started it.
	stop()
	// guard returns a context that ends, with the reason, when the hub exits.
	guard(ctx context.Context) (context.Context, func())
	// logTail is the end of the hub's log, for errors; empty if it is not known.
	logTail() string
}

var errNoRestart = errors.New("the bench cannot restart this hub")

// localHub is a fleetcontroller that the bench has started.
type localHub struct {
	command process.Command
	process *process.Process
}

// newHub prepares a process of the hub.
func (e *environment) newHub(name string, args ...string) (*localHub, error) {
	kubeconfig := filepath.Join(e.dir, "hub.kubeconfig")
	if err := os.WriteFile(kubeconfig, e.plane.Kubeconfig(), 0o600); err != nil {
		return nil, err
	}
	program, err := filepath.Abs(e.Hub)
	if err != nil {
		return nil, err
	}
	return &localHub{command: process.Command{
		Path: program, Dir: e.dir, Log: filepath.Join(e.dir, name+".log"),
		Args: append([]string{"--kubeconfig", kubeconfig, "--namespace", systemNamespace, "--disable-bootstrap", "--pod-name", name}, args...),
	}}, nil
}

func (h *localHub) start() (err error) {
	h.process, err = process.Start(h.command)
	return err
}

func (h *localHub) stop() { h.process.Stop(10 * time.Second) }

func (h *localHub) restart(context.Context) error {
	h.stop()
	return h.start()
}

func (h *localHub) pids() []int { return []int{h.process.Pid()} }

func (h *localHub) guard(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	running := h.process
	go func() {
		select {
		case <-running.Exited():
			cancel(fmt.Errorf("the hub exited with code %d%s", running.ExitCode(), h.logTail()))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

func (h *localHub) logTail() string {
	const lines, width = 10, 300
	text := "\nthe end of the hub's log:"
	for line := range strings.Lines(process.Tail(h.command.Log, lines)) {
		line = strings.TrimSuffix(line, "\n")
		text += "\n" + line[:min(len(line), width)]
	}
	return text
}

// externalHub is a hub that already runs.
type externalHub struct {
	External
}

func (h *externalHub) pids() []int { return h.Pids }

func (h *externalHub) stop() {}

func (h *externalHub) guard(ctx context.Context) (context.Context, func()) { return ctx, func() {} }

func (h *externalHub) logTail() string { return "" }

func (h *externalHub) restart(ctx context.Context) error {
	if h.Restart == "" {
		return errNoRestart
	}
	out, err := exec.CommandContext(ctx, "sh", "-c", h.Restart).Output()
	if err != nil {
		return fmt.Errorf("restarting the hub with %q: %w", h.Restart, err)
	}
	h.Pids, err = ParsePids(string(out))
	return err
}

// ParsePids reads process IDs that are separated by spaces, line ends or commas.
func ParsePids(text string) (pids []int, err error) {
	for _, field := range strings.Fields(strings.ReplaceAll(text, ",", " ")) {
		pid, err := strconv.Atoi(field)
		if err != nil || pid <= 0 {
			return nil, fmt.Errorf("%q is not a process ID", field)
		}
		pids = append(pids, pid)
	}
	if len(pids) == 0 {
		return nil, errors.New("no process ID")
	}
	return pids, nil
}

// usage is what processes have used since they were started.
type usage struct {
	cpu        time.Duration // user and system time
	peakMemory int64         // bytes; the sum of the peaks of all processes
}

// cpuDuring returns the CPU time of processes during an operation.
func cpuDuring(pids []int, operation func() error) (time.Duration, error) {
	before, err := usageOf(pids...)
	if err != nil {
		return 0, err
	}
	if err := operation(); err != nil {
		return 0, err
	}
	after, err := usageOf(pids...)
	return after.cpu - before.cpu, err
}

// usageOf reads the accounting of the kernel. It fails if one of the processes has ended.
func usageOf(pids ...int) (sum usage, err error) {
	for _, pid := range pids {
		p, err := procfs.NewProc(pid)
		if err != nil {
			return usage{}, err
		}
		stat, err := p.Stat()
		if err != nil {
			return usage{}, err
		}
		status, err := p.NewStatus()
		if err != nil {
			return usage{}, err
		}
		sum.cpu += time.Duration(stat.CPUTime() * float64(time.Second))
		sum.peakMemory += int64(status.VmHWM) //nolint:gosec // less memory than an int64 can count
	}
	return sum, nil
}
