package liveness

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// requestAccounts are the ServiceAccounts that exist; the name of each begins with that of its request.
type requestAccounts map[string]bool

func (i requestAccounts) Get(namespace, name string) (*corev1.ServiceAccount, error) {
	if !i[name] {
		return nil, apierrors.NewNotFound(corev1.Resource("serviceaccounts"), name)
	}
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{
		fleet.ClusterRegistrationAnnotation: strings.TrimSuffix(name, "-uid"),
	}}}, nil
}

const oneReport = `{"version":"v1","checkinInterval":"1m0s","namespace":"system","registration":"of-another","lastSeen":"2000-01-01T00:00:00Z","instance":"x","vouches":"y"}`

// newLeaseTest is a Detector whose Clusters have agents that renew Leases, with the ServiceAccounts a-uid and b-uid.
func newLeaseTest(t *testing.T) *detectorTest {
	t.Helper()
	d := newDetectorTest(t, config.Hub{})
	d.accounts = requestAccounts{"a-uid": true, "b-uid": true}
	d.Events = record.NewFakeRecorder(10)
	return d
}

var version int

// renewedLease is a Lease of the Cluster that was renewed now.
func (d *detectorTest) renewedLease(identity, report string) *coordinationv1.Lease {
	version++
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: registration.ClusterNamespace(member.Namespace, member.Name), Name: identity, ResourceVersion: time.Duration(version).String(),
			Annotations: map[string]string{
				fleet.ClusterAnnotation: member.Name, fleet.WorkspaceAnnotation: member.Namespace, registration.LeaseReport: report,
			},
		},
		Spec: coordinationv1.LeaseSpec{RenewTime: ptr.To(metav1.NewMicroTime(d.clock.Now())), HolderIdentity: ptr.To("i")},
	}
}

// leasePass observes and reconciles the Cluster once, and writes its status.
func (d *detectorTest) leasePass() (corev1.ConditionStatus, fleet.AgentStatus) {
	return d.status(), d.cluster.Status.Agent
}

// renew handles the renewal of a Lease, and returns the result of the pass after it.
func (d *detectorTest) renew(lease *coordinationv1.Lease) (corev1.ConditionStatus, fleet.AgentStatus) {
	d.onRenewal(lease, false)
	return d.leasePass()
}

func (d *detectorTest) enqueued() int {
	n := len(d.clusters)
	for range n {
		<-d.clusters
	}
	return n
}

func TestDetector_lease(t *testing.T) {
	d := newLeaseTest(t)
	status, _ := d.leasePass()
	assert.Equal(t, unknown, status)
	d.onRenewal(d.renewedLease("a-uid", oneReport), false)
	assert.Equal(t, 1, d.enqueued())
	status, agent := d.leasePass()
	assert.Equal(t, yes, status)
	assert.Equal(t, fleet.AgentStatus{
		LastSeen: metav1.NewTime(noon), Version: "v1", Namespace: "system", CheckinInterval: &metav1.Duration{Duration: time.Minute},
		Instance: "i", Registration: "a",
	}, agent, "the request is that of the ServiceAccount, not the one in the report")

	for range 14 { // a quarter of an hour has not passed
		d.clock.Step(time.Minute)
		d.onRenewal(d.renewedLease("a-uid", oneReport), false)
		assert.Zero(t, d.enqueued(), "a heartbeat in time costs nothing")
		status, again := d.leasePass()
		assert.Equal(t, yes, status)
		assert.Equal(t, agent, again)
	}
	d.clock.Step(time.Minute)
	d.onRenewal(d.renewedLease("a-uid", oneReport), false)
	assert.Equal(t, 1, d.enqueued())
	_, agent = d.leasePass()
	assert.Equal(t, d.clock.Now(), agent.LastSeen.Time)

	d.clock.Step(time.Minute)
	last := d.clock.Now()
	d.onRenewal(d.renewedLease("a-uid", strings.Replace(oneReport, "v1", "v2", 1)), false)
	assert.Equal(t, 1, d.enqueued())
	_, agent = d.leasePass()
	assert.Equal(t, "v2", agent.Version)

	d.clock.Step(3 * time.Minute)
	d.requireBack(t)
	status, agent = d.leasePass()
	assert.Equal(t, no, status, "three missed heartbeats")
	assert.Equal(t, last.Truncate(time.Second), agent.LastSeen.Time)
	d.enqueued()
	d.onRenewal(d.renewedLease("a-uid", strings.Replace(oneReport, "v1", "v2", 1)), false)
	assert.Equal(t, 1, d.enqueued())
	status, _ = d.leasePass()
	assert.Equal(t, yes, status)
}

