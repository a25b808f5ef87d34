package testenv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/pkg/admission"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
	muster "github.com/muster-fleet/muster/pkg/hub"
)

// AwaitAdmission waits until the API server applies the admission policies, which takes some seconds after their installation.
func (c *Cluster) AwaitAdmission(t testing.TB) {
	t.Helper()
	monitor, err := admission.New(admission.Options{RESTConfig: c.RESTConfig(), Namespace: SystemNamespace})
	require.NoError(t, err)
	require.NoError(t, awaitAdmission(t.Context(), c.RESTConfig(), monitor))
}

// awaitAdmission waits for the policies that the API server can have.
func awaitAdmission(ctx context.Context, config *rest.Config, monitor *admission.Monitor) error {
	policies, err := policiesFor(config)
	if err != nil {
		return err
	}
	records := slices.ContainsFunc(policies, func(policy *unstructured.Unstructured) bool { return policy.GetName() == admission.CreatorPolicy })
	asToken := rest.CopyConfig(config)
	asToken.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:default:a-token", Groups: []string{"system:masters"}}
	client, err := versioned.NewForConfig(asToken)
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, Patience)
	defer func() { stop(); monitor.Wait() }()
	monitor.Start(ctx)
	return pace.Until(ctx, func(ctx context.Context) (bool, string) {
		reason, message := monitor.Lacking()
		switch {
		case reason == fleet.ReasonPoliciesNotServed:
			return true, ""
		case reason != "":
			return false, message
		case records:
			since, ok := monitor.InForce()
			return ok && !time.Now().Before(since), fmt.Sprintf("in force since %s; %s", since, monitor.Missing())
		}
		// An API server applies policies a moment after it has stored them: fleet-registration-request permits no finalizer.
		_, err := client.FleetV1alpha1().ClusterRegistrations(metav1.NamespaceDefault).Create(ctx, &fleet.ClusterRegistration{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-", Finalizers: []string{"test.example.com/probe"}},
			Spec:       fleet.ClusterRegistrationSpec{ClientID: "probe", ClientRandom: "probe"},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsForbidden(err), fmt.Sprintf("the API server does not apply the policies yet: %v", err)
	})
}

// policiesFor returns the policies and bindings that the API server can have.
func policiesFor(config *rest.Config) ([]*unstructured.Unstructured, error) {
	kinds, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	version, err := admission.ServedVersion(kinds)
	if err != nil {
		return nil, err
	}
	return admission.Objects(version)
}

// WithoutAdmission removes the admission policies, waits until the API server does not apply them any more, and returns an option for a hub
// that does not install them again.
func (c *Cluster) WithoutAdmission(t testing.TB) func(*muster.Options) {
	t.Helper()
	client, err := dynamic.NewForConfig(c.RESTConfig())
	require.NoError(t, err)
	policies, err := policiesFor(c.RESTConfig())
	require.NoError(t, err)
	for _, policy := range policies {
		err := client.Resource(admission.Resource(policy)).Delete(t.Context(), policy.GetName(), metav1.DeleteOptions{})
		if !apierrors.IsNotFound(err) {
			require.NoError(t, err)
		}
	}
	requests := c.Fleet.ClusterRegistrations(metav1.NamespaceDefault)
	Eventually(t, func() (bool, string) {
		err := admission.Probe(t.Context(), requests)
		return errors.Is(err, admission.ErrNotOverwritten), "the API server still applies the admission policies"
	})
	return func(o *muster.Options) { o.LeaveAdmission = true }
}
