package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/bench/sim"
	"github.com/muster-fleet/muster/internal/process"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// hub is what is measured.
type hub interface {
	// pids are those of its processes.
	pids() []int
	// restart ends it and starts it again. errNoRestart says that nobody knows how.
	restart(ctx context.Context) error
	// stop ends it, if it was started here.
	stop()
	// during is a context that ends with the hub, where that is known; the cause says how.
	during(ctx context.Context) (context.Context, func())
	// ending is the end of its log on lines of their own, for errors; empty when nobody knows it.
	ending() string
}

var errNoRestart = errors.New("nobody said how this hub is restarted")

// own is a hub of this project, started here.
type own struct {
	command process.Command
	process *process.Process
}

const stopGrace = 10 * time.Second

func (h *own) pids() []int { return []int{h.process.Pid()} }

func (h *own) start() (err error) {
	h.process, err = process.Start(h.command)
	return err
}

func (h *own) restart(context.Context) error {
	h.stop()
	return h.start()
}

func (h *own) stop() { h.process.Stop(stopGrace) }

func (h *own) during(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	running := h.process
	go func() {
		select {
		case <-running.Exited():
			cancel(fmt.Errorf("the hub ended by itself with code %d%s", running.ExitCode(), h.ending()))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

func (h *own) ending() string {
	const lines, most = 10, 300 // a hub that cannot reach its API server writes lines without end
	text := "\nthe end of the hub's log:"
	for line := range strings.Lines(process.Tail(h.command.Log, lines)) {
		line = strings.TrimSuffix(line, "\n")
		text += "\n" + line[:min(len(line), most)]
	}
	return text
}

// newHub is a process of the hub with that name, which is not started yet.
func (w *world) newHub(name string, args ...string) (*own, error) {
	kubeconfig := filepath.Join(w.dir, "hub.kubeconfig")
	if err := os.WriteFile(kubeconfig, w.plane.Kubeconfig(), 0o600); err != nil {
		return nil, err
	}
	program, err := filepath.Abs(w.Hub)
	if err != nil {
		return nil, err
	}
	return &own{command: process.Command{
		Path: program, Dir: w.dir, Log: filepath.Join(w.dir, name+".log"),
		Args: append([]string{"--kubeconfig", kubeconfig, "--namespace", systemNamespace, "--disable-bootstrap", "--pod-name", name}, slices.Concat(args, w.HubArgs)...),
	}}, nil
}

// startHub runs a hub of ours, and returns when its kinds are served.
func (w *world) startHub(ctx context.Context) error {
	// It is alone, so it may be patient with an API server that a busy machine has slowed down.
	h, err := w.newHub("hub", "--lease-duration=10m", "--renew-deadline=8m")
	if err != nil {
		return err
	}
	if err := h.start(); err != nil {
		return err
	}
	w.hub = h
	return w.served(ctx)
}

// served waits until the API server has all kinds that agents and imports need: it gets them one after the other, and its
// admission, which policies are a part of, learns of a new kind a moment later.
func (w *world) served(ctx context.Context) error {
	one := metav1.ListOptions{Limit: 1}
	return sim.Await(ctx, "the hub's kinds", func(ctx context.Context) (bool, error) {
		_, clusters := w.Fleet.Clusters(workspace).List(ctx, one)
		_, requests := w.Fleet.ClusterRegistrations(workspace).List(ctx, one)
		_, tokens := w.Fleet.ClusterRegistrationTokens(workspace).List(ctx, one)
		return errors.Join(clusters, requests, tokens, w.admitted(ctx)) == nil, nil
	})
}

// admitted asks for a registration without making it.
func (w *world) admitted(ctx context.Context) error {
	_, err := w.Fleet.ClusterRegistrations(workspace).Create(ctx, &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "asked-"}, Spec: fleet.ClusterRegistrationSpec{ClientID: "asked", ClientRandom: "asked"},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// foreign is a hub that runs already.
type foreign struct {
	Named
}

func (h *foreign) pids() []int { return h.Pids }

func (h *foreign) stop() {}

func (h *foreign) during(ctx context.Context) (context.Context, func()) { return ctx, func() {} }

func (h *foreign) ending() string { return "" }

func (h *foreign) restart(ctx context.Context) error {
	if h.Restart == "" {
		return errNoRestart
	}
	out, err := exec.CommandContext(ctx, "sh", "-c", h.Restart).Output()
	if err != nil {
		return fmt.Errorf("restarting the hub by %q: %w", h.Restart, err)
	}
	h.Pids, err = ParsePids(string(out))
	return err
}

// ParsePids reads process IDs, apart by blanks or commas.
func ParsePids(text string) (pids []int, err error) {
	for _, field := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' }) {
		pid, err := strconv.Atoi(field)
		if err != nil || pid <= 0 {
			return nil, fmt.Errorf("%q is no process ID", field)
		}
		pids = append(pids, pid)
	}
	if len(pids) == 0 {
		return nil, errors.New("no process ID")
	}
	return pids, nil
}
