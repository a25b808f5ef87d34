package main

import (
	"flag"
	"os"
	"strconv"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// memberConfig is the given kubeconfig, else the pod's ServiceAccount, else $KUBECONFIG.
func memberConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		if config, err := rest.InClusterConfig(); err == nil {
			return config, nil
		}
		kubeconfig = os.Getenv(clientcmd.RecommendedConfigPathEnvVar)
	}
	if kubeconfig == "" {
		return nil, rest.ErrNotInCluster
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
}

// setUpLog sets the level of our log, and that of the Kubernetes client library, which has a log of its own.
func setUpLog(debug bool, level int) {
	if !debug {
		return
	}
	logrus.SetLevel(logrus.DebugLevel)
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := flags.Set("v", strconv.Itoa(level)); err != nil {
		logrus.Warnf("--debug-level %d has no effect: %v", level, err)
	}
}
