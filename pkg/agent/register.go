package agent

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/registration"
)

// errOutdated ends an attempt because the bootstrap Secret it was made with is not the current one any more.
var errOutdated = errors.New("the bootstrap Secret has changed")

// attempt is one try to register.
type attempt struct {
	*life
	situation *situation
	bootstrap *bootstrap
	clientID  string
	pending   pending
	hub       *hub // with the registration token
}

// register takes one attempt from the bootstrap Secret to a stored credential that has worked. It keeps what was stored
// before until then, and the bootstrap Secret in any case: that goes once the stored credential is in use. An agent that was
// about to leave stays only then: without its mark it would take up the old credential again, and be told to leave once more.
func (l *life) register(ctx context.Context, s *situation) error {
	a, err := l.newAttempt(ctx, s)
	if err != nil {
		return err
	}
	defer a.hub.close()
	a.vouch(ctx)
	if err := a.request(ctx); err != nil {
		return err
	}
	answer, err := a.await(ctx)
	if err != nil {
		return err
	}
	credential := answer.stored(a.bootstrap, a.pending.name, s.sources)
	if err := a.prove(ctx, credential); err != nil {
		return err
	}
	if err := l.member.store(ctx, credential); err != nil {
		return err
	}
	if err := l.stay(ctx, s); err != nil {
		return err
	}
	l.vouching.set("")
	l.noLongerDenied(ctx)
	return nil
}

func (l *life) newAttempt(ctx context.Context, s *situation) (*attempt, error) {
	clientID, err := l.member.clientID(ctx, s.config)
	if err != nil {
		return nil, err
	}
	h, err := l.dial(s.bootstrap.hubAccess(), s.config.AgentTLSMode)
	if err != nil {
		return nil, err
	}
	p, err := l.member.pending(ctx, s.bootstrap.fingerprint(clientID), s.config.Labels)
	if err != nil {
		return nil, err
	}
	return &attempt{life: l, situation: s, bootstrap: s.bootstrap, clientID: clientID, pending: p, hub: h}, nil
}

// request sends the ClusterRegistration. One that is there already is ours, from before a restart or a lost answer; a
// proxy's 409 is not taken for that.
func (a *attempt) request(ctx context.Context) error {
	request := newRequest(a.pending, a.bootstrap, a.clientID, a.situation.config.Labels, a.config.Pod)
	err := a.hub.createRequest(ctx, request)
	switch {
	case err == nil:
		a.log.Infof("Created ClusterRegistration %s/%s on the hub", request.Namespace, request.Name)
		a.waiting.begins(request.Name, a.config.Clock.Now())
		return nil
	case apierrors.IsAlreadyExists(err) && fromAPIServer(err):
		return nil
	case Classify(err) == Refuses:
		return a.tokenRefused(err)
	}
	return fmt.Errorf("cannot create clusterregistration on management cluster for cluster id '%s' in namespace %s: %w",
		a.clientID, request.Namespace, err)
}

// await looks for the Secret with the answer until it is there. It may get that one Secret and nothing else, so it cannot
// watch; "not found" and "forbidden" both mean that the hub has not come to it yet.
func (a *attempt) await(ctx context.Context) (granted, error) {
	deadline := a.config.Clock.Now().Add(a.config.Timing.Registration)
	pauses := a.looks()
	said := ""
	for ctx.Err() == nil {
		answer, why, err := a.fetch(ctx)
		var denied *deniedError
		switch {
		case errors.As(err, &denied):
			return a.awaitApproval(ctx, denied)
		case err != nil || why == "":
			return answer, err
		case a.config.Clock.Now().After(deadline):
			return granted{}, errors.Join(a.notGranted(why), a.leaveOff(ctx))
		case why != said:
			a.log.Infof("Waiting for the hub to grant ClusterRegistration %s/%s: %s", a.bootstrap.clusterNamespace, a.pending.name, why)
			said = why
		}
		if a.wait(ctx, pauses.next(a.config.Clock.Now())) && a.outdated(ctx) {
			return granted{}, errOutdated
		}
	}
	return granted{}, ctx.Err()
}

// fetch is a look that is remembered: see waiting.
func (a *attempt) fetch(ctx context.Context) (answer granted, why string, err error) {
	answer, why, heard, err := a.look(ctx)
	switch {
	case err == nil && why == "":
		a.waiting = waiting{} // it may go before it was used
	case heard:
		a.waiting.hears(a.config.Clock.Now(), a.config.Timing.Unseen)
	}
	return answer, why, err
}

// look returns the answer, or why there is none yet, or an error that waiting does not help, and whether the hub was heard.
func (a *attempt) look(ctx context.Context) (answer granted, why string, heard bool, err error) {
	name := registration.CredentialSecretName(a.clientID, a.pending.clientRandom)
	secret, err := a.hub.core.CoreV1().Secrets(a.bootstrap.systemRegistrationNamespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil:
		if denied := parseDenied(secret); denied != nil {
			return granted{}, "", true, denied
		}
		answer, filled := parseGranted(secret)
		if !filled {
			return granted{}, "the credential is not complete yet", true, nil
		}
		return answer, "", true, nil
	case Classify(err) == Refuses:
		return granted{}, "", false, a.tokenRefused(err)
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return granted{}, "there is no answer yet", fromAPIServer(err), nil
	}
	return granted{}, err.Error(), false, nil
}

// outdated reads the bootstrap Secret again. When it cannot be read or is gone the attempt goes on with what it has.
func (a *attempt) outdated(ctx context.Context) bool {
	secret, err := a.member.secret(ctx, registration.BootstrapSecret)
	if err != nil {
		return false
	}
	current, presence, _ := examine(secret, parseBootstrap)
	return presence == Present && current.fingerprint(a.clientID) != a.pending.bootstrap
}

// prove uses the new credential. The hub writes its rights one by one and API servers learn of a new ServiceAccount a
// moment later, so no answer is final until some time has passed.
func (a *attempt) prove(ctx context.Context, credential *stored) error {
	h, err := a.dial(credential.access, credential.mode)
	if err != nil {
		return err
	}
	defer h.close()
	deadline := a.config.Clock.Now().Add(a.config.Timing.RightsLag)
	pauses := a.config.Timing.poll()
	for {
		err := h.probe(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case a.config.Clock.Now().After(deadline):
			return a.notProved(ctx, credential, err)
		}
		pause(ctx, a.config.Clock, pauses.Step(), nil)
	}
}

// notProved keeps the request when its credential may still come to work, and forgets it when the hub does not know that
// credential: asking for it again would give the same one.
func (a *attempt) notProved(ctx context.Context, credential *stored, cause error) error {
	err := fmt.Errorf("the credential the hub gave for cluster %s/%s does not work: %w", credential.clusterNamespace, credential.clusterName, cause)
	if Classify(cause) == Refuses {
		return errors.Join(err, a.member.forgetPending(ctx))
	}
	return err
}

func (a *attempt) tokenRefused(cause error) error {
	return fmt.Errorf("registration token %q expired or was revoked; create a new one on the hub and put it into Secret %s/%s: %w",
		a.bootstrap.tokenName, a.member.namespace, registration.BootstrapSecret, cause)
}

func (a *attempt) notGranted(why string) error {
	return fmt.Errorf("the hub did not grant ClusterRegistration %s/%s within %s (%s); its conditions on the hub say why: "+
		"kubectl get clusterregistrations.fleet.cattle.io -n %[1]s %[2]s -o yaml",
		a.bootstrap.clusterNamespace, a.pending.name, a.config.Timing.Registration, why)
}
