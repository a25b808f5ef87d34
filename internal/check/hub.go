package check

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/pkg/admission"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/policy"
	"github.com/muster-fleet/muster/pkg/registration"
)

func hubAPI(ctx context.Context, k *knowledge) Finding {
	version, err := k.hub.version(ctx)
	if err != nil {
		return failed("the hub's API server at "+k.Hub.Host, err)
	}
	return pass("Kubernetes %s", version)
}

// requiredKinds are the resources that the API server must serve before a cluster can be registered.
var requiredKinds = []string{
	"bundledeployments", "bundles", "clustergroups", "clusterregistrations", "clusterregistrationtokens", "clusters", "contents",
}

func hubKinds(_ context.Context, k *knowledge) Finding {
	served, err := k.hub.core.Discovery().ServerResourcesForGroupVersion(fleet.SchemeGroupVersion.String())
	if apierrors.IsNotFound(err) {
		return fail("the API server serves no kind of %s: it is not a hub, or the chart fleet-crd is not installed", fleet.SchemeGroupVersion)
	} else if err != nil {
		return failed("listing the kinds of "+fleet.SchemeGroupVersion.String(), err)
	}
	missing := slices.DeleteFunc(slices.Clone(requiredKinds), func(name string) bool {
		return slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == name })
	})
	if len(missing) > 0 {
		return fail("the API server does not serve %s in %s", strings.Join(missing, ", "), fleet.SchemeGroupVersion)
	}
	return pass("%s", fleet.SchemeGroupVersion)
}

// hubLease is the Lease of the hub. Fleet's agentmanagement, which the hub replaces, uses the same Lease.
const hubLease = "fleet-agentmanagement-lock"

func hubRuns(ctx context.Context, k *knowledge) Finding {
	title := fmt.Sprintf("Lease %s/%s", k.SystemNamespace, hubLease)
	lease, err := k.hub.core.CoordinationV1().Leases(k.SystemNamespace).Get(ctx, hubLease, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fail("%s does not exist: no hub has run here%s", title, whyNoHub(ctx, k))
	case err != nil:
		return failed(title, err)
	case lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" || lease.Spec.RenewTime == nil || lease.Spec.LeaseDurationSeconds == nil:
		return fail("%s has no holder: no hub runs%s", title, whyNoHub(ctx, k))
	}
	age := k.hub.clock.serverNow().Sub(lease.Spec.RenewTime.Time)
	if age > time.Duration(*lease.Spec.LeaseDurationSeconds)*time.Second+time.Second {
		return fail("%s has expired: %s renewed it %s ago%s", title, *lease.Spec.HolderIdentity, short(age), whyNoHub(ctx, k))
	}
	return pass("%s", *lease.Spec.HolderIdentity)
}

// whyNoHub returns the problem of the newest pod of the hub, after a semicolon, or "".
func whyNoHub(ctx context.Context, k *knowledge) string {
	pods, err := k.hub.core.CoreV1().Pods(k.SystemNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=fleet-controller"})
	if err != nil || len(pods.Items) == 0 {
		return ""
	}
	for _, problem := range []func(*corev1.Pod) string{scheduleProblem, imageProblem, containerProblem} {
		if text := problem(newest(pods.Items)); text != "" {
			return "; " + text
		}
	}
	return ""
}

func hubConfig(ctx context.Context, k *knowledge) Finding {
	title := fmt.Sprintf("ConfigMap %s/%s", k.SystemNamespace, registration.HubConfigMap)
	configMap, err := k.hub.core.CoreV1().ConfigMaps(k.SystemNamespace).Get(ctx, registration.HubConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fail("%s does not exist, so agents get no address of the hub", title)
	} else if err != nil {
		return failed(title, err)
	}
	hub, warnings, err := config.ParseHub(configMap.Data[registration.ConfigKey])
	if err != nil {
		return fail("%s: %s", title, err)
	}
	if _, err := policy.Compile(hub.Registration.Policy); err != nil {
		return fail("%s: %s", title, err)
	}
	k.hubConfig = &hub
	if len(warnings) > 0 {
		return warn("%s: %s", title, strings.Join(warnings, "; "))
	}
	return pass("%s", title)
}

func hubPolicies(ctx context.Context, k *knowledge) Finding {
	reason, message, err := admission.Installed(ctx, k.hub.core.Discovery(), k.hub.dynamic)
	switch {
	case err != nil:
		return failed("reading the admission policies", err)
	case reason == fleet.ReasonPoliciesNotServed:
		return warn("%s", message)
	case reason != "":
		return fail("%s", message)
	}
	return pass("")
}

// fleetClusters counts the Clusters that are not registered or send no heartbeats.
func fleetClusters(ctx context.Context, k *knowledge) Finding {
	var bad []string
	total := 0
	err := admin.Each(ctx, k.hub.fleet.Clusters(metav1.NamespaceAll).List, metav1.ListOptions{}, func(c *fleet.Cluster) error {
		total++
		v := view.OfCluster(c)
		if v.State != view.StateRegistered && v.State != view.StateManaged && v.State != view.StateDeleting {
			bad = append(bad, fmt.Sprintf("%s/%s %s", v.Namespace, v.Name, strings.TrimSpace(v.State+" "+v.Reason)))
		}
		return nil
	})
	return counted("Clusters", "not connected", total, bad, err)
}

// fleetRequests counts the requests that wait or were refused. Their agents may have no Cluster.
func fleetRequests(ctx context.Context, k *knowledge) Finding {
	var bad []string
	total := 0
	err := admin.Each(ctx, k.hub.fleet.ClusterRegistrations(metav1.NamespaceAll).List, metav1.ListOptions{}, func(r *fleet.ClusterRegistration) error {
		total++
		v := view.OfRequest(r)
		if (v.State == view.StateRefused || v.State == view.StateWaiting || v.State == view.StateNew) && v.Reason != fleet.ReasonSuperseded {
			bad = append(bad, fmt.Sprintf("%s/%s of %s %s", v.Namespace, v.Name, v.Cluster, strings.TrimSpace(v.State+" "+v.Reason)))
		}
		return nil
	})
	return counted("requests", "refused or waiting", total, bad, err)
}

func counted(what, state string, total int, bad []string, err error) Finding {
	if err != nil {
		return failed("listing "+what, err)
	}
	if len(bad) == 0 {
		return pass("%d", total)
	}
	const shown = 5
	text := strings.Join(bad[:min(shown, len(bad))], ", ")
	if len(bad) > shown {
		text += fmt.Sprintf(" and %d others", len(bad)-shown)
	}
	return warn("%d of %d %s are %s: %s", len(bad), total, what, state, text)
}
