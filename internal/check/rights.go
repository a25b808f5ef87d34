package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/muster-fleet/muster/pkg/admission"
	clusternet "github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// hubRights are rights of the hub without which it cannot watch, register, deploy or remove something. Resources and verbs are separated by
// spaces. A test compares the table with the ClusterRole and the Role of the chart fleet.
var hubRights = []struct {
	group, resources, verbs string
	inSystemNamespace       bool // the right is needed in the system namespace only
	bundles, clusternet     bool // the right is needed only by a hub that deploys Bundles, or that registers agents of Clusternet
}{
	{
		group: fleet.SchemeGroupVersion.Group, verbs: "list watch get create patch delete",
		resources: "clusters clusterregistrations clusterregistrationtokens clustergroups bundles bundledeployments",
	},
	{
		group: fleet.SchemeGroupVersion.Group, verbs: "patch",
		resources: "clusters/status clusterregistrations/status clusterregistrationtokens/status clustergroups/status bundles/status bundledeployments/status",
	},
	{group: fleet.SchemeGroupVersion.Group, resources: "bundledeployments/status", verbs: "update"},    // granted to agents
	{group: fleet.SchemeGroupVersion.Group, resources: "clusterregistrationtokens", verbs: "register"}, // granted to the users of tokens
	{group: fleet.SchemeGroupVersion.Group, resources: "contents", verbs: "list watch get create delete"},
	{resources: "namespaces", verbs: "list watch get create delete"},
	{resources: "secrets", verbs: "list watch get create update delete"},
	{resources: "serviceaccounts", verbs: "list watch get create patch delete"},
	{resources: "serviceaccounts/token", verbs: "create"},
	{resources: "configmaps", verbs: "get"}, // granted to agents
	{resources: "configmaps", verbs: "list watch create update delete", bundles: true},
	{resources: "configmaps", verbs: "list watch get", inSystemNamespace: true},
	{group: "coordination.k8s.io", resources: "leases", verbs: "list watch get create patch delete"},
	{group: "coordination.k8s.io", resources: "leases", verbs: "get create update", inSystemNamespace: true},
	{group: "rbac.authorization.k8s.io", resources: "roles rolebindings clusterrolebindings", verbs: "list watch get create patch delete"},
	{group: "rbac.authorization.k8s.io", resources: "clusterroles", verbs: "create"},
	{group: "rbac.authorization.k8s.io", resources: "clusterroles", verbs: "list watch get update", bundles: true},
	{group: "apiextensions.k8s.io", resources: "customresourcedefinitions", verbs: "get"},
	{
		group: admission.Group, verbs: "list watch",
		resources: "validatingadmissionpolicies validatingadmissionpolicybindings mutatingadmissionpolicies mutatingadmissionpolicybindings",
	},
	{group: clusternet.SchemeGroupVersion.Group, resources: "clusterregistrationrequests", verbs: "list watch get create delete", clusternet: true},
	{group: clusternet.SchemeGroupVersion.Group, resources: "managedclusters", verbs: "list watch get create patch", clusternet: true},
	{group: clusternet.SchemeGroupVersion.Group, resources: "clusterregistrationrequests/status managedclusters/status", verbs: "patch update", clusternet: true},
	{group: "apps.clusternet.io", resources: "descriptions helmcharts helmreleases", verbs: "list watch", clusternet: true}, // granted to agents
	{group: "rbac.authorization.k8s.io", resources: "clusterroles", verbs: "get update", clusternet: true},
}

// rightsNeeded returns the rights in the table that a hub with these settings needs, one verb on one resource each.
func rightsNeeded(systemNamespace string, bundles, clusternet bool) (all []authorizationv1.ResourceAttributes) {
	for _, row := range hubRights {
		if row.bundles && !bundles || row.clusternet && !clusternet {
			continue
		}
		for resource := range strings.SplitSeq(row.resources, " ") {
			for verb := range strings.SplitSeq(row.verbs, " ") {
				right := authorizationv1.ResourceAttributes{Verb: verb, Group: row.group}
				right.Resource, right.Subresource, _ = strings.Cut(resource, "/")
				if row.inSystemNamespace {
					right.Namespace = systemNamespace
				}
				all = append(all, right)
			}
		}
	}
	return all
}

// reviewsAtATime limits the access reviews that are sent at the same time. There are more than a hundred of them.
const reviewsAtATime = 16

