package clusterregistration

import (
	"context"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/outcome"
	"github.com/muster-fleet/muster/pkg/registration"
)

// pass is one look at one request. Its steps are in the order in which they build on each other; each leaves alone what
// an earlier pass has done already, so that a pass can be cut off anywhere and taken up again.
type pass struct {
	*handler
	request *fleet.ClusterRegistration
	after   *fleet.ClusterRegistrationStatus

	cluster *fleet.Cluster
	reader  *registration.Token // whose ServiceAccount may read the credential
}

func (p *pass) run(ctx context.Context) outcome.Outcome {
	steps := p.toGrant()
	if p.request.Status.Granted {
		steps = p.toKeep()
	}
	for _, step := range steps {
		if out := step(ctx); !out.IsDone() {
			return out
		}
	}
	p.after.Granted = true
	p.after.ClusterName = p.cluster.Name
	_, dropped := registration.AcceptLabels(p.request.Spec.ClusterLabels)
	return outcome.Done(fleet.ReasonGranted, registration.DroppedLabelsMessage(dropped))
}

type step func(context.Context) outcome.Outcome

func (p *pass) toGrant() []step {
	return []step{
		p.findCluster,
		p.bindToCluster,
		p.waitForNamespace,
		p.refuseLatecomer,
		p.findReader,
		p.refuseTaken,
		p.ensureRights,
		p.ensureCredential,
		p.supersede,
	}
}

// toKeep repairs what belongs to a granted request. It does not judge the request anew: the token it was made with may
// have expired long since.
func (p *pass) toKeep() []step {
	return []step{
		p.keepCluster,
		p.noticeRevocation,
		p.keepReader,
		p.ensureRights,
	}
}

var ok = outcome.Done("", "")

func refused(r *registration.Refusal) outcome.Outcome { return outcome.Stalled(r.Reason, r.Message) }

func waiting(r *registration.Refusal) outcome.Outcome { return outcome.Wait(r.Reason, r.Message) }

func failed(err error) outcome.Outcome { return outcome.Retry(fleet.ReasonError, err) }
