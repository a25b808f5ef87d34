// Package register obtains the agent's request identity: with the bootstrap identity from Secret fleet-agent-bootstrap it creates a
// ClusterRegistration on the hub, waits until the hub has granted it, and stores the credential in Secret fleet-agent.
package register

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/pkg/agent/credential"
	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	"github.com/muster-fleet/muster/pkg/agent/member"
	"github.com/muster-fleet/muster/pkg/agent/timing"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Reasons of the events on the agent's Deployment.
const (
	ReasonRegistrationRefused = "RegistrationRefused" // the hub refuses the request; the message has the reason
	reasonGranted             = "RegistrationGranted" // after RegistrationRefused: the hub has granted it
)

// ErrInputChanged ends a registration because one of its input objects has changed: start over with the new content.
var ErrInputChanged = errors.New("the configuration of the registration has changed")

// Registrar registers the agent. It keeps the state of the request between two attempts.
type Registrar struct {
	Member *member.Member
	Dialer *hubclient.Dialer
	Clock  clock.WithTicker
	Timing timing.Durations
	Log    logrus.FieldLogger
	// Pod is the name of the agent's Pod; empty if unknown.
	Pod string
	// HeartbeatLease announces that the agent sends heartbeats to a Lease.
	HeartbeatLease bool
	// Changed receives a signal when an object that configures the registration has changed.
	Changed <-chan struct{}
	// OnState is called with a short description of what the agent waits for.
	OnState func(string)
	// Event writes an event on the agent's Deployment.
	Event func(ctx context.Context, kind, reason, message string)

	tracker         requestTracker
	reportedRefusal string // the refusal that was logged, so that it is logged once; empty while there is none
}

// Input has the arguments of a registration.
type Input struct {
	Identity *BootstrapIdentity
	// Settings is the content of ConfigMap fleet-agent.
	Settings config.Agent
	// HubConfigDigest is the digest of ConfigMap fleet-agent-hub; it is stored with the credential.
	HubConfigDigest string
	// ProvePossession proves to the hub, with the credential in use, that the request is this agent's own; nil if no credential
	// is in use.
	ProvePossession func(ctx context.Context, request string)
}

// Register makes one attempt to register. The earlier credential stays stored until the new one has worked; the bootstrap Secret
// stays in any case, until the caller uses the new credential.
func (r *Registrar) Register(ctx context.Context, in Input) error {
	clientID, err := r.Member.ClientID(ctx, in.Settings)
	if err != nil {
		return err
	}
	endpoint := in.Identity.EndpointIn(in.Settings.AgentTLSMode)
	conn, err := r.Dialer.Dial(in.Identity.At(endpoint))
	if err != nil {
		return err
	}
	defer conn.Close()
	// The request is stored before it is sent, so that the agent sends the same one again after a restart.
	request, err := loadOrCreateRequest(ctx, r.Member, in.Identity.digest(clientID), in.Settings.Labels)
	if err != nil {
		return err
	}

	// The proof comes before the request, so that the hub has it when it decides on the request.
	if in.ProvePossession != nil {
		in.ProvePossession(ctx, request.name)
	}
	object := clusterRegistration(request, in.Identity, clientID, in.Settings.Labels, r.Pod)
	if r.HeartbeatLease {
		object.Annotations[registration.LeaseAnnotation] = "true"
	}
	if _, err := r.create(ctx, conn, object, in.Identity); err != nil {
		return err
	}
	granted, err := r.await(ctx, conn, in, request, object)
	if err != nil {
		return err
	}

	// The answer does not contain the address of the hub: the agent keeps the one in the bootstrap Secret.
	endpoint.Mode = endpoint.TLSMode()
	stored := &credential.Stored{
		Access:    hubclient.Access{Endpoint: endpoint, Token: granted.token, Namespace: granted.clusterNamespace},
		Workspace: granted.workspace, ClusterName: granted.clusterName, Lease: granted.lease,
		RegistrationKey: in.Identity.RegistrationKey, Request: request.name, HubConfigDigest: in.HubConfigDigest, RegisteredWith: endpoint.Protection(),
	}
	if err := r.verify(ctx, stored); err != nil {
		return err
	}
	if err := stored.Store(ctx, r.Member); err != nil {
		return err
	}
	r.Log.WithField(registration.LogCluster, stored.Workspace+"/"+stored.ClusterName).
		Infof("Registered; credential stored in Secret %s/%s", r.Member.Namespace, registration.CredentialSecret)
	if r.reportedRefusal != "" {
		r.reportedRefusal = ""
		r.Event(ctx, corev1.EventTypeNormal, reasonGranted, "the hub has registered this cluster")
	}
	return nil
}