func TestDetector_leasesAtStart(t *testing.T) {
	for _, row := range []struct {
		name     string
		age      time.Duration // of the renewal when the hub starts
		emptied  bool          // the status, for another installation of the agent
		want     corev1.ConditionStatus
		lastSeen bool
	}{
		{"settled", time.Minute, false, yes, true},
		{"after an outage", time.Hour, false, yes, true},
		{"the first heartbeat came meanwhile", time.Minute, true, yes, true},
		{"the agent is installed again", time.Hour, true, unknown, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			before := newLeaseTest(t)
			lease := before.renewedLease("a-uid", oneReport)
			before.onRenewal(lease, false)
			before.leasePass()

			d := newLeaseTest(t)
			d.cluster = before.cluster
			d.clock.SetTime(noon.Add(row.age))
			d.reachability = NewAPIReachability(d.clock)
			if row.emptied {
				d.cluster.Status = fleet.ClusterStatus{}
			}
			d.onRenewal(lease, true)
			old := *d.cluster.DeepCopy()
			status, agent := d.leasePass()
			assert.Equal(t, row.want, status)
			assert.Equal(t, row.lastSeen, !agent.LastSeen.IsZero())
			if !row.emptied {
				assert.Equal(t, old, *d.cluster, "nothing is written")
			}
			d.clock.Step(time.Minute)
			status, _ = d.renew(d.renewedLease("a-uid", oneReport))
			assert.Equal(t, yes, status)
		})
	}
}

func TestDetector_lastSeenAfterAStart(t *testing.T) {
	for range 100 { // the time of the first write is random
		before := newLeaseTest(t)
		before.onRenewal(before.renewedLease("a-uid", oneReport), false)
		before.leasePass()
		before.clock.Step(time.Minute)
		lease := before.renewedLease("a-uid", oneReport) // lastSeen in the status is a minute older

		d := newLeaseTest(t)
		d.cluster = before.cluster
		d.clock.SetTime(before.clock.Now())
		d.onRenewal(lease, true)
		old := *d.cluster.DeepCopy()
		d.clock.Step(2 * time.Minute)
		d.leasePass()
		require.Equal(t, old, *d.cluster, "nothing is written")
		d.clock.Step(config.DefaultLastSeenInterval)
		d.renew(d.renewedLease("a-uid", oneReport))
		require.NotEqual(t, old.Status.Agent.LastSeen, d.cluster.Status.Agent.LastSeen)
	}
}

func TestDetector_watchLeases(t *testing.T) {
	d := newLeaseTest(t)
	earlier := d.renewedLease("a-uid", oneReport)
	d.clock.Step(time.Minute)
	inUse := d.renewedLease("b-uid", oneReport)
	server := fake.NewClientset(earlier, inUse)
	caches := informers.NewSharedInformerFactory(server, 0)
	leases := caches.Coordination().V1().Leases().Informer()
	caches.Start(t.Context().Done())
	caches.WaitForCacheSync(t.Context().Done())
	d.watchLeases(leases)
	d.leasePass()
	assert.Equal(t, "b", d.cluster.Status.Agent.Registration, "the identity that was renewed last")

	d.clock.Step(time.Second)
	renewed := d.renewedLease("a-uid", oneReport)
	_, err := server.CoordinationV1().Leases(renewed.Namespace).Update(t.Context(), renewed, metav1.UpdateOptions{})
	require.NoError(t, err)
	<-d.clusters
	d.leasePass()
	assert.Equal(t, "a", d.cluster.Status.Agent.Registration)
	require.NoError(t, server.CoordinationV1().Leases(renewed.Namespace).Delete(t.Context(), renewed.Name, metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.records[member].lease == nil
	}, patience, time.Millisecond)
}

