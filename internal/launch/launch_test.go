package launch

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"
	"k8s.io/klog/v2"
)

// From level 8 on, the Kubernetes client library logs Secrets.
func TestSetUpLogLimitsTheLevel(t *testing.T) {
	t.Cleanup(func() {
		SetUpLog(LogText, true, 0)
		logrus.SetLevel(logrus.InfoLevel)
	})
	for level, want := range map[int]klog.Level{0: 0, 4: 4, 7: 7, 8: 7, 10: 7, 1000: 7} {
		SetUpLog(LogText, true, level)
		assert.True(t, klog.V(want).Enabled(), "level %d", level)
		assert.False(t, klog.V(want+1).Enabled(), "level %d", level)
		assert.Equal(t, logrus.DebugLevel, logrus.GetLevel())
	}
}

func TestSetUpLogWithoutDebug(t *testing.T) {
	SetUpLog(LogText, false, 7)
	assert.False(t, klog.V(1).Enabled())
	assert.Equal(t, logrus.InfoLevel, logrus.GetLevel())
}

// All lines are JSON with the same keys, also those of the Kubernetes client library.
func TestSetUpLogInJSON(t *testing.T) {
	var log bytes.Buffer
	logrus.SetOutput(&log)
	t.Cleanup(func() {
		SetUpLog(LogText, true, 0)
		klog.ClearLogger()
		logrus.SetOutput(os.Stderr)
		logrus.SetFormatter(&logrus.TextFormatter{})
		logrus.SetLevel(logrus.InfoLevel)
	})
	SetUpLog(LogJSON, true, 4)
	logrus.WithField("cluster", "ns/a").Warn("refused")
	klog.Error("no route")
	klog.Warning("throttled")
	klog.Info("list")
	klog.V(4).Info("watch")
	klog.V(5).Info("frame")
	var got []string
	for line := range strings.Lines(log.String()) {
		entry := map[string]string{}
		require.NoError(t, json.Unmarshal([]byte(line), &entry), line)
		assert.NotEmpty(t, entry["time"])
		got = append(got, strings.TrimSpace(entry["level"]+" "+entry["msg"]+" "+entry["cluster"]))
	}
	assert.Equal(t, []string{"warning refused ns/a", "error no route", "info throttled", "info list", "debug watch"}, got)
}

func TestSpareMemory(t *testing.T) {
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })

	t.Setenv("GOGC", "200")
	SpareMemory()
	assert.Equal(t, 100, debug.SetGCPercent(100), "the Go runtime has read it")

	require.NoError(t, os.Unsetenv("GOGC"))
	SpareMemory()
	assert.Equal(t, gcPercent, debug.SetGCPercent(100))
}

func TestReturnMemory(t *testing.T) {
	kept := func() (unused uint64, collections uint32) {
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapIdle - stats.HeapReleased, stats.NumForcedGC
	}
	before := debug.SetGCPercent(-1) // nothing else collects garbage
	t.Cleanup(func() { debug.SetGCPercent(before) })
	garbage := bytes.Repeat([]byte{1}, 64<<20)
	_, collections := kept()
	runtime.KeepAlive(garbage)
	returnMemory()
	unused, after := kept()
	assert.Less(t, unused, uint64(returnMin))
	assert.Equal(t, collections+1, after)
	returnMemory()
	_, again := kept()
	assert.Equal(t, after, again, "nothing is unused")
}

func TestMainReturnsTheExitCode(t *testing.T) {
	args := os.Args
	t.Cleanup(func() { os.Args = args; logrus.SetOutput(os.Stderr) })
	os.Args = []string{"program"}
	for name, row := range map[string]struct {
		err  error
		want int
		log  string
	}{
		"nothing":           {nil, 0, ""},
		"an error":          {errors.New("broken"), 1, "broken"},
		"an exit code":      {cli.Exit("", 3), 3, ""},
		"a code and a text": {cli.Exit(errors.New("wrong flag"), 2), 2, "wrong flag"},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			logrus.SetOutput(&log)
			app := App("program", "tests")
			app.Action = func(*cli.Context) error { return row.err }
			assert.Equal(t, row.want, Main(app))
			if row.log == "" {
				assert.Empty(t, log.String())
			}
			assert.Contains(t, log.String(), row.log)
		})
	}
}
