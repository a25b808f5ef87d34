package clusterregistration

import (
	"reflect"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/policy"
)

// watchRules has every request that is not granted judged anew when the rules change: the hub's configuration, or whether the
// API server records who creates requests.
func (h *handler) watchRules() {
	h.policy.Store(policy.Of(h.Config.Get().Registration.Policy))
	h.Config.OnChange(h.takeConfig)
	if h.Admission != nil {
		h.Admission.OnChange(h.judgeAnew)
	}
}

func (h *handler) takeConfig(before, after config.Hub) {
	if reflect.DeepEqual(before.Registration, after.Registration) {
		return
	}
	h.policy.Store(policy.Of(after.Registration.Policy))
	h.judgeAnew()
}

// judgeAnew lists all requests, which only such rare changes may do.
func (h *handler) judgeAnew() {
	requests, err := h.cache.List("", labels.Everything())
	if err != nil {
		return // a cache's list fails only on indexes of another name
	}
	for _, key := range ungranted(requests) {
		h.requests.EnqueueAfter(key.Namespace, key.Name, 0)
	}
}
