package check

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestHubRights(t *testing.T) {
	reviews := schema.GroupResource{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"}
	all := func(authorizationv1.ResourceAttributes) bool { return true }
	for name, row := range map[string]struct {
		container    corev1.Container
		may          func(authorizationv1.ResourceAttributes) bool
		get, review  error
		evaluation   string // the error of an authorizer
		noDeployment bool
		want         Verdict
		says         string
		optional     bool
	}{
		"all rights": {may: all, want: Pass, says: "ServiceAccount cattle-fleet-system/hub"},
		"embedded":   {noDeployment: true},
		"no status": {
			may: func(r authorizationv1.ResourceAttributes) bool {
				return r.Subresource != "status" || r.Resource != "bundles"
			},
			want: Fail, says: "ServiceAccount cattle-fleet-system/hub may not patch bundles/status.fleet.cattle.io",
		},
		"no watch": {
			may: func(r authorizationv1.ResourceAttributes) bool {
				return r.Verb != "watch" && r.Verb != "list" || r.Group != "fleet.cattle.io"
			},
			want: Fail, says: "may not list, watch clusters.fleet.cattle.io; list, watch clusterregistrations.fleet.cattle.io; " +
				"list, watch clusterregistrationtokens.fleet.cattle.io; list, watch clustergroups.fleet.cattle.io; list, watch bundles.fleet.cattle.io; " +
				"and rights on 2 other resources",
		},
		"the Role in its namespace": {
			may:  func(r authorizationv1.ResourceAttributes) bool { return r.Namespace == "" },
			want: Fail, says: "may not list, watch, get configmaps in namespace cattle-fleet-system; get, create, update leases.coordination.k8s.io in namespace cattle-fleet-system",
		},
		"Bundles need ConfigMaps": {
			may: func(r authorizationv1.ResourceAttributes) bool {
				return r.Resource != "configmaps" || r.Verb != "delete"
			},
			want: Fail, says: "may not delete configmaps",
		},
		"disableBundles": {
			container: corev1.Container{Env: []corev1.EnvVar{{Name: "FLEET_DISABLE_BUNDLES", Value: "true"}}},
			may: func(r authorizationv1.ResourceAttributes) bool {
				return r.Resource != "configmaps" || r.Verb != "delete"
			},
			want: Pass,
		},
		"disableBundles, overridden by the flag": {
			container: corev1.Container{
				Args: []string{"--disable-bundles=false"}, Env: []corev1.EnvVar{{Name: "FLEET_DISABLE_BUNDLES", Value: "true"}},
			},
			may: func(r authorizationv1.ResourceAttributes) bool {
				return r.Resource != "configmaps" || r.Verb != "delete"
			},
			want: Fail, says: "may not delete configmaps",
		},
		"without clusternet": {may: func(r authorizationv1.ResourceAttributes) bool { return r.Resource != "managedclusters" }, want: Pass},
		"clusternet": {
			container: corev1.Container{Command: []string{"fleetcontroller", "--clusternet"}},
			may: func(r authorizationv1.ResourceAttributes) bool {
				return r.Resource != "managedclusters" || r.Verb != "list"
			},
			want: Fail, says: "may not list managedclusters.clusters.clusternet.io",
		},
		"clusternet switched off": {
			container: corev1.Container{Args: []string{"--clusternet=false"}, Env: []corev1.EnvVar{{Name: "FLEET_CLUSTERNET", Value: "false"}}},
			may:       func(r authorizationv1.ResourceAttributes) bool { return r.Resource != "managedclusters" },
			want:      Pass,
		},
		"a user who may not read the Deployment": {
			get: apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments"}, registration.HubName, nil), want: Unknown, optional: true,
		},
		"a user who may not ask": {may: all, review: apierrors.NewForbidden(reviews, "", nil), want: Unknown, optional: true},
		"an authorizer fails": {
			may: func(r authorizationv1.ResourceAttributes) bool { return r.Verb != "watch" }, evaluation: "no answer from the webhook",
			want: Unknown, says: "an authorizer of the API server failed: no answer from the webhook",
		},
		"an authorizer fails, another one allows": {may: all, evaluation: "no answer from the webhook", want: Pass},
		"a webhook without a server": {
			may: all, review: apierrors.NewInternalError(errors.New("failed calling webhook")), want: Unknown, says: "failed calling webhook",
		},
	} {
		t.Run(name, func(t *testing.T) {
			kube := fake.NewClientset()
			if !row.noDeployment {
				require.NoError(t, kube.Tracker().Add(&appsv1.Deployment{
					ObjectMeta: metav1.ObjectMeta{Namespace: registration.DefaultSystemNamespace, Name: registration.HubName},
					Spec: appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
						ServiceAccountName: "hub", Containers: []corev1.Container{row.container},
					}}},
				}))
			}
			kube.PrependReactor("get", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) { return row.get != nil, nil, row.get })
			kube.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
				review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
				assert.Equal(t, "system:serviceaccount:cattle-fleet-system:hub", review.Spec.User)
				review.Status.Allowed, review.Status.EvaluationError = row.may(*review.Spec.ResourceAttributes), row.evaluation
				return true, review, row.review
			})
			k := newKnowledge(Inputs{})
			k.hub = &apiServer{core: kube}
			found := hubRightsGranted(t.Context(), k)
			assert.Equal(t, row.want, found.Verdict, found.Detail)
			assert.Contains(t, found.Detail, row.says)
			assert.Equal(t, row.optional, found.optional)
		})
	}
}

