package clusterimport

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/testenv/golden"
	"github.com/muster-fleet/muster/pkg/agentmanifest"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/internal/fakecache"
)

const (
	namespacePath  = "/api/v1/namespaces/" + system
	credentialPath = namespacePath + "/secrets/fleet-agent"
)

// installation is the arguments of memberClient.install.
type installation struct {
	*installPlan
	objects []runtime.Object
}

func planned(t *testing.T, change func(*planInput)) installation {
	t.Helper()
	made, objects := plan(t, change)
	return installation{made, objects}
}

func (i installation) run(t *testing.T, m *fakeMember) *failure {
	t.Helper()
	importer := &Importer{calls: &memberCalls{}, clusters: fakecache.With[*fleet.Cluster]()}
	return importer.installCall(m.connect(t), installed(), i.installPlan, i.objects)(t.Context())
}

// wholePlan has everything that adds an object.
func wholePlan(t *testing.T) installation {
	t.Helper()
	return planned(t, func(in *planInput) {
		pull := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "pull"}, Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte("{}")},
		}
		require.NoError(t, in.kube.Tracker().Add(pull))
		in.hub.ImagePullSecrets = []config.LocalObjectReference{{Name: "pull"}}
		in.cluster.Status.AgentDeployedGeneration = ptr.To(int64(0))
		in.cluster.Labels = map[string]string{"env": "prod", "management.cattle.io/x": "y"}
		in.cluster.Spec.AgentSchedulingCustomization = &fleet.AgentSchedulingCustomization{
			PriorityClass: &fleet.PriorityClassSpec{Value: 5}, PodDisruptionBudget: &fleet.PodDisruptionBudgetSpec{MaxUnavailable: "1"},
		}
	})
}

func TestInstall_transcript(t *testing.T) {
	for name, made := range map[string]installation{
		"plain.txt": planned(t, nil),
		"whole.txt": wholePlan(t),
		"elsewhere.txt": planned(t, func(in *planInput) {
			in.cluster.Spec.AgentNamespace = "cattle-fleet-local-system"
			in.cluster.Status.AgentDeployedGeneration = ptr.To(int64(0))
		}),
	} {
		t.Run(strings.TrimSuffix(name, ".txt"), func(t *testing.T) {
			m := newFakeMember(t)
			require.Nil(t, made.run(t, m))
			golden.Equal(t, "testdata/"+name, m.transcript())
		})
	}
}

func TestInstall_overAnAgent(t *testing.T) {
	m := newFakeMember(t)
	made := planned(t, nil)
	require.Nil(t, made.run(t, m))
	m.put(credentialPath, map[string]any{"kind": "Secret", "apiVersion": "v1", "data": map[string]any{"registration": "eA=="}})
	before := m.state(t)
	require.Nil(t, made.run(t, m))
	assert.Equal(t, before, m.state(t))
	assert.NotContains(t, m.transcript(), "DELETE")
}

// The agent restarts with the Deployment. With its old credential it would not register again.
func TestInstall_credentialOfAnotherRelease(t *testing.T) {
	m := newFakeMember(t)
	m.put(namespacePath, map[string]any{"kind": "Namespace", "apiVersion": "v1"})
	m.put(credentialPath, map[string]any{"kind": "Secret", "apiVersion": "v1", "data": map[string]any{"kubeconfig": "eA=="}})
	require.Nil(t, planned(t, nil).run(t, m))
	transcript := m.transcript()
	bootstrap := strings.Index(transcript, "PATCH "+credentialPath+"-bootstrap")
	dropped := strings.Index(transcript, "GET "+credentialPath+"\nDELETE "+credentialPath+"\n")
	deployment := strings.Index(transcript, "/deployments/fleet-agent")
	assert.Less(t, bootstrap, dropped, transcript)
	assert.Less(t, dropped, deployment, transcript)
	assert.GreaterOrEqual(t, bootstrap, 0)
	assert.NotContains(t, m.paths(), credentialPath)
}

