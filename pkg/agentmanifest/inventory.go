package agentmanifest

import (
	"github.com/rancher/wrangler/v3/pkg/apply"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/muster-fleet/muster/pkg/registration"
)

// Names of objects that exist once per cluster, whatever the agent's namespace. Several agents of one cluster may share a
// name, so check the owner before you delete one of them: the ClusterRole of the chart is bound to a ServiceAccount of one
// namespace, the PriorityClass (PriorityClassName) has the labels of the import or of the Helm release that created it.
const (
	ChartClusterRole        = "fleet-agent-system-fleet-agent-role"
	ChartClusterRoleBinding = "fleet-agent-system-fleet-agent-role-binding"
)

// DeploymentFieldSelector selects the Deployments of the agents in all namespaces of a cluster.
const DeploymentFieldSelector = "metadata.name=" + registration.AgentName

// ImportMarks returns the labels and the annotations of the objects that an import installs. The scope is the Cluster's spec.agentNamespace.
func ImportMarks(scope string) (set, annotations map[string]string, err error) {
	return apply.GetLabelsAndAnnotations(registration.AgentBootstrapSetID(scope), nil)
}

// HasImportMarks reports whether an import with one of the scopes has created or changed the object.
func HasImportMarks(object metav1.Object, scopes ...string) (bool, error) {
	for _, scope := range scopes {
		set, _, err := ImportMarks(scope)
		if err != nil || labels.SelectorFromSet(set).Matches(labels.Set(object.GetLabels())) {
			return err == nil, err
		}
	}
	return false, nil
}

// OwnsPriorityClass reports whether the PriorityClass belongs to the agent in namespace: an import with one of the scopes or the Helm release of the
// agent's chart has created it.
func OwnsPriorityClass(class metav1.Object, namespace string, scopes ...string) (bool, error) {
	imported, err := HasImportMarks(class, scopes...)
	return imported || err == nil && class.GetAnnotations()[registration.HelmNamespaceAnnotation] == namespace, err
}

// networkPolicyName is the NetworkPolicy that the chart creates in the agent's namespace.
const networkPolicyName = "default-allow-all"

// OwnedObject identifies one object of an agent on the agent's cluster.
type OwnedObject struct{ Kind, Namespace, Name string }

// Resources maps the kinds of an agent's objects to their resources. The table makes discovery unnecessary.
var Resources = map[string]schema.GroupVersionResource{
	"Namespace":           {Version: "v1", Resource: "namespaces"},
	"Secret":              {Version: "v1", Resource: "secrets"},
	"ConfigMap":           {Version: "v1", Resource: "configmaps"},
	"ServiceAccount":      {Version: "v1", Resource: "serviceaccounts"},
	"ClusterRole":         {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	"ClusterRoleBinding":  {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
	"Deployment":          {Group: "apps", Version: "v1", Resource: "deployments"},
	"NetworkPolicy":       {Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"},
	"PriorityClass":       {Group: "scheduling.k8s.io", Version: "v1", Resource: "priorityclasses"},
	"Lease":               {Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
	"PodDisruptionBudget": {Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
}

// ShowsCluster reports whether the hub sees from the object to which Cluster the agent belongs.
func (o OwnedObject) ShowsCluster() bool {
	return o.Kind == "ConfigMap" && o.Name == registration.AgentConfigMap || o.Kind == "Secret" && o.Name == registration.CredentialSecret
}

// OwnedObjects returns the inventory of the agent in namespace: every object with a fixed name that is created for this agent alone,
// by an import, by the chart, by the agent's Bundle or by the agent itself. Some of them may not exist.
//
// Delete them in this order. The Deployment comes first, so that no running agent recreates deleted objects. The objects of which
// ShowsCluster is true come last, so that an interrupted deletion can be continued; the agent keeps the record of its own uninstallation in one of them.
//
// The Namespace is not listed: other workloads may use it. Image pull Secrets and the Secrets of Helm releases have no fixed
// names.
func OwnedObjects(namespace string) []OwnedObject {
	return []OwnedObject{
		{"Deployment", namespace, registration.AgentName},
		{"NetworkPolicy", namespace, networkPolicyName},
		{"PodDisruptionBudget", namespace, PodDisruptionBudgetName},
		{"Lease", namespace, registration.AgentName},
		{"Secret", namespace, registration.BootstrapSecret},
		{"Secret", namespace, registration.PendingSecret},
		{"Secret", namespace, registration.HistoryKeySecret},
		{"ConfigMap", namespace, registration.AgentHubConfigMap},
		{"ServiceAccount", namespace, registration.AgentName},
		{"ClusterRoleBinding", "", ClusterRoleBindingName(namespace)},
		{"ClusterRole", "", ClusterRoleName(namespace)},
		{"ConfigMap", namespace, registration.AgentConfigMap},
		{"Secret", namespace, registration.CredentialSecret},
	}
}