func TestDetector_emptiedStatus(t *testing.T) {
	d := newLeaseTest(t)
	d.renew(d.renewedLease("a-uid", oneReport))
	d.leasePass() // the event of the write
	d.cluster.Status.Agent = fleet.AgentStatus{}
	status, agent := d.leasePass()
	assert.Equal(t, unknown, status)
	assert.True(t, agent.LastSeen.IsZero(), "the earlier heartbeat was that of the earlier agent")
	d.clock.Step(time.Second)
	status, agent = d.renew(d.renewedLease("b-uid", oneReport))
	assert.Equal(t, yes, status)
	assert.Equal(t, "b", agent.Registration)
	d.clock.Step(3 * time.Minute)
	assert.Equal(t, no, d.status(), "the interval is that of the report, which is the same as before")
}

func TestDetector_clockOfTheAgentIsCorrected(t *testing.T) {
	d := newLeaseTest(t)
	ahead := d.renewedLease("a-uid", oneReport)
	ahead.Spec.RenewTime = ptr.To(metav1.NewMicroTime(noon.Add(1000 * time.Hour)))
	_, agent := d.renew(ahead)
	assert.Equal(t, noon.Add(1000*time.Hour), agent.LastSeen.Time)
	for range 20 {
		d.clock.Step(time.Minute)
		status, _ := d.renew(d.renewedLease("a-uid", oneReport))
		assert.Equal(t, yes, status)
	}
	_, agent = d.leasePass()
	assert.Less(t, agent.LastSeen.Sub(noon), time.Hour)
	d.clock.Step(3 * time.Minute)
	assert.Equal(t, no, d.status())
}

func (d *detectorTest) renewedAt(identity string, at time.Time) *coordinationv1.Lease {
	lease := d.renewedLease(identity, oneReport)
	lease.Spec.RenewTime = ptr.To(metav1.NewMicroTime(at))
	return lease
}

