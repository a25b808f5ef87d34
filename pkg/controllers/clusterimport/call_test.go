package clusterimport

import (
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

func assertGolden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o750))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
		return
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err, "run the test with -update")
	assert.Equal(t, string(want), got)
}

const credentialPath = "/api/v1/namespaces/" + system + "/secrets/fleet-agent"

// wholePlan uses everything that adds an object.
func wholePlan(t *testing.T) *plan {
	t.Helper()
	pull := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "pull"}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte("{}")},
	}
	p := newPass(t, kubeconfigSecret(nil))
	_, err := p.Kubernetes.CoreV1().Secrets(system).Create(t.Context(), pull, metav1.CreateOptions{})
	require.NoError(t, err)
	p.hub.ImagePullSecrets = []config.LocalObjectReference{{Name: "pull"}}
	p.cluster.Labels = map[string]string{"env": "prod", "management.cattle.io/x": "y"}
	p.cluster.Spec.AgentSchedulingCustomization = &fleet.AgentSchedulingCustomization{
		PriorityClass: &fleet.PriorityClassSpec{Value: 5}, PodDisruptionBudget: &fleet.PodDisruptionBudgetSpec{MaxUnavailable: "1"},
	}
	values := someValues()
	made, out := p.plan(t.Context(), &values)
	require.NotNil(t, made, out.Message)
	return made
}

func TestTranscriptOfAnImport(t *testing.T) {
	for name, made := range map[string]*plan{
		"plain.txt": planned(t, nil),
		"whole.txt": wholePlan(t),
		"elsewhere.txt": planned(t, func(p *pass) {
			p.cluster.Spec.AgentNamespace = "cattle-fleet-local-system"
			p.cluster.Status.AgentDeployedGeneration = ptr.To(int64(0))
		}),
	} {
		t.Run(strings.TrimSuffix(name, ".txt"), func(t *testing.T) {
			m := newFakeMember(t)
			require.Nil(t, m.connect(t).install(t.Context(), made))
			assertGolden(t, name, m.transcript())
		})
	}
}

func TestImportOverAnAgentDeletesNothingOfIt(t *testing.T) {
	m := newFakeMember(t)
	made := planned(t, nil)
	require.Nil(t, m.connect(t).install(t.Context(), made))
	m.put(credentialPath, map[string]any{"kind": "Secret", "apiVersion": "v1", "data": map[string]any{"registration": "eA=="}})
	before := m.state(t)
	require.Nil(t, m.connect(t).install(t.Context(), made))
	assert.Equal(t, before, m.state(t))
	assert.NotContains(t, m.transcript(), "DELETE")
}

// The agent restarts with the Deployment; with its old credential still there it would not look at the new registration.
func TestCredentialOfAnotherReleaseGoesBetweenBootstrapSecretAndDeployment(t *testing.T) {
	m := newFakeMember(t)
	m.put(credentialPath, map[string]any{"kind": "Secret", "apiVersion": "v1", "data": map[string]any{"kubeconfig": "eA=="}})
	require.Nil(t, m.connect(t).install(t.Context(), planned(t, nil)))
	transcript := m.transcript()
	bootstrap := strings.Index(transcript, "PATCH "+credentialPath+"-bootstrap")
	dropped := strings.Index(transcript, "GET "+credentialPath+"\nDELETE "+credentialPath+"\n")
	deployment := strings.Index(transcript, "/deployments/fleet-agent")
	assert.Less(t, bootstrap, dropped, transcript)
	assert.Less(t, dropped, deployment, transcript)
	assert.GreaterOrEqual(t, bootstrap, 0)
	assert.NotContains(t, m.paths(), credentialPath)
}

