package clusterregistration

import (
	"testing"

	applyfake "github.com/rancher/wrangler/v3/pkg/apply/fake"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/guard"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
)

var denied = result.Stalled(fleet.ReasonDenied, "no")

// given is a pass at a request whose rights an earlier pass has made, without coming to grant it.
func given() (p *pass, api *latestRequest, removing *applyfake.FakeApply) {
	p = judged()
	api, removing = &latestRequest{latest: p.request}, &applyfake.FakeApply{}
	p.requests, p.secrets, p.sets = api, noSecrets{}, desiredset.New(removing, nil)
	p.accounts = accountsOf{all: []*corev1.ServiceAccount{p.account()}}
	return p, api, removing
}

func TestWhatARefusedRequestWasGivenIsTakenBackBeforeItIsToldSo(t *testing.T) {
	granted := func(p *pass) {
		rival, _ := p.earlier()
		p.cache = requestsOf{all: []*fleet.ClusterRegistration{p.request, rival}}
	}
	for _, row := range []struct {
		name   string
		out    result.Result
		change func(*pass)
		taken  bool
	}{
		{"a person denied it", denied, nil, true},
		{"its token is gone", result.Stalled(fleet.ReasonTokenNotFound, ""), nil, true},
		{"another agent was granted the identity", inUse, granted, true},
		{"the agent heard of may be its own", inUse, nil, false},
		{"the agent heard of says that it is its own", inUse, func(p *pass) {
			granted(p)
			p.cluster.Status.Agent.Registration = p.request.Name
		}, false},
		{"nobody knows who has the identity", inUse, func(p *pass) { p.cache = requestsOf{err: errBadDay} }, false},
		{"quarantine leaves the bare identity", result.Stalled(fleet.ReasonQuarantined, ""), nil, false},
		{"the agent registered again", result.Stalled(fleet.ReasonSuperseded, ""), nil, false},
		{"a name is taken", result.Stalled(fleet.ReasonNameConflict, ""), nil, false},
		{"it waits", result.Wait(fleet.ReasonWaitingForApproval, ""), nil, false},
		{"an error", result.Retry(fleet.ReasonError, errBadDay), nil, false},
		{"it is granted", result.Done(fleet.ReasonGranted, ""), nil, false},
		{"it was granted before", denied, func(p *pass) { p.request.Status.Granted = true }, false},
		{"it was given nothing", denied, func(p *pass) { p.accounts = accountsOf{} }, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, api, removing := given()
			if row.change != nil {
				row.change(p)
			}
			out := p.takeBack(t.Context(), row.out)
			if !row.taken {
				assert.Equal(t, row.out, out)
				assert.Zero(t, removing.Count)
				assert.Zero(t, api.asked, "an ordinary refusal costs no request")
				return
			}
			assert.Equal(t, result.Skip().In(aMoment), out)
			assert.NotZero(t, removing.Count)
		})
	}
}

func TestALookAtARefusedRequestEndsWithWhatItWasGivenTakenBack(t *testing.T) {
	p, api, removing := given()
	p.known, p.Passes = noClusters{}, guard.NewPasses(t.Context())
	p.request.Spec.ClientID = ""
	_, err := p.onChange("", p.request)
	require.NoError(t, err)
	assert.NotZero(t, removing.Count)
	assert.Equal(t, aMoment, api.again)
}

func TestWhatIsOnItsWayToTheCacheIsTakenBackToo(t *testing.T) {
	p, _, removing := given()
	all := p.accounts
	p.accounts = accountsOf{}
	client := fake.NewClientset()
	client.PrependReactor("create", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errBadDay })
	p.sets = desiredset.New(removing, client)
	require.ErrorIs(t, p.ensureRights(t.Context()).Err, errBadDay, "how far it got nobody knows")
	assert.Equal(t, result.Skip().In(aMoment), p.takeBack(t.Context(), denied))
	p.accounts = all
	removing.Count = 0
	assert.Equal(t, result.Skip().In(aMoment), p.takeBack(t.Context(), denied))
	assert.NotZero(t, removing.Count)
	p.accounts = accountsOf{}
	assert.Equal(t, denied, p.takeBack(t.Context(), denied), "now it is told")
}

func TestAGrantTheCacheHasNotSeenKeepsWhatItGave(t *testing.T) {
	p, api, removing := given()
	api.latest = p.request.DeepCopy()
	api.latest.Status.Granted = true
	assert.Equal(t, result.Skip().In(aMoment), p.takeBack(t.Context(), denied))
	api.err = apierrors.NewNotFound(schema.GroupResource{}, p.request.Name)
	assert.Equal(t, result.Skip(), p.takeBack(t.Context(), denied))
	api.err = errBadDay
	require.ErrorIs(t, p.takeBack(t.Context(), denied).Err, errBadDay)
	assert.Zero(t, removing.Count)
	p.accounts = accountsOf{err: errBadDay}
	require.ErrorIs(t, p.takeBack(t.Context(), denied).Err, errBadDay)
}
