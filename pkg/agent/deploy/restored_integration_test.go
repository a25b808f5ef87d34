package deploy_test

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/agent/deploy"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/release"
)

// keptReleases is what an agent has reported last.
type keptReleases struct {
	mu    sync.Mutex
	names []string
}

func (k *keptReleases) receive(c *deploy.Config) {
	c.ReportKept = func(names []string) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.names = names
	}
}

func (k *keptReleases) require(t *testing.T, want ...string) {
	t.Helper()
	testenv.Eventually(t, func() (bool, string) {
		k.mu.Lock()
		defer k.mu.Unlock()
		return slices.Equal(k.names, want), fmt.Sprintf("kept: %q, want %q", k.names, want)
	})
}

func TestRun_hubRestoredFromABackup(t *testing.T) {
	sample.Long(t)
	member := testenv.SharedCluster(t, "member")
	type restore struct {
		name    string
		flags   []string
		stopped bool // the agent does not run while etcd is restored
	}
	for _, row := range sample.Some(t, 1, []restore{
		{name: "versions go back"},
		{name: "versions go back while the agent is stopped", stopped: true},
		{name: "versions are bumped", flags: controlplane.RestoreFlags},
		{name: "versions are bumped while the agent is stopped", flags: controlplane.RestoreFlags, stopped: true},
	}) {
		t.Run(row.name, func(t *testing.T) {
			hub := testenv.On(t, ownPlane(t))
			s := stageOn(t, &testenv.Cluster{ControlPlane: member.ControlPlane, Kubernetes: member.Kubernetes, Fleet: hub.Fleet})
			s.hubAt = hub.RESTConfig()
			_, err := hub.Kubernetes.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.hub}}, metav1.CreateOptions{})
			require.NoError(t, err)
			kept := &keptReleases{}
			stop := s.run(kept.receive)
			s.put(s.ownBundle(), configMap("agent", "one"))
			s.put("before", configMap("before", "one"))
			s.put("deleted", configMap("deleted", "one"))
			for _, name := range []string{s.ownBundle(), "before", "deleted"} {
				s.state(name, fleet.Ready)
			}
			backup := filepath.Join(t.TempDir(), "backup.db")
			require.NoError(t, hub.Snapshot(t.Context(), backup))
			s.put("after", configMap("after", "one"))
			s.put("other", configMap("other", "one"))
			s.state("after", fleet.Ready)
			s.state("other", fleet.Ready)
			s.remove("deleted")
			s.gone("deleted")
			for n := range 300 { // more than a starting control plane writes
				_, err := hub.Kubernetes.CoreV1().ConfigMaps(s.hub).Create(t.Context(),
					&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("write-", n)}}, metav1.CreateOptions{})
				require.NoError(t, err)
			}
			s.put("last", configMap("last", "one")) // so that the agent records the version
			s.state("last", fleet.Ready)

			if row.stopped {
				require.NoError(t, stop())
			}
			require.NoError(t, hub.Restore(t.Context(), backup, row.flags...))
			if row.stopped {
				stop = s.run(kept.receive)
			}
			after, last, other := s.target+"/after", s.target+"/last", s.target+"/other"
			kept.require(t, after, last, other)
			s.value("deleted", "one") // as in the backup

			// A person rolls a kept release back: Helm writes another revision with the labels of the agent.
			rollBack(t, s, "last")
			require.NoError(t, stop())
			kept = &keptReleases{}
			stop = s.run(kept.receive)
			kept.require(t, after, last, other)
			s.remove("before")
			s.gone("before")
			s.value("after", "one")
			s.value("last", "one")
			assert.Len(t, s.releases(), 5, "agent, deleted, after, last, other")

			s.put("after", configMap("after", "one"))
			s.state("after", fleet.Ready)
			kept.require(t, last, other)
			s.remove("after")
			s.gone("after")

			client, err := release.New(s.RESTConfig())
			require.NoError(t, err)
			require.NoError(t, client.Uninstall(t.Context(), s.target, "other", release.UninstallOptions{}))
			kept.require(t, last)
			require.NoError(t, stop())
		})
	}
}

// An agent that comes to another hub keeps the releases that are not there, and forgets nothing of it at its next start.
func TestRun_anotherHub(t *testing.T) {
	s := onStage(t)
	at := func(hub string) func(*deploy.Config) { return func(c *deploy.Config) { c.HubID = hub } }
	stop := s.run(at("one"))
	s.put(s.ownBundle(), configMap("agent", "one"))
	for _, name := range []string{"there", "missing", "removed"} {
		s.put(name, configMap(name, "one"))
		s.state(name, fleet.Ready)
	}
	require.NoError(t, stop())
	s.remove("removed")
	stop = s.run(at("one"))
	s.gone("removed")

	require.NoError(t, stop())
	s.remove("missing")
	kept := &keptReleases{}
	stop = s.run(at("two"), kept.receive)
	kept.require(t, s.target+"/missing")
	s.remove("there")
	s.gone("there")
	require.NoError(t, stop())
	kept = &keptReleases{}
	stop = s.run(at("two"), kept.receive)
	kept.require(t, s.target+"/missing")
	s.value("missing", "one")
	require.NoError(t, stop())

	// A failed list delays the protection, and the Bundle that exists again is deployed after the next one.
	s.put("missing", configMap("missing", "two"))
	failed := atomic.Bool{}
	s.hubWire.Inject(func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
		if strings.HasSuffix(req.URL.Path, "/bundledeployments") && req.URL.Query().Get("watch") == "" && failed.CompareAndSwap(false, true) {
			return nil, errors.New("the hub does not answer")
		}
		return send()
	})
	kept = &keptReleases{}
	stop = s.run(at("three"), kept.receive)
	s.value("missing", "two")
	kept.require(t)
	assert.True(t, failed.Load())
	require.NoError(t, stop())
}

// An agent whose record is lost knows nothing of the hub: the hub may have been restored, or may be another one.
func TestRun_withoutARecord(t *testing.T) {
	s := onStage(t)
	stop := s.run()
	for _, name := range []string{"there", "missing"} { // there is no BundleDeployment of the agent
		s.put(name, configMap(name, "one"))
		s.state(name, fleet.Ready)
	}
	require.NoError(t, stop())
	s.remove("missing")
	secrets := s.Kubernetes.CoreV1().Secrets(s.agent)
	require.NoError(t, secrets.Delete(t.Context(), registration.HistoryKeySecret, metav1.DeleteOptions{}))
	kept := &keptReleases{}
	stop = s.run(kept.receive)
	kept.require(t, s.target+"/missing")
	s.value("missing", "one")
	s.remove("there")
	s.gone("there")
	require.NoError(t, stop())
}

// rollBack stores another revision of a release, with the labels of the previous one, as Helm does it.
func rollBack(t *testing.T, s *stage, name string) {
	t.Helper()
	secrets := s.Kubernetes.CoreV1().Secrets(s.target)
	revision, err := secrets.Get(t.Context(), "sh.helm.release.v1."+name+".v1", metav1.GetOptions{})
	require.NoError(t, err)
	revision.ObjectMeta = metav1.ObjectMeta{Name: "sh.helm.release.v1." + name + ".v2", Labels: revision.Labels}
	revision.Labels["version"] = "2"
	_, err = secrets.Create(t.Context(), revision, metav1.CreateOptions{})
	require.NoError(t, err)
}
