package check

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/pkg/agent/credential"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// The checks of Preflight, Credential and Pod. The wayChecks use the result of the checks before them: the values of a token, or the credential
// of an agent.
var (
	wayChecks       = []string{"way-address", "way-dns", "way-proxy", "way-tcp", "way-tls", "way-server", "way-clock", "way-authenticated", "way-authorised"}
	preflightChecks = slices.Concat([]string{"member-api", "agent-bootstrap", "agent-token"}, wayChecks)
	storedChecks    = slices.Concat([]string{"member-api", "agent-secret", "agent-config", "agent-credential", "agent-credential-lives"}, wayChecks)
	podChecks       = []string{"agent-namespace", "agent-deployment", "agent-pod", "agent-scheduled", "agent-image", "agent-runs"}
)

func tableOf(ids []string) []Check {
	return slices.DeleteFunc(Table(), func(c Check) bool { return !slices.Contains(ids, c.ID) })
}

// Preflight checks whether an agent that is not installed yet could register from this member with the values of a token.
func Preflight(ctx context.Context, in Inputs, values []byte) Diagnosis {
	k := newKnowledge(in)
	k.bootstrap = &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: k.agentNamespace(), Name: registration.BootstrapSecret},
		Data:       map[string][]byte{registration.ValuesKey: values},
	}
	var mode struct {
		AgentTLSMode config.TLSMode `json:"agentTLSMode"`
	}
	if yaml.Unmarshal(values, &mode) == nil {
		k.agentConfig.AgentTLSMode = mode.AgentTLSMode
	}
	return run(ctx, tableOf(preflightChecks), k)
}

// Credential checks whether the hub accepts the credential that an agent has stored on the member, and returns that credential. It is nil if
// there is none.
func Credential(ctx context.Context, in Inputs) (*credential.Stored, Diagnosis) {
	k := newKnowledge(in)
	d := run(ctx, tableOf(storedChecks), k)
	return k.credential, d
}

// Pod checks whether the pod of the agent runs.
func Pod(ctx context.Context, in Inputs) Diagnosis {
	return run(ctx, tableOf(podChecks), newKnowledge(in))
}

// Line returns the line of a check, and false if the check was not run or does not apply.
func (d Diagnosis) Line(id string) (Line, bool) {
	i := slices.IndexFunc(d.Checks, func(l Line) bool { return l.ID == id })
	if i < 0 {
		return Line{}, false
	}
	return d.Checks[i], true
}

// Problem returns the detail of the first check that failed, or "".
func (d Diagnosis) Problem() string {
	i := slices.IndexFunc(d.Checks, func(l Line) bool { return l.Result == Fail && l.SkippedBecause == "" })
	if i < 0 {
		return ""
	}
	return printable(d.Checks[i].Detail)
}