// TestInstall_interrupted fails every request of an import in turn. Each failure says what was being done, and a second
// import results in the same state as an uninterrupted one.
func TestInstall_interrupted(t *testing.T) {
	made := wholePlan(t)
	made.leftovers = []agentmanifest.OwnedObject{{Kind: "PodDisruptionBudget", Namespace: system, Name: "some-other"}}
	prepare := func() *fakeMember {
		m := newFakeMember(t)
		m.put(namespacePath, map[string]any{"kind": "Namespace", "apiVersion": "v1"})
		m.put(credentialPath, map[string]any{"kind": "Secret", "apiVersion": "v1", "data": map[string]any{"kubeconfig": "eA=="}})
		return m
	}
	undisturbed := prepare()
	require.Nil(t, made.run(t, undisturbed))
	steps := len(undisturbed.requests)
	require.Greater(t, steps, 12)

	for at := range steps {
		for how, reason := range map[string]string{"500": fleet.ReasonMemberError, "forbid": fleet.ReasonForbidden, "hang up": fleet.ReasonUnreachable} {
			if how == "hang up" && strings.HasPrefix(undisturbed.requests[at], http.MethodGet) {
				continue // client-go repeats these itself
			}
			if how == "forbid" && at == 0 {
				continue // the user of a kubeconfig need not have the right to read Namespace kube-system
			}
			m := prepare()
			m.fault = failAt(at, how)
			f := made.run(t, m)
			require.NotNil(t, f, "request %d", at)
			assert.Equal(t, reason, f.reason)
			assert.Regexp(t, `^(connecting to the member|installing [A-Z]|removing )`, f.message)
			assert.Len(t, m.requests, at+1, "it stops at once")
			m.fault = nil
			require.Nil(t, made.run(t, m))
			assert.Equal(t, undisturbed.state(t), m.state(t), "after request %d", at)
		}
	}
}

const classPath = "/apis/scheduling.k8s.io/v1/priorityclasses/" + agentmanifest.PriorityClassName

// agentWithClass is the Deployment of an agent that names the PriorityClass.
func agentWithClass(namespace string) any {
	return map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "fleet-agent", "namespace": namespace},
		"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"priorityClassName": agentmanifest.PriorityClassName}}},
	}
}