// The table contains what the chart grants to the hub, apart from the rights without which it works.
func TestHubRights_chart(t *testing.T) {
	withoutThem := map[string]bool{
		"create events": true, "patch events": true,
		"create customresourcedefinitions.apiextensions.k8s.io": true,                                                     // the chart fleet-crd creates them
		"list leases.coordination.k8s.io in system":             true, "watch leases.coordination.k8s.io in system": true, // the ClusterRole has them
		"create gitrepos.fleet.cattle.io": true, "get gitrepos.fleet.cattle.io": true, "patch gitrepos.fleet.cattle.io": true, // bootstrap.repo
	}
	for _, resource := range []string{ // for the admission plugin OwnerReferencesPermissionEnforcement
		"bundledeployments", "bundles", "clusterregistrations", "clusterregistrationtokens", "clusters",
	} {
		withoutThem["update "+resource+"/finalizers.fleet.cattle.io"] = true
	}
	withoutThem["update clusterregistrationrequests/finalizers.clusters.clusternet.io"] = true

	for name, row := range map[string]struct {
		values              map[string]any
		bundles, clusternet bool
	}{
		"default":        {nil, true, false},
		"disableBundles": {map[string]any{"disableBundles": true}, false, false},
		"clusternet":     {map[string]any{"clusternet": map[string]any{"enabled": true}}, true, true},
		"both":           {map[string]any{"disableBundles": true, "clusternet": map[string]any{"enabled": true}}, false, true},
		"GitRepo":        {map[string]any{"bootstrap": map[string]any{"repo": "https://git.example.com/fleet"}}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			granted := map[string]bool{}
			var deployment appsv1.Deployment
			for _, object := range testenv.ObjectsOfHubChart(t, row.values) {
				var role rbacv1.ClusterRole // a Role has the same rules
				switch {
				case object.GetName() != registration.HubName:
				case object.GetKind() == "Deployment":
					require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &deployment))
				case object.GetKind() == "ClusterRole", object.GetKind() == "Role":
					require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &role))
					for _, rule := range role.Rules {
						for _, resource := range rule.Resources {
							for _, verb := range rule.Verbs {
								if len(rule.ResourceNames) == 0 {
									granted[rightText(verb, schema.GroupResource{Group: rule.APIGroups[0], Resource: resource}, object.GetKind() == "Role")] = true
								}
							}
						}
					}
				}
			}
			assert.Equal(t, row.bundles, !hasFlag(&deployment, "disable-bundles", "FLEET_DISABLE_BUNDLES"))
			assert.Equal(t, row.clusternet, hasFlag(&deployment, "clusternet", "FLEET_CLUSTERNET"))

			needed := map[string]bool{}
			for _, right := range rightsNeeded(registration.DefaultSystemNamespace, row.bundles, row.clusternet) {
				resource := right.Resource
				if right.Subresource != "" {
					resource += "/" + right.Subresource
				}
				text := rightText(right.Verb, schema.GroupResource{Group: right.Group, Resource: resource}, right.Namespace != "")
				needed[text] = true
				assert.True(t, granted[text], "the chart does not grant: %s", text)
			}
			for text := range granted {
				assert.True(t, needed[text] || withoutThem[text], "the table lacks: %s", text)
			}
		})
	}
}

func rightText(verb string, resource schema.GroupResource, inSystemNamespace bool) string {
	text := verb + " " + resource.String()
	if inSystemNamespace {
		text += " in system"
	}
	return text
}
