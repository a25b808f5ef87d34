package clusterregistration

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/policy"
	"github.com/muster-fleet/muster/pkg/registration"
)

// aMoment is how long it takes at most until the cache has seen what the hub wrote itself.
const aMoment = 50 * time.Millisecond

// judge decides whether the request may be granted. Until it is, that is decided anew in each pass: what counts is how
// things are when the agent gets its credential.
func (p *pass) judge(ctx context.Context) result.Result {
	held, certain, err := p.isHeld(ctx)
	switch {
	case err != nil:
		return failed(err)
	case !certain:
		return result.Skip().In(aMoment)
	}
	settings := p.Config.Get().Registration
	judgement := registration.Judge(registration.Case{
		Request:         p.request,
		Token:           p.token,
		Cluster:         p.cluster,
		Held:            held,
		Origin:          p.origin,
		Ruling:          p.policy.Load().Rule(policy.Case{Request: p.request, Token: p.token, Cluster: p.cluster}),
		Approval:        settings.Approval,
		RefuseLongLived: settings.LongLivedCredentials == config.LongLivedRefuse,
	})
	p.noteApproval(judgement.Approval)
	switch {
	case judgement.Refuse != nil:
		return refused(judgement.Refuse).In(p.lostIn)
	case judgement.Wait != nil:
		return waiting(judgement.Wait).Told()
	}
	return ok
}

// isHeld says whether an agent has registered for the Cluster: one was heard of, or the answer to one that was granted still
// lies on the hub. An answer nobody has used until it was taken away is lost; it keeps nobody from asking again. It is not
// certain while another request of the same identity was granted and the cache has not seen it.
func (p *pass) isHeld(ctx context.Context) (held, certain bool, err error) {
	if p.cluster == nil {
		return false, true, nil
	}
	requests, err := p.cache.GetByIndex(index.ByClientID, index.Key(p.request.Namespace, p.request.Spec.ClientID))
	if err != nil {
		return false, false, err
	}
	held = !p.cluster.Status.Agent.LastSeen.IsZero()
	for _, r := range requests {
		if r.UID == p.request.UID {
			continue
		}
		if p.grants.IsStale(r) {
			return false, false, nil
		}
		if held || !r.Status.Granted || r.DeletionTimestamp != nil {
			continue
		}
		if held, err = p.waitsForItsAgent(ctx, r); err != nil {
			return false, false, err
		}
	}
	return held, true, nil
}

// lostAfter is how long an agent may be silent that was given its credential. The first thing it does with it is to check in.
const lostAfter = 5 * time.Minute

// waitsForItsAgent says whether the answer to a granted request still lies on the hub for an agent that may come for it, or has.
func (p *pass) waitsForItsAgent(ctx context.Context, request *fleet.ClusterRegistration) (bool, error) {
	answer, err := p.answerTo(ctx, request)
	switch {
	case err != nil:
		return false, err
	case answer == nil || !isFor(answer, request):
		return false, nil
	case !p.mayBeOfOneAgent(request):
		return true, nil
	}
	p.lostIn = max(lostAfter-p.Clock.Since(answer.CreationTimestamp.Time), 0)
	return p.lostIn > 0, nil
}

// answerTo reads a Secret that the cache does not have, which nobody's agent has used for long or which was made a moment ago:
// the watch of Secrets may be behind that of requests, and a second agent would be granted the same identity.
func (p *pass) answerTo(ctx context.Context, request *fleet.ClusterRegistration) (*corev1.Secret, error) {
	name := registration.CredentialSecretName(request.Spec.ClientID, request.Spec.ClientRandom)
	answer, err := p.secrets.Get(p.RegistrationNamespace(), name)
	if apierrors.IsNotFound(err) {
		answer, err = p.Kubernetes.CoreV1().Secrets(p.RegistrationNamespace()).Get(ctx, name, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("looking for the answer to ClusterRegistration %s: %w", request.Name, err)
	}
	return answer, nil
}

// mayBeOfOneAgent says whether an earlier request may be one that an agent has lost, which was stopped before it had stored the
// answer: it came with the same token. Whoever holds that could read the answer anyway, so this gives nobody more than he has.
// An agent that renews its credential remembers its request, and loses none.
func (p *pass) mayBeOfOneAgent(earlier *fleet.ClusterRegistration) bool {
	origin := registration.OriginOf(earlier, p.recording())
	return p.origin.Proved() && origin.Proved() && origin.Creator == p.origin.Creator && !renews(p.request) && !renews(earlier)
}

// noteApproval keeps condition Approved, which is there only where somebody is asked.
func (p *pass) noteApproval(approval *registration.Approval) {
	if approval == nil {
		p.after.Conditions = slices.DeleteFunc(slices.Clone(p.after.Conditions), func(c condition) bool {
			return c.Type == fleet.ConditionApproved
		})
		return
	}
	var out result.Result
	switch approval.Reason {
	case fleet.ReasonApproved:
		out = result.Done(approval.Reason, approval.Message)
	case fleet.ReasonDenied:
		out = result.Stalled(approval.Reason, approval.Message)
	default:
		out = result.Wait(approval.Reason, approval.Message)
	}
	p.approval = result.Set(&p.after.Conditions, fleet.ConditionApproved, out, p.Clock.Now())
}

// recordApproval leaves a trace of an approval. That of a denial, or of the wait for a decision, is the transition of Granted.
func (p *pass) recordApproval(request *fleet.ClusterRegistration) {
	if p.approval != nil && p.approval.After == corev1.ConditionTrue {
		p.Events.Event(request, corev1.EventTypeNormal, p.approval.Reason, p.approval.Message)
	}
}
