package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/await"
)

const (
	// resetTimeout limits a Reset, which takes about 10 ms if no client writes. On a machine with more work than CPUs, the controller manager
	// writes for more than a minute into the namespaces of a test that has made a hundred of them.
	resetTimeout = 3 * time.Minute
	// adoptAfter is the number of rounds of a Reset in which a key of the servers is restored. Then the Reset adopts what they write.
	adoptAfter = 10
	// maxNamedKeys is the number of keys that the error of a Reset names.
	maxNamedKeys = 10
	// quietTime is the time without writes that a Checkpoint waits for.
	quietTime = time.Second
)

var resetPace = await.Pace{First: 5 * time.Millisecond, Most: 100 * time.Millisecond}

// These files are in the directory of the control plane, because each process that borrows the control plane can reset it, and its Lender
// has to know that a Reset has failed.
const (
	fileCheckpoint = "checkpoint.json"
	fileBroken     = "broken"
)

// checkpoint holds the keys that Reset restores.
type checkpoint struct {
	values    map[string][]byte
	revisions map[string]int64 // a key that still has this revision has its value of the checkpoint
}

// Checkpoint records the objects of the control plane, and Reset restores them. Checkpoint first waits until each namespace has the objects
// that the controller manager creates in it, and until the API server and the controller manager have written nothing for a second.
func (c *ControlPlane) Checkpoint(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("control plane %q: checkpoint: %w", c.options.Name, err)
		}
	}()
	etcd := newEtcdClient(c.dir)
	defer etcd.http.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.awaitNamespaces(ctx); err != nil {
		return err
	}
	if err := awaitQuiet(ctx, etcd); err != nil {
		return err
	}
	keys, err := etcd.keys(ctx, true)
	if err != nil {
		return err
	}
	taken := &checkpoint{values: map[string][]byte{}, revisions: map[string]int64{}}
	for _, key := range keys {
		if key.Lease == 0 && !isLease(string(key.Key)) {
			taken.values[string(key.Key)] = key.Value
		}
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.checkpoint = taken
	return taken.save(c.dir)
}

func (k *checkpoint) save(dir string) error {
	data, err := json.Marshal(k.values)
	if err != nil {
		return err
	}
	return writeFiles(dir, map[string][]byte{fileCheckpoint: data})
}

// hasCheckpoint returns whether this or another process has called Checkpoint.
func (c *ControlPlane) hasCheckpoint() bool {
	_, err := os.Stat(filepath.Join(c.dir, fileCheckpoint))
	return err == nil
}

// isBroken returns whether this or another process has called Reset in vain. The control plane then has to be replaced.
func (c *ControlPlane) isBroken() bool {
	_, err := os.Stat(filepath.Join(c.dir, fileBroken))
	return err == nil
}

// isLease returns whether a key is renewed all the time by the API server or the controller manager.
func isLease(key string) bool {
	return hasPrefix(key, "/registry/masterleases/", "/registry/peerserverleases/", "/registry/leases/kube-system/")
}

// adoptable returns whether the API server or the controller manager writes a key again after it was restored to an intermediate value of
// their start. These are all such keys of the first minute of control planes of the versions 1.30 and 1.36. A test writes them
// too, but a client that a test has left behind also writes others.
func (k *checkpoint) adoptable(key string) bool {
	if _, ok := k.values[key]; !ok {
		return hasPrefix(key, "/registry/configmaps/kube-system/", "/registry/apiregistration.k8s.io/apiservices/")
	}
	return hasPrefix(key,
		"/registry/clusterroles/", // the rules of aggregated roles
		// conditions
		"/registry/flowschemas/",
		"/registry/prioritylevelconfigurations/",
		"/registry/servicecidrs/",
		"/registry/validatingadmissionpolicies/",
		"/registry/apiextensions.k8s.io/customresourcedefinitions/",
		"/registry/apiregistration.k8s.io/apiservices/",
		"/registry/configmaps/kube-system/",
	)
}

