// Package evidence writes down what a cluster looks like at the moment a test failed: logs, events and objects. Credentials
// are left out: what is collected is kept, sent around, and read by people who may not have them.
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

// Collect writes the objects, events and logs of the cluster into dir. It goes on after an error, because the cluster may be broken, and
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