func TestDetector_clockOfAnotherIdentity(t *testing.T) {
	for name, theirs := range map[string]time.Time{
		"in time":         noon,
		"3 h behind":      noon.Add(-3 * time.Hour),
		"3 h ahead":       noon.Add(3 * time.Hour),
		"23 h ahead":      noon.Add(23 * time.Hour),
		"years of future": time.Date(9998, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		t.Run(name, func(t *testing.T) {
			d := newLeaseTest(t)
			_, agent := d.renew(d.renewedAt("a-uid", theirs))
			assert.Equal(t, "a", agent.Registration)
			assert.Equal(t, theirs, agent.LastSeen.Time)

			d.clock.Step(time.Second)
			d.onRenewal(d.renewedLease("b-uid", oneReport), false)
			d.RecordAndCopy(d.cluster.DeepCopy()) // a write that fails
			d.clock.Step(time.Second)
			status, agent := d.leasePass()
			assert.Equal(t, yes, status)
			assert.Equal(t, "b", agent.Registration)
			assert.Equal(t, noon.Add(time.Second), agent.LastSeen.Time)
		})
		t.Run(name+", in the status of an earlier hub", func(t *testing.T) {
			d := newLeaseTest(t)
			d.cluster.Status.Agent = fleet.AgentStatus{LastSeen: metav1.NewTime(theirs), Registration: "a"}
			d.onRenewal(d.renewedAt("b-uid", noon.Add(-time.Second)), true)
			_, agent := d.leasePass()
			assert.Equal(t, !theirs.Before(noon), agent.Registration == "a", "only the clocks say whose is later")

			d.clock.Step(time.Second)
			d.enqueued()
			d.onRenewal(d.renewedLease("b-uid", oneReport), false)
			if agent.Registration == "a" {
				assert.Equal(t, 1, d.enqueued())
			}
			_, agent = d.leasePass()
			assert.Equal(t, "b", agent.Registration)
		})
		t.Run(name+", by an agent that writes the status", func(t *testing.T) {
			d := newLeaseTest(t)
			d.renew(d.renewedLease("a-uid", oneReport))
			d.clock.Step(time.Minute)
			d.cluster.Status.Agent = fleet.AgentStatus{LastSeen: metav1.NewTime(theirs.Add(time.Second)), Registration: "c"}
			for range 2 {
				_, agent := d.leasePass()
				assert.Equal(t, "c", agent.Registration, "it came later")
				d.clock.Step(time.Second)
			}
			_, agent := d.renew(d.renewedLease("a-uid", oneReport))
			assert.Equal(t, "a", agent.Registration)
		})
	}
}

func TestDetector_limitedRenewalIsOneHeartbeat(t *testing.T) {
	d := newLeaseTest(t)
	future := time.Date(9998, 1, 1, 0, 0, 0, 0, time.UTC)
	d.renew(d.renewedAt("a-uid", future))
	for range 3 {
		d.clock.Step(time.Minute)
		d.renew(d.renewedAt("a-uid", future))
	}
	assert.Equal(t, noon, d.records[member].last().at, "only the rest of the Lease has changed")
	d.renew(d.renewedAt("a-uid", future.Add(time.Minute)))
	assert.Equal(t, d.clock.Now(), d.records[member].last().at)
}

func TestDetector_deletedLease(t *testing.T) {
	d := newLeaseTest(t)
	d.renew(d.renewedLease("a-uid", oneReport))
	d.clock.Step(time.Minute)
	lease := d.renewedLease("a-uid", oneReport)
	d.renew(lease)
	last := d.clock.Now()
	assert.Equal(t, noon, d.cluster.Status.Agent.LastSeen.Time, "only the Detector knows of the renewal")

	d.clock.Step(time.Minute)
	d.forgetLease(lease)
	status, _ := d.leasePass()
	assert.Equal(t, yes, status)
	assert.Equal(t, last, d.records[member].last().at, "nobody has sent a heartbeat")
	d.clock.Step(2 * time.Minute)
	status, agent := d.leasePass()
	assert.Equal(t, no, status)
	assert.Equal(t, last, agent.LastSeen.Time)
	status, _ = d.leasePass()
	assert.Equal(t, no, status)

	d.clock.Step(time.Minute)
	d.beat()
	status, _ = d.leasePass()
	assert.Equal(t, yes, status, "an agent that writes the status")
	assert.Equal(t, d.clock.Now(), d.records[member].last().at)
}

// A proxy may refuse the Lease: then the agent writes the status with the same identity.
func TestDetector_agentWithoutItsLease(t *testing.T) {
	d := newLeaseTest(t)
	d.renew(d.renewedLease("a-uid", oneReport))
	for range 10 {
		d.clock.Step(2 * time.Minute)
		d.beat()
		status, _ := d.leasePass()
		assert.Equal(t, yes, status)
		assert.Equal(t, d.clock.Now(), d.records[member].last().at)
	}
	d.clock.Step(time.Minute)
	d.enqueued()
	d.onRenewal(d.renewedLease("a-uid", oneReport), false)
	assert.Equal(t, 1, d.enqueued())
	d.leasePass()
	assert.True(t, d.records[member].usesLease())
}

// Fleet's own Cluster controller writes the whole status without the fields that it does not know.
func TestDetector_statusWithoutInstance(t *testing.T) {
	d := newLeaseTest(t)
	d.beatAs("A")
	at := d.records[member].last().at
	d.clock.Step(time.Minute)
	for _, instance := range []string{"", "A", "", "A"} {
		d.cluster.Status.Agent.Instance = instance
		d.pass()
		assert.Equal(t, at, d.records[member].last().at, "no heartbeat")
	}
	assert.False(t, d.HasClones(d.cluster))
}

// The cache of ServiceAccounts may be late.
func TestDetector_accountThatTheCacheDoesNotShow(t *testing.T) {
	d := newLeaseTest(t)
	accounts := d.accounts
	d.accounts = requestAccounts{}
	d.leasePass()
	d.onRenewal(d.renewedLease("a-uid", oneReport), false)
	assert.Equal(t, 1, d.enqueued())
	_, agent := d.leasePass()
	assert.True(t, agent.LastSeen.IsZero())
	d.accounts = accounts
	d.clock.Step(time.Second)
	d.onRenewal(d.renewedLease("a-uid", oneReport), false)
	assert.Equal(t, 1, d.enqueued(), "the status has no heartbeat yet")
	status, _ := d.leasePass()
	assert.Equal(t, yes, status)
}

// The thief of an agent's token changes the report with each renewal.
func TestDetector_manyReports(t *testing.T) {
	d := newLeaseTest(t)
	report := func(version int) {
		d.onRenewal(d.renewedLease("a-uid", strings.Replace(oneReport, "v1", fmt.Sprint("v", version), 1)), false)
	}
	copies, version := 0, ""
	pass := func() {
		_, agent := d.leasePass()
		if agent.Version != version {
			copies, version = copies+1, agent.Version
		}
	}
	report(0)
	pass()
	assert.Equal(t, "v0", version, "the first report is copied at once")
	for i := range 100 {
		report(i + 1)
		pass()
		assert.NotZero(t, d.enqueued())
		d.clock.Step(reportInterval / 100)
	}
	report(101)
	pass()
	assert.Equal(t, "v101", version)
	assert.Equal(t, 2, copies)

	t.Run("another identity: at once", func(t *testing.T) {
		_, agent := d.renew(d.renewedLease("b-uid", oneReport))
		assert.Equal(t, "b", agent.Registration)
		_, agent = d.renew(d.renewedLease("a-uid", oneReport))
		assert.Equal(t, "b", agent.Registration, "two identities in turn are limited too")
		d.clock.Step(reportInterval)
		_, agent = d.leasePass()
		assert.Equal(t, "a", agent.Registration)
	})
	t.Run("a change is enqueued for the time at which it is copied", func(t *testing.T) {
		d.enqueued()
		after := make(delays, 10)
		d.Detector.queue = after
		d.clock.Step(reportInterval / 4)
		report(7)
		assert.Equal(t, reportInterval*3/4, <-after)
		d.leasePass()
		assert.Equal(t, reportInterval*3/4, <-after)
		d.clock.Step(reportInterval)
		report(8)
		assert.Zero(t, <-after)
	})
}

// delays are the delays with which Clusters are enqueued.
type delays chan time.Duration

func (d delays) EnqueueAfter(_, _ string, after time.Duration) { d <- after }

func TestDetector_failedWrite(t *testing.T) {
	d := newLeaseTest(t)
	d.onRenewal(d.renewedLease("a-uid", oneReport), false)
	d.RecordAndCopy(d.cluster.DeepCopy())
	_, agent := d.leasePass()
	assert.Equal(t, "v1", agent.Version, "the next pass writes it")
}

func TestDetector_otherIdentities(t *testing.T) {
	d := newLeaseTest(t)
	d.renew(d.renewedLease("a-uid", oneReport))
	t.Run("revoked", func(t *testing.T) {
		d.clock.Step(time.Second)
		revoked := d.renewedLease("revoked", strings.Replace(oneReport, "v1", "v2", 1))
		_, agent := d.renew(revoked)
		assert.Equal(t, "v1", agent.Version)
		d.forgetLease(revoked)
	})
	t.Run("of another Cluster", func(t *testing.T) {
		foreign := d.renewedLease("b-uid", strings.Replace(oneReport, "v1", "v2", 1))
		foreign.Namespace = registration.ClusterNamespace(member.Namespace, "other")
		_, agent := d.renew(foreign)
		assert.Equal(t, "v1", agent.Version)
	})
	t.Run("of an agent that writes the status", func(t *testing.T) {
		d.renew(d.renewedLease("a-uid", oneReport))
		d.clock.Step(time.Minute)
		d.beat()
		d.cluster.Status.Agent.Registration = "c"
		status, agent := d.leasePass()
		assert.Equal(t, yes, status)
		assert.Equal(t, "c", agent.Registration)
	})
}

func TestDetector_clonesOnALease(t *testing.T) {
	d := newLeaseTest(t)
	for _, instance := range []string{"i", "j", "i"} {
		lease := d.renewedLease("a-uid", oneReport)
		lease.Spec.HolderIdentity = ptr.To(instance)
		d.onRenewal(lease, false)
		assert.Equal(t, 1, d.enqueued())
		d.leasePass()
		d.clock.Step(time.Second)
	}
	assert.True(t, d.HasClones(d.cluster))
}

// A thief of the token sends the instance of the agent too, or writes only the credential.
func TestDetector_clonesWithOneInstance(t *testing.T) {
	for name, renews := range map[string]bool{"the thief sends heartbeats": true, "the thief writes only the annotation": false} {
		t.Run(name, func(t *testing.T) {
			d := newLeaseTest(t)
			renewed := d.clock.Now()
			for _, credential := range []string{"JTI=1", "JTI=2", "JTI=1"} {
				if byThief := credential == "JTI=2"; renews || !byThief {
					renewed = d.clock.Now()
				}
				lease := d.renewedLease("a-uid", oneReport)
				lease.Annotations[registration.LeaseCredential], lease.Spec.RenewTime.Time = credential, renewed
				d.onRenewal(lease, false)
				assert.Equal(t, 1, d.enqueued())
				assert.Equal(t, renewed, d.records[member].byLease.lastSeen.Time)
				d.leasePass()
				d.clock.Step(time.Second)
			}
			assert.True(t, d.HasClones(d.cluster))
			assert.Equal(t, []string{"i with credential JTI=1", "i with credential JTI=2"}, d.Instances(d.cluster))
		})
	}
}

// The status names the process before the restart of an agent, and the Lease the one after it.
func TestDetector_agentRestartedWhileTheHubWasDown(t *testing.T) {
	for name, renewedBeforeThePass := range map[string]bool{"the pass is first": false, "a renewal is first": true} {
		t.Run(name, func(t *testing.T) {
			before := newLeaseTest(t)
			before.onRenewal(before.renewedLease("a-uid", oneReport), false)
			before.leasePass()

			d := newLeaseTest(t)
			d.cluster = before.cluster
			renew := func(atStart bool) {
				d.clock.Step(time.Second)
				lease := d.renewedLease("a-uid", oneReport)
				lease.Spec.HolderIdentity = ptr.To("j")
				d.onRenewal(lease, atStart)
			}
			renew(true)
			if renewedBeforeThePass {
				renew(false)
			}
			d.leasePass()
			renew(false)
			_, agent := d.leasePass()
			assert.Equal(t, "j", agent.Instance)
			assert.False(t, d.HasClones(d.cluster))
		})
	}
}

// An agent that starts does not know for some seconds which releases it keeps.
func TestDetector_keptReleasesStayUntilTheAgentKnows(t *testing.T) {
	d := newLeaseTest(t)
	for _, row := range []struct {
		report string
		want   *fleet.AgentKeptReleases
	}{
		{`{"keptReleases":{"count":1,"names":"a"}}`, &fleet.AgentKeptReleases{Count: 1, Names: "a"}},
		{`{"version":"v2"}`, &fleet.AgentKeptReleases{Count: 1, Names: "a"}},
		{`{"keptReleases":{"count":1,"names":"b"}}`, &fleet.AgentKeptReleases{Count: 1, Names: "b"}},
		{`{"version":"v3"}`, &fleet.AgentKeptReleases{Count: 1, Names: "b"}},
		{`{"version":"v3","keptReleases":null}`, nil},
		{`{"version":"v4"}`, nil},
	} {
		d.clock.Step(time.Second)
		_, agent := d.renew(d.renewedLease("a-uid", row.report))
		assert.Equal(t, row.want, agent.KeptReleases, row.report)
	}
}

// A stalled agent that starts does not know for a minute that it is stalled.
func TestDetector_deploymentsStalledStaysUntilTheAgentKnows(t *testing.T) {
	d := newLeaseTest(t)
	for _, row := range []struct{ report, want string }{
		{`{"keptReleases":null,"deploymentsStalled":"forbidden"}`, "forbidden"},
		{`{"version":"v2"}`, "forbidden"},
		{`{"deploymentsStalled":"timeout"}`, "timeout"},
		{`{"version":"v3"}`, "timeout"},
		{`{"version":"v3","deploymentsStalled":null}`, ""},
		{`{"version":"v4"}`, ""},
		{`{"deploymentsStalled":"forbidden"}`, "forbidden"},
		{`{"version":"of an agent that never reports it","keptReleases":null}`, ""},
	} {
		d.clock.Step(time.Second)
		_, agent := d.renew(d.renewedLease("a-uid", row.report))
		assert.Equal(t, row.want, agent.DeploymentsStalled, row.report)
	}
}

func TestDetector_deploymentsStalledEndsWithTheAgentThatReportedIt(t *testing.T) {
	const stalled = `{"version":"v1","deploymentsStalled":"forbidden"}`
	for _, row := range []struct {
		name     string
		instance string // in the heartbeat in the status; "" if the agent writes none
		want     string
	}{
		{"an agent of Fleet replaces it", "", ""},
		{"an agent of this project that renews no Lease replaces it, and is stalled too", "j", "forbidden"},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := newLeaseTest(t)
			_, agent := d.renew(d.renewedLease("a-uid", stalled))
			assert.Equal(t, "forbidden", agent.DeploymentsStalled)
			d.clock.Step(time.Minute)
			_, agent = d.renew(d.renewedLease("a-uid", stalled))
			assert.Equal(t, "forbidden", agent.DeploymentsStalled, "the hub copies lastSeen itself")
			for range 2 {
				d.clock.Step(time.Minute)
				d.beat()
				if row.instance != "" {
					d.cluster.Status.Agent.Instance = row.instance
				}
				_, agent = d.leasePass()
				assert.Equal(t, row.want, agent.DeploymentsStalled)
			}
		})
	}
}

