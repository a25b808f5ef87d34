package testenv

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"github.com/muster-fleet/muster/pkg/admission"
	muster "github.com/muster-fleet/muster/pkg/hub"
)

// AwaitAdmission waits until the admission policies are in force, which takes some seconds after their installation.
func (c *Cluster) AwaitAdmission(t testing.TB) {
	t.Helper()
	monitor, err := admission.New(admission.Options{RESTConfig: c.RESTConfig(), Namespace: SystemNamespace})
	require.NoError(t, err)
	require.NoError(t, awaitAdmission(t.Context(), monitor))
}

func awaitAdmission(ctx context.Context, monitor *admission.Monitor) error {
	ctx, stop := context.WithTimeout(ctx, Patience)
	defer func() { stop(); monitor.Wait() }()
	monitor.Start(ctx)
	return pace.Until(ctx, func(context.Context) (bool, string) {
		since, ok := monitor.InForce()
		return ok && !time.Now().Before(since), fmt.Sprintf("in force since %s; %s", since, monitor.Missing())
	})
}

// WithoutAdmission is for a hub that does not install the admission policies; see RemoveAdmission.
func WithoutAdmission(o *muster.Options) { o.LeaveAdmission = true }

// RemoveAdmission removes the admission policies that the hub of an earlier test has installed, and waits until the API
// server applies them no more. The next hub that is not WithoutAdmission installs them again.
func (c *Cluster) RemoveAdmission(t testing.TB) {
	t.Helper()
	client, err := dynamic.NewForConfig(c.RESTConfig())
	require.NoError(t, err)
	kinds, err := discovery.NewDiscoveryClientForConfig(c.RESTConfig())
	require.NoError(t, err)
	version, err := admission.ServedVersion(kinds)
	require.NoError(t, err)
	policies, err := admission.Objects(version)
	require.NoError(t, err)
	removed := 0
	for _, policy := range policies {
		err := client.Resource(admission.Resource(policy)).Delete(t.Context(), policy.GetName(), metav1.DeleteOptions{})
		if !apierrors.IsNotFound(err) {
			require.NoError(t, err)
			removed++
		}
	}
	if removed == 0 {
		return
	}
	requests := c.Fleet.ClusterRegistrations(metav1.NamespaceDefault)
	Eventually(t, func() (bool, string) {
		err := admission.Probe(t.Context(), requests)
		return errors.Is(err, admission.ErrNotOverwritten), "the API server still applies the admission policies"
	})
}
