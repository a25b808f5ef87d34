package release

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	helm "helm.sh/helm/v4/pkg/release/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// fallbackServiceAccount deploys a Bundle that names no ServiceAccount, if it exists in the agent's namespace: the owner of a cluster creates it
// to limit the rights of Bundles.
const fallbackServiceAccount = "fleet-default"

// ownAccounts are the ServiceAccounts of agents and hubs, which have all rights. No Bundle may name one where fallbackServiceAccount exists.
var ownAccounts = []string{registration.AgentName, registration.HubName, registration.BootstrapAccount}

// serviceAccount is the identity of a deployment on the member; without a name it is the agent itself.
type serviceAccount struct{ namespace, name string }

// serviceAccount returns the identity for a request. A ServiceAccount that the options name has to exist.
func (c *Client) serviceAccount(ctx context.Context, r Request) (serviceAccount, error) {
	name := r.Options.ServiceAccount
	if name == "" {
		name = fallbackServiceAccount
	}
	accounts := c.core.CoreV1().ServiceAccounts(r.ServiceAccountNamespace)
	if slices.Contains(ownAccounts, name) {
		_, err := accounts.Get(ctx, fallbackServiceAccount, metav1.GetOptions{})
		switch {
		case err == nil:
			return serviceAccount{}, fmt.Errorf("serviceAccount must not name %s, which is that of an agent or a hub: the owner of this cluster limits Bundles "+
				"with ServiceAccount %s/%s; name another one", name, r.ServiceAccountNamespace, fallbackServiceAccount)
		case !apierrors.IsNotFound(err):
			return serviceAccount{}, fmt.Errorf("looking for ServiceAccount %s/%s: %w", r.ServiceAccountNamespace, fallbackServiceAccount, err)
		}
	}
	_, err := accounts.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && r.Options.ServiceAccount == "":
		return serviceAccount{}, nil
	case apierrors.IsNotFound(err):
		return serviceAccount{}, fmt.Errorf("serviceAccount names %s, which does not exist in the agent's namespace %s; create it there", name, r.ServiceAccountNamespace)
	case err != nil:
		return serviceAccount{}, fmt.Errorf("looking for ServiceAccount %s/%s: %w", r.ServiceAccountNamespace, name, err)
	}
	return serviceAccount{r.ServiceAccountNamespace, name}, nil
}

// checkPlace refuses the first revision of a release in a namespace in which the identity of the operation may create or change nothing. The
// history is written with the client's own identity, so without this check a tenant could take the names of releases in the namespaces of
// other tenants. It does not require rights to Secrets: an identity that deploys other kinds needs none. Namespace default is permitted: a
// Bundle that names no namespace has its release there, and its objects may be in other namespaces.
func (o *helmAction) checkPlace(ctx context.Context, r Request, existing *helm.Release) error {
	if existing != nil || r.Options.ServiceAccount == "" || r.Namespace == metav1.NamespaceDefault {
		return nil
	}
	review, err := o.member.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: r.Namespace},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("asking for the rights of ServiceAccount %s in namespace %s: %w", r.Options.ServiceAccount, r.Namespace, err)
	}
	if review.Status.Incomplete || slices.ContainsFunc(review.Status.ResourceRules, mayWrite) {
		return nil
	}
	return fmt.Errorf("ServiceAccount %s/%s may neither create, update nor patch anything in namespace %s of the release; "+
		"give it a right to do so there, or use another namespace",
		r.ServiceAccountNamespace, r.Options.ServiceAccount, r.Namespace)
}

// mayWrite reports whether a rule permits writing objects other than reviews. Every user may create reviews of their own rights.
func mayWrite(rule authorizationv1.ResourceRule) bool {
	isOther := func(group string) bool {
		return group != authorizationv1.GroupName && group != authenticationv1.GroupName
	}
	isWrite := func(verb string) bool {
		return slices.Contains([]string{"create", "update", "patch", rbacv1.VerbAll}, verb)
	}
	return slices.ContainsFunc(rule.APIGroups, isOther) && slices.ContainsFunc(rule.Verbs, isWrite)
}

// namespaceManager begins the field managers of labels and annotations of namespaces.
const namespaceManager = registration.FieldManager + "-namespace-"

// LabelNamespace applies the namespaceLabels and namespaceAnnotations of a request to the namespace of its release, which is deployed. A deployment
// does the same. This function is needed because the namespaceLabels and namespaceAnnotations of a target are not part of the deployment ID, so a
// change of them causes no deployment. LabelNamespace sends one request if the namespace already has the labels and annotations, and never creates
// the namespace.
func (c *Client) LabelNamespace(ctx context.Context, r Request) error {
	existing, err := c.core.CoreV1().Namespaces().Get(ctx, r.Namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading namespace %s of the release: %w", r.Namespace, err)
	}
	if changed, err := changedNamespace(existing, r); changed == nil || err != nil {
		return err
	}
	account, err := c.serviceAccount(ctx, r)
	if err != nil {
		return err
	}
	op, err := c.newAction(ctx, r.Namespace, account)
	if err != nil {
		return err
	}
	return op.ensureNamespace(ctx, r)
}

