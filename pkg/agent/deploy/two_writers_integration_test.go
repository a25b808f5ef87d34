package deploy_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// displayWriter acts as the controller of Fleet's hub that writes status.display beside the agent, after each change of a BundleDeployment.
type displayWriter struct {
	mu     sync.Mutex
	writes map[string]int // by BundleDeployment
}

func (w *displayWriter) run(s *stage) {
	watched, err := s.Fleet.BundleDeployments(s.hub).Watch(s.t.Context(), metav1.ListOptions{})
	require.NoError(s.t, err)
	s.t.Cleanup(watched.Stop)
	go func() {
		for event := range watched.ResultChan() {
			bd, ok := event.Object.(*fleet.BundleDeployment)
			if !ok || bd.Status.Display == displayOf(bd) {
				continue
			}
			display := displayOf(bd)
			patch := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q},"status":{"display":{"deployed":%q,"monitored":%q,"state":%q}}}`,
				bd.ResourceVersion, display.Deployed, display.Monitored, display.State)
			if _, err := s.Fleet.BundleDeployments(s.hub).Patch(context.Background(), bd.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err == nil {
				w.mu.Lock()
				w.writes[bd.Name]++
				w.mu.Unlock()
			}
		}
	}()
}

// displayOf is the display by the rules of Fleet's hub.
func displayOf(bd *fleet.BundleDeployment) fleet.BundleDeploymentDisplay {
	find := func(conditionType string) (found genericcondition.GenericCondition) {
		if at := slices.IndexFunc(bd.Status.Conditions, func(c genericcondition.GenericCondition) bool { return c.Type == conditionType }); at >= 0 {
			found = bd.Status.Conditions[at]
		}
		return found
	}
	shown := func(conditionType string) string {
		if c := find(conditionType); c.Reason != "Error" {
			return string(c.Status)
		}
		return "Error: " + find(conditionType).Message
	}
	state := "Ready"
	switch {
	case bd.Status.AppliedDeploymentID != bd.Spec.DeploymentID && find("Deployed").Status == corev1.ConditionFalse:
		state = "ErrApplied"
	case bd.Status.AppliedDeploymentID != bd.Spec.DeploymentID:
		state = "WaitApplied"
	case !bd.Status.Ready:
		state = "NotReady"
	case bd.Spec.DeploymentID != bd.Spec.StagedDeploymentID:
		state = "OutOfSync"
	case !bd.Status.NonModified:
		state = "Modified"
	}
	return fleet.BundleDeploymentDisplay{Deployed: shown("Deployed"), Monitored: shown("Monitored"), State: state}
}

// The agent and Fleet's hub write the same display in each state, so that no write of one of them is followed by one of the other.
func TestRun_displayBesideFleetsHub(t *testing.T) {
	sample.Long(t)
	s := onStage(t)
	s.run()
	w := &displayWriter{writes: map[string]int{}}
	w.run(s)

	const deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  selector: {matchLabels: {a: b}}\n" +
		"  template:\n    metadata: {labels: {a: b}}\n    spec: {containers: [{name: c, image: example/never:1}]}\n"
	update := func(name string, change func(*fleet.BundleDeploymentSpec)) {
		testenv.Eventually(t, func() (bool, string) { // both write the status meanwhile
			bd := s.get(name)
			change(&bd.Spec)
			_, err := s.Fleet.BundleDeployments(s.hub).Update(context.Background(), bd, metav1.UpdateOptions{})
			return err == nil, fmt.Sprint(err)
		})
	}
	shows := func(name string, state fleet.BundleState, conditions ...string) {
		t.Helper()
		testenv.Eventually(t, func() (bool, string) {
			bd := s.get(name)
			return bd.Status.Display.State == string(state) && len(bd.Status.Conditions) > 0, fmt.Sprintf("%s: %+v", name, bd.Status)
		})
		for i := 0; i < len(conditions); i += 2 {
			s.condition(name, conditions[i], conditions[i+1])
		}
	}

	s.put("ready", configMap("ready", "one"))
	s.put("starting", deployment)
	s.put("failed", "apiVersion: nowhere/v1\nkind: Nothing\nmetadata: {name: x}\n")
	s.put("waits", configMap("waits", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.DependsOn = []fleet.BundleRef{{Name: "failed"}} })
	s.put("paused", configMap("paused", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.Paused = true })
	s.put("off-schedule", configMap("off-schedule", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.OffSchedule = true })
	s.put("values", configMap("values", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.WaitingForValues = true })
	s.put("copy", configMap("copy", "one"), func(bd *fleet.BundleDeployment) {
		bd.Spec.Options.DownstreamResources = []fleet.DownstreamResource{{Kind: "Secret", Name: "missing"}}
	})
	s.put("paused-later", configMap("paused-later", "one"))
	s.put("staged", configMap("staged", "one"))
	s.put("a", configMap("a", "one"))
	s.put("missing", configMap("missing", "one"))
	s.put("partition", configMap("partition", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.WaitingForValues = true })
	s.put("labels", configMap("labels", "one"))
	s.put("uncorrected", configMap("uncorrected", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.CorrectDrift = &fleet.CorrectDrift{Enabled: true} })
	s.put("leftovers", configMap("leftovers", "one"))
	s.put("base", configMap("base", "one"))
	s.put("depends", configMap("depends", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.DependsOn = []fleet.BundleRef{{Name: "base"}} })
	s.put("modified-staged", configMap("modified-staged", "one"))
	for _, name := range []string{"ready", "paused-later", "staged", "a", "missing", "labels", "uncorrected", "leftovers", "depends", "modified-staged"} {
		s.state(name, fleet.Ready)
	}
	s.put("leftovers", configMap("leftovers", "two")+configMap("left", "two")+"apiVersion: v1\nkind: Service\nmetadata:\n  name: z\nspec:\n  ports: [{port: 0}]\n")
	s.state("leftovers", fleet.ErrApplied)
	forbidden := answer(http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"not today","code":403}`)
	s.member.Inject(func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
		isApplied := req.Method == http.MethodPatch && !strings.Contains(req.URL.RawQuery, "dryRun")
		switch {
		case isApplied && strings.HasSuffix(req.URL.Path, "/namespaces/"+s.target), isApplied && strings.HasSuffix(req.URL.Path, "/configmaps/uncorrected"),
			req.Method == http.MethodDelete && strings.HasSuffix(req.URL.Path, "/configmaps/left"):
			return forbidden(req)
		}
		return send()
	})
	s.put("leftovers", configMap("leftovers", "three"))
	s.put("base", "apiVersion: nowhere/v1\nkind: Nothing\nmetadata: {name: x}\n")
	s.state("base", fleet.ErrApplied)
	s.update("depends", func(bd *fleet.BundleDeployment) { bd.Annotations = map[string]string{"changed": "true"} })
	update("labels", func(spec *fleet.BundleDeploymentSpec) {
		spec.Options.NamespaceLabels = map[string]string{"of": "labels"}
	})
	update("modified-staged", func(spec *fleet.BundleDeploymentSpec) { spec.StagedDeploymentID = "s-x:2" })
	require.NoError(t, s.Kubernetes.CoreV1().ConfigMaps(s.target).Delete(t.Context(), "modified-staged", metav1.DeleteOptions{}))
	_, err := s.Kubernetes.CoreV1().ConfigMaps(s.target).Patch(t.Context(), "uncorrected", types.MergePatchType, []byte(`{"data":{"k":"theirs"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	update("paused-later", func(spec *fleet.BundleDeploymentSpec) { spec.Paused, spec.StagedDeploymentID = true, "s-x:2" })
	update("staged", func(spec *fleet.BundleDeploymentSpec) { spec.StagedDeploymentID = "s-x:2" })
	update("partition", func(spec *fleet.BundleDeploymentSpec) {
		spec.WaitingForValues, spec.DeploymentID, spec.Options = false, "", fleet.BundleDeploymentOptions{}
	})
	s.change("theirs")
	require.NoError(t, s.Kubernetes.CoreV1().ConfigMaps(s.target).Delete(t.Context(), "missing", metav1.DeleteOptions{}))

	shows("ready", fleet.Ready, "Deployed", "True", "Monitored", "True")
	shows("starting", fleet.NotReady, "Deployed", "True", "Ready", "False Error: deployment.apps")
	shows("failed", fleet.ErrApplied, "Deployed", "False Error: ")
	shows("waits", fleet.ErrApplied, "Deployed", "False Error: dependent bundle(s) are not ready: [failed]")
	shows("paused", fleet.WaitApplied, "Deployed", "Unknown Paused: paused")
	shows("off-schedule", fleet.WaitApplied, "Deployed", "Unknown Paused: paused")
	shows("values", fleet.WaitApplied, "Deployed", "Unknown WaitApplied: ")
	shows("copy", fleet.ErrApplied, "Deployed", "False Error: fetching Secret missing")
	shows("paused-later", fleet.OutOfSync, "Deployed", "True")
	shows("staged", fleet.OutOfSync, "Deployed", "True", "Ready", "True")
	shows("a", fleet.Modified, "Deployed", "True", "Ready", "False Error: configmap.v1")
	shows("missing", fleet.Modified, "Deployed", "True", "Ready", "False Error: configmap.v1")
	shows("partition", fleet.NotReady, "Deployed", "Unknown WaitApplied: the rollout of the Bundle")

	shows("labels", fleet.NotReady, "Deployed", "True", "Ready", "False Error: setting namespaceLabels and namespaceAnnotations")
	shows("uncorrected", fleet.Modified, "Deployed", "True", "Monitored", "False Error: ", "Ready", "False Error: ")
	shows("leftovers", fleet.Ready, "Deployed", "True", "Monitored", "False Error: removing what earlier attempts left behind", "Ready", "True")
	shows("depends", fleet.Ready, "Deployed", "False Error: dependent bundle(s) are not ready: [base]", "Ready", "True")
	shows("modified-staged", fleet.OutOfSync, "Deployed", "True", "Ready", "False Error: configmap.v1")

	// Failed deployments are repeated all the time, and nothing is written.
	const enough = 2 * time.Second
	total := func() (n int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, writes := range w.writes {
			n += writes
		}
		return n + len(s.hubWire.Requests("PATCH "))
	}
	seen, since := -1, time.Now()
	testenv.Eventually(t, func() (bool, string) {
		if now := total(); now != seen {
			seen, since = now, time.Now()
		}
		return time.Since(since) > enough, fmt.Sprintf("%d writes, and no end", seen)
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, writes := range w.writes { // those before the first report, and after a change of the spec
		assert.LessOrEqual(t, writes, 3, name)
	}
}