// hubRightsGranted asks the API server for the rights of the hub's ServiceAccount. Without the Deployment, the hub is part of another program, whose
// user is not known.
func hubRightsGranted(ctx context.Context, k *knowledge) Finding {
	deployment, err := k.hub.core.AppsV1().Deployments(k.SystemNamespace).Get(ctx, registration.HubName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return doesNotApply()
	} else if err != nil {
		return optional(failed("reading Deployment "+k.SystemNamespace+"/"+registration.HubName, err))
	}
	account := cmp.Or(deployment.Spec.Template.Spec.ServiceAccountName, "default")
	disableBundles := hasFlag(deployment, "disable-bundles", "FLEET_DISABLE_BUNDLES")
	needed := rightsNeeded(k.SystemNamespace, !disableBundles, hasFlag(deployment, "clusternet", "FLEET_CLUSTERNET"))
	granted := make([]bool, len(needed))
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(reviewsAtATime)
	for n := range needed {
		group.Go(func() (err error) {
			granted[n], err = k.serviceAccountMay(groupCtx, account, &needed[n])
			return err
		})
	}
	if err := group.Wait(); err != nil {
		f := optional(failed("asking the hub's API server for the rights of ServiceAccount "+k.SystemNamespace+"/"+account, err))
		f.Verdict = Unknown // an error is no answer
		return f
	}
	var missing []authorizationv1.ResourceAttributes
	for n, right := range needed {
		if !granted[n] {
			missing = append(missing, right)
		}
	}
	if len(missing) > 0 {
		return fail("ServiceAccount %s/%s may not %s", k.SystemNamespace, account, describeRights(missing))
	}
	return pass("ServiceAccount %s/%s", k.SystemNamespace, account)
}

// optional marks the finding of a user who lacks a right that few users have.
func optional(f Finding) Finding {
	f.optional = f.forbidden
	return f
}

// hasFlag reports whether a flag of a container of the Deployment is true. The flag overrides the environment variable.
func hasFlag(deployment *appsv1.Deployment, flag, variable string) bool {
	for _, c := range deployment.Spec.Template.Spec.Containers {
		isOn := false
		for _, v := range c.Env {
			if v.Name == variable {
				isOn, _ = strconv.ParseBool(v.Value) // false if there is an error
			}
		}
		for _, argument := range slices.Concat(c.Command, c.Args) {
			name, value, hasValue := strings.Cut(strings.TrimLeft(argument, "-"), "=")
			if strings.HasPrefix(argument, "-") && name == flag {
				on, _ := strconv.ParseBool(value)
				isOn = on || !hasValue
			}
		}
		if isOn {
			return true
		}
	}
	return false
}

// serviceAccountMay reports whether a ServiceAccount of the system namespace has a right. A refusal with an error of an authorizer is no answer: the
// authorizer that failed may be the one that allows it.
func (k *knowledge) serviceAccountMay(ctx context.Context, account string, right *authorizationv1.ResourceAttributes) (bool, error) {
	review, err := k.hub.core.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               registration.AccountUser(k.SystemNamespace, account),
			Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:" + k.SystemNamespace, "system:authenticated"},
			ResourceAttributes: right,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	if status := review.Status; !status.Allowed && status.EvaluationError != "" {
		return false, errors.New("an authorizer of the API server failed: " + status.EvaluationError)
	}
	return review.Status.Allowed, nil
}

// describeRights joins the verbs of each resource, and shortens the list.
func describeRights(rights []authorizationv1.ResourceAttributes) string {
	const shown = 5
	var texts []string
	verbs := map[string][]string{}
	for _, r := range rights {
		resource := r.Resource
		if r.Subresource != "" {
			resource += "/" + r.Subresource
		}
		resource = schema.GroupResource{Group: r.Group, Resource: resource}.String()
		if r.Namespace != "" {
			resource += " in namespace " + r.Namespace
		}
		if verbs[resource] == nil {
			texts = append(texts, resource)
		}
		verbs[resource] = append(verbs[resource], r.Verb)
	}
	for n, resource := range texts {
		texts[n] = strings.Join(verbs[resource], ", ") + " " + resource
	}
	text := strings.Join(texts[:min(shown, len(texts))], "; ")
	if len(texts) > shown {
		text += fmt.Sprintf("; and rights on %d other resources", len(texts)-shown)
	}
	return text
}