// TestImportThatBreaksAnywhereIsTakenUpAgain fails every request of an import in turn: each failure says what was being
// done, nothing that worked before is gone after it, and another attempt ends where an undisturbed one does.
func TestImportThatBreaksAnywhereIsTakenUpAgain(t *testing.T) {
	made := wholePlan(t)
	made.leftovers = []named{{"PodDisruptionBudget", system, "some-other"}}
	prepare := func() *fakeMember {
		m := newFakeMember(t)
		m.put(credentialPath, map[string]any{"kind": "Secret", "apiVersion": "v1", "data": map[string]any{"kubeconfig": "eA=="}})
		return m
	}
	undisturbed := prepare()
	require.Nil(t, undisturbed.connect(t).install(t.Context(), made))
	steps := len(undisturbed.requests)
	require.Greater(t, steps, 12)

	for at := range steps {
		for how, reason := range map[string]string{"500": fleet.ReasonMemberError, "forbid": fleet.ReasonForbidden} {
			m := prepare()
			m.fault = failAt(at, how)
			f := m.connect(t).install(t.Context(), made)
			require.NotNil(t, f, "request %d", at)
			assert.Equal(t, reason, f.reason)
			assert.Regexp(t, `^(connecting to the member|installing [A-Z]|removing )`, f.message)
			assert.Len(t, m.requests, at+1, "it stops at once")
			m.fault = nil
			require.Nil(t, m.connect(t).install(t.Context(), made))
			assert.Equal(t, undisturbed.state(t), m.state(t), "after request %d", at)
		}
	}
}

func TestConnectionThatBreaksAnywhereIsAFailureOfTheNetwork(t *testing.T) {
	made := planned(t, nil)
	m := newFakeMember(t)
	require.Nil(t, m.connect(t).install(t.Context(), made))
	for at := range len(m.requests) {
		if strings.HasPrefix(m.requests[at], http.MethodGet) {
			continue // client-go repeats these itself
		}
		broken := newFakeMember(t)
		broken.fault = failAt(at, "hang up")
		f := broken.connect(t).install(t.Context(), made)
		require.NotNil(t, f, "request %d", at)
		assert.Equal(t, fleet.ReasonUnreachable, f.reason)
		broken.fault = nil
		require.Nil(t, broken.connect(t).install(t.Context(), made))
		assert.Equal(t, m.state(t), broken.state(t))
	}
}

func TestPriorityClassOfAnotherValueIsMadeAgain(t *testing.T) {
	m := newFakeMember(t)
	refused := false
	m.fault = func(_ int, w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPatch || !strings.Contains(r.URL.Path, "priorityclasses") || refused {
			return false
		}
		refused = true
		reply(w, http.StatusUnprocessableEntity, metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonInvalid, Code: 422,
		})
		return true
	}
	require.Nil(t, m.connect(t).install(t.Context(), wholePlan(t)))
	var about []string
	for _, request := range m.requests {
		if strings.Contains(request, "priorityclasses") {
			about = append(about, strings.Fields(request)[0])
		}
	}
	assert.Equal(t, []string{"PATCH", "DELETE", "PATCH"}, about)
}

func TestCleaningRemovesAnAgentAndNothingElse(t *testing.T) {
	m := newFakeMember(t)
	made := planned(t, func(p *pass) { p.cluster.Spec.AgentNamespace = "old" })
	require.Nil(t, m.connect(t).install(t.Context(), made))
	m.put("/api/v1/namespaces/old/secrets/fleet-agent", map[string]any{"kind": "Secret"})
	m.put("/api/v1/namespaces/old/secrets/of-somebody", map[string]any{"kind": "Secret"})
	m.requests = nil
	require.Nil(t, m.connect(t).clean(t.Context(), "old"))
	assertGolden(t, "clean.txt", m.transcript())
	assert.Equal(t, []string{
		"/api/v1/namespaces/old", "/api/v1/namespaces/old/secrets/of-somebody", "/api/v1/namespaces/old/serviceaccounts/default",
	}, m.paths(), "the namespace and its default ServiceAccount are not ours to delete")
	require.Nil(t, m.connect(t).clean(t.Context(), "old"), "what is gone is no error")
}

