package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// DefaultCredentialLifetime is the default lifetime of the credential of an agent that renews it.
const DefaultCredentialLifetime = 24 * time.Hour

// MinCredentialLifetime is the shortest lifetime that can be configured; API servers issue no shorter one.
const MinCredentialLifetime = 10 * time.Minute

// MaxCredentialLifetime is the longest lifetime that can be configured; the admission policies refuse to renew a credential for
// longer.
const MaxCredentialLifetime = 7 * 24 * time.Hour

// AgentLabels decides about the labels that agents choose for their Clusters.
type AgentLabels string

const (
	// AgentLabelsAccept copies them if the token of the agent does not name the allowed keys.
	AgentLabelsAccept AgentLabels = "Accept"
	// AgentLabelsOnlyAllowed copies only those with a key that the token allows, so none if the token names no keys.
	AgentLabelsOnlyAllowed AgentLabels = "Allowed"
)

// Registration has the requirements for agents that register. The zero value means the defaults that the fields describe.
type Registration struct {
	// Unknown is true if the hub has started with an invalid or missing configuration that does not say which requests are denied: it then
	// decides about no request.
	Unknown bool `json:"-"`
	// CredentialLifetime is the lifetime of the credential of an agent that renews it; 0 means DefaultCredentialLifetime.
	CredentialLifetime metav1.Duration `json:"credentialLifetime,omitempty"`
	// LongLivedCredentials decides about agents that do not renew their credential and whose token does not say: one of
	// fleet.LongLivedAllow and fleet.LongLivedRefuse; empty allows them, except for a Cluster whose agent renews its credential.
	LongLivedCredentials fleet.LongLived `json:"longLivedCredentials,omitempty"`
	// LongLivedNamespaces are the namespaces to which fleet.LongLivedAllow applies instead.
	LongLivedNamespaces []string `json:"longLivedNamespaces,omitempty"`
	// AgentLabels applies to requests whose token has no allowedLabelKeys: one of AgentLabelsAccept and AgentLabelsOnlyAllowed; empty
	// means AgentLabelsAccept.
	AgentLabels AgentLabels `json:"agentLabels,omitempty"`
	// Approval applies to requests whose token has no approval of its own; empty means fleet.ApprovalAuto.
	Approval fleet.Approval `json:"approval,omitempty"`
	// RequirePolicies refuses registrations while the hub's admission policies are not in force, or cannot be.
	RequirePolicies bool `json:"requirePolicies,omitempty"`
	// RequireTokenTTL refuses ClusterRegistrationTokens without a TTL.
	RequireTokenTTL bool `json:"requireTokenTTL,omitempty"`
	// Limits bounds the registrations that have led to no connected agent yet.
	Limits BacklogLimits `json:"limits,omitzero"`
	// Policy decides about requests before a person is asked. The first rule whose expression is true decides.
	Policy []PolicyRule `json:"policy,omitempty"`
}

// BacklogLimits are the maximum numbers of registrations that have led to no connected agent yet. 0 means the default. While the admission
// policies that prove the origin of requests are in force, all requests of a namespace without that proof share the limit of one token.
type BacklogLimits struct {
	// WaitingPerToken and WaitingPerNamespace are for requests that wait for an approval or for the agents of earlier requests to
	// connect; the defaults are 1000 and 5000. The hub refuses further ones.
	WaitingPerToken     int `json:"waitingPerToken,omitempty"`
	WaitingPerNamespace int `json:"waitingPerNamespace,omitempty"`
	// UnconnectedPerToken and UnconnectedPerNamespace are for granted requests of Clusters whose agent has never connected; the
	// defaults are 1000 and 5000. Further ones wait.
	UnconnectedPerToken     int `json:"unconnectedPerToken,omitempty"`
	UnconnectedPerNamespace int `json:"unconnectedPerNamespace,omitempty"`
}

// Defaults of BacklogLimits.
const (
	DefaultLimitPerToken     = 1000
	DefaultLimitPerNamespace = 5000
)

