package crds_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	"github.com/muster-fleet/muster/pkg/crds"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
)

// The kinds, names and columns that an unchanged Clusternet agent and its documentation use.
func TestClusternetDefinitions(t *testing.T) {
	objects, err := crds.ClusternetObjects()
	require.NoError(t, err)
	got := map[string]string{}
	for _, crd := range objects {
		require.Len(t, crd.Spec.Versions, 1)
		version := crd.Spec.Versions[0]
		assert.True(t, version.Served && version.Storage, crd.Name)
		assert.NotNil(t, version.Subresources.Status, crd.Name)
		assert.Equal(t, []string{"clusternet"}, crd.Spec.Names.Categories)
		text := version.Name + " " + string(crd.Spec.Scope) + " " + crd.Spec.Names.Kind
		for _, short := range crd.Spec.Names.ShortNames {
			text += " " + short
		}
		for _, column := range version.AdditionalPrinterColumns {
			text += "|" + column.Name + " " + column.JSONPath
		}
		got[crd.Name] = text
	}
	const age = "|AGE .metadata.creationTimestamp"
	const chart = "|CHART .spec.chart|VERSION .spec.version|REPO .spec.repo|STATUS .status.phase" + age
	assert.Equal(t, map[string]string{
		"clusterregistrationrequests.clusters.clusternet.io": "v1beta1 Cluster ClusterRegistrationRequest clsrr|CLUSTER ID .spec.clusterId|STATUS .status.result" + age,
		"managedclusters.clusters.clusternet.io": "v1beta1 Namespaced ManagedCluster mcls|CLUSTER ID .spec.clusterId|CLUSTER TYPE .spec.clusterType" +
			`|SYNC MODE .spec.syncMode|KUBERNETES .status.k8sVersion|STATUS .status.conditions[?(@.type=="Ready")].status` + age +
			"|AGENT VERSION .status.agentVersion",
		"descriptions.apps.clusternet.io": "v1alpha1 Namespaced Description desc|DEPLOYER .spec.deployer|STATUS .status.phase" + age,
		"helmcharts.apps.clusternet.io":   "v1alpha1 Namespaced HelmChart chart charts" + chart,
		"helmreleases.apps.clusternet.io": "v1alpha1 Namespaced HelmRelease hr" + chart,
	}, got)
}

func TestEnsureClusternet(t *testing.T) {
	plane := controlplane.Borrow(t, "member")
	extensions, err := clientset.NewForConfig(plane.RESTConfig())
	require.NoError(t, err)
	require.NoError(t, crds.EnsureClusternet(t.Context(), extensions))
	installed, err := extensions.ApiextensionsV1().CustomResourceDefinitions().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Len(t, installed.Items, 5, "and no other kinds")
	for _, crd := range installed.Items {
		for _, condition := range crd.Status.Conditions {
			assert.NotEqual(t, apiextensionsv1.NonStructuralSchema, condition.Type, crd.Name)
		}
	}
	clients, err := versioned.NewForConfig(plane.RESTConfig())
	require.NoError(t, err)

	// The spec of a request cannot be changed, and an ID is a UUID: it becomes a part of names.
	const id = "7fbd2d6c-3b5b-4f9c-9d0b-4f3a1c1f3f58"
	requests := clients.ClustersV1beta1().ClusterRegistrationRequests()
	request := &v1beta1.ClusterRegistrationRequest{
		ObjectMeta: metav1.ObjectMeta{Name: v1beta1.RequestPrefix + id},
		Spec:       v1beta1.ClusterRegistrationRequestSpec{ClusterID: id, ClusterLabels: map[string]string{"a": "b"}},
	}
	created, err := requests.Create(t.Context(), request, metav1.CreateOptions{})
	require.NoError(t, err)
	assert.Equal(t, "Pull", created.Spec.SyncMode)
	created.Spec.ClusterLabels = nil
	_, err = requests.Update(t.Context(), created, metav1.UpdateOptions{})
	assert.True(t, apierrors.IsInvalid(err), "%v", err)
	request = request.DeepCopy()
	request.Name, request.Spec.ClusterID = "clusternet-other", "../../secrets"
	_, err = requests.Create(t.Context(), request, metav1.CreateOptions{})
	assert.True(t, apierrors.IsInvalid(err), "%v", err)

	// An agent sends the whole status, of which the hub uses a part.
	members := clients.ClustersV1beta1().ManagedClusters(metav1.NamespaceDefault)
	member, err := members.Create(t.Context(), &v1beta1.ManagedCluster{
		ObjectMeta: metav1.ObjectMeta{Name: "m"}, Spec: v1beta1.ManagedClusterSpec{ClusterID: id, SyncMode: "Pull"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = members.Patch(t.Context(), member.Name, "application/merge-patch+json",
		[]byte(`{"status":{"platform":"linux/amd64","k8sVersion":"v1.31.4","lastObservedTime":null,"nodeStatistics":{"readyNodes":3,"more":1}}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	raw, err := clients.ClustersV1beta1().RESTClient().Get().Resource("managedclusters").Namespace(metav1.NamespaceDefault).Name("m").DoRaw(t.Context())
	require.NoError(t, err)
	assert.Contains(t, string(raw), `"platform":"linux/amd64"`)
	assert.Contains(t, string(raw), `"more":1`)
}
