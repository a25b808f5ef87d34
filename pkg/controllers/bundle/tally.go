package bundle

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// settle is from the first change of something to the status that shows it: many changes make one write.
const settle = time.Second

// tally counts the BundleDeployments of every Bundle by state. Each event of one costs the same, however many there are.
type tally struct {
	mu          sync.Mutex
	deployments map[key]*entry
	bundles     map[key]*count
	// expecting are the Bundles that expect something in a cluster namespace. Each change of a Cluster asks for those of its
	// own, and while a Bundle is rolled out to thousands there may be many Bundles.
	expecting map[string]map[key]bool
}

func newTally() *tally {
	return &tally{deployments: map[key]*entry{}, bundles: map[key]*count{}, expecting: map[string]map[key]bool{}}
}

// entry is a BundleDeployment that is counted, in that version.
type entry struct {
	contribution
	version string
}

// contribution is what one BundleDeployment adds to the status of its Bundle and of its Cluster.
type contribution struct {
	bundle    key
	cluster   key
	state     fleet.BundleState
	message   string
	resources fleet.ResourceCounts
}

func contributionOf(d *fleet.BundleDeployment) contribution {
	state := fleetstatus.BundleState(d.Spec, d.Status)
	return contribution{
		bundle: bundleOf(d), cluster: key{Namespace: d.Labels[fleet.ClusterNamespaceLabel], Name: d.Labels[fleet.ClusterLabel]},
		state: state, message: messageOf(d, state), resources: d.Status.ResourceCounts,
	}
}

// count is of one Bundle. Most are of an agent and count one BundleDeployment, so maps that are empty are nil: Go makes one for eight
// entries at once, and keeps it when they are gone.
type count struct {
	states  fleet.BundleSummary
	unready map[key]bool
	// expected are the cluster namespaces, with their Clusters, that have not been looked at since the Bundle
	// changed. What is deployed there says nothing about the Bundle as it is now.
	expected map[string]key
	// changed is when the status began to be out of date; zero, while it is not.
	changed time.Time
	// version counts the changes.
	version int
	// gone is set while the Bundle is not there: the count goes with the last of its BundleDeployments.
	gone bool
}

func (t *tally) of(bundle key) *count {
	c := t.bundles[bundle]
	if c == nil {
		c = &count{}
		t.bundles[bundle] = c
	}
	return c
}

func (c *count) touch(now time.Time) {
	c.version++
	if c.changed.IsZero() {
		c.changed = now
	}
}

// put counts a BundleDeployment as it is now, and says whether that changes anything. The answer to a write of the hub may
// come after the event of what an agent reported about it, and must not undo that.
func (t *tally) put(d *fleet.BundleDeployment, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, c := keyOf(d), contributionOf(d)
	before := t.deployments[at]
	if before != nil && isOlder(d.ResourceVersion, before.version) || before == nil && c.bundle == (key{}) {
		return false
	}
	if before != nil && before.contribution == c {
		before.version = d.ResourceVersion
		return false
	}
	t.take(at, now)
	if c.bundle == (key{}) {
		return true
	}
	t.deployments[at] = &entry{c, d.ResourceVersion}
	t.of(c.bundle).add(at, c.state, now)
	return true
}

func (c *count) add(at key, state fleet.BundleState, now time.Time) {
	tick(&c.states, state, 1)
	if state != fleet.Ready {
		if c.unready == nil {
			c.unready = map[key]bool{}
		}
		c.unready[at] = true
	}
	c.touch(now)
}

func (c *count) drop(at key, state fleet.BundleState, now time.Time) {
	tick(&c.states, state, -1)
	if delete(c.unready, at); len(c.unready) == 0 {
		c.unready = nil
	}
	c.touch(now)
}

func isOlder(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order < 0
}

// remove stops counting a BundleDeployment that is gone.
func (t *tally) remove(at key, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if before := t.take(at, now); before != nil {
		t.dropEmpty(before.bundle)
	}
}

// take is nil where the BundleDeployment was not counted.
func (t *tally) take(at key, now time.Time) (before *entry) {
	before = t.deployments[at]
	if before != nil {
		delete(t.deployments, at)
		t.of(before.bundle).drop(at, before.state, now)
	}
	return before
}