// The agent loses the right to write its Lease, and writes the status. The hub still has the Lease.
func TestDetector_deploymentsStalledInTheStatus(t *testing.T) {
	d := newLeaseTest(t)
	_, agent := d.renew(d.renewedLease("a-uid", `{"version":"v1","deploymentsStalled":"forbidden"}`))
	require.Equal(t, "forbidden", agent.DeploymentsStalled)
	for n := range 3 {
		d.clock.Step(time.Minute)
		d.beat()
		d.cluster.Status.Agent.DeploymentsStalled = "forbidden"
		_, agent = d.leasePass()
		if n > 0 {
			assert.Equal(t, "forbidden", agent.DeploymentsStalled, "heartbeat %d", n)
		}
		d.leasePass() // after the write of the status
	}
}

// An agent of Fleet has replaced the agent, and the hub cannot write the status.
func TestDetector_deploymentsStalledInALostStatus(t *testing.T) {
	d := newLeaseTest(t)
	d.renew(d.renewedLease("a-uid", `{"version":"v1","deploymentsStalled":"forbidden"}`))
	for range 3 {
		d.clock.Step(time.Minute)
		d.beat()
		_, agent := d.leasePass()
		assert.Empty(t, agent.DeploymentsStalled)
		d.cluster.Status.Agent.DeploymentsStalled = "forbidden"
		d.leasePass()
	}
}

