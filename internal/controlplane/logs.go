package controlplane

import (
	"flag"
	"fmt"
	"os"

	"github.com/sirupsen/logrus"
	"k8s.io/klog/v2"
)

// divertLogs has the process log into a file; keep removes it, or says where it is.
func divertLogs() (keep func(bool), err error) {
	file, err := os.CreateTemp("", "muster-test-*.log")
	if err != nil {
		return nil, err
	}
	logrus.SetOutput(file)
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	for name, value := range map[string]string{"logtostderr": "false", "stderrthreshold": "FATAL"} {
		if err := flags.Set(name, value); err != nil {
			return nil, err
		}
	}
	klog.SetOutput(file)
	return func(failed bool) {
		logrus.SetOutput(os.Stderr)
		klog.LogToStderr(true)
		_ = file.Close()
		if failed {
			fmt.Fprintf(os.Stderr, "The log of hubs and agents: %s\n", file.Name())
			return
		}
		_ = os.Remove(file.Name())
	}, nil
}