func TestInstall_immutablePriorityClass(t *testing.T) {
	for _, row := range []struct {
		name    string
		agents  []any
		methods []string
	}{
		{"of no other agent", nil, []string{"PATCH", "DELETE", "PATCH"}},
		{"of this agent", []any{agentWithClass(system)}, []string{"PATCH", "DELETE", "PATCH"}},
		{"of an earlier agent of the Cluster", []any{agentWithClass("earlier")}, []string{"PATCH", "DELETE", "PATCH"}},
		{"of another agent", []any{agentWithClass("theirs")}, []string{"PATCH", "GET"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := newFakeMember(t)
			m.agents = row.agents
			refused := false
			m.fault = func(_ int, w http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodPatch || r.URL.Path != classPath || refused {
					return false
				}
				refused = true
				reply(w, http.StatusUnprocessableEntity, metav1.Status{
					TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonInvalid, Code: 422,
				})
				return true
			}
			m.put(classPath, map[string]any{"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 100})
			made := planned(t, func(in *planInput) {
				in.cluster.Spec.AgentSchedulingCustomization = &fleet.AgentSchedulingCustomization{PriorityClass: &fleet.PriorityClassSpec{Value: 5}}
				in.cluster.Status.AgentDeployedGeneration = ptr.To(int64(0))
				in.cluster.Status.Import.AgentNamespace = "earlier"
			})
			problem := made.run(t, m)
			if len(row.methods) == 2 {
				require.NotNil(t, problem)
				assert.Contains(t, problem.message, "uses it with value 100 and preemptionPolicy PreemptLowerPriority; set the same here, or, to change it, "+
					"remove spec.agentSchedulingCustomization.priorityClass from the other Cluster until this one is imported")
			} else {
				require.Nil(t, problem)
			}
			var about []string
			for _, request := range m.requests {
				if strings.Contains(request, "priorityclasses") {
					about = append(about, strings.Fields(request)[0])
				}
			}
			assert.Equal(t, row.methods, about)
		})
	}
}

func TestRemovePriorityClass(t *testing.T) {
	own, _, err := agentmanifest.ImportMarks("")
	require.NoError(t, err)
	theirs, _, err := agentmanifest.ImportMarks("theirs")
	require.NoError(t, err)
	labelled := func(set map[string]string) map[string]any {
		return map[string]any{"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": map[string]any{
			"name": agentmanifest.PriorityClassName, "uid": "class", "labels": set,
		}}
	}
	chart := labelled(nil)
	chart["metadata"].(map[string]any)["annotations"] = map[string]any{"meta.helm.sh/release-namespace": system}
	for _, row := range []struct {
		name      string
		class     map[string]any
		agents    []any
		forbidden bool // to list Deployments
		removed   bool
	}{
		{"of this agent", labelled(own), []any{agentWithClass(system)}, false, true},
		{"of this agent's chart", chart, nil, false, true},
		{"of another agent", labelled(theirs), nil, false, false},
		{"of nobody known", labelled(nil), nil, false, false},
		{"shared with another agent", labelled(own), []any{agentWithClass("theirs")}, false, false},
		{"perhaps shared", labelled(own), nil, true, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := newFakeMember(t)
			m.put(classPath, row.class)
			m.agents = row.agents
			if row.forbidden {
				m.fault = failAt(1, "forbid")
			}
			leftovers := []agentmanifest.OwnedObject{{Kind: "PriorityClass", Name: agentmanifest.PriorityClassName}}
			require.Nil(t, m.connect(t).removeAll(t.Context(), agentID{system, []string{"other", ""}}, leftovers, "removing"))
			assert.Equal(t, row.removed, !slices.Contains(m.paths(), classPath))
		})
	}
}

// The type of a Secret is immutable.
func TestInstall_typeOfPullSecret(t *testing.T) {
	marks, _, err := agentmanifest.ImportMarks("")
	require.NoError(t, err)
	for _, row := range []struct {
		name    string
		labels  map[string]string
		message string
	}{
		{"of a copy", marks, ""},
		{"of a Secret of a person", nil, "installing Secret " + system + "/pull at %s: a Secret of this name exists with another type, or is immutable, " +
			"and no import has created it; delete it on the member, or name it in spec.agentPullSecrets"},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := newFakeMember(t)
			m.put(copyPath, map[string]any{"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": map[string]any{"name": "pull", "uid": "copy", "labels": row.labels}})
			m.fault = func(_ int, w http.ResponseWriter, r *http.Request) bool {
				refused := r.Method == http.MethodPatch && r.URL.Path == copyPath && m.objects[copyPath] != nil
				if refused {
					reply(w, http.StatusUnprocessableEntity, metav1.Status{
						TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonInvalid, Code: 422,
					})
				}
				return refused
			}
			problem := wholePlan(t).run(t, m)
			if row.message == "" {
				require.Nil(t, problem)
				assert.Equal(t, "kubernetes.io/dockerconfigjson", m.state(t)[copyPath]["type"])
				return
			}
			require.NotNil(t, problem)
			assert.Equal(t, failure{reason: fleet.ReasonMemberError, message: fmt.Sprintf(row.message, m.URL)}, *problem)
			assert.Equal(t, "Opaque", m.state(t)[copyPath]["type"])
		})
	}
}

func TestRemovePullSecret_hubCluster(t *testing.T) {
	asHub, asAgent := newFakeMember(t), newFakeMember(t)
	marks, _, err := agentmanifest.ImportMarks("")
	require.NoError(t, err)
	asAgent.put(copyPath, map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "pull", "uid": "copy", "labels": marks}})
	member := asHub.connect(t)
	member.clientForAgent = func(string) (*memberClient, error) { return asAgent.connect(t), nil }
	leftovers := []agentmanifest.OwnedObject{{Kind: "Secret", Namespace: system, Name: "pull"}}
	require.Nil(t, member.removeAll(t.Context(), agentID{system, []string{""}}, leftovers, "removing"))
	assert.Empty(t, asAgent.paths())
	assert.Empty(t, asHub.requests, "its rights name only the Secrets of the current configuration")
}

