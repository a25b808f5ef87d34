package check

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/pkg/admission"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/crds"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/policy"
	"github.com/muster-fleet/muster/pkg/registration"
)

// slowAnswer is the time from which an answer of the API server is reported as slow.
const slowAnswer = 2 * time.Second

// hubAPI measures a second request if the first was slow: the first one also resolves the name and opens the connection.
func hubAPI(ctx context.Context, k *knowledge) Finding {
	var version string
	var took time.Duration
	for range 2 {
		began := k.Now()
		var err error
		if version, err = k.hub.version(ctx); err != nil {
			return failed("the hub's API server at "+k.Hub.Host, err)
		}
		if took = k.Now().Sub(began); took < slowAnswer {
			return pass("Kubernetes %s at %s", version, k.Hub.Host)
		}
	}
	return warn("Kubernetes %s at %s answers slowly: in %s", version, k.Hub.Host, short(took))
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

// hubFields fails if another program has installed definitions of its own over those of the chart fleet-crd.
func hubFields(ctx context.Context, k *knowledge) Finding {
	client, err := apiextensions.NewForConfig(k.Hub)
	if err != nil {
		return failed("reading the CustomResourceDefinitions", err)
	}
	var missing []string
	for _, name := range crds.LimitingKinds {
		definition, err := client.ApiextensionsV1().CustomResourceDefinitions().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsForbidden(err) { // who may not read them cannot correct them either
			return doesNotApply()
		}
		if err != nil {
			return failed("reading CustomResourceDefinition "+name, err)
		}
		lacking, err := crds.LackingSpec(definition)
		if err != nil {
			return failed("comparing CustomResourceDefinition "+name, err)
		}
		if len(lacking) > 0 {
			missing = append(missing, fmt.Sprintf("CustomResourceDefinition %s lacks %s", name, strings.Join(lacking, ", ")))
		}
	}
	if len(missing) > 0 {
		return fail("%s", strings.Join(missing, "; "))
	}
	return pass("")
}

// hubWrites sends two writes of a running hub as dry runs: of its Lease, without which it ends, and of the status of a Cluster, in which it would
// report a problem. The patches are empty, so that they change nothing, and still pass through the webhooks and the policies.
func hubWrites(ctx context.Context, k *knowledge) Finding {
	empty, options := []byte("{}"), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	_, err := k.hub.core.CoordinationV1().Leases(k.SystemNamespace).Patch(ctx, registration.HubLease, types.MergePatchType, empty, options)
	found := []Finding{k.judgeWrite(ctx, err, "Lease "+k.SystemNamespace+"/"+registration.HubLease, authorizationv1.ResourceAttributes{
		Group: coordinationv1.GroupName, Resource: "leases", Namespace: k.SystemNamespace, Name: registration.HubLease,
	})}
	namespace, name := k.Namespace, k.Cluster
	if name == "" {
		if all, err := k.survey(ctx); err == nil && len(all) > 0 {
			namespace, name = all[0].Namespace, all[0].Name
		}
	}
	if name != "" {
		_, err = k.hub.fleet.Clusters(namespace).Patch(ctx, name, types.MergePatchType, empty, options, "status")
		found = append(found, k.judgeWrite(ctx, err, "status of Cluster "+namespace+"/"+name, authorizationv1.ResourceAttributes{
			Group: fleet.SchemeGroupVersion.Group, Resource: "clusters", Subresource: "status", Namespace: namespace, Name: name,
		}))
	}
	return slices.MinFunc(found, func(a, b Finding) int { return cmp.Compare(rankOfWrite(a), rankOfWrite(b)) })
}

// rankOfWrite orders the results of dry runs: the first is that of hub-writes. A write that the user may not try says nothing about the other one.
func rankOfWrite(f Finding) int {
	if f.optional {
		return len(ranksOfWrites)
	}
	return slices.Index(ranksOfWrites, f.Verdict)
}

var ranksOfWrites = []Verdict{Fail, Warn, Unknown, Pass, ""}

// judgeWrite returns the finding for a write of the hub that the user has tried. A user without the right is refused with the same status as by a
// policy, so judgeWrite asks for the right. It fails if the hub cannot write either: no server answers for a webhook, or the hub does not renew its
// Lease. A policy may also be meant for everybody but the hub.
func (k *knowledge) judgeWrite(ctx context.Context, refused error, title string, right authorizationv1.ResourceAttributes) Finding {
	if apierrors.IsForbidden(refused) {
		right.Verb = "patch"
		review, err := k.hub.core.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx,
			&authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &right}}, metav1.CreateOptions{})
		switch {
		case err != nil: // a webhook for all kinds refuses this, too
			refused = err
		case !review.Status.Allowed:
			return Finding{Verdict: Unknown, Detail: title + ": you may not patch it", forbidden: true, optional: true}
		}
	}
	switch {
	case refused == nil:
		return pass("")
	case apierrors.IsNotFound(refused): // hub-runs and cluster-exists report it
		return doesNotApply()
	case isTimeout(refused):
		return unknown("a dry run of a write of the hub had no answer in time, possibly because a webhook has none: %s: %s", title, refused)
	case apierrors.IsInternalError(refused), hubRuns(ctx, k).Verdict == Fail:
		return fail("the API server refuses what the hub writes: %s: %s", title, refused)
	}
	return warn("the API server refuses a write of the hub if you send it, but the hub renews its Lease: %s: %s", title, refused)
}