// ensureNamespace checks whether the options allow the namespace of the release, creates it if it is missing, and applies the
// labels and annotations of the options. It reads with the client's own identity and writes with the identity of the operation. Labels
// and annotations of other field managers stay; those of earlier options are removed. Each BundleDeployment has a field manager, so that one without
// labels does not remove those of another in the same namespace. It returns a NamespaceError if only the labels are forbidden.
func (o *helmAction) ensureNamespace(ctx context.Context, r Request) error {
	name, options := o.namespace, r.Options
	existing, err := o.client.core.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return fmt.Errorf("reading namespace %s of the release: %w", name, err)
	}
	if err := checkNamespace(name, existing.Labels, missing, options); err != nil {
		return err
	}
	if missing {
		created := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if len(withoutPodSecurity(options.NamespaceLabels))+len(withoutPodSecurity(options.NamespaceAnnotations)) == 0 {
			created.Labels = map[string]string{"name": name} // as Helm does it
		}
		existing, err = o.member.CoreV1().Namespaces().Create(ctx, created, metav1.CreateOptions{FieldManager: registration.FieldManager})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating namespace %s of the release: %w", name, err)
		}
	}
	changed, err := changedNamespace(existing, r)
	if changed == nil || err != nil {
		return err
	}
	client := o.member.CoreV1().Namespaces()
	if err = takeLabels(ctx, client, existing, changed); err == nil {
		_, err = client.Apply(ctx, changed, metav1.ApplyOptions{FieldManager: namespaceManagerOf(r), Force: true})
	}
	if err != nil {
		err = fmt.Errorf("setting namespaceLabels and namespaceAnnotations of namespace %s: %w", name, err)
	}
	if apierrors.IsForbidden(err) {
		return &NamespaceError{err}
	}
	return err
}

func namespaceManagerOf(r Request) string {
	return namespaceManager + registration.LabelValue(r.BundleDeployment)
}

// changedNamespace returns the labels and annotations that the namespace of a release is to have from the options; nil if it has them.
func changedNamespace(existing *corev1.Namespace, r Request) (*applycorev1.NamespaceApplyConfiguration, error) {
	applied, err := applycorev1.ExtractNamespace(existing, namespaceManagerOf(r))
	if err != nil {
		return nil, err
	}
	wanted, annotations := withoutPodSecurity(r.Options.NamespaceLabels), withoutPodSecurity(r.Options.NamespaceAnnotations)
	if maps.Equal(applied.Labels, wanted) && maps.Equal(applied.Annotations, annotations) {
		return nil, nil
	}
	return applycorev1.Namespace(r.Namespace).WithLabels(wanted).WithAnnotations(annotations), nil
}

// takeLabels removes the labels and annotations that will be applied from the fields of earlier agents: Fleet's own, and those of this project that
// had one field manager for all BundleDeployments. The API server would keep a label that the options no longer have if another field manager owned it.
func takeLabels(
	ctx context.Context, client typedcorev1.NamespaceInterface, existing *corev1.Namespace, wanted *applycorev1.NamespaceApplyConfiguration,
) error {
	changed := false
	for i, f := range existing.ManagedFields {
		// With operation Apply, these are the fields of this agent's own releases, which use server-side apply.
		isOfFleet := f.Manager == objectManager && f.Operation == metav1.ManagedFieldsOperationUpdate
		if !isOfFleet && f.Manager != registration.FieldManager || f.Subresource != "" || f.FieldsV1 == nil {
			continue
		}
		owned := map[string]any{}
		if err := json.Unmarshal(f.FieldsV1.GetRawBytes(), &owned); err != nil {
			return err
		}
		before := runtime.DeepCopyJSON(owned)
		for key := range wanted.Labels {
			unstructured.RemoveNestedField(owned, "f:metadata", "f:labels", "f:"+key)
		}
		for key := range wanted.Annotations {
			unstructured.RemoveNestedField(owned, "f:metadata", "f:annotations", "f:"+key)
		}
		if equality.Semantic.DeepEqual(before, owned) {
			continue
		}
		raw, err := json.Marshal(owned)
		if err != nil {
			return err
		}
		existing.ManagedFields[i].FieldsV1, changed = metav1.NewFieldsV1(string(raw)), true
	}
	if !changed {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": existing.ResourceVersion, "managedFields": existing.ManagedFields,
	}})
	if err != nil {
		return err
	}
	_, err = client.Patch(ctx, existing.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: registration.FieldManager})
	return err
}

// checkNamespace reports why the options do not allow a deployment into a namespace.
func checkNamespace(name string, existing map[string]string, missing bool, options fleet.BundleDeploymentOptions) error {
	selector := options.AllowedTargetNamespaceSelector
	if missing && (selector != nil || options.CreateNamespace != nil && !*options.CreateNamespace) {
		return fmt.Errorf("namespace %s does not exist, and createNamespace or allowedTargetNamespaceSelector forbids creating it; create it on the member", name)
	}
	if selector == nil {
		return nil
	}
	allowed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return invalid("allowedTargetNamespaceSelector: %v", err)
	}
	if !allowed.Matches(labels.Set(existing)) {
		return fmt.Errorf("namespace %s does not match allowedTargetNamespaceSelector (%s); label it, or use another namespace", name, allowed)
	}
	return nil
}

// withoutPodSecurity leaves out the labels that belong to the owner of the cluster: which pods a namespace admits, and its name.
func withoutPodSecurity(l map[string]string) map[string]string {
	kept := maps.Clone(l)
	maps.DeleteFunc(kept, func(key, _ string) bool {
		return strings.HasPrefix(key, "pod-security.kubernetes.io/") || key == corev1.LabelMetadataName
	})
	return kept
}