func TestSchedulingLeftovers(t *testing.T) {
	class, budget := &fleet.PriorityClassSpec{Value: 1}, &fleet.PodDisruptionBudgetSpec{MaxUnavailable: "1"}
	for _, row := range []struct {
		name   string
		had    bool
		wanted *fleet.AgentSchedulingCustomization
		kinds  []string
	}{
		{"no agent installed", false, nil, nil},
		{"nothing wanted", true, nil, []string{"PriorityClass", "PodDisruptionBudget"}},
		{"an empty customization", true, &fleet.AgentSchedulingCustomization{}, []string{"PriorityClass", "PodDisruptionBudget"}},
		{"only the PriorityClass wanted", true, &fleet.AgentSchedulingCustomization{PriorityClass: class}, []string{"PodDisruptionBudget"}},
		{"only the PodDisruptionBudget wanted", true, &fleet.AgentSchedulingCustomization{PodDisruptionBudget: budget}, []string{"PriorityClass"}},
		{"both wanted", true, &fleet.AgentSchedulingCustomization{PriorityClass: class, PodDisruptionBudget: budget}, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			made := planned(t, func(in *planInput) {
				in.cluster.Spec.AgentSchedulingCustomization = row.wanted
				if row.had {
					in.cluster.Status.AgentDeployedGeneration = ptr.To(int64(0))
				}
			})
			var kinds []string
			for _, o := range made.leftovers {
				kinds = append(kinds, o.Kind)
			}
			assert.Equal(t, row.kinds, kinds)
		})
	}
}

func TestPlan_reregister(t *testing.T) {
	key := planned(t, nil).registrationKey
	for _, row := range []struct {
		name   string
		change func(*planInput)
		want   bool
	}{
		{"a first import", func(in *planInput) { in.cluster.Status.Import = nil }, true},
		{"a setting", func(in *planInput) {
			in.cluster.Status.Import.RegistrationKey, in.cluster.Spec.HostNetwork = key, ptr.To(true)
		}, false},
		{"another registration", func(in *planInput) { in.cluster.Status.Import.RegistrationKey = "other" }, true},
		{"another namespace", func(in *planInput) {
			in.cluster.Status.Import.RegistrationKey, in.cluster.Spec.AgentNamespace = key, "elsewhere"
		}, true},
	} {
		assert.Equal(t, row.want, planned(t, row.change).reregister, row.name)
	}
}

func TestPlan_inputs(t *testing.T) {
	m := newFakeMember(t).connect(t)
	inputs := func(change func(*planInput)) string {
		hash, err := planned(t, change).inputs(m)
		require.NoError(t, err)
		return hash
	}
	same := inputs(nil)
	assert.Equal(t, same, inputs(nil))
	assert.NotContains(t, same, "bearer")
	for name, change := range map[string]func(*planInput){
		"a label":        func(in *planInput) { in.cluster.Labels = map[string]string{"a": "b"} },
		"a setting":      func(in *planInput) { in.cluster.Spec.HostNetwork = ptr.To(true) },
		"a namespace":    func(in *planInput) { in.cluster.Spec.AgentNamespace = "elsewhere" },
		"an image":       func(in *planInput) { in.hub.AgentImage = "another" },
		"a token":        func(in *planInput) { in.values.Token = "another" },
		"a URL":          func(in *planInput) { in.info.apiServerURL = "https://another" },
		"a redeployment": func(in *planInput) { in.cluster.Spec.RedeployAgentGeneration = 1 },
		"a budget": func(in *planInput) {
			in.cluster.Spec.AgentSchedulingCustomization = &fleet.AgentSchedulingCustomization{PodDisruptionBudget: &fleet.PodDisruptionBudgetSpec{MaxUnavailable: "1"}}
		},
	} {
		assert.NotEqual(t, same, inputs(change), name)
	}
}

func TestApply_unknownKind(t *testing.T) {
	m := newFakeMember(t)
	c := m.connect(t)
	_, err := c.apply(t.Context(), &corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node"}})
	require.ErrorContains(t, err, "kind Node")
	require.ErrorContains(t, c.remove(t.Context(), "Node", "a", "b"), "kind Node")
	assert.Empty(t, m.requests)
}