// WithDefaults returns the limits that apply.
func (l BacklogLimits) WithDefaults() BacklogLimits {
	return BacklogLimits{
		WaitingPerToken:         cmp.Or(l.WaitingPerToken, DefaultLimitPerToken),
		WaitingPerNamespace:     cmp.Or(l.WaitingPerNamespace, DefaultLimitPerNamespace),
		UnconnectedPerToken:     cmp.Or(l.UnconnectedPerToken, DefaultLimitPerToken),
		UnconnectedPerNamespace: cmp.Or(l.UnconnectedPerNamespace, DefaultLimitPerNamespace),
	}
}

func (l BacklogLimits) validate() error {
	if min(l.WaitingPerToken, l.WaitingPerNamespace, l.UnconnectedPerToken, l.UnconnectedPerNamespace) < 0 {
		return errors.New("registration.limits has a negative number: each limit must be at least 1, or 0 for its default")
	}
	return nil
}

// PolicyRule is one rule of the hub's policy.
type PolicyRule struct {
	// Name identifies the rule in messages.
	Name string `json:"name"`
	// Expression is a CEL expression of type bool. Its variables are request (the ClusterRegistration), token (the
	// ClusterRegistrationToken, null if it is not known) and cluster (the Cluster, null if there is none yet).
	Expression string `json:"expression"`
	// Action applies if the expression is true.
	Action registration.RulingAction `json:"action"`
	// Message is the reason for the agent and for people; empty means the name of the rule.
	Message string `json:"message,omitempty"`
}

// Lifetime returns CredentialLifetime or its default.
func (r Registration) Lifetime() time.Duration {
	return cmp.Or(r.CredentialLifetime.Duration, DefaultCredentialLifetime)
}

// LongLivedIn decides about agents of a namespace that do not renew their credential.
func (r Registration) LongLivedIn(namespace string) fleet.LongLived {
	if slices.Contains(r.LongLivedNamespaces, namespace) {
		return fleet.LongLivedAllow
	}
	return r.LongLivedCredentials
}

// AllowsAnyLabel reports whether agents whose token does not name the allowed keys may choose any label for their Clusters.
func (r Registration) AllowsAnyLabel() bool { return r.AgentLabels != AgentLabelsOnlyAllowed }

func (r Registration) validate() error {
	switch lifetime := r.Lifetime(); {
	case lifetime < MinCredentialLifetime:
		return fmt.Errorf("registration.credentialLifetime is %s: it must be at least %s, the shortest that API servers issue", lifetime, MinCredentialLifetime)
	case lifetime > MaxCredentialLifetime:
		return fmt.Errorf("registration.credentialLifetime is %s: it must be at most %s, the longest that agents may renew", lifetime, MaxCredentialLifetime)
	}
	switch r.LongLivedCredentials {
	case "", fleet.LongLivedAllow, fleet.LongLivedRefuse:
	default:
		return fmt.Errorf("registration.longLivedCredentials is %q: it must be %q or %q", r.LongLivedCredentials, fleet.LongLivedAllow, fleet.LongLivedRefuse)
	}
	switch r.AgentLabels {
	case "", AgentLabelsAccept, AgentLabelsOnlyAllowed:
	default:
		return fmt.Errorf("registration.agentLabels is %q: it must be %q or %q", r.AgentLabels, AgentLabelsAccept, AgentLabelsOnlyAllowed)
	}
	switch r.Approval {
	case "", fleet.ApprovalAuto, fleet.ApprovalManual:
	default:
		return fmt.Errorf("registration.approval is %q: it must be %q or %q", r.Approval, fleet.ApprovalAuto, fleet.ApprovalManual)
	}
	problems := []error{r.Limits.validate()}
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
	case registration.RulingApprove, registration.RulingDeny, registration.RulingAsk:
		return nil
	}
	return fmt.Errorf("registration.policy[%d] (%s) has action %q: it must be %q, %q or %q",
		i, r.Name, r.Action, registration.RulingApprove, registration.RulingDeny, registration.RulingAsk)
}
