package cli

import (
	"fmt"
	"io"
	"slices"

	"github.com/urfave/cli/v2"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/muster-fleet/muster/internal/admin"
)

// Names of the flags that say which hub.
const (
	flagKubeconfig = "kubeconfig"
	flagContext    = "context"
	flagNamespace  = "namespace"
)

func hubFlags() []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{Name: flagKubeconfig, Usage: "`FILE` with the kubeconfig of the hub; default: $KUBECONFIG, then ~/.kube/config"},
	}, hubFlagsBesideKubeconfig()...)
}

// hubFlagsBesideKubeconfig are for a command whose --kubeconfig means something else.
func hubFlagsBesideKubeconfig() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: flagContext, Usage: "`NAME` of the context of the hub in its kubeconfig; default: the current one"},
		&cli.StringFlag{Name: flagNamespace, Aliases: []string{"n"}, Usage: "`NAMESPACE` to work in; default: that of the context"},
	}
}

// given is the value of a flag that may stand before or after the command; the later one wins.
func given(c *cli.Context, name string) string { return givenIn(c.Lineage(), name) }

func givenIn(lineage []*cli.Context, name string) string {
	for _, level := range lineage {
		if level != nil && level.Command != nil && slices.Contains(level.LocalFlagNames(), name) {
			return level.String(name)
		}
	}
	return ""
}

// connection is the hub, and the namespace to work in.
type connection struct {
	*admin.Hub
	namespace string
}

// connect reads --kubeconfig wherever it stands.
func connect(c *cli.Context) (*connection, error) { return connectBy(c, given(c, flagKubeconfig)) }

func connectBy(c *cli.Context, kubeconfig string) (*connection, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: given(c, flagContext)}
	overrides.Context.Namespace = given(c, flagNamespace)
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, noHub(err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, noHub(err)
	}
	hub, err := admin.Connect(quiet(config))
	if err != nil {
		return nil, noHub(err)
	}
	return &connection{Hub: hub, namespace: namespace}, nil
}

func noHub(err error) error {
	return fmt.Errorf("no way to the hub: pass --kubeconfig, or set KUBECONFIG: %w", err)
}

// quiet keeps what the client library logs, and what the server warns of, from mixing with our own words: every failure
// is returned as an error as well.
func quiet(config *rest.Config) *rest.Config {
	quietLog()
	config.WarningHandler = rest.NoWarnings{}
	config.QPS = -1
	return config
}

func quietLog() {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
}