// create sends the ClusterRegistration, and reports whether this call has created it. If it exists, this agent created it before a restart or a
// lost response; a 409 of a proxy does not count.
func (r *Registrar) create(ctx context.Context, conn *hubclient.Connection, object *fleet.ClusterRegistration, i *BootstrapIdentity) (created bool, err error) {
	_, err = conn.Fleet.FleetV1alpha1().ClusterRegistrations(object.Namespace).Create(ctx, object, metav1.CreateOptions{})
	switch {
	case err == nil:
		r.logOf(object).Infof("Created ClusterRegistration %s/%s on the hub", object.Namespace, object.Name)
		r.tracker.sent(object.Name, r.Clock.Now())
		return true, nil
	case apierrors.IsAlreadyExists(err) && hubclient.FromAPIServer(err):
		return false, nil
	case hubclient.Classify(err) == hubclient.Rejected:
		return false, r.tokenRejected(i, err)
	}
	return false, fmt.Errorf("cannot create clusterregistration on management cluster for cluster id '%s' in namespace %s: %w",
		object.Spec.ClientID, object.Namespace, err)
}

// polling has the pauses between two reads of the answer to a request, and the end of the attempt.
type polling struct {
	fastUntil, deadline time.Time
	fast, slow, refused *wait.Backoff
}

func (r *Registrar) polling(request pendingRequest) polling {
	now := r.Clock.Now()
	since, complete := r.tracker.polledSince(request.name)
	if !complete {
		since = now
	}
	return polling{
		fastUntil: since.Add(r.Timing.PollFast), deadline: now.Add(r.Timing.Registration),
		fast: r.Timing.Poll(), slow: r.Timing.PollSlowly(), refused: r.Timing.PollRefused(),
	}
}

func (p polling) pause(now time.Time, refused bool) time.Duration {
	switch {
	case refused:
		return p.refused.Step()
	case now.Before(p.fastUntil):
		return p.fast.Step()
	}
	return p.slow.Step()
}

// await polls for the credential: the bootstrap identity has only the verb get for the Secret with the answer. The attempt ends after
// Timing.Registration, but not once the hub has refused the request: another request would be refused too, and a person may
// approve this one later.
func (r *Registrar) await(
	ctx context.Context, conn *hubclient.Connection, in Input, request pendingRequest, object *fleet.ClusterRegistration,
) (*grant, error) {
	polling, refused, logged := r.polling(request), false, ""
	for ctx.Err() == nil {
		a, err := r.readAnswer(ctx, conn, in.Identity, object)
		if err != nil {
			return nil, err
		}
		now := r.Clock.Now()
		if a.fromHub {
			r.tracker.responded(now, r.Timing.MaxResponseGap)
		}
		switch {
		case a.grant != nil:
			r.tracker = requestTracker{} // the hub may delete this credential before the agent has used it
			return a.grant, nil
		case a.refusal != "":
			refused = true
			r.reportRefusal(ctx, object, a.refusal)
		case !refused && now.After(polling.deadline):
			return nil, r.giveUp(ctx, request, object, a.missing)
		case !refused && a.missing != logged:
			r.logOf(object).Infof("Waiting for the hub to grant ClusterRegistration %s/%s: %s", object.Namespace, object.Name, a.missing)
			logged = a.missing
		}

		woken := timing.Pause(ctx, r.Clock, polling.pause(now, refused), r.Changed)
		switch {
		case refused && woken:
			r.Log.Info("The configuration of the agent has changed: checking the refused registration again")
			if r.labelsChanged(ctx, request) {
				err = DeletePendingRequest(ctx, r.Member)
			}
			return nil, errors.Join(ErrInputChanged, err)
		case (woken || refused) && r.inputChanged(ctx, in, request, object.Spec.ClientID):
			// After a refusal also without a signal: the objects may not have been readable when the last one came.
			r.Log.Infof("The configuration of the registration has changed (Secret %s, ConfigMap %s or %s): starting over with it",
				registration.BootstrapSecret, registration.AgentConfigMap, registration.AgentHubConfigMap)
			return nil, ErrInputChanged
		case refused: // a person may have deleted the refused request
			created, err := r.create(ctx, conn, object, in.Identity)
			if err != nil {
				return nil, err
			}
			if created { // the hub may grant it at any moment, as any new request
				next := r.polling(request)
				next.refused = polling.refused // the hub keeps only some hundred refused requests: an agent whose request it deletes must not ask faster
				polling, refused = next, false
			}
		}
	}
	return nil, ctx.Err()
}

