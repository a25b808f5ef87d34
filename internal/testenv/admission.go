package testenv

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/internal/testenv/withpolicies"
	"github.com/muster-fleet/muster/pkg/admission"
	muster "github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/transport"
)

// AwaitAdmission waits until the API server applies the admission policies, which takes some seconds after their installation.
func (c *Cluster) AwaitAdmission(t testing.TB) {
	t.Helper()
	c.awaitPolicies(t, admission.Options{})
}

// AwaitClusternetAdmission is AwaitAdmission with the policies of a hub that serves Clusternet agents.
func (c *Cluster) AwaitClusternetAdmission(t testing.TB) {
	t.Helper()
	c.awaitPolicies(t, admission.Options{Clusternet: true})
}

func (c *Cluster) awaitPolicies(t testing.TB, o admission.Options) {
	t.Helper()
	o.RESTConfig, o.Namespace = c.RESTConfig(), SystemNamespace
	monitor, err := admission.New(o)
	require.NoError(t, err)
	require.NoError(t, withpolicies.Await(t.Context(), monitor))
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
	policies, err := admission.Objects(version)
	if err != nil {
		return nil, err
	}
	clusternet, err := admission.ClusternetObjects(version)
	return append(policies, clusternet...), err
}

// WithoutAdmission removes the admission policies, waits until the API server no longer applies them, and returns an option for a hub
// that does not install them again.
func (c *Cluster) WithoutAdmission(t testing.TB) func(*muster.Options) {
	t.Helper()
	client, err := dynamic.NewForConfig(c.RESTConfig())
	require.NoError(t, err)
	policies, err := policiesFor(c.RESTConfig())
	require.NoError(t, err)
	for _, policy := range slices.Backward(policies) { // the first ones record the creator of a request: their end is awaited below
		err := client.Resource(admission.Resource(policy)).Delete(t.Context(), policy.GetName(), metav1.DeleteOptions{})
		if !apierrors.IsNotFound(err) {
			require.NoError(t, err)
		}
	}
	requests := c.Fleet.ClusterRegistrations(metav1.NamespaceDefault)
	Eventually(t, func() (bool, string) {
		err := admission.Probe(t.Context(), requests)
		isRefused := err != nil && strings.Contains(err.Error(), "denied request") // by a validating policy, which is removed after the mutating one
		return errors.Is(err, admission.ErrNotApplied) && !isRefused, fmt.Sprintf("the API server still applies the admission policies: %v", err)
	})
	return func(o *muster.Options) { o.LeaveAdmission = true }
}

// ServesMutatingPolicies reports whether the API server can have them.
func (c *Cluster) ServesMutatingPolicies(t testing.TB) bool {
	t.Helper()
	version, err := admission.ServedVersion(c.Kubernetes.Discovery())
	require.NoError(t, err)
	return version != ""
}

// NeedsMutatingPolicies skips a test on an API server that cannot have them.
func (c *Cluster) NeedsMutatingPolicies(t testing.TB) {
	t.Helper()
	if !c.ServesMutatingPolicies(t) {
		t.Skip("this version of Kubernetes serves no MutatingAdmissionPolicies")
	}
}

// WithoutMutatingPolicies lets the API server appear as one that cannot have mutating policies, and installs the policies for it. It
// returns an option for a hub.
func (c *Cluster) WithoutMutatingPolicies(t testing.TB) func(*muster.Options) {
	t.Helper()
	c.WithoutAdmission(t)
	config := rest.CopyConfig(c.RESTConfig())
	config.Wrap(transport.Sender(hideMutating).Wrap)
	monitor, err := admission.New(admission.Options{RESTConfig: config, Namespace: metav1.NamespaceDefault, Install: true})
	require.NoError(t, err)
	require.NoError(t, withpolicies.Await(t.Context(), monitor))
	return func(o *muster.Options) { o.RESTConfig, o.LeaveAdmission = config, true }
}

// hideMutating removes the mutating kinds from the list of kinds that the API server serves.
func hideMutating(next http.RoundTripper, req *http.Request) (*http.Response, error) {
	if path.Dir(req.URL.Path) != "/apis/"+admission.Group {
		return next.RoundTrip(req)
	}
	req = req.Clone(req.Context())
	req.Header.Set("Accept", "application/json")
	answer, err := next.RoundTrip(req)
	if err != nil || answer.StatusCode != http.StatusOK {
		return answer, err
	}
	defer func() { _ = answer.Body.Close() }()
	var list metav1.APIResourceList
	if err := json.NewDecoder(answer.Body).Decode(&list); err != nil {
		return nil, err
	}
	list.APIResources = slices.DeleteFunc(list.APIResources, func(r metav1.APIResource) bool { return strings.HasPrefix(r.Kind, "Mutating") })
	data, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	answer.Header.Del("Content-Length")
	return answer, nil
}