func TestDetector_invalidReports(t *testing.T) {
	long := `{"version":"` + strings.Repeat("x", maxReport) + `"}`
	for name, report := range map[string]string{
		"too long": long, "no JSON": "{", "another type": `[]`, "null": `null`, "other types": `{"version":1}`,
		"a year of five digits": `{"credentialExpires":"9999-12-31T23:59:59-23:00"}`,
		"too many resources":    `{"capacity":{` + `"r":"1",` + manyResources() + `}}`,
	} {
		t.Run(name, func(t *testing.T) {
			d := newLeaseTest(t)
			d.renew(d.renewedLease("a-uid", oneReport))
			for range 3 {
				d.clock.Step(time.Second)
				reduced, err := Reduce(d.renewedLease("a-uid", report))
				require.NoError(t, err)
				d.onRenewal(reduced.(*coordinationv1.Lease), false)
			}
			status, agent := d.leasePass()
			assert.Equal(t, yes, status, "the heartbeat counts")
			assert.Equal(t, "v1", agent.Version, "the earlier report stays")
			events := d.Events.(*record.FakeRecorder).Events
			require.Len(t, events, 1, "once for each report")
			assert.Contains(t, <-events, fleet.EventInvalidReport)
		})
	}
}

func manyResources() string {
	var all []string
	for i := range fleetstatus.MaxQuantities {
		all = append(all, `"`+strings.Repeat("y", i+1)+`":"1"`)
	}
	return strings.Join(all, ",")
}

