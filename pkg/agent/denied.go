package agent

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/muster-fleet/muster/pkg/registration"
)

// Reasons of the events on the agent's Deployment.
const (
	// reasonDenied: the hub refuses to register this cluster, and says why.
	reasonDenied = "RegistrationRefused"
	// reasonGranted: after that, it has registered it.
	reasonGranted = "RegistrationGranted"
)

// errLookAgain ends the wait for a change of mind, because something beside the agent has changed that may bring it about.
var errLookAgain = fmt.Errorf("looking again: %w", errOutdated)

// deniedError is a request the hub refuses until something changes: a person approves it, or what it was made with.
type deniedError struct{ reason, message string }

func (d *deniedError) Error() string {
	return fmt.Sprintf("%s (%s)", brief(d.message), brief(d.reason))
}

// parseDenied is nil for a Secret that refuses nothing. One that has a token grants, whatever else is in it.
func parseDenied(secret *corev1.Secret) *deniedError {
	reason := string(secret.Data[registration.RefusalReason])
	if reason == "" || len(secret.Data[registration.CredentialToken]) > 0 {
		return nil
	}
	return &deniedError{reason: reason, message: string(secret.Data[registration.RefusalMessage])}
}

// denial remembers what was told of a refusal, so that one that lasts does not fill the log.
type denial struct{ told string }

// awaitApproval looks rarely, because an approval may come late, and ends when something changes that the request was made
// with. There is no end of patience: another request would be refused as well. The same one is sent again each time, for a
// person may have deleted it.
func (a *attempt) awaitApproval(ctx context.Context, denied *deniedError) (granted, error) {
	pauses := a.config.Timing.refused()
	for ctx.Err() == nil {
		a.tellDenied(ctx, denied)
		if a.wait(ctx, pauses.Step()) {
			return granted{}, a.lookAgain(ctx)
		}
		if err := a.request(ctx); err != nil {
			return granted{}, err
		}
		answer, why, err := a.fetch(ctx)
		switch {
		case errors.As(err, &denied): // still, or for another reason
		case err != nil || why == "":
			return answer, err
		}
	}
	return granted{}, ctx.Err()
}

// lookAgain has another request made where this one says of the cluster what is not true any more.
func (a *attempt) lookAgain(ctx context.Context) error {
	config, err := a.member.agentConfig(ctx)
	if err != nil || a.pending.saysOf(config.Labels) {
		return errLookAgain
	}
	return errors.Join(errLookAgain, a.member.forgetPending(ctx))
}

func (a *attempt) tellDenied(ctx context.Context, denied *deniedError) {
	text := fmt.Sprintf("the hub refuses ClusterRegistration %s/%s: %v", a.bootstrap.clusterNamespace, a.pending.name, denied)
	if ctx.Err() != nil || a.denial.told == text {
		return
	}
	a.denial.told = text
	a.config.OnState("the hub refuses to register this cluster; the log says why")
	a.log.Errorf("Failed to register agent: %s. The agent looks again now and then, and at once when Secret %s or ConfigMap %s in Namespace %s changes",
		text, registration.BootstrapSecret, registration.AgentConfigMap, a.member.namespace)
	a.event(ctx, corev1.EventTypeWarning, reasonDenied, text)
}

func (l *life) noLongerDenied(ctx context.Context) {
	if l.denial.told == "" {
		return
	}
	l.denial.told = ""
	l.event(ctx, corev1.EventTypeNormal, reasonGranted, "the hub has registered this cluster")
}
