package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	clusternetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/clusters.clusternet.io/v1beta1"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
)

// mutatingVersions are the versions of MutatingAdmissionPolicies, in the order of preference. Their fields are the same.
var mutatingVersions = []string{"v1", "v1beta1", "v1alpha1"}

// ServedVersion returns the version in which the API server serves MutatingAdmissionPolicies, or "" if it does not serve them.
func ServedVersion(api discovery.ServerResourcesInterface) (string, error) {
	for _, version := range mutatingVersions {
		served, err := serves(api, version, KindMutating)
		if err != nil || served {
			return version, err
		}
	}
	return "", nil
}

func serves(api discovery.ServerResourcesInterface, version, kind string) (bool, error) {
	kinds, err := api.ServerResourcesForGroupVersion(Group + "/" + version)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("listing the admission policies that the API server serves: %w", err)
	}
	return slices.ContainsFunc(kinds.APIResources, func(r metav1.APIResource) bool { return r.Kind == kind }), nil
}

// served are the kinds of policies that an API server serves.
type served struct {
	validating bool   // in version v1, which Kubernetes 1.30 and later serve
	mutating   string // the version; "" if none is served
}

func servedBy(api discovery.ServerResourcesInterface) (s served, err error) {
	if s.validating, err = serves(api, "v1", KindValidatingBinding); err != nil || !s.validating {
		return s, err
	}
	s.mutating, err = ServedVersion(api)
	return s, err
}

// noValidating returns the reason why no policy can be installed, and the remedy.
func noValidating(version string) string {
	remedy := "upgrade it to Kubernetes 1.30 or later"
	if minorOf(version) >= 30 {
		remedy = turnedOff
	}
	return fmt.Sprintf("the API server, Kubernetes %s, serves no ValidatingAdmissionPolicies in version v1: %s. "+
		"Until then agents may write the whole status of their Cluster and get tokens of any lifetime and audience", version, remedy)
}

const turnedOff = "it can, so remove the settings that disable them from --feature-gates and --runtime-config of the API server"

// minorOf returns the minor version; 0 if the major version is not 1.
func minorOf(version string) uint {
	parsed, err := utilversion.ParseGeneric(version)
	if err != nil || parsed.Major() != 1 {
		return 0
	}
	return parsed.Minor()
}

// noMutating returns the reason why the API server does not record who creates a request, and the remedy. It names flags of the API server
// only for versions of Kubernetes that serve the kinds on demand.
func noMutating(version string) string {
	const flags = "--feature-gates=MutatingAdmissionPolicy=true and --runtime-config=admissionregistration.k8s.io/%s=true on the API server"
	remedy := "upgrade it to Kubernetes 1.36 or later"
	switch minor := minorOf(version); {
	case minor >= 36:
		remedy = turnedOff
	case minor >= 34:
		remedy += ", or set " + fmt.Sprintf(flags, "v1beta1")
	case minor >= 32:
		remedy += ", or set " + fmt.Sprintf(flags, "v1alpha1")
	}
	return fmt.Sprintf("the API server, Kubernetes %s, serves no MutatingAdmissionPolicies: %s", version, remedy)
}

// Install creates missing policies, and corrects the spec of those that differ. It keeps other labels and annotations of an existing
// policy: Helm recognizes its own objects by them.
func Install(ctx context.Context, client dynamic.Interface, policies []*unstructured.Unstructured) error {
	for _, policy := range policies {
		// Kubernetes writes the status of a policy when it has checked the expressions, which may be between the read and the write.
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error { return install(ctx, client, policy) })
		if err != nil {
			return fmt.Errorf("installing %s %s: %w", policy.GetKind(), policy.GetName(), err)
		}
	}
	return nil
}

func install(ctx context.Context, client dynamic.Interface, policy *unstructured.Unstructured) error {
	resource := client.Resource(Resource(policy))
	existing, err := resource.Get(ctx, policy.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = resource.Create(ctx, policy, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // created by another hub a moment ago; the watch shows whether it is right
		}
		return err
	} else if err != nil {
		return err
	}
	labels := existing.GetLabels()
	if sameSpec(policy, existing) && labels[fleet.ManagedLabel] == fleet.ManagedValue {
		return nil
	}
	changed := existing.DeepCopy()
	changed.Object["spec"] = policy.Object["spec"]
	if labels == nil {
		labels = map[string]string{}
	}
	labels[fleet.ManagedLabel] = fleet.ManagedValue // only policies with this label are watched
	changed.SetLabels(labels)
	_, err = resource.Update(ctx, changed, metav1.UpdateOptions{})
	return err
}

// remove deletes policies of the hub that the API server should not have.
func remove(ctx context.Context, client dynamic.Interface, policies []*unstructured.Unstructured) error {
	for _, policy := range policies {
		resource := client.Resource(Resource(policy))
		existing, err := resource.Get(ctx, policy.GetName(), metav1.GetOptions{})
		if err == nil && existing.GetLabels()[fleet.ManagedLabel] == fleet.ManagedValue {
			err = resource.Delete(ctx, policy.GetName(), metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(existing.GetUID()))})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("removing %s %s: %w", policy.GetKind(), policy.GetName(), err)
		}
	}
	return nil
}

// ErrNotApplied is part of the error of Probe if the API server does not overwrite the creator that a request claims.
var ErrNotApplied = errors.New("the API server does not apply the policies yet")

// recorded returns nil if the API server has overwritten the forged creator of a created object. Before the mutating policy is applied, the
// validating policy of the same name refuses the object.
func recorded(created metav1.Object, err error, policy string) error {
	switch {
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), policy): // RBAC refuses with the same code
		return fmt.Errorf("%w: %v", ErrNotApplied, err) //nolint:errorlint // for callers it is not a missing right
	case err != nil:
		return fmt.Errorf("trying the admission policies in a dry run: %w", err)
	}
	if creator := created.GetAnnotations()[fleet.CreatorAnnotation]; creator == forged || creator == "" {
		return fmt.Errorf("%w: it stores the creator that a request claims", ErrNotApplied)
	}
	return nil
}

// forged is no user of an API server: user names contain no spaces.
const forged = "nobody at all"

// probeClusternet is Probe for ClusterRegistrationRequests.
func probeClusternet(ctx context.Context, requests clusternetclient.ClusterRegistrationRequestInterface) error {
	const id = "00000000-0000-0000-0000-000000000000"
	created, err := requests.Create(ctx, &v1beta1.ClusterRegistrationRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "admission-probe-", Annotations: map[string]string{fleet.CreatorAnnotation: forged}},
		Spec:       v1beta1.ClusterRegistrationRequestSpec{ClusterID: id},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return recorded(created, err, ClusternetCreatorPolicy)
}

// Probe sends a request with a forged creator to the API server, in a dry run that stores nothing. CreatorPolicy overwrites the creator,
// and RegistrationTokenPolicy refuses the request. Errors without ErrNotApplied mean that the outcome is unknown.
func Probe(ctx context.Context, requests fleetclient.ClusterRegistrationInterface) error {
	created, err := requests.Create(ctx, &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "admission-probe-", Annotations: map[string]string{fleet.CreatorAnnotation: forged}},
		Spec:       fleet.ClusterRegistrationSpec{ClientID: "admission-probe", ClientRandom: "admission-probe"},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if apierrors.IsForbidden(err) && strings.Contains(err.Error(), RegistrationTokenPolicy) {
		return nil
	}
	return recorded(created, err, CreatorPolicy)
}
