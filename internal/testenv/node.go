package testenv

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/internal/localpods"
	"github.com/muster-fleet/muster/internal/process"
)

// Node runs the pods of the cluster as processes until the test ends. The programs are those in the folder binaries. It returns
// the folder of their logs, NAMESPACE_POD.log. When the test fails, the ends of these are shown.
func (c *Cluster) Node(t testing.TB, binaries string) (logs string) {
	t.Helper()
	logs = t.TempDir()
	quiet := logrus.New()
	quiet.SetOutput(testWriter{t})
	r := run(func(ctx context.Context) error {
		return localpods.Run(ctx, localpods.Options{
			RESTConfig: c.RESTConfig(), Binaries: binaries, Logs: logs, Homes: t.TempDir(), Log: quiet,
			RestartDelay: restartDelay, RestartDelayMax: restartDelay,
		})
	})
	t.Cleanup(func() {
		r.Stop(t)
		if t.Failed() {
			showLogs(t, logs)
		}
	})
	return logs
}

// restartDelay of programs that ended: a test has no time for the kubelet's.
const restartDelay = 200 * time.Millisecond

// lastLines of each program's log are shown.
const lastLines = 40

func showLogs(t testing.TB, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.log"))
	require.NoError(t, err)
	for _, file := range files {
		if info, err := os.Stat(file); err == nil && info.Size() > 0 {
			t.Logf("the end of %s:\n%s", filepath.Base(file), process.Tail(file, lastLines))
		}
	}
}