func hubRuns(ctx context.Context, k *knowledge) Finding {
	title := fmt.Sprintf("Lease %s/%s", k.SystemNamespace, registration.HubLease)
	lease, err := k.hub.core.CoordinationV1().Leases(k.SystemNamespace).Get(ctx, registration.HubLease, metav1.GetOptions{})
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
	k.hubVersion = configMap.Annotations[fleet.VersionAnnotation]
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

// hubPolicies fails if the hub refuses registrations because of the policies. Otherwise a missing policy disconnects nobody. It compares the
// policies with those of this program only if the chart has the same version.
func hubPolicies(ctx context.Context, k *knowledge) Finding {
	chart := cmp.Or(k.hubVersion, k.Version)
	reason, message, err := admission.Installed(ctx, k.hub.core.Discovery(), k.hub.dynamic, chart == k.Version)
	switch {
	case err != nil:
		return failed("reading the admission policies", err)
	case reason != "" && k.hubConfig != nil && k.hubConfig.Registration.RequirePolicies:
		return fail("%s, and the hub refuses registrations without it (registration.requirePolicies)", message)
	case reason != "":
		return warn("%s", message)
	case chart != k.Version:
		return pass("those of chart fleet %s; this muster is %s, so only their existence was checked", chart, k.Version)
	}
	return pass("")
}

// offlineIsFailure is the part of the connected Clusters that must be disconnected for a failure: that of the alert MusterClustersOffline.
const offlineIsFailure = 0.05

// fleetClusters counts the Clusters that are not registered or send no heartbeats. It fails if more than offlineIsFailure are disconnected.
func fleetClusters(ctx context.Context, k *knowledge) Finding {
	all, err := k.survey(ctx)
	var bad []string
	var since []time.Time
	agents := 0
	for _, s := range all {
		if s.connected.Status != "" {
			agents++
		}
		if s.connected.Status == corev1.ConditionFalse {
			changed, _ := time.Parse(time.RFC3339, s.connected.LastTransitionTime)
			since = append(since, changed)
		}
		if s.State != view.StateRegistered && s.State != view.StateManaged && s.State != view.StateDeleting {
			bad = append(bad, named(s))
		}
	}
	found := counted("Clusters", "are not connected"+together(since), len(all), bad, err)
	if found.Verdict == Warn && float64(len(since)) > offlineIsFailure*float64(agents) {
		found.Verdict = Fail
	}
	return found
}

// togetherWithin is the time within which agents become disconnected that lose their connection for the same reason.
const togetherWithin = 5 * time.Minute

// together returns a text if most of several Clusters became disconnected at about the same time, else "".
func together(since []time.Time) string {
	slices.SortFunc(since, time.Time.Compare)
	most, last := 0, time.Time{}
	for first, end := 0, 0; end < len(since); end++ {
		for since[end].Sub(since[first]) > togetherWithin {
			first++
		}
		if n := end - first + 1; n > most {
			most, last = n, since[end]
		}
	}
	if most < 3 || 2*most < len(since) || last.IsZero() {
		return ""
	}
	return fmt.Sprintf(" (%d became disconnected within %s, the last at %s: look for a common cause)", most, short(togetherWithin), last.UTC().Format(time.RFC3339))
}

func named(s surveyed) string {
	return fmt.Sprintf("%s/%s %s", s.Namespace, s.Name, strings.TrimSpace(s.State+" "+s.Reason))
}

// faultsOfBundles are the reasons for which a Bundle itself is not ready. The Clusters that it targets need not show them.
var faultsOfBundles = []string{fleet.ReasonBundleInvalid, fleet.ReasonValuesMissing, fleet.ReasonKindDeleted, fleet.ReasonError, fleet.ReasonBundleDeleting}

// bundlesPerPage limits the answers of the API server: a Bundle may have more than a megabyte.
const bundlesPerPage = 50

// fleetBundles counts the Clusters with Bundles that are not ready, and the Bundles with a fault themselves.
func fleetBundles(ctx context.Context, k *knowledge) Finding {
	all, err := k.survey(ctx)
	var bad []string
	for _, s := range all {
		if s.NotReady {
			bad = append(bad, named(s))
		}
	}
	clusters := counted("Clusters", "have Bundles that are not ready", len(all), bad, err)
	if clusters.Verdict != Pass && clusters.Verdict != Warn {
		return clusters
	}
	var faulty []string
	total := 0
	err = admin.Each(ctx, k.hub.fleet.Bundles(metav1.NamespaceAll).List, metav1.ListOptions{Limit: bundlesPerPage}, func(b *fleet.Bundle) error {
		total++
		ready := fleetstatus.Condition(b.Status.Conditions, fleet.ConditionReady)
		if ready.Status == corev1.ConditionFalse && slices.Contains(faultsOfBundles, ready.Reason) {
			faulty = append(faulty, fmt.Sprintf("%s/%s %s", b.Namespace, b.Name, ready.Reason))
		}
		return nil
	})
	bundles := counted("Bundles", "have a fault themselves", total, faulty, err)
	switch {
	case bundles.Verdict == Pass:
		return clusters
	case clusters.Verdict == Warn:
		return warn("%s; %s", clusters.Detail, bundles.Detail)
	}
	return bundles
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
	return counted("requests", "are refused or waiting", total, bad, err)
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
	return warn("%d of %d %s %s: %s", len(bad), total, what, state, text)
}