func TestCleaningThatFailsNamesTheObject(t *testing.T) {
	const stopping = 2 // requests before the agent's objects go one by one
	for at, o := range agentObjects("old") {
		m := newFakeMember(t)
		m.fault = failAt(stopping+at, "forbid")
		f := m.connect(t).clean(t.Context(), "old")
		require.NotNil(t, f)
		assert.Equal(t, fleet.ReasonForbidden, f.reason)
		assert.Contains(t, f.message, "removing the agent's earlier "+o.kind+" "+o.name)
	}
}

func TestSettingsThatAreNoLongerWantedAreRemoved(t *testing.T) {
	class, budget := &fleet.PriorityClassSpec{Value: 1}, &fleet.PodDisruptionBudgetSpec{MaxUnavailable: "1"}
	for _, row := range []struct {
		name   string
		had    bool
		wanted *fleet.AgentSchedulingCustomization
		kinds  []string
	}{
		{"a Cluster without an agent so far", false, nil, nil},
		{"all are wanted no more", true, nil, []string{"PriorityClass", "PodDisruptionBudget"}},
		{"an empty wish is none", true, &fleet.AgentSchedulingCustomization{}, []string{"PriorityClass", "PodDisruptionBudget"}},
		{"only the class is wanted", true, &fleet.AgentSchedulingCustomization{PriorityClass: class}, []string{"PodDisruptionBudget"}},
		{"only the budget is wanted", true, &fleet.AgentSchedulingCustomization{PodDisruptionBudget: budget}, []string{"PriorityClass"}},
		{"both are wanted", true, &fleet.AgentSchedulingCustomization{PriorityClass: class, PodDisruptionBudget: budget}, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			made := planned(t, func(p *pass) {
				p.cluster.Spec.AgentSchedulingCustomization = row.wanted
				if row.had {
					p.cluster.Status.AgentDeployedGeneration = ptr.To(int64(0))
				}
			})
			var kinds []string
			for _, o := range made.leftovers {
				kinds = append(kinds, o.kind)
			}
			assert.Equal(t, row.kinds, kinds)
		})
	}
}

func TestPlanTellsWhetherTheAgentIsToRegister(t *testing.T) {
	key := planned(t, nil).registration
	for _, row := range []struct {
		name   string
		change func(*pass)
		anew   bool
	}{
		{"a first import", func(p *pass) { p.cluster.Status.Import = nil }, true},
		{"a setting", func(p *pass) {
			p.cluster.Status.Import.Registration, p.cluster.Spec.HostNetwork = key, ptr.To(true)
		}, false},
		{"another registration", func(p *pass) { p.cluster.Status.Import.Registration = "other" }, true},
		{"another namespace", func(p *pass) {
			p.cluster.Status.Import.Registration, p.cluster.Spec.AgentNamespace = key, "elsewhere"
		}, true},
	} {
		assert.Equal(t, row.anew, planned(t, row.change).anew, row.name)
	}
}

func TestSamePlanHasTheSameInputsAndEachChangeOthers(t *testing.T) {
	m := newFakeMember(t).connect(t)
	inputs := planned(t, nil).inputs(m)
	assert.Equal(t, inputs, planned(t, nil).inputs(m))
	assert.NotEqual(t, inputs, planned(t, func(p *pass) { p.cluster.Labels = map[string]string{"a": "b"} }).inputs(m))
	assert.NotContains(t, inputs, "bearer")
}

func TestObjectOfAnUnknownKindIsAnError(t *testing.T) {
	m := newFakeMember(t)
	c := m.connect(t)
	require.ErrorContains(t, c.apply(t.Context(), &corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node"}}), "kind Node")
	require.ErrorContains(t, c.remove(t.Context(), "Node", "a", "b"), "kind Node")
	assert.Empty(t, m.requests)
}
