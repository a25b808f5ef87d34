//go:build e2e

package docs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/e2e/clusters"
	"github.com/muster-fleet/muster/e2e/clusters/providers"
	"github.com/muster-fleet/muster/e2e/evidence"
)

// environment has the two clusters of the pages.
type environment struct {
	kubeconfig string // with the contexts hub and member
	newURL     string // a second address of the hub's API server
	newCA      []byte // the CA of that address, as PEM
	provider   clusters.Provider
}

// contexts are the names of the two clusters in the pages.
func contexts() []string { return []string{"hub", "member"} }

// startTime limits the start of two clusters on a busy machine.
const startTime = 5 * time.Minute

// newEnvironment creates the clusters and loads the images.
func newEnvironment(t *testing.T, dir string) *environment {
	t.Helper()
	for _, variable := range []string{"MUSTER_E2E_IMAGES", "MUSTER_E2E_TAG"} {
		require.NotEmpty(t, os.Getenv(variable), "%s is not set: run the test by scripts/e2e", variable)
	}
	provider, err := providers.FromEnvironment(dir)
	require.NoError(t, err)
	guard.Add(provider)
	t.Cleanup(func() { require.NoError(t, provider.Close()) })

	e := &environment{kubeconfig: filepath.Join(dir, "kubeconfig"), provider: provider}
	t.Cleanup(func() { e.collectIfFailed(t) }) // before the clusters are removed; also if they did not start
	both, err := createAll(t.Context(), provider)
	require.NoError(t, err)
	require.NoError(t, merge(e.kubeconfig, both))
	e.newURL, e.newCA, err = both[0].Move(t.Context())
	require.NoError(t, err)
	return e
}

// createAll creates a cluster for each context, both at the same time.
func createAll(ctx context.Context, provider clusters.Provider) ([]clusters.Cluster, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	all := make([]clusters.Cluster, len(contexts()))
	group, ctx := errgroup.WithContext(ctx)
	for i, name := range contexts() {
		group.Go(func() (err error) {
			all[i], err = create(ctx, provider, name)
			return err
		})
	}
	return all, group.Wait()
}

func create(ctx context.Context, provider clusters.Provider, name string) (clusters.Cluster, error) {
	cluster, err := provider.Create(ctx, name)
	if err != nil {
		return nil, err
	}
	for _, image := range []string{"fleet.tar", "fleet-agent.tar"} {
		if err := cluster.Load(ctx, filepath.Join(os.Getenv("MUSTER_E2E_IMAGES"), image)); err != nil {
			return nil, err
		}
	}
	return cluster, nil
}

// merge writes one kubeconfig, in which each context has the name of its cluster.
func merge(file string, all []clusters.Cluster) error {
	merged := clientcmdapi.NewConfig()
	for _, cluster := range all {
		config, err := clientcmd.LoadFromFile(cluster.Kubeconfig())
		if err != nil {
			return err
		}
		current := config.Contexts[config.CurrentContext]
		if current == nil {
			return fmt.Errorf("%s has no current context", cluster.Kubeconfig())
		}
		name := cluster.Name()
		merged.Clusters[name], merged.AuthInfos[name] = config.Clusters[current.Cluster], config.AuthInfos[current.AuthInfo]
		merged.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	}
	return clientcmd.WriteToFile(*merged, file)
}

func (e *environment) config(name string) (*rest.Config, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: e.kubeconfig}, &clientcmd.ConfigOverrides{CurrentContext: name}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("context %s of %s: %w", name, e.kubeconfig, err)
	}
	config.QPS = -1 // an inventory lists the objects of all kinds
	return config, nil
}

// collectIfFailed collects logs and objects of both clusters after a failed test. It logs what it could not collect.
func (e *environment) collectIfFailed(t *testing.T) {
	t.Helper()
	if !t.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	dir := filepath.Join(os.Getenv("MUSTER_E2E_OUTPUT"), t.Name())
	if err := e.collect(ctx, dir); err != nil {
		t.Logf("not everything could be collected: %v", err)
	}
	t.Logf("logs, events and objects of both clusters are in %s", dir)
}

// collect returns all errors. The provider also has logs of a cluster that has no kubeconfig yet.
func (e *environment) collect(ctx context.Context, dir string) error {
	var errs []error
	for _, name := range contexts() {
		config, err := e.config(name)
		if err == nil {
			err = evidence.Collect(ctx, config, filepath.Join(dir, name))
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, e.provider.Collect(ctx, filepath.Join(dir, "provider")))...)
}
