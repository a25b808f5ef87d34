package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"github.com/muster-fleet/muster/internal/process"
)

// hubProcess is a process of the hub that the bench starts.
type hubProcess struct {
	command process.Command
	process *process.Process
}

// prepareHub returns a process of the hub, which is not started.
func (e *environment) prepareHub(name string, args ...string) (*hubProcess, error) {
	kubeconfig := filepath.Join(e.dir, "hub.kubeconfig")
	if err := os.WriteFile(kubeconfig, e.plane.Kubeconfig(), 0o600); err != nil {
		return nil, err
	}
	program, err := filepath.Abs(e.Hub)
	if err != nil {
		return nil, err
	}
	return &hubProcess{command: process.Command{
		Path: program, Dir: e.dir, Log: filepath.Join(e.dir, name+".log"),
		Args: append([]string{"--kubeconfig", kubeconfig, "--namespace", systemNamespace, "--disable-bootstrap", "--pod-name", name}, args...),
	}}, nil
}

func (h *hubProcess) start() (err error) {
	h.process, err = process.Start(h.command)
	return err
}

func (h *hubProcess) stop() { h.process.Stop(10 * time.Second) }

func (h *hubProcess) restart() error {
	h.stop()
	return h.start()
}

func (h *hubProcess) pid() int { return h.process.Pid() }

// untilExit returns a context that ends, with the reason, when the hub exits.
func (h *hubProcess) untilExit(ctx context.Context) (context.Context, func()) {
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

// logTail is the end of the hub's log, for errors.
func (h *hubProcess) logTail() string {
	const lines, width = 10, 300
	text := "\nthe end of the hub's log:"
	for line := range strings.Lines(process.Tail(h.command.Log, lines)) {
		line = strings.TrimSuffix(line, "\n")
		text += "\n" + line[:min(len(line), width)]
	}
	return text
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
