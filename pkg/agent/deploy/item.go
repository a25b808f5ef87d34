package deploy

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/muster-fleet/muster/pkg/release"
)

// item is what is known of one BundleDeployment beside what the watches know. Nothing of it is needed after a restart.
type item struct {
	mu sync.Mutex
	// deployed is the release; nil until it was deployed or read.
	deployed *release.Deployed
	// failed is the deployment ID whose deployment failed last, and failure why.
	failed  string
	failure error
	// until is when to try the failed one again; pauses are between attempts.
	until  time.Time
	pauses *wait.Backoff
	// corrected is when drift was last undone; corrections are the pauses in between.
	corrected   time.Time
	corrections *wait.Backoff
	// unwatched is since when the kinds of the release were not known all; zero when they are.
	unwatched time.Time
	// gone is since when the BundleDeployment is known not to be on the hub; zero when it is there.
	gone time.Time
	// waitsFor is what has to be there first.
	waitsFor string
	// drift is what differs, by object.
	drift drift
	// written is the status that was reported last.
	written written
}

// items are all of them by key.
type items struct {
	mu    sync.Mutex
	byKey map[string]*item
	// places lead from a release to its BundleDeployment.
	places map[place]string
}

type place struct{ namespace, name string }

func newItems() *items { return &items{byKey: map[string]*item{}, places: map[place]string{}} }

func (i *items) get(key string) *item {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.byKey[key] == nil {
		i.byKey[key] = &item{}
	}
	return i.byKey[key]
}

func (i *items) drop(key string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.byKey, key)
	for at, owner := range i.places {
		if owner == key {
			delete(i.places, at)
		}
	}
}

func (i *items) settle(p place, key string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.places[p] = key
}

func (i *items) at(namespace, name string) (key string, known bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	key, known = i.places[place{namespace, name}]
	return key, known
}

func (i *items) keys() (all []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for key := range i.byKey {
		all = append(all, key)
	}
	return all
}

// waiting are those that wait for others.
func (i *items) waiting() (all []string) {
	for _, key := range i.keys() {
		it := i.get(key)
		it.mu.Lock()
		if it.waitsFor != "" {
			all = append(all, key)
		}
		it.mu.Unlock()
	}
	return all
}
