package demo

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv/sample"
)

// output collects the output. It can end the demo when a line appears.
type output struct {
	mutex  sync.Mutex
	text   strings.Builder
	until  string
	cancel context.CancelFunc
}

func (o *output) Write(p []byte) (int, error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.text.Write(p)
	if o.until != "" && strings.Contains(o.text.String(), o.until) {
		o.cancel()
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.text.String()
}

// stage prepares one demo: a directory for its temporary files, and programs that only sleep.
func stage(t *testing.T) (o Options, out *output, temporary string) {
	t.Helper()
	controlplane.SkipShort(t)
	temporary = t.TempDir()
	t.Setenv("TMPDIR", temporary)
	t.Setenv("GOMAXPROCS", "1") // of the control planes: it needs less CPU
	programs := t.TempDir()
	for _, name := range programNames {
		body := "#!/bin/sh\necho $0 token is $(cat $KUBECONFIG | wc -l) lines away\nexec sleep 300\n"
		require.NoError(t, os.WriteFile(filepath.Join(programs, name), []byte(body), 0o700))
	}
	out = &output{}
	// A long patience, because the machine can be busy.
	return Options{Out: out, Programs: programs, Patience: 5 * time.Minute}, out, temporary
}

// said is the content of the logs.
func said(logs []string) (text string) {
	for _, log := range logs {
		data, _ := os.ReadFile(log)
		text += string(data)
	}
	return text
}

// requireNoChildren checks that all processes of the demo have ended. They are children of the test.
func requireNoChildren(t *testing.T) {
	t.Helper()
	require.Empty(t, children(t))
}

func children(t *testing.T) (found []string) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, file := range stats {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended in the meantime
		}
		_, rest, _ := strings.Cut(string(data), ") ")
		if fields := strings.Fields(rest); len(fields) > 1 && fields[1] == strconv.Itoa(os.Getpid()) {
			found = append(found, string(data))
		}
	}
	return found
}

// wholeHub installs the hub on the control plane that start starts.
func wholeHub(t *testing.T, start step) []step {
	t.Helper()
	return append([]step{start}, append(steps()[1:3], step{title: "the hub's Deployment runs", run: func(ctx context.Context, d *demo) (string, error) {
		require.NoError(t, d.hub.awaitDeployment(ctx, "fleet-controller"))
		releases, err := d.hub.admin.Kubernetes.CoreV1().Secrets(systemNamespace).List(ctx, metav1.ListOptions{LabelSelector: "owner=helm,status=deployed"})
		require.NoError(t, err)
		require.Len(t, releases.Items, 2)
		return d.hub.name, nil
	}})...)
}

// hubOnly starts no members, because control planes need much CPU.
func hubOnly() step {
	return step{title: "start one control plane", run: func(ctx context.Context, d *demo) (string, error) { return "", d.hub.start(ctx, d.options) }}
}

func blocked() step {
	return step{title: "wait for ever", run: func(ctx context.Context, d *demo) (string, error) {
		d.screen.print("waiting for ever")
		<-ctx.Done()
		return "", ctx.Err()
	}}
}

func TestInterrupt(t *testing.T) {
	sample.Long(t)
	type row struct {
		name, until string
		steps       []step
		stay        bool
		want        error
	}
	all := steps()[0]
	for _, test := range sample.Some(t, 2, []row{
		{name: "before the first step", until: "Muster", steps: wholeHub(t, all), want: errInterrupted},
		{name: "during a start", until: "start three", steps: wholeHub(t, all), want: errInterrupted},
		{name: "while a chart is installed", until: "install chart fleet-crd", steps: wholeHub(t, hubOnly()), want: errInterrupted},
		{name: "while the programs run", until: "waiting for ever", steps: append(wholeHub(t, hubOnly()), blocked()), want: errInterrupted},
		{name: "after the last step", until: "Ctrl-C stops everything", steps: wholeHub(t, all), stay: true},
	}) {
		t.Run(test.name, func(t *testing.T) {
			o, out, temporary := stage(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out.until, out.cancel = test.until, cancel
			// With a terminal, steps are printed before they run.
			o.Stay, o.Terminal = test.stay, true

			require.ErrorIs(t, run(ctx, o, test.steps), test.want)
			requireNoChildren(t)
			left, err := os.ReadDir(temporary)
			require.NoError(t, err)
			require.Empty(t, left)
			require.Contains(t, out.String(), "all files were removed")
		})
	}
}

func TestFailureKeepsOnlyTheLogs(t *testing.T) {
	sample.Long(t)
	o, out, temporary := stage(t)
	broken := errors.New("out of range")
	all := append(wholeHub(t, hubOnly()), step{title: "divide", run: func(ctx context.Context, d *demo) (string, error) {
		// A pod is ready when its program has started, which has logged nothing by then.
		return "", errors.Join(poll(ctx, func(context.Context) error {
			if !strings.Contains(said(d.podLogs()), "token is") {
				return errors.New("nothing is logged yet")
			}
			return nil
		}), broken)
	}})

	err := run(t.Context(), o, all)
	require.ErrorIs(t, err, broken)
	require.EqualError(t, err, "divide: out of range")
	requireNoChildren(t)
	require.Contains(t, out.String(), "!! ")
	require.Contains(t, out.String(), "token is", "the log of the hub is printed")
	require.Contains(t, out.String(), "All logs are in "+temporary)

	var kept []string
	require.NoError(t, filepath.WalkDir(temporary, func(path string, entry fs.DirEntry, err error) error {
		if !entry.IsDir() {
			kept = append(kept, filepath.Base(path))
		}
		return err
	}))
	require.NotEmpty(t, kept)
	require.Contains(t, kept, "kube-apiserver.log")
	require.False(t, slices.ContainsFunc(kept, func(name string) bool { return !strings.HasSuffix(name, ".log") }), kept)
}

func TestControlPlaneDoesNotStart(t *testing.T) {
	o, _, temporary := stage(t)
	o.ControlPlanes = t.TempDir()
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager"} {
		require.NoError(t, os.WriteFile(filepath.Join(o.ControlPlanes, name), []byte("#!/bin/sh\necho no disk; exit 1\n"), 0o700))
	}
	err := run(t.Context(), o, steps())
	require.ErrorContains(t, err, "start three control planes")
	require.ErrorContains(t, err, "ended by itself (exit status 1); the end of its log:\nno disk")
	requireNoChildren(t)
	planes, err := filepath.Glob(filepath.Join(temporary, "*", "*", "*.key"))
	require.NoError(t, err)
	require.Empty(t, planes)
}
