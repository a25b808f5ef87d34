package deploy

import (
	"context"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned/fake"
	"github.com/muster-fleet/muster/pkg/release"
)

// waits is a queue that only notes how long each key is to wait.
type waits struct {
	workqueue.TypedDelayingInterface[string]
	all []time.Duration
}

// Add is not to wait at all.
func (w *waits) Add(string) { w.all = append(w.all, 0) }

// AddAfter is to wait.
func (w *waits) AddAfter(_ string, d time.Duration) { w.all = append(w.all, d) }

func (w *waits) last() time.Duration { return w.all[len(w.all)-1] }

// puppet is a deployer that does nothing by itself.
type puppet struct {
	*deployer
	clock *clocktesting.FakeClock
	hub   *fake.Clientset
	queue *waits
	bd    *fleet.BundleDeployment
}

func newPuppet() *puppet {
	bd := &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "cluster-ns", Name: "app", ResourceVersion: "5"}}
	bd.Spec.DeploymentID = "one"
	p := &puppet{clock: clocktesting.NewFakeClock(time.Unix(1e9, 0)), hub: fake.NewSimpleClientset(bd), queue: &waits{}, bd: bd}
	c := Config{Hub: p.hub, Namespace: bd.Namespace, Clock: p.clock, Log: quiet()}.withDefaults()
	p.deployer = &deployer{
		Config: c, items: newItems(), queue: p.queue, drifts: &waits{}, shelf: newShelf(func(string) {}),
		live: newLive(context.Background(), nil, func(string, string) {}),
	}
	return p
}

func quiet() logrus.FieldLogger {
	log := logrus.New()
	log.SetLevel(logrus.PanicLevel)
	return log
}

func TestPausesBeginAnewAfterAStatusWasWritten(t *testing.T) {
	p := newPuppet()
	away := true
	p.hub.PrependReactor("patch", "bundledeployments", func(kubetesting.Action) (bool, runtime.Object, error) {
		return away, nil, assert.AnError
	})
	it := p.items.get("app")
	show := func() { p.show(t.Context(), "app", p.bd, it, false) }
	for range 20 {
		show()
	}
	assert.GreaterOrEqual(t, p.queue.last(), p.Timing.RetryMax, "a long outage")
	away = false
	show()
	away = true
	p.bd.Spec.Paused = true
	it.written = written{}
	show()
	assert.Len(t, p.queue.all, 21)
	assert.Less(t, p.queue.last(), 2*p.Timing.RetryFirst, "another outage")

	p.failed("app", p.bd, it, assert.AnError)
	away = false
	for range 10 {
		it.written = written{}
		show()
		p.failed("app", p.bd, it, assert.AnError)
	}
	assert.Greater(t, p.queue.last(), time.Minute, "what cannot be deployed is tried less and less often, however often that is shown")
}

func TestAStatusIsWrittenAgainToAHubThatWasRestored(t *testing.T) {
	p := newPuppet()
	it := p.items.get("app")
	p.show(t.Context(), "app", p.bd, it, false)
	said := statuses(p)
	require.Len(t, said, 1)
	it.written.version = "9"
	restored := p.bd.DeepCopy()
	restored.ResourceVersion = "7"
	p.show(t.Context(), "app", restored, it, false)
	assert.Len(t, statuses(p), 1, "a watch that is late shows the status from before")

	p.bundleHandler().OnUpdate(p.bd, restored)
	p.show(t.Context(), "app", restored, it, false)
	assert.Len(t, statuses(p), 1, "nothing was turned back")
	lost := p.bd.DeepCopy()
	lost.ResourceVersion = "9"
	p.bundleHandler().OnUpdate(lost, restored)
	p.show(t.Context(), "app", restored, it, false)
	assert.Len(t, statuses(p), 2)
}

// statuses are what the hub was sent.
func statuses(p *puppet) (all []string) {
	for _, action := range p.hub.Actions() {
		if patch, ok := action.(kubetesting.PatchAction); ok {
			all = append(all, string(patch.GetPatch()))
		}
	}
	return all
}

func TestAKindThatIsNeverKnownIsLookedForLessAndLessOften(t *testing.T) {
	p := newPuppet()
	object := release.Object{Resource: corev1.SchemeGroupVersion.WithResource("configmaps"), Desired: &unstructured.Unstructured{}}
	p.live.kinds[object.Resource] = &kind{synced: func() bool { return false }}
	deployed, it := &release.Deployed{Objects: []release.Object{object}}, p.items.get("app")
	looks, begun := 0, p.clock.Now()
	for p.clock.Since(begun) < time.Hour {
		looks++
		waited := p.clock.Since(begun)
		assert.Equal(t, waited > patience, p.known("app", it, deployed), waited)
		p.clock.Step(p.queue.last())
	}
	assert.Less(t, looks, 200)
	assert.Equal(t, p.Timing.Settle, p.queue.all[0], "a kind is mostly known in a moment")
	assert.Equal(t, longestLook, p.queue.last())
}
