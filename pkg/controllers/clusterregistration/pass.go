package clusterregistration

import (
	"context"
	"time"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

// pass is one look at one request. Its steps are in the order in which they build on each other; each leaves alone what
// an earlier pass has done already, so that a pass can be cut off anywhere and taken up again.
type pass struct {
	*handler
	request *fleet.ClusterRegistration
	after   *fleet.ClusterRegistrationStatus

	cluster    *fleet.Cluster
	newCluster string                          // the name of the Cluster to be made where there is none
	token      *fleet.ClusterRegistrationToken // the agent registers with
	reader     *registration.Token             // whose ServiceAccount may read the credential: that of the token
	origin     registration.Origin             // who created the request
	uncounted  string                          // the name of a token without a limit that has not counted the request yet

	approval *result.Transition // of condition Approved
	lostIn   time.Duration      // when an answer that keeps the identity counts as lost; 0 where none will
}

func (p *pass) run(ctx context.Context) result.Result {
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
	return result.Done(fleet.ReasonGranted, registration.DroppedLabelsMessage(dropped))
}

type step func(context.Context) result.Result

// toGrant makes nothing before the request has been judged.
func (p *pass) toGrant() []step {
	return []step{
		p.findCluster,
		p.bindToCluster,
		p.leaveToOthers,
		p.refuseLatecomer,
		p.proveOrigin,
		p.cutOff,
		p.judge,
		p.refuseTaken,
		p.countUse,
		p.createCluster,
		p.waitForNamespace,
		p.awaitCount,
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
		p.refreshCredential,
		p.supersedeUsed,
	}
}

var ok = result.Done("", "")

func refused(r *registration.Refusal) result.Result { return result.Stalled(r.Reason, r.Message) }

func waiting(r *registration.Refusal) result.Result { return result.Wait(r.Reason, r.Message) }

func failed(err error) result.Result { return result.Retry(fleet.ReasonError, err) }
