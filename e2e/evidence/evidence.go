// Package evidence stores the logs, events and objects of a cluster when a test has failed. It omits credentials, because the files are
// kept and sent to people who may not have these credentials.
package evidence

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Collect writes the objects, events and logs of the cluster into dir. It continues after an error, because the cluster may be broken, and
// returns all errors.
func Collect(ctx context.Context, config *rest.Config, dir string) error {
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	return collect(ctx, core, objects, dir)
}

func collect(ctx context.Context, core kubernetes.Interface, objects dynamic.Interface, dir string) error {
	c := collector{core: core, objects: objects, dir: dir}
	return errors.Join(c.logs(ctx), c.events(ctx), c.secrets(ctx), c.manifests(ctx))
}

type collector struct {
	core    kubernetes.Interface
	objects dynamic.Interface
	dir     string
}

func (c collector) write(name string, data []byte) error {
	file := filepath.Join(c.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // for people to read
		return err
	}
	return os.WriteFile(file, []byte(redactText(string(data))), 0o644) //nolint:gosec // for people to read
}