// expect begins a change of a Bundle that concerns these cluster namespaces.
func (t *tally) expect(bundle key, namespaces map[string]key, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unexpect(bundle)
	c := t.of(bundle)
	c.expected, c.gone = namespaces, false
	for namespace := range namespaces {
		if t.expecting[namespace] == nil {
			t.expecting[namespace] = map[key]bool{}
		}
		t.expecting[namespace][bundle] = true
	}
	c.touch(now)
}

// unexpect drops what a Bundle still expects.
func (t *tally) unexpect(bundle key) {
	c := t.of(bundle)
	for namespace := range c.expected {
		t.strike(bundle, namespace)
	}
	c.expected = nil
}

// strike keeps no entry of a cluster namespace in which nothing is expected: that may be gone.
func (t *tally) strike(bundle key, namespace string) {
	delete(t.expecting[namespace], bundle)
	if len(t.expecting[namespace]) == 0 {
		delete(t.expecting, namespace)
	}
}

// expectedIn are the Bundles that expect something in a cluster namespace.
func (t *tally) expectedIn(namespace string) []key {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.expecting[namespace]))
}

// arrived says that the Bundles are in a cluster namespace as they are now, and returns those of which that was news.
func (t *tally) arrived(namespace string, bundles []key, now time.Time) (news []key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, bundle := range bundles {
		if t.meet(bundle, namespace, now) {
			news = append(news, bundle)
		}
	}
	return news
}

// forgetCluster is told of each cluster namespace that gets no Bundles any more.
func (t *tally) forgetCluster(namespace string, now time.Time) (news []key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for bundle := range maps.Clone(t.expecting[namespace]) {
		if t.meet(bundle, namespace, now) {
			news = append(news, bundle)
		}
	}
	return news
}

// meet strikes a cluster namespace from those that are expected.
func (t *tally) meet(bundle key, namespace string, now time.Time) bool {
	if !t.expecting[namespace][bundle] {
		return false
	}
	t.strike(bundle, namespace)
	c := t.of(bundle)
	if delete(c.expected, namespace); len(c.expected) == 0 {
		c.expected = nil
	}
	c.touch(now)
	return true
}

// forget drops a Bundle that is gone, unless some of its BundleDeployments are left.
func (t *tally) forget(bundle key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.bundles[bundle]
	if c == nil {
		return
	}
	t.unexpect(bundle)
	c.gone = true
	t.dropEmpty(bundle)
}

// dropEmpty drops the count of a Bundle that is gone and of which nothing is deployed any more. Whichever of the two ends first: a hub
// that runs for long has seen more Bundles than there are.
func (t *tally) dropEmpty(bundle key) {
	if c := t.bundles[bundle]; c != nil && c.gone && c.states.DesiredReady == 0 {
		delete(t.bundles, bundle)
	}
}

// wait is how long the status of a Bundle is still to wait for more changes.
func (t *tally) wait(bundle key, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.bundles[bundle]
	if c == nil || c.changed.IsZero() {
		return 0
	}
	return max(0, c.changed.Add(settle).Sub(now))
}

// summary is that of a Bundle, and which version of it.
func (t *tally) summary(bundle key) (s fleet.BundleSummary, version int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.bundles[bundle]
	if c == nil {
		return s, 0
	}
	s = c.states
	unready := make(map[key]contribution, len(c.unready)+len(c.expected))
	for at := range c.unready {
		unready[at] = t.deployments[at].contribution
	}
	for namespace, cluster := range c.expected {
		at := key{Namespace: namespace, Name: bundle.Name}
		if d := t.deployments[at]; d != nil {
			tick(&s, d.state, -1)
		}
		tick(&s, fleet.WaitApplied, 1)
		unready[at] = contribution{cluster: cluster, state: fleet.WaitApplied}
	}
	s.NonReadyResources = listed(unready)
	return s, c.version
}

func listed(unready map[key]contribution) []fleet.NonReadyResource {
	list := make([]fleet.NonReadyResource, 0, len(unready))
	for _, d := range unready {
		list = append(list, fleet.NonReadyResource{Name: d.cluster.String(), State: d.state, Message: d.message})
	}
	return worstOf(list)
}

// wrote says that the status shows that version.
func (t *tally) wrote(bundle key, version int, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.bundles[bundle]
	switch {
	case c == nil:
	case c.version == version:
		c.changed = time.Time{}
	default:
		c.changed = now // what came since waits its time again
	}
}
