package clusterregistration

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/agentrole"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

// setID is the object set of one request, together with the request's key.
const setID = "cluster-registration"

// ensureRights makes the agent's ServiceAccount and everything that says what it, and the registering identity, may do.
func (p *pass) ensureRights(ctx context.Context) result.Result {
	if !p.request.Status.Granted {
		p.made.Expect(string(p.request.UID))
	}
	err := p.sets.Ensure(ctx, registration.OwnedSetID(setID, p.request.Namespace, p.request.Name), p.request, p.rights()...)
	if err == nil {
		err = p.dropWideRights(ctx)
	}
	var foreign *desiredset.ForeignError
	switch {
	case errors.As(err, &foreign):
		return result.Stalled(fleet.ReasonNameConflict, foreign.Error()).In(p.RecheckDelay())
	case err != nil:
		return failed(err)
	}
	return ok
}

// rights are all that a request is given. Of a Cluster in quarantine that is the bare identity. The right to read Contents is
// the Cluster's, and comes with the first of them: see contentrole.
func (p *pass) rights() []runtime.Object {
	objects := []runtime.Object{p.account()}
	if p.cluster.Spec.Quarantined {
		return objects
	}
	objects = append(objects, p.statusRights()...)
	if p.DisableBundles {
		objects = append(objects, p.stockRights()...)
	} else {
		objects = append(objects, p.bundleRights()...)
	}
	return append(objects, p.readerRights()...)
}

func (p *pass) accountName() string {
	return registration.RequestServiceAccount(p.request.Name, string(p.request.UID))
}

func (p *pass) secretName() string {
	return registration.CredentialSecretName(p.request.Spec.ClientID, p.request.Spec.ClientRandom)
}

func managed(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace,
		Name:      name,
		Labels:    map[string]string{fleet.ManagedLabel: fleet.ManagedValue},
	}
}

// account is the identity of the registered agent.
func (p *pass) account() *corev1.ServiceAccount {
	account := &corev1.ServiceAccount{ObjectMeta: managed(p.clusterNamespace(), p.accountName())}
	account.Annotations = map[string]string{
		fleet.ClusterAnnotation:                      p.cluster.Name,
		fleet.ClusterRegistrationAnnotation:          p.request.Name,
		fleet.ClusterRegistrationNamespaceAnnotation: p.request.Namespace,
	}
	return account
}

func (p *pass) agent() []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: p.clusterNamespace(), Name: p.accountName()}}
}

// statusRights let the agent report its heartbeat on its own Cluster.
func (p *pass) statusRights() []runtime.Object {
	name := managed(p.request.Namespace, p.request.Name)
	return []runtime.Object{
		&rbacv1.Role{ObjectMeta: name, Rules: []rbacv1.PolicyRule{{
			Verbs: []string{"patch"}, APIGroups: []string{fleet.SchemeGroupVersion.Group},
			Resources: []string{"clusters/status"}, ResourceNames: []string{p.cluster.Name},
		}}},
		&rbacv1.RoleBinding{ObjectMeta: name, Subjects: p.agent(), RoleRef: role("Role", p.request.Name)},
	}
}

// bundleRights let the agent read its BundleDeployments, and report on them. There is nothing else for it in its namespace:
// the hub puts the values of a Bundle into the BundleDeployment, and makes no Secret or ConfigMap there that an agent reads.
// What names nothing of the agent's own is the same for all, and a Role less for each.
func (p *pass) bundleRights() []runtime.Object {
	if own := p.renewalRules(); len(own) > 0 {
		return p.agentRights(append(agentrole.Rules(), own...))
	}
	return []runtime.Object{&rbacv1.RoleBinding{
		ObjectMeta: managed(p.clusterNamespace(), registration.AgentBindingName(p.accountName())),
		Subjects:   p.agent(),
		RoleRef:    role("ClusterRole", registration.ClusterRoleAgent),
	}}
}

// agentRights are what the agent may do in the cluster namespace.
func (p *pass) agentRights(rules []rbacv1.PolicyRule) []runtime.Object {
	if len(rules) == 0 {
		return nil
	}
	name := managed(p.clusterNamespace(), registration.AgentRoleName(p.accountName()))
	return []runtime.Object{
		&rbacv1.Role{ObjectMeta: name, Rules: rules},
		&rbacv1.RoleBinding{ObjectMeta: name, Subjects: p.agent(), RoleRef: role("Role", name.Name)},
	}
}

// stockRights are for BundleDeployments that Fleet's own controllers make: this hub does not know which Contents those name,
// and which Secrets and ConfigMaps are put beside them.
func (p *pass) stockRights() []runtime.Object {
	return append(p.agentRights(p.renewalRules()),
		&rbacv1.RoleBinding{
			ObjectMeta: managed(p.clusterNamespace(), p.request.Name),
			Subjects:   p.agent(),
			RoleRef:    role("ClusterRole", registration.ClusterRoleBundleDeployment),
		},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: managed("", registration.ContentBindingName(p.accountName())),
			Subjects:   p.agent(),
			RoleRef:    role("ClusterRole", registration.ClusterRoleContent),
		})
}

// readerRights let the registering identity read this one credential.
func (p *pass) readerRights() []runtime.Object {
	if p.reader == nil {
		return nil
	}
	name := managed(p.RegistrationNamespace(), registration.CredentialReaderName(p.accountName()))
	reader := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: p.request.Namespace, Name: p.reader.ServiceAccount}}
	return []runtime.Object{
		&rbacv1.Role{ObjectMeta: name, Rules: []rbacv1.PolicyRule{{
			Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{p.secretName()},
		}}},
		&rbacv1.RoleBinding{ObjectMeta: name, Subjects: reader, RoleRef: role("Role", name.Name)},
	}
}

func role(kind, name string) rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
}