func TestReduce(t *testing.T) {
	d := newLeaseTest(t)
	lease := d.renewedLease("a-uid", strings.Repeat("x", 1<<18))
	lease.Labels = map[string]string{fleet.ManagedLabel: "true", "other": "x"}
	lease.Annotations["other"], lease.Annotations[registration.LeaseProof] = "x", strings.Repeat("x", maxRequestName+1)
	lease.Annotations[registration.LeaseCredential] = strings.Repeat("x", maxRequestName+1)
	lease.Spec.HolderIdentity = ptr.To(strings.Repeat("x", maxInstance+1))
	lease.Spec.Strategy, lease.Spec.PreferredHolder = ptr.To(coordinationv1.OldestEmulationVersion), ptr.To(strings.Repeat("x", 1<<18))
	lease.OwnerReferences, lease.GenerateName = []metav1.OwnerReference{{}}, strings.Repeat("x", 1<<18)
	lease.Finalizers = []string{"a", "b"}
	reduced, err := Reduce(lease)
	require.NoError(t, err)
	got := reduced.(*coordinationv1.Lease)
	assert.Equal(t, map[string]string{fleet.ManagedLabel: "true"}, got.Labels)
	assert.Len(t, got.Annotations, 3)
	assert.Len(t, got.Annotations[registration.LeaseReport], maxReport+1)
	assert.Nil(t, got.Spec.HolderIdentity)
	assert.Nil(t, got.Spec.Strategy)
	assert.Nil(t, got.Spec.PreferredHolder)
	assert.Empty(t, got.OwnerReferences)
	assert.Empty(t, got.GenerateName)
	assert.NotEmpty(t, got.Finalizers, "the hub has to remove them")

	other := d.renewedLease("a-uid", oneReport)
	other.Namespace, other.Annotations[registration.LeaseCredential] = "other", "JTI=1"
	_, err = Reduce(other)
	require.NoError(t, err)
	assert.Equal(t, "JTI=1", other.Annotations[registration.LeaseCredential])
	assert.NotContains(t, other.Annotations, registration.LeaseReport, "the Lease of no agent")
}

