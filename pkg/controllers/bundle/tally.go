package bundle

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// settle is from the first change of something to the status that shows it: many changes make one write.
const settle = time.Second

// tally counts the BundleDeployments of every Bundle by state. Each event of one costs the same, however many there are.
type tally struct {
	mu          sync.Mutex
	deployments map[key]contribution
	versions    map[key]string // the resourceVersions of those that are counted
	bundles     map[key]*count
	// expecting are the Bundles that expect something in a cluster namespace. Each change of a Cluster asks for those of its
	// own, and while a Bundle is rolled out to thousands there may be many Bundles.
	expecting map[string]map[key]bool
}

func newTally() *tally {
	return &tally{
		deployments: map[key]contribution{}, versions: map[key]string{}, bundles: map[key]*count{}, expecting: map[string]map[key]bool{},
	}
}

// contribution is what one BundleDeployment adds to the status of its Bundle and of its Cluster.
type contribution struct {
	bundle    key
	cluster   string
	state     fleet.BundleState
	message   string
	resources fleet.ResourceCounts
}

func contributionOf(d *fleet.BundleDeployment) contribution {
	state := stateOf(d)
	return contribution{
		bundle: bundleOf(d), cluster: d.Labels[fleet.ClusterNamespaceLabel] + "/" + d.Labels[fleet.ClusterLabel],
		state: state, message: messageOf(d, state), resources: d.Status.ResourceCounts,
	}
}

// count is of one Bundle.
type count struct {
	byState map[fleet.BundleState]int
	unready map[key]contribution
	// expected are the cluster namespaces, with the names of their Clusters, that have not been looked at since the Bundle
	// changed. What is deployed there says nothing about the Bundle as it is now.
	expected map[string]string
	// changed is when the status began to be out of date; zero, while it is not.
	changed time.Time
	// version counts the changes.
	version int
}

func (t *tally) of(bundle key) *count {
	c := t.bundles[bundle]
	if c == nil {
		c = &count{byState: map[fleet.BundleState]int{}, unready: map[key]contribution{}}
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
	before, known := t.deployments[at]
	if known && isOlder(d.ResourceVersion, t.versions[at]) || !known && c.bundle == (key{}) {
		return false
	}
	if known && before == c {
		t.versions[at] = d.ResourceVersion
		return false
	}
	t.take(at, before, known, now)
	if c.bundle == (key{}) {
		return true
	}
	t.deployments[at], t.versions[at] = c, d.ResourceVersion
	b := t.of(c.bundle)
	b.byState[c.state]++
	if c.state != fleet.Ready {
		b.unready[at] = c
	}
	b.touch(now)
	return true
}

func isOlder(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order < 0
}

// remove stops counting a BundleDeployment that is gone.
func (t *tally) remove(at key, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before, known := t.deployments[at]
	t.take(at, before, known, now)
}

func (t *tally) take(at key, before contribution, known bool, now time.Time) {
	if !known {
		return
	}
	delete(t.deployments, at)
	delete(t.versions, at)
	b := t.of(before.bundle)
	b.byState[before.state]--
	delete(b.unready, at)
	b.touch(now)
}

// expect begins a change of a Bundle that concerns these cluster namespaces.
func (t *tally) expect(bundle key, namespaces map[string]string, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unexpect(bundle)
	c := t.of(bundle)
	c.expected = namespaces
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
	delete(c.expected, namespace)
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
	if counted(c.byState).DesiredReady == 0 {
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
	byState, unready := maps.Clone(c.byState), maps.Clone(c.unready)
	for namespace, cluster := range c.expected {
		at := key{Namespace: namespace, Name: bundle.Name}
		if d, known := t.deployments[at]; known {
			byState[d.state]--
		}
		byState[fleet.WaitApplied]++
		unready[at] = contribution{cluster: cluster, state: fleet.WaitApplied}
	}
	s = counted(byState)
	s.NonReadyResources = listed(unready)
	return s, c.version
}

func listed(unready map[key]contribution) []fleet.NonReadyResource {
	list := make([]fleet.NonReadyResource, 0, len(unready))
	for _, d := range unready {
		list = append(list, fleet.NonReadyResource{Name: d.cluster, State: d.state, Message: d.message})
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
