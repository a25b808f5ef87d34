package config

import (
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// DefaultCredentialLifetime is how long the credential of an agent that renews it lives when nothing else is configured.
const DefaultCredentialLifetime = 24 * time.Hour

// MinCredentialLifetime is the shortest lifetime that can be configured: API servers issue no shorter one.
const MinCredentialLifetime = 10 * time.Minute

// MaxCredentialLifetime is the longest lifetime that can be configured: the admission policies let no agent renew a
// credential for longer.
const MaxCredentialLifetime = 7 * 24 * time.Hour

// LongLived says what becomes of agents that cannot renew their credential.
type LongLived string

const (
	// LongLivedAllow gives them one that does not end.
	LongLivedAllow LongLived = "Allow"
	// LongLivedRefuse refuses their requests.
	LongLivedRefuse LongLived = "Refuse"
)

// Registration says what the hub asks of agents that register. Absent means what Fleet does.
type Registration struct {
	// CredentialLifetime is how long the credential of an agent lives that renews it; 0 means DefaultCredentialLifetime.
	CredentialLifetime metav1.Duration `json:"credentialLifetime,omitempty"`
	// LongLivedCredentials is one of LongLivedAllow and LongLivedRefuse; empty means LongLivedAllow.
	LongLivedCredentials LongLived `json:"longLivedCredentials,omitempty"`
	// Approval is who decides about requests whose token does not say; empty means fleet.ApprovalAuto.
	Approval fleet.Approval `json:"approval,omitempty"`
	// RequireTokenTTL refuses ClusterRegistrationTokens that would live for ever.
	RequireTokenTTL bool `json:"requireTokenTTL,omitempty"`
	// Policy decides about requests before a person is asked. The first rule whose expression is true decides.
	Policy []PolicyRule `json:"policy,omitempty"`
}

// PolicyAction is what a rule does with a request.
type PolicyAction string

const (
	// PolicyApprove approves a request that would wait for a person.
	PolicyApprove PolicyAction = "Approve"
	// PolicyDeny denies a request, approved by a person or not.
	PolicyDeny PolicyAction = "Deny"
	// PolicyAsk lets a request wait for a person.
	PolicyAsk PolicyAction = "Ask"
)

// PolicyRule is one rule of the hub's policy.
type PolicyRule struct {
	// Name tells the rule apart in messages.
	Name string `json:"name"`
	// Expression is CEL that gives a bool. Its variables are request (the ClusterRegistration), token (the
	// ClusterRegistrationToken, null where the hub knows none) and cluster (the Cluster, null where there is none yet).
	Expression string `json:"expression"`
	// Action is what is done when the expression is true.
	Action PolicyAction `json:"action"`
	// Message tells the agent and people why; empty means the rule's name.
	Message string `json:"message,omitempty"`
}

// Lifetime is CredentialLifetime or its default.
func (r Registration) Lifetime() time.Duration {
	if r.CredentialLifetime.Duration == 0 {
		return DefaultCredentialLifetime
	}
	return r.CredentialLifetime.Duration
}

func (r Registration) validate() error {
	switch lifetime := r.Lifetime(); {
	case lifetime < MinCredentialLifetime:
		return fmt.Errorf("registration.credentialLifetime is %s: it must be at least %s, the shortest that API servers issue", lifetime, MinCredentialLifetime)
	case lifetime > MaxCredentialLifetime:
		return fmt.Errorf("registration.credentialLifetime is %s: it must be at most %s, the longest that agents may renew", lifetime, MaxCredentialLifetime)
	}
	switch r.LongLivedCredentials {
	case "", LongLivedAllow, LongLivedRefuse:
	default:
		return fmt.Errorf("registration.longLivedCredentials is %q: it must be %q or %q", r.LongLivedCredentials, LongLivedAllow, LongLivedRefuse)
	}
	switch r.Approval {
	case "", fleet.ApprovalAuto, fleet.ApprovalManual:
	default:
		return fmt.Errorf("registration.approval is %q: it must be %q or %q", r.Approval, fleet.ApprovalAuto, fleet.ApprovalManual)
	}
	var problems []error
	for i, rule := range r.Policy {
		problems = append(problems, rule.validate(i))
	}
	return errors.Join(problems...)
}

func (r PolicyRule) validate(i int) error {
	switch {
	case r.Name == "":
		return fmt.Errorf("registration.policy[%d] has no name", i)
	case r.Expression == "":
		return fmt.Errorf("registration.policy[%d] (%s) has no expression", i, r.Name)
	}
	switch r.Action {
	case PolicyApprove, PolicyDeny, PolicyAsk:
		return nil
	}
	return fmt.Errorf("registration.policy[%d] (%s) has action %q: it must be %q, %q or %q",
		i, r.Name, r.Action, PolicyApprove, PolicyDeny, PolicyAsk)
}
