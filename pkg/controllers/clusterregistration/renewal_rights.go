package clusterregistration

import (
	rbacv1 "k8s.io/api/rbac/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// renews says whether the agent that sent the request renews its credential. Others get one that does not end.
func renews(request *fleet.ClusterRegistration) bool {
	return request.Annotations[registration.RenewalAnnotation] == "true"
}

// renewalRules let an agent that renews its credential ask for tokens of its own ServiceAccount, and of no other.
func (p *pass) renewalRules() []rbacv1.PolicyRule {
	if !renews(p.request) {
		return nil
	}
	return []rbacv1.PolicyRule{{
		Verbs: []string{"create"}, APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, ResourceNames: []string{p.accountName()},
	}}
}
