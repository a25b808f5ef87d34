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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fileCheckpoint is in the folder of the control plane, so that every process that uses the control plane can reset it.
const fileCheckpoint = "checkpoint.json"

// checkpoint holds the keys that Reset restores.
type checkpoint struct {
	values    map[string][]byte
	revisions map[string]int64 // the revision at which a key is known to have its value of values
}

// Checkpoint stores the present content of the control plane; Reset returns to it. It first waits until the controller
// manager has given each namespace what every namespace has.
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
		if key.Lease == 0 && !leftAlone(string(key.Key)) {
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

// HasCheckpoint says whether this or another process has called Checkpoint.
func (c *ControlPlane) HasCheckpoint() bool {
	_, err := os.Stat(filepath.Join(c.dir, fileCheckpoint))
	return err == nil
}

// leftAlone are the keys by which API servers and the controller manager say that they are alive.
func leftAlone(key string) bool {
	return strings.HasPrefix(key, "/registry/masterleases/") || strings.HasPrefix(key, "/registry/leases/kube-system/")
}

// Reset makes the content what it was at the Checkpoint. It writes to etcd, past the API server, so it takes some 10 ms
// where deletions by the API would wait for finalizers and for the controller manager; every watch sees the changes. All
// clients that write to the control plane must have ended.
func (c *ControlPlane) Reset(ctx context.Context) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if err := c.reset(ctx); err != nil {
		return fmt.Errorf("control plane %q: reset: %w", c.options.Name, err)
	}
	return nil
}

func (c *ControlPlane) reset(ctx context.Context) error {
	if c.checkpoint == nil {
		loaded, err := loadCheckpoint(c.dir)
		if err != nil {
			return err
		}
		c.checkpoint = loaded
	}
	etcd := newEtcdClient(c.dir)
	defer etcd.http.CloseIdleConnections()
	// The controller manager may be working on an object that has just gone, and write once more.
	const rounds = 20
	for range rounds {
		changed, err := c.checkpoint.restore(ctx, etcd)
		if err != nil || !changed {
			return err
		}
	}
	return errors.New("somebody keeps writing: every client of the control plane must have ended")
}

func loadCheckpoint(dir string) (*checkpoint, error) {
	data, err := os.ReadFile(filepath.Join(dir, fileCheckpoint))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("there is no checkpoint to return to")
	}
	if err != nil {
		return nil, err
	}
	k := &checkpoint{revisions: map[string]int64{}}
	return k, json.Unmarshal(data, &k.values)
}

// restore writes what differs from the checkpoint, and says whether anything did.
func (k *checkpoint) restore(ctx context.Context, etcd *etcdClient) (changed bool, err error) {
	// The first time nothing is known of the revisions, so that the values have to be compared.
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
		case leftAlone(name):
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

// awaitNamespaces waits until each namespace has its ServiceAccount and its certificates, where there is a controller
// manager to create them. A Reset would delete those that came later, and the controller manager create them again.
func (c *ControlPlane) awaitNamespaces(ctx context.Context) error {
	if !c.options.ControllerManager {
		return nil
	}
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
			if apierrors.IsNotFound(err) {
				return fmt.Errorf("namespace %s: %w", namespace.Name, err)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
