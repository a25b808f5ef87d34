package demo

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-fleet/muster/internal/process"
	"github.com/muster-fleet/muster/internal/view"
)

// Terminal control, used on a terminal only.
const (
	green     = "\x1b[32m"
	red       = "\x1b[31m"
	dim       = "\x1b[2m"
	bold      = "\x1b[1m"
	plain     = "\x1b[0m"
	eraseLine = "\r\x1b[K"
)

// lastLines is how much of a log is shown after a failure.
const lastLines = 12

// indent puts notes below the title of their step.
const indent = "           "

// screen is what a person sees. Steps report from other goroutines than the one that prints.
type screen struct {
	mutex    sync.Mutex
	out      io.Writer
	terminal bool
	begun    time.Time
	now      func() time.Time
}

func newScreen(out io.Writer, terminal bool) *screen {
	return &screen{out: out, terminal: terminal, begun: time.Now(), now: time.Now}
}

func (s *screen) style(style, text string) string {
	if !s.terminal || text == "" {
		return text
	}
	return style + text + plain
}

func (s *screen) print(lines ...string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, line := range lines {
		fmt.Fprintln(s.out, line)
	}
}

func (s *screen) say(text string) { s.print("", text) }

func (s *screen) title(text string) { s.print("", s.style(bold, text), "") }

// transient shows what is going on until the next line replaces it; without a terminal there is no such thing.
func (s *screen) transient(text string) {
	if !s.terminal {
		return
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	fmt.Fprint(s.out, eraseLine+text)
}

// begin announces a step. The result is called at its end.
func (s *screen) begin(step step) (done func(note string, err error)) {
	begun := s.now()
	s.transient(s.style(dim, "  ...      "+step.title))
	return func(note string, err error) {
		s.transient("")
		s.print(s.stepLines(step, s.now().Sub(begun), note, err)...)
	}
}

func (s *screen) stepLines(step step, took time.Duration, note string, err error) []string {
	sign := s.style(green, "ok")
	if err != nil {
		sign = s.style(red, "!!")
	}
	lines := []string{fmt.Sprintf("  %s %s %s", sign, seconds(took), step.title)}
	if step.like != "" {
		lines = append(lines, s.style(dim, indent+"$ "+step.like))
	}
	if note != "" {
		lines = append(lines, s.style(dim, indent+note))
	}
	return lines
}

// progress shows how the running step stands.
func (s *screen) progress(text string) { s.transient(s.style(dim, "  ...      "+text)) }

func seconds(d time.Duration) string { return fmt.Sprintf("%5.1f s", d.Seconds()) }

// result is the table at the end.
func (s *screen) result(arrived []arrival, departed []string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var rows [][]string
	for _, a := range arrived {
		rows = append(rows, []string{
			a.namespace + "/" + a.name, a.view.WayIn, state(a, departed),
			strings.TrimSpace(seconds(a.took)), a.view.Bundles, view.Ago(a.view.LastSeen, s.now()),
		})
	}
	fmt.Fprintln(s.out)
	_ = view.Table(s.out, []string{"CLUSTER", "WAY IN", "STATE", "REGISTERED IN", "BUNDLES", "LAST SEEN"}, rows)
	fmt.Fprintf(s.out, "\n%d clusters registered; %s altogether.\n", len(arrived), strings.TrimSpace(seconds(s.now().Sub(s.begun))))
}

// state is that of the cluster, which may have left since.
func state(a arrival, departed []string) string {
	if slices.Contains(departed, a.namespace+"/"+a.name) {
		return "Deleted"
	}
	return a.view.State
}

// stay tells what to do with what is up.
func (s *screen) stay(d *demo) {
	muster := filepath.Join(d.options.Programs, "muster")
	s.print("",
		s.style(bold, "Everything stays up. Look around from another terminal:"), "",
		"  export KUBECONFIG="+d.hub.kubeconfig,
		"  "+muster+" clusters -A",
		"  kubectl get clusters.fleet.cattle.io,clusterregistrations -A",
		"  kubectl get bundles,bundledeployments,contents -A",
		"  kubectl -n "+workspace+" describe clusters.fleet.cattle.io east",
		"  kubectl --kubeconfig "+d.east.kubeconfig+" -n "+systemNamespace+" get deploy,pods,secrets",
		"  kubectl --kubeconfig "+d.east.kubeconfig+" -n "+workload+" get deploy,pods,configmaps",
		"  kubectl --kubeconfig "+d.east.kubeconfig+" -n "+systemNamespace+" rollout restart deploy/fleet-agent", "",
		"Kubeconfigs: "+strings.Join([]string{d.hub.kubeconfig, d.east.kubeconfig, d.west.kubeconfig}, " "),
		"Logs:        "+filepath.Join(d.dir, "logs"), "",
		"Ctrl-C ends it; nothing is left behind.")
}

// failure shows the ends of the logs in which the reason may stand.
func (s *screen) failure(logs []string, dir string) {
	for _, log := range logs {
		s.print("", s.style(bold, "The end of "+log+":"), process.Tail(log, lastLines))
	}
	s.print("", "All logs are in "+dir)
}
