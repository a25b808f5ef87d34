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

// Control sequences, for terminals only.
const (
	green     = "\x1b[32m"
	red       = "\x1b[31m"
	dim       = "\x1b[2m"
	bold      = "\x1b[1m"
	plain     = "\x1b[0m"
	eraseLine = "\r\x1b[K"
)

// indent aligns notes with the title of their step.
const indent = "           "

// screen prints the progress. Steps call it from several goroutines.
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

func (s *screen) title(text string) { s.print("", s.style(bold, text), "") }

// transient prints a line that the next one overwrites. Without a terminal it prints nothing.
func (s *screen) transient(text string) {
	if !s.terminal {
		return
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	fmt.Fprint(s.out, eraseLine+text)
}

// begin prints that a step begins. The caller calls done when it ends.
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

// progress prints the state of the running step.
func (s *screen) progress(text string) { s.transient(s.style(dim, "  ...      "+text)) }

func seconds(d time.Duration) string { return fmt.Sprintf("%5.1f s", d.Seconds()) }

// result prints the table at the end.
func (s *screen) result(registered []registeredCluster, deleted []string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var rows [][]string
	for _, a := range registered {
		rows = append(rows, []string{
			a.namespace + "/" + a.name, a.view.WayIn, state(a, deleted),
			strings.TrimSpace(seconds(a.took)), a.view.Bundles, view.Ago(a.view.LastSeen, s.now()),
		})
	}
	fmt.Fprintln(s.out)
	_ = view.PrintTable(s.out, []string{"CLUSTER", "WAY-IN", "STATE", "REGISTERED-IN", "BUNDLES", "LAST-SEEN"}, rows)
	fmt.Fprintf(s.out, "\n%d clusters registered; %s in total.\n", len(registered), strings.TrimSpace(seconds(s.now().Sub(s.begun))))
}

// state returns the state of the cluster, or Deleted.
func state(a registeredCluster, deleted []string) string {
	if slices.Contains(deleted, a.namespace+"/"+a.name) {
		return "Deleted"
	}
	return a.view.State
}

// stay prints commands to try.
func (s *screen) stay(d *demo) {
	muster := filepath.Join(d.options.Programs, "muster")
	if d.page != nil {
		s.print("", s.style(bold, "The page, in a browser on this machine: ")+d.page.address)
	}
	s.print("",
		s.style(bold, "Everything keeps running. Commands to try in another terminal:"), "",
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
		"Ctrl-C stops everything and removes all files.")
}

// failure prints the last lines of the logs, which may contain the reason.
func (s *screen) failure(logs []string, dir string) {
	for _, log := range logs {
		s.print("", s.style(bold, "The end of "+log+":"), process.Tail(log, 12))
	}
	s.print("", "All logs are in "+dir)
}
