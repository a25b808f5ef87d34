package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/await"
)

// resetTimeout limits a Reset, which takes about 10 ms if nobody writes any more.
const resetTimeout = 30 * time.Second

var resetPace = await.Pace{First: 5 * time.Millisecond, Most: 100 * time.Millisecond}

// fileCheckpoint is in the directory of the control plane, so that every process that borrows the control plane can reset it.
const fileCheckpoint = "checkpoint.json"

// checkpoint holds the keys that Reset restores.
type checkpoint struct {
	values    map[string][]byte
	revisions map[string]int64 // a key that still has this revision has its value of the checkpoint
}

// Checkpoint records the objects of the control plane, and Reset restores them. Checkpoint first waits until each namespace has the objects
// that the controller manager creates in it.
func (c *ControlPlane) Checkpoint(ctx context.Context) error {
	if err := c.awaitNamespaces(ctx); err != nil {
		return fmt.Errorf("control plane %q: checkpoint: %w", c.options.Name, err)
	}
	keys, err := newEtcdClient(c.dir).keys(ctx, true)
	if err != nil {
		return fmt.Errorf("control plane %q: checkpoint: %w", c.options.Name, err)
	}
	taken := map[string][]byte{}
	for _, key := range keys {
		if key.Lease == 0 && !isLease(string(key.Key)) {
			taken[string(key.Key)] = key.Value
		}
	}
	data, err := json.Marshal(taken)
	if err != nil {
		return err
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.checkpoint = &checkpoint{values: taken, revisions: map[string]int64{}}
	return writeFiles(c.dir, map[string][]byte{fileCheckpoint: data})
}

// hasCheckpoint returns whether this or another process has called Checkpoint.
func (c *ControlPlane) hasCheckpoint() bool {
	_, err := os.Stat(filepath.Join(c.dir, fileCheckpoint))
	return err == nil
}

// isLease returns whether a key is renewed all the time by the API server or the controller manager.
func isLease(key string) bool {
	return strings.HasPrefix(key, "/registry/masterleases/") || strings.HasPrefix(key, "/registry/leases/kube-system/")
}

// Reset restores the objects of the Checkpoint. It writes to etcd directly and takes about 10 ms; deletions through the API would wait for
// finalizers and for the controller manager. Watches deliver the changes. All clients that write to the control plane must have ended.
func (c *ControlPlane) Reset(ctx context.Context) (err error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	defer func() {
		if err != nil {
			err = fmt.Errorf("control plane %q: reset: %w", c.options.Name, err)
		}
	}()
	if c.checkpoint == nil {
		if c.checkpoint, err = loadCheckpoint(c.dir); err != nil {
			return err
		}
	}
	etcd := newEtcdClient(c.dir)
	defer etcd.http.CloseIdleConnections()
	// The controller manager may write objects again that have just been deleted, and takes long for it on a busy machine.
	ctx, cancel := context.WithTimeout(ctx, resetTimeout)
	defer cancel()
	var fault error
	err = resetPace.Until(ctx, func(ctx context.Context) (bool, string) {
		changed, err := c.checkpoint.restore(ctx, etcd)
		if err != nil && ctx.Err() == nil {
			fault = err
			return true, ""
		}
		return !changed && err == nil, "objects are still being written: all clients of the control plane must have ended"
	})
	return errors.Join(fault, err)
}

func loadCheckpoint(dir string) (*checkpoint, error) {
	data, err := os.ReadFile(filepath.Join(dir, fileCheckpoint))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("there is no checkpoint")
	}
	if err != nil {
		return nil, err
	}
	k := &checkpoint{revisions: map[string]int64{}}
	return k, json.Unmarshal(data, &k.values)
}

// restore writes the keys that differ from the checkpoint, and returns whether there were any.
func (k *checkpoint) restore(ctx context.Context, etcd *etcdClient) (changed bool, err error) {
	// The first time, the revisions are not known, and the values have to be compared.
	first := len(k.revisions) == 0
	found, err := etcd.keys(ctx, first)
	if err != nil {
		return false, err
	}
	var operations []etcdOperation
	there := map[string]bool{}
	for _, key := range found {
		name := string(key.Key)
		there[name] = true
		value, wanted := k.values[name]
		switch {
		case isLease(name):
		case !wanted:
			operations = append(operations, etcdOperation{Delete: &etcdKey{Key: key.Key}})
		case first && bytes.Equal(value, key.Value):
			k.revisions[name] = key.Revision
		case first || k.revisions[name] != key.Revision:
			operations = append(operations, etcdOperation{Put: &etcdKey{Key: key.Key, Value: value}})
		}
	}
	for name, value := range k.values {
		if !there[name] {
			operations = append(operations, etcdOperation{Put: &etcdKey{Key: []byte(name), Value: value}})
		}
	}
	revisions, err := etcd.apply(ctx, operations)
	if err != nil {
		return false, err
	}
	for i, operation := range operations {
		if operation.Put != nil {
			k.revisions[string(operation.Put.Key)] = revisions[i]
		}
	}
	return len(operations) > 0, nil
}

// awaitNamespaces waits until each namespace has its ServiceAccount and its certificates. A Reset would delete objects that are created
// after the checkpoint, and the controller manager would create them again.
func (c *ControlPlane) awaitNamespaces(ctx context.Context) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return waitFor(ctx, "the content of the namespaces", func(ctx context.Context) error {
		namespaces, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, namespace := range namespaces.Items {
			_, err := client.CoreV1().ConfigMaps(namespace.Name).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
			if err == nil {
				_, err = client.CoreV1().ServiceAccounts(namespace.Name).Get(ctx, "default", metav1.GetOptions{})
			}
			if err != nil {
				return fmt.Errorf("namespace %s: %w", namespace.Name, err)
			}
		}
		return nil
	})
}
