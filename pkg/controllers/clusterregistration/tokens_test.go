package clusterregistration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
)

// indexed answers for the cache of requests by the index that is asked for.
type indexed struct {
	requestsOf
	byUID map[string]*fleet.ClusterRegistration
}

func (i indexed) GetByIndex(name, key string) ([]*fleet.ClusterRegistration, error) {
	switch name {
	case index.ByUID:
		if r := i.byUID[key]; r != nil {
			return []*fleet.ClusterRegistration{r}, nil
		}
		return nil, nil
	case index.ByToken:
		return i.all, nil
	}
	return nil, nil
}

func TestACountBringsBackThoseItCountedAndAnyOtherChangeAll(t *testing.T) {
	one, two, granted := somePass().request, somePass().request, somePass().request
	one.Name, two.Name, granted.Name, granted.Status.Granted = "one", "two", "granted", true
	h := somePass().handler
	h.cache = indexed{
		requestsOf: requestsOf{all: []*fleet.ClusterRegistration{one, two, granted}},
		byUID:      map[string]*fleet.ClusterRegistration{"uid-1": one, "uid-2": two, "uid-3": granted},
	}
	both := []string{"one", "two"}
	now := metav1.NewTime(noon)
	for title, row := range map[string]struct {
		change func(before, after *fleet.ClusterRegistrationToken)
		want   []string
	}{
		"one was counted": {func(before, after *fleet.ClusterRegistrationToken) {
			before.Status.PendingUses, after.Status.PendingUses = []string{"uid-2"}, []string{"uid-2", "uid-1", "uid-3"}
			after.Status.Uses, after.Status.LastUsed, after.Status.LastCluster = 3, &now, "c"
		}, []string{"one"}},
		"one that is gone was counted": {func(_, after *fleet.ClusterRegistrationToken) { after.Status.PendingUses = []string{"gone"} }, nil},
		"one is named no longer":       {func(before, _ *fleet.ClusterRegistrationToken) { before.Status.PendingUses = []string{"uid-1"} }, nil},
		"one was counted of few": {func(before, after *fleet.ClusterRegistrationToken) {
			before.Spec.UsageLimit, after.Spec.UsageLimit = ptr.To(int32(2)), ptr.To(int32(2))
			after.Status.Uses, after.Status.PendingUses = 1, []string{"uid-1"}
		}, both},
		"the limit was lifted":       {func(before, _ *fleet.ClusterRegistrationToken) { before.Spec.UsageLimit = ptr.To(int32(2)) }, both},
		"who is let in changed":      {func(_, after *fleet.ClusterRegistrationToken) { after.Spec.ClientIDs = []string{"x"} }, both},
		"it got its Secret":          {func(_, after *fleet.ClusterRegistrationToken) { after.Status.SecretName = "tok" }, both},
		"a label a rule may ask for": {func(_, after *fleet.ClusterRegistrationToken) { after.Labels = map[string]string{"a": "b"} }, both},
		"an annotation":              {func(_, after *fleet.ClusterRegistrationToken) { after.Annotations = map[string]string{"a": "b"} }, both},
		"it is being deleted": {func(_, after *fleet.ClusterRegistrationToken) {
			after.DeletionTimestamp = ptr.To(metav1.NewTime(noon.Add(time.Second)))
		}, both},
	} {
		before, after := someToken(), someToken()
		row.change(before, after)
		assert.Equal(t, row.want, names(h.helpedByToken(before, after)), title)
	}
	assert.Equal(t, both, names(h.helpedByToken(nil, someToken())), "a new one")
	assert.Equal(t, both, names(h.helpedByToken(someToken(), nil)), "one that is gone")
}

func names(keys []types.NamespacedName) (all []string) {
	for _, key := range keys {
		all = append(all, key.Name)
	}
	return all
}

func TestAStormIsCountedWithFewWrites(t *testing.T) {
	for pending, want := range map[int]time.Duration{0: 0, few: gather, storm - 1: gather, storm: gatherInStorm} {
		p, token, queue := somePass(), someToken(), &tokenQueue{}
		p.Fleet = fleetOf{tokens: queue}
		token.Status.PendingUses = make([]string, pending)
		p.ask(token)
		assert.Equal(t, []time.Duration{want}, queue.delays, pending)
	}
}