// grant is the content of the Secret with which the hub grants a request.
type grant struct{ token, clusterNamespace, workspace, clusterName, lease string }

// answer is the answer of the hub to a request: a grant, a refusal, or neither yet.
type answer struct {
	grant   *grant
	refusal string // message and reason
	missing string // why there is neither a grant nor a refusal
	fromHub bool   // the API server answered, not a proxy
}

// readAnswer reads the Secret with the answer. "Not found" and "forbidden" both mean that the hub has not answered yet.
func (r *Registrar) readAnswer(ctx context.Context, conn *hubclient.Connection, i *BootstrapIdentity, object *fleet.ClusterRegistration) (answer, error) {
	name := registration.AnswerSecretName(object.Spec.ClientID, object.Spec.ClientRandom)
	secret, err := conn.Core.CoreV1().Secrets(i.registrationNamespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil:
		return parseAnswer(secret), nil
	case hubclient.Classify(err) == hubclient.Rejected:
		return answer{}, r.tokenRejected(i, err)
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return answer{missing: "there is no answer yet", fromHub: hubclient.FromAPIServer(err)}, nil
	}
	return answer{missing: err.Error()}, nil
}

// parseAnswer treats a Secret with a token as a grant, even if it also has the reason of a refusal.
func parseAnswer(secret *corev1.Secret) answer {
	value := func(key string) string { return string(secret.Data[key]) }
	g := grant{
		token:            value(registration.CredentialToken),
		clusterNamespace: value(registration.CredentialDeploymentNamespace),
		workspace:        value(registration.CredentialWorkspace),
		clusterName:      value(registration.CredentialClusterName),
		lease:            value(registration.CredentialLease),
	}
	reason := value(registration.RefusalReason)
	switch {
	case g.token == "" && reason != "":
		return answer{refusal: fmt.Sprintf("%s (%s)", member.Brief(value(registration.RefusalMessage)), member.Brief(reason)), fromHub: true}
	case g.token == "" || g.clusterNamespace == "" || g.workspace == "" || g.clusterName == "":
		return answer{missing: "the credential is not complete yet", fromHub: true}
	}
	return answer{grant: &g, fromHub: true}
}

// verify sends requests with the new credential until one succeeds. API servers may see its Roles and ServiceAccount a moment later, and Fleet's
// hub writes the Roles after the answer Secret, so no failure is final before Timing.RightsLag. The request is kept if its credential may still start to work.
// It is deleted if the hub rejects the credential: the hub would answer with the same credential again.
func (r *Registrar) verify(ctx context.Context, stored *credential.Stored) error {
	conn, err := r.Dialer.Dial(stored.Access)
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline, pauses := r.Clock.Now().Add(r.Timing.RightsLag), r.Timing.Poll()
	for {
		cause := conn.Probe(ctx)
		if cause == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if r.Clock.Now().After(deadline) {
			err := fmt.Errorf("the credential from the hub for cluster %s/%s does not work: %w", stored.Workspace, stored.ClusterName, cause)
			if hubclient.Classify(cause) == hubclient.Rejected {
				err = errors.Join(err, DeletePendingRequest(ctx, r.Member))
			}
			return err
		}
		timing.Pause(ctx, r.Clock, pauses.Step(), nil)
	}
}

// giveUp ends an attempt that was not answered in time. The request is kept if it is certain that it is still waiting: with a new request
// each time, a person would see several requests of this agent, and only the approval of the last one would help. The request is deleted
// if the hub may have granted it and deleted the credential before the agent read it, or if its labels are outdated.
func (r *Registrar) giveUp(ctx context.Context, request pendingRequest, object *fleet.ClusterRegistration, missing string) error {
	err := fmt.Errorf("the hub did not grant ClusterRegistration %s/%s within %s (%s); its conditions on the hub say why: "+
		"kubectl get clusterregistrations.fleet.cattle.io -n %[1]s %[2]s -o yaml", object.Namespace, object.Name, r.Timing.Registration, missing)
	if _, complete := r.tracker.polledSince(request.name); !complete || r.labelsChanged(ctx, request) {
		err = errors.Join(err, DeletePendingRequest(ctx, r.Member))
	}
	return err
}

// labelsChanged reports whether ConfigMap fleet-agent now has other labels than the request.
func (r *Registrar) labelsChanged(ctx context.Context, request pendingRequest) bool {
	settings, _, err := r.Member.AgentConfig(ctx)
	return err == nil && request.labelsDigest != digestOf(settings.Labels)
}

