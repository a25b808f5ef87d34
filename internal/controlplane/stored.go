package controlplane

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"golang.org/x/sync/errgroup"
)

// StoredObject is a key of etcd, such as /registry/pods/default/web, with its value: the object as the API server stores it.
type StoredObject struct{ Key, Value []byte }

// StoredObjects returns all objects of the control plane as etcd has them.
func (c *ControlPlane) StoredObjects(ctx context.Context) (all []StoredObject, err error) {
	etcd := newEtcdClient(c.dir)
	defer etcd.http.CloseIdleConnections()
	keys, err := etcd.keys(ctx, true)
	if err != nil {
		return nil, fmt.Errorf("control plane %q: reading etcd: %w", c.options.Name, err)
	}
	for _, key := range keys {
		all = append(all, StoredObject{Key: key.Key, Value: key.Value})
	}
	return all, nil
}

// WriteStoredObjects writes count groups of objects to etcd without the API server, which nevertheless sends them to its watches. Each object
// gets a revision of its own, because watches lose one of two objects of a kind with the same revision. Several goroutines call group.
func (c *ControlPlane) WriteStoredObjects(ctx context.Context, count int, group func(n int) ([]StoredObject, error)) error {
	const writers = 16
	etcd := newEtcdClient(c.dir)
	defer etcd.http.CloseIdleConnections()
	writing, ctx := errgroup.WithContext(ctx)
	writing.SetLimit(writers)
	for n := range count {
		writing.Go(func() error {
			entries, err := group(n)
			if err != nil {
				return err
			}
			for _, entry := range entries {
				if err := etcd.call(ctx, "put", etcdKey{Key: entry.Key, Value: entry.Value}, &struct{}{}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := writing.Wait(); err != nil {
		return fmt.Errorf("control plane %q: writing to etcd: %w", c.options.Name, err)
	}
	return nil
}

// EtcdMetrics returns the metrics of etcd in the text format of Prometheus.
func (c *ControlPlane) EtcdMetrics(ctx context.Context) (string, error) {
	etcd := newEtcdClient(c.dir)
	defer etcd.http.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://etcd/metrics", nil)
	if err != nil {
		return "", err
	}
	response, err := etcd.http.Do(request)
	if err != nil {
		return "", fmt.Errorf("control plane %q: metrics of etcd: %w", c.options.Name, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}