func hasPrefix(key string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

// Reset restores the objects of the Checkpoint. It writes to etcd directly and takes about 10 ms; deletions through the API would wait for
// finalizers and for the controller manager. Watches deliver the changes. All clients that write to the control plane must have ended.
//
// On a slow machine, the API server and the controller manager can write for the first time after the Checkpoint, such as the rules of the
// ClusterRole admin. They write again after each restoration. Reset then adds what they write to the checkpoint. A control plane whose Reset
// has failed is not lent again.
func (c *ControlPlane) Reset(ctx context.Context) (err error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	defer func() {
		if err != nil {
			err = fmt.Errorf("control plane %q: reset: %w", c.options.Name, errors.Join(err, writeFiles(c.dir, map[string][]byte{fileBroken: nil})))
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
	rounds := map[string]int{} // in which a key was restored
	err = resetPace.Until(ctx, func(ctx context.Context) (bool, string) {
		written, err := c.checkpoint.restore(ctx, etcd, rounds)
		if err != nil && ctx.Err() == nil {
			fault = err
			return true, ""
		}
		return len(written) == 0 && err == nil, "objects are still being written: " + someOf(written) +
			": all clients of the control plane must have ended"
	})
	if err = errors.Join(fault, err); err != nil {
		return err
	}
	for _, n := range rounds {
		if n > adoptAfter {
			return c.checkpoint.save(c.dir)
		}
	}
	return nil
}

// someOf lists a bounded number of keys.
func someOf(keys []string) string {
	text := strings.Join(keys[:min(len(keys), maxNamedKeys)], ", ")
	if more := len(keys) - maxNamedKeys; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
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

// restore writes the keys that differ from the checkpoint and returns them, and counts in rounds how often it did. A key of the servers
// that was restored often enough is changed in the checkpoint instead.
func (k *checkpoint) restore(ctx context.Context, etcd *etcdClient, rounds map[string]int) (written []string, err error) {
	// The first time, the revisions are not known, and the values have to be compared.
	first := len(k.revisions) == 0
	adopts := func(name string) bool { return rounds[name] >= adoptAfter && k.adoptable(name) }
	found, err := etcd.keys(ctx, first || slices.ContainsFunc(slices.Collect(maps.Keys(rounds)), adopts))
	if err != nil {
		return nil, err
	}
	var operations []etcdOperation
	there := map[string]bool{}
	for _, key := range found {
		name := string(key.Key)
		there[name] = true
		value, wanted := k.values[name]
		same := wanted && (first && bytes.Equal(value, key.Value) || !first && k.revisions[name] == key.Revision)
		switch {
		case isLease(name):
			continue
		case same:
			k.revisions[name] = key.Revision
			continue
		case adopts(name):
			k.values[name], k.revisions[name] = key.Value, key.Revision
		case wanted:
			operations = append(operations, etcdOperation{Put: &etcdKey{Key: key.Key, Value: value}})
		default:
			operations = append(operations, etcdOperation{Delete: &etcdKey{Key: key.Key}})
		}
		written = append(written, name)
	}
	for name, value := range k.values {
		if !there[name] {
			operations = append(operations, etcdOperation{Put: &etcdKey{Key: []byte(name), Value: value}})
			written = append(written, name)
		}
	}
	for _, name := range written {
		rounds[name]++
	}
	revisions, err := etcd.apply(ctx, operations)
	if err != nil {
		return written, err
	}
	for i, operation := range operations {
		if operation.Put != nil {
			k.revisions[string(operation.Put.Key)] = revisions[i]
		}
	}
	return written, nil
}

// awaitQuiet waits until no client has written for quietTime.
func awaitQuiet(ctx context.Context, etcd *etcdClient) error {
	var latest map[string]int64
	var since time.Time
	return waitFor(ctx, "the API server and the controller manager to write nothing for "+quietTime.String(), func(ctx context.Context) error {
		keys, err := etcd.keys(ctx, false)
		if err != nil {
			return err
		}
		revisions := map[string]int64{}
		for _, key := range keys {
			if key.Lease == 0 && !isLease(string(key.Key)) {
				revisions[string(key.Key)] = key.Revision
			}
		}
		if !maps.Equal(latest, revisions) {
			latest, since = revisions, time.Now()
		}
		if time.Since(since) < quietTime {
			return errors.New("objects are still being written")
		}
		return nil
	})
}

// awaitNamespaces waits until each namespace has its ServiceAccount and its certificates. A Reset would delete objects that are created
// after the checkpoint, and the controller manager would create them again.
func (c *ControlPlane) awaitNamespaces(ctx context.Context) error {
	client, err := c.client()
	if err != nil {
		return err
	}
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
