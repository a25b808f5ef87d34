package clusterregistration

import (
	"context"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

type condition = genericcondition.GenericCondition

// proveOrigin finds the token the request was made with, and compares its holder with the user the API server recorded.
// The condition is written with the next decision, for it is worth no write of its own.
func (p *pass) proveOrigin(ctx context.Context) result.Result {
	out := p.findReader(ctx)
	if out.Err != nil {
		return out
	}
	if p.reader != nil {
		p.origin = p.origin.For(p.request.Namespace, *p.reader)
	}
	proof := result.Stalled(p.origin.Reason, p.origin.Message)
	if p.origin.Proved() {
		proof = result.Done(p.origin.Reason, p.origin.Message)
	}
	result.Set(&p.after.Conditions, fleet.ConditionOriginProved, proof, p.Clock.Now())
	return out
}

func (h *handler) recording() registration.Recording {
	if h.Admission == nil {
		return registration.Recording{Missing: "the hub runs without admission policies, so nobody records who creates requests"}
	}
	since, inForce := h.Admission.InForce()
	return registration.Recording{InForce: inForce, Since: since, Missing: h.Admission.Missing()}
}

// alarm tells whoever watches a Cluster that somebody was refused its identity. It is called once for each such refusal.
func (p *pass) alarm(refusal *result.Transition) {
	if refusal == nil || p.cluster == nil {
		return
	}
	switch refusal.Reason {
	case fleet.ReasonClientIDInUse, fleet.ReasonTokenMismatch:
		p.Events.Eventf(p.cluster, corev1.EventTypeWarning, refusal.Reason,
			"ClusterRegistration %s, created by %s, asked for the identity of this Cluster and was refused", p.request.Name, p.creator())
	}
}

func (p *pass) creator() string {
	if p.origin.Creator == "" {
		return "an unknown user"
	}
	return p.origin.Creator
}
