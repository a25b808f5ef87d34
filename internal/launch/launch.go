// Package launch has the shared parts of the main functions: exit codes, flags, log, probes and metrics.
package launch

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/muster-fleet/muster/pkg/version"
)

// Main runs a program until it ends, or is interrupted or terminated, and returns its exit code: the code of a cli.ExitCoder, whose message
// may be empty, or 1 for every other error.
func Main(app *cli.App) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := app.RunContext(ctx, os.Args)
	if err == nil {
		return 0
	}
	if err.Error() != "" {
		logrus.Error(err)
	}
	var exit cli.ExitCoder
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 1
}

// App returns a program that reports usage errors in one line, without its help text.
func App(name, usage string) *cli.App {
	return &cli.App{
		Name:            name,
		Usage:           usage,
		Version:         version.Version,
		HideHelpCommand: true,
		OnUsageError:    func(_ *cli.Context, err error, _ bool) error { return fmt.Errorf("%w; see --help", err) },
		// Main returns the exit code. If the library ended the process, a Lease would not be released.
		ExitErrHandler: func(*cli.Context, error) {},
		ErrWriter:      io.Discard,
	}
}

// RESTConfig returns the configuration from the given kubeconfig, from the pod's ServiceAccount, or from $KUBECONFIG, in this order.
func RESTConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		if config, err := rest.InClusterConfig(); err == nil {
			return config, nil
		}
		kubeconfig = os.Getenv(clientcmd.RecommendedConfigPathEnvVar)
	}
	if kubeconfig == "" {
		return nil, fmt.Errorf("cannot connect to the API server: pass --kubeconfig, set KUBECONFIG or run in a pod: %w", rest.ErrNotInCluster)
	}
	rules := &clientcmd.ClientConfigLoadingRules{Precedence: []string{kubeconfig}}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	return config, nil
}

// Duration parses an optional duration. An empty text is 0, which means the default.
func Duration(name, text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%s is %q: it must be a duration like 15m or 90s, or empty for the default", name, text)
	}
	return d, nil
}

// maxClientLogLevel is the highest level of the Kubernetes client library's log that contains no secrets. From the next level on, it logs
// requests and responses with their bodies, including Secrets and tokens.
const maxClientLogLevel = 7

// Formats of the log.
const (
	LogText = "text"
	LogJSON = "json"
)

// LogFormatFlag returns the flag for the format of the log. Charts set the environment variable, which agents of other releases ignore.
func LogFormatFlag(format *string) cli.Flag {
	return &cli.StringFlag{
		Name: "log-format", Destination: format, Value: LogText, EnvVars: []string{"FLEET_LOG_FORMAT"}, Usage: "`FORMAT` of the log: text or json",
		Action: func(_ *cli.Context, value string) error {
			if value == "" || value == LogText || value == LogJSON {
				return nil
			}
			return fmt.Errorf("--log-format is %q: it must be %s or %s", value, LogText, LogJSON)
		},
	}
}

// SetUpLog sets the format and the level of the log, also for the Kubernetes client library, which has a log of its own.
func SetUpLog(format string, debug bool, level int) {
	if format == LogJSON {
		logrus.SetFormatter(&logrus.JSONFormatter{})
		klog.SetSlogLogger(clientLog(logrus.StandardLogger().Out))
	}
	if !debug {
		return
	}
	logrus.SetLevel(logrus.DebugLevel)
	if level > maxClientLogLevel {
		logrus.Warnf("--debug-level %d is reduced to %d: at higher levels the Kubernetes client library logs Secrets and tokens", level, maxClientLogLevel)
		level = maxClientLogLevel
	}
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := flags.Set("v", strconv.Itoa(level)); err != nil {
		logrus.Warnf("--debug-level %d has no effect: %v", level, err)
	}
}

// clientLog writes the lines of the Kubernetes client library in the form of logrus. klog itself decides which lines are logged, and passes
// warnings on as information.
func clientLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{
		Level: slog.Level(-maxClientLogLevel),
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			level, is := a.Value.Any().(slog.Level)
			switch {
			case !is || len(groups) > 0 || a.Key != slog.LevelKey:
				return a
			case level < slog.LevelInfo:
				return slog.String(slog.LevelKey, logrus.DebugLevel.String())
			case level < slog.LevelError:
				return slog.String(slog.LevelKey, logrus.InfoLevel.String())
			}
			return slog.String(slog.LevelKey, logrus.ErrorLevel.String())
		},
	}))
}

// gcPercent is the growth of the heap after which garbage is collected, in percent of the memory in use. Most of the memory
// of hubs and agents is caches, so with Go's default of 100 they would need twice the size of their caches. A smaller one costs CPU: see
// docs/benchmarks.md.
const gcPercent = 35

// SpareMemory lets Go collect garbage more often than by default, unless $GOGC is set.
func SpareMemory() {
	if _, set := os.LookupEnv("GOGC"); !set {
		debug.SetGCPercent(gcPercent)
	}
}

const (
	// returnInterval is the time between two checks of the memory that is not in use.
	returnInterval = time.Minute
	// returnMin is the smallest amount of unused memory for which garbage is collected; 1/returnShare of the memory in use is another minimum.
	returnMin, returnShare = 16 << 20, 4
)

// ReturnMemory returns unused memory to the operating system until ctx ends. Go itself keeps the memory to which the heap may grow before the next
// collection, and a tenth more, as long as the process runs: with gcPercent, half more than is in use. A process that uses most of its memory for
// caches seldom needs it again.
func ReturnMemory(ctx context.Context) {
	wait.UntilWithContext(ctx, func(context.Context) { returnMemory() }, returnInterval)
}

// returnMemory collects garbage and returns unused memory if there is probably much of it.
func returnMemory() {
	samples := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, // found by the last collection
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(samples)
	used, objects, free := samples[0].Value.Uint64(), samples[1].Value.Uint64(), samples[2].Value.Uint64()
	if objects+free > used+max(returnMin, used/returnShare) {
		debug.FreeOSMemory()
	}
}
