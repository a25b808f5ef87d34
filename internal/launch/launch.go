// Package launch is what the programs have in common before their real work begins.
package launch

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/muster-fleet/muster/pkg/version"
)

// Main runs a program until it is done, interrupted or terminated, and returns its exit code.
func Main(app *cli.App) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := app.RunContext(ctx, os.Args); err != nil {
		logrus.Error(err)
		return 1
	}
	return 0
}

// App is a program whose errors are one line each, not its whole help with the reason lost above.
func App(name, usage string) *cli.App {
	return &cli.App{
		Name:            name,
		Usage:           usage,
		Version:         version.Version,
		HideHelpCommand: true,
		OnUsageError:    func(_ *cli.Context, err error, _ bool) error { return fmt.Errorf("%w; see --help", err) },
		// Main decides about the exit; a library that ends the process would leave a Lease held.
		ExitErrHandler: func(*cli.Context, error) {},
		ErrWriter:      io.Discard,
	}
}

// RESTConfig is the given kubeconfig, else the pod's ServiceAccount, else $KUBECONFIG.
func RESTConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		if config, err := rest.InClusterConfig(); err == nil {
			return config, nil
		}
		kubeconfig = os.Getenv(clientcmd.RecommendedConfigPathEnvVar)
	}
	if kubeconfig == "" {
		return nil, fmt.Errorf("no way to the API server: pass --kubeconfig, set KUBECONFIG or run in a pod: %w", rest.ErrNotInCluster)
	}
	rules := &clientcmd.ClientConfigLoadingRules{Precedence: []string{kubeconfig}}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	return config, nil
}

// Duration reads an optional duration; empty is 0, which means the default.
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

// mostTalkative is the level of the Kubernetes client library's log up to which it keeps secrets to itself. From the next one
// on it writes down requests and answers whole, Secrets and tokens included.
const mostTalkative = 7

// SetUpLog sets the level of our log, and that of the Kubernetes client library, which has a log of its own.
func SetUpLog(debug bool, level int) {
	if !debug {
		return
	}
	logrus.SetLevel(logrus.DebugLevel)
	if level > mostTalkative {
		logrus.Warnf("--debug-level %d is taken for %d: above, the Kubernetes client library writes Secrets and tokens into the log", level, mostTalkative)
		level = mostTalkative
	}
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := flags.Set("v", strconv.Itoa(level)); err != nil {
		logrus.Warnf("--debug-level %d has no effect: %v", level, err)
	}
}