// inputChanged reports whether the objects that configure the registration now differ from in. The hub may refuse a request with an
// earlier identity for good, and an earlier CA may not verify the hub. While the agent also works with an earlier credential
// (in.ProvePossession is set), a change of ConfigMap fleet-agent-hub or of garbageCollectionInterval counts, too: only the loop applies it. If
// the bootstrap Secret or ConfigMap fleet-agent is gone or cannot be read, the attempt continues with in: the object may be created again in a
// moment.
func (r *Registrar) inputChanged(ctx context.Context, in Input, request pendingRequest, clientID string) bool {
	secret, err := r.Member.Secret(ctx, registration.BootstrapSecret)
	if err != nil || secret == nil {
		return false
	}
	identity, err := ParseIdentity(secret)
	if err != nil {
		return false
	}
	settings, found, err := r.Member.AgentConfig(ctx)
	if found {
		clientID, err = r.Member.ClientID(ctx, settings)
	} else {
		settings = in.Settings
	}
	if err != nil {
		return false
	}
	endpoint, earlier := identity.EndpointIn(settings.AgentTLSMode), in.Identity.EndpointIn(in.Settings.AgentTLSMode)
	if !request.madeWith(identity.digest(clientID)) || !endpoint.Same(earlier) {
		return true
	}
	if in.ProvePossession == nil {
		return false
	}
	hub, err := r.Member.ConfigMap(ctx, registration.AgentHubConfigMap)
	if err != nil {
		return false
	}
	digest := hubclient.Candidates{ConfigMap: hubclient.ParseConfigMap(hub)}.Digest()
	return digest != in.HubConfigDigest || settings.GarbageCollectionInterval != in.Settings.GarbageCollectionInterval
}

// logOf returns a log with fields for the request and its token.
func (r *Registrar) logOf(request *fleet.ClusterRegistration) logrus.FieldLogger {
	log := r.Log.WithField(registration.LogRequest, request.Namespace+"/"+request.Name)
	if token := request.Labels[fleet.RegistrationTokenLabel]; token != "" {
		log = log.WithField(registration.LogToken, request.Namespace+"/"+token)
	}
	return log
}

// reportRefusal reports each refusal once: in the log, and with an event on the agent's Deployment.
func (r *Registrar) reportRefusal(ctx context.Context, object *fleet.ClusterRegistration, refusal string) {
	text := fmt.Sprintf("the hub refuses ClusterRegistration %s/%s: %s", object.Namespace, object.Name, refusal)
	if ctx.Err() != nil || r.reportedRefusal == text {
		return
	}
	r.reportedRefusal = text
	r.OnState("the hub refuses the registration of this cluster; the log says why")
	r.logOf(object).Errorf("Failed to register agent: %s. The agent checks again from time to time, and at once when Secret %s or ConfigMap %s in Namespace %s changes",
		text, registration.BootstrapSecret, registration.AgentConfigMap, r.Member.Namespace)
	r.Event(ctx, corev1.EventTypeWarning, ReasonRegistrationRefused, text)
}

func (r *Registrar) tokenRejected(i *BootstrapIdentity, cause error) error {
	return fmt.Errorf("registration token %q expired or was revoked; create a new one on the hub and put its values into Secret %s/%s: %w",
		i.TokenName, r.Member.Namespace, registration.BootstrapSecret, cause)
}

// requestTracker records whether this process has polled for the answer to a request without a gap since it sent the request. The hub keeps a
// credential for 40 minutes. Without a gap there was no credential yet, and the agent will read it after a later approval. A request from before
// a restart or an outage may have been granted meanwhile, and its credential may have expired.
type requestTracker struct {
	request             string // empty while there is none
	since, lastResponse time.Time
}

func (t *requestTracker) sent(request string, now time.Time) {
	*t = requestTracker{request: request, since: now, lastResponse: now}
}

// responded records a response of the API server of the hub, also "not found". A gap longer than maxGap ends the record. The difference by the
// wall clock, which Round(0) leaves, includes the time for which the machine was suspended; the monotonic clock does not, but cannot be set back.
func (t *requestTracker) responded(now time.Time, maxGap time.Duration) {
	if max(now.Sub(t.lastResponse), now.Round(0).Sub(t.lastResponse.Round(0))) > maxGap {
		*t = requestTracker{}
	}
	t.lastResponse = now
}

// polledSince returns the time since which the agent has polled for the answer to the request; complete is false if there was a gap.
func (t *requestTracker) polledSince(request string) (since time.Time, complete bool) {
	return t.since, request != "" && t.request == request
}
