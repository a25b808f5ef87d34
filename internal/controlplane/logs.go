package controlplane

import (
	"fmt"
	"log/slog"
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
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(file, nil)))
	return func(failed bool) {
		// The file stays open, and the log there: something that ends with the process may still have something to say.
		if failed {
			fmt.Fprintf(os.Stderr, "The log of hubs and agents: %s\n", file.Name())
			return
		}
		_ = os.Remove(file.Name())
	}, nil
}
