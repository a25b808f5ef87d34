package privilege

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	muster "github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/registration"
)

// A hub that may list its kinds, but not watch them, starts and works with what it has listed. It reports that it notices no changes, and continues once it
// has the right again.
func TestHubThatMayNotWatch(t *testing.T) {
	hub, _ := testenv.Clusters(t)
	install := hub.InstallChart(t, chartValues(hub, true))
	roles := hub.Kubernetes.RbacV1().ClusterRoles()
	role := testenv.RequireThere(t, roles.Get, registration.HubName)
	withoutWatch := role.DeepCopy()
	for n, rule := range withoutWatch.Rules {
		if slices.Contains(rule.APIGroups, fleet.SchemeGroupVersion.Group) {
			withoutWatch.Rules[n].Verbs = slices.DeleteFunc(rule.Verbs, func(verb string) bool { return verb == "watch" })
		}
	}
	withoutWatch.Rules = append(withoutWatch.Rules, rbacv1.PolicyRule{ // the hub grants it to agents
		APIGroups: []string{fleet.SchemeGroupVersion.Group}, Resources: []string{"bundledeployments"}, Verbs: []string{"watch"},
	})
	setRules := func(rules []rbacv1.PolicyRule) {
		current := testenv.RequireThere(t, roles.Get, registration.HubName)
		current.Rules = rules
		testenv.Update(t, roles.Update, current)
	}
	setRules(withoutWatch.Rules)
	bearer := hub.TokenOf(t, testenv.SystemNamespace, registration.HubName)
	testenv.Eventually(t, func() (bool, string) { // an API server reads roles after a moment
		events, err := hub.ClientFor(t, bearer).Fleet.Bundles("").Watch(t.Context(), metav1.ListOptions{})
		if err == nil {
			events.Stop()
		}
		return err != nil, "the hub may still watch"
	})

	clock, watching := clocktesting.NewFakeClock(time.Now()), make(chan bool, 10)
	hub.Hub(t, install, func(o *muster.Options) {
		o.Clock, o.DisableBootstrap = clock, true
		o.OnWatching = func(ok bool) { watching <- ok }
	})
	await := func(want bool, what string) {
		t.Helper()
		testenv.Eventually(t, func() (bool, string) {
			clock.Step(time.Minute)
			select {
			case is := <-watching:
				assert.Equal(t, want, is)
				return true, ""
			default:
				return false, what
			}
		})
	}
	await(false, "the hub does not report that it cannot watch")
	setRules(role.Rules)
	await(true, "the hub does not report that it can watch again")

	namespace := hub.Namespace(t)
	testenv.Create(t, hub.Fleet.Clusters(namespace).Create, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "new"}})
	testenv.Eventually(t, func() (bool, string) {
		c, err := hub.Fleet.Clusters(namespace).Get(context.Background(), "new", metav1.GetOptions{})
		require.NoError(t, err)
		return len(c.Finalizers) > 0, "the hub does not notice a new Cluster"
	})
}