func TestReportOf_deploymentsStalled(t *testing.T) {
	report, err := reportOf(newLeaseTest(t).renewedLease("a-uid", `{"deploymentsStalled":"`+strings.Repeat("x", 2*fleetstatus.MaxStalled)+`"}`))
	require.NoError(t, err)
	assert.Len(t, report.DeploymentsStalled, fleetstatus.MaxStalled)
}

func TestReportOf_keptReleases(t *testing.T) {
	names := strings.Repeat("x", 2*fleetstatus.MaxKeptNames)
	report, err := reportOf(newLeaseTest(t).renewedLease("a-uid", `{"keptReleases":{"count":1,"names":"`+names+`"}}`))
	require.NoError(t, err)
	assert.Len(t, report.KeptReleases.Names, fleetstatus.MaxKeptNames)
}

// What an agent writes never makes a status that the API server refuses.
func FuzzReportOf(f *testing.F) {
	f.Add(oneReport, "p")
	f.Add(`{"nodes":{"count":1e9},"capacity":{"cpu":"0.5"}}`, "")
	f.Fuzz(func(t *testing.T, text, proof string) {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Namespace: registration.ClusterNamespace(member.Namespace, member.Name), Annotations: map[string]string{
				fleet.ClusterAnnotation: member.Name, fleet.WorkspaceAnnotation: member.Namespace,
				registration.LeaseReport: text, registration.LeaseProof: proof,
			},
		}}
		reduced, _ := Reduce(lease)
		report, err := reportOf(reduced.(*coordinationv1.Lease))
		if err != nil {
			return
		}
		assert.True(t, report.LastSeen.IsZero())
		assert.Empty(t, report.Registration)
		assert.LessOrEqual(t, len(report.PossessionProof), maxRequestName)
	})
}

// An exponent of nine digits takes minutes and gigabytes to decode or to compare. JSON permits a name twice, and in other case.
func TestReportOf_quantities(t *testing.T) {
	d := newLeaseTest(t)
	const good = `{"cpu":"3950m","memory":"16Gi","pods":110}`
	for _, name := range []string{"capacity", "allocatable"} {
		report, err := reportOf(d.renewedLease("a-uid", `{"`+name+`":`+good+`}`))
		require.NoError(t, err)
		assert.Equal(t, 3, len(report.Capacity)+len(report.Allocatable))
		for _, bad := range []string{
			`{"cpu":"1000000000000000000e2000000000"}`, `{"cpu":1e999999999}`, `{"cpu":"1e1.5"}`, `{"cpu":{}}`, `{"cpu":"` + strings.Repeat("9", 50) + `"}`,
			`{"cpu":"` + strings.Repeat("9", 21) + `"}`,
		} {
			_, err := reportOf(d.renewedLease("a-uid", `{"`+name+`":`+bad+`}`))
			require.ErrorContains(t, err, name)
			_, err = reportOf(d.renewedLease("a-uid", `{"`+name+`":`+good+`,"`+strings.ToUpper(name)+`":`+bad+`}`))
			require.ErrorContains(t, err, name)
		}
	}
}
