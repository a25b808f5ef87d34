package deploy_test

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	helm "helm.sh/helm/v4/pkg/release/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/recording"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/internal/testenv/withkinds"
	"github.com/muster-fleet/muster/pkg/agent/deploy"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
	"github.com/muster-fleet/muster/pkg/release"
)

// recordedStage is a stage of a scene in testdata/wire: what an unchanged hub wrote, and what an unchanged agent made of it.
type recordedStage struct {
	Stage   string
	Bundles []recordedBundle
	// AlsoLookedAt are answers of the member to a GET.
	AlsoLookedAt []struct {
		Path string
		Code int
	}
}

type recordedBundle struct {
	Name string
	// Same: the BundleDeployments are those of the stage before.
	Same              bool
	BundleDeployments []struct {
		Metadata struct {
			Name   string
			Labels map[string]string
		}
		Spec   fleet.BundleDeploymentSpec
		Status fleet.BundleDeploymentStatus
	}
	// Secrets are Secrets and ConfigMaps of the cluster namespace.
	Secrets []struct {
		Kind, Type, Name string
		Data             map[string]string
	}
	Contents []struct{ Name, SHA256Sum, Unpacked string }
	Releases []recordedRelease
	Objects  []unstructured.Unstructured
}

type recordedRelease struct {
	Namespace, Name, Status, Description string
	Version                              int
	Chart                                *chart.Metadata
}

// scene describes a recording, in addition to its file.
type scene struct {
	// before is done on the member before each stage.
	before map[string]func(*replay)
	// differs changes the expected status, by "stage bundle", where this agent differs on purpose. A nil status is not compared.
	differs map[string]difference
	// answers are the codes of AlsoLookedAt where this agent differs on purpose.
	answers map[string]int
	// follows names the Bundle that was ready before another one was created.
	follows map[string]string
	// writes are the sequences of this agent where they differ from sequences.txt on purpose, by Bundle.
	writes map[string]otherSequence
	// says are the errors of this agent where they differ from 14-agent-errors.txt on purpose, by Bundle.
	says map[string]otherErrors
	// cluster is the name of the Cluster if its own BundleDeployment is in the scene.
	cluster string
}

type difference struct {
	why    string
	change func(*fleet.BundleDeploymentStatus)
	// release: the release differs as well.
	release bool
	// left is the number of revisions that stay on the member without the BundleDeployment, if it is another than recorded.
	left *int
}

// failsWith sets the status of a first deployment that fails with another message than with an unchanged agent.
func failsWith(message string) func(*fleet.BundleDeploymentStatus) {
	return func(s *fleet.BundleDeploymentStatus) {
		s.Conditions = []genericcondition.GenericCondition{{Type: fleet.ConditionDeployed, Status: "False", Reason: fleet.ReasonError, Message: message}}
		s.Display = fleet.BundleDeploymentDisplay{Deployed: "Error: " + message, State: string(fleet.ErrApplied)}
	}
}

// revision sets another revision in the status.
func revision(release string) func(*fleet.BundleDeploymentStatus) {
	return func(s *fleet.BundleDeploymentStatus) { s.Release = release }
}

// missingCopy sets the status of a BundleDeployment that needs a Secret which the hub does not have: an unchanged agent writes none.
func missingCopy(s *fleet.BundleDeploymentStatus) {
	failsWith(`fetching Secret not-there, which downstreamResources names: secrets "not-there" not found`)(s)
}

// paused sets the status of a BundleDeployment that is paused before its first deployment: an unchanged agent writes none.
func paused(s *fleet.BundleDeploymentStatus) {
	s.Display.Deployed = "Unknown"
	s.Conditions = []genericcondition.GenericCondition{
		{Type: fleet.ConditionDeployed, Status: "Unknown", Reason: fleet.ReasonPaused, Message: "paused"},
		{Type: fleet.ConditionReady, Status: "False", Reason: fleet.ReasonNotReady, Message: "paused"},
	}
}

// secretFirst: an unchanged hub creates the Secret with the values after the BundleDeployment, and its agent may look in between. This test
// creates the Secret first; TestRun_valuesThatComeLater has the other order.
var secretFirst = otherErrors{why: "the Secret with the values is there before the BundleDeployment"}

// scenes are the recordings. What else was recorded cannot be replayed here, or is compared elsewhere:
//   - 14: how often each error came, because the pauses between the attempts of this test are shorter;
//   - 24, 25, 27: the requests that register an agent. TestWire of internal/integration/registration sends them to the hub of this project;
//   - 26: the deletion of a Cluster takes the credential of the agent, and here the agent impersonates a user, which always works. See
//     TestRun_clusterDeletedWithItsCredential, and for the writes of the hub TestWire of internal/integration/imports.
var scenes = map[string]scene{
	"01-plain.yaml": {}, "02-helm-empty.yaml": {}, "04-chart-values.yaml": {}, "19-names.yaml": {},
	"06-target-customisation.yaml": {says: map[string]otherErrors{"s06-all": secretFirst, "s06-first": secretFirst}},
	"05-templating.yaml":           {says: map[string]otherErrors{"s05-nopre": secretFirst}},
	"22-gitrepo-labels.yaml":       {before: map[string]func(*replay){"b1-ready": func(r *replay) { r.running.Store("s22b", true) }}},
	"03-drift.yaml": {
		before: map[string]func(*replay){
			"corrected": func(r *replay) {
				r.patch("/v1", "configmaps", "s03on", "c1", `{"data":{"a":"2","z":"new"}}`)
				r.release("s03-drift-on", "s03on/s03-drift-on:2")
				require.NoError(r.t, r.Kubernetes.AppsV1().Deployments("s03on").Delete(r.t.Context(), "web", metav1.DeleteOptions{}))
				r.release("s03-drift-on", "s03on/s03-drift-on:3")
				r.state("s03-drift-on", fleet.Ready)
				r.patch("apps/v1", "deployments", "s03on", "web", `{"metadata":{"labels":{"added":"by-hand"}},"spec":{"replicas":3}}`)
				r.release("s03-drift-on", "s03on/s03-drift-on:4")
				r.patch("/v1", "configmaps", "s03force", "c1", `{"data":{"a":"x"}}`)
			},
			"modified": func(r *replay) { r.patch("/v1", "configmaps", "s03off", "c1", `{"data":{"a":"2"}}`) },
			"missing": func(r *replay) {
				require.NoError(r.t, r.Kubernetes.CoreV1().ConfigMaps("s03off").Delete(r.t.Context(), "c2", metav1.DeleteOptions{}))
			},
			"exist": func(r *replay) {
				_, err := r.Kubernetes.CoreV1().ConfigMaps("s03off").Create(r.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c2"}}, metav1.CreateOptions{})
				require.NoError(r.t, err)
			},
			"restored": func(r *replay) { r.patch("/v1", "configmaps", "s03off", "c1", `{"data":{"a":"1"}}`) },
		},
	},
	"12-crd.yaml": {
		differs: map[string]difference{
			"deleted s12-cr2": {why: "the custom resource is gone with its definition, and reported as missing", change: nil},
		},
		answers: map[string]int{"/api/v1/namespaces/s12": 200}, // the namespace is created before Helm finds the unknown kind
		follows: map[string]string{"s12-cr": "s12-only"},
		writes: map[string]otherSequence{
			"s12-cr2": {"the custom resource is gone with its definition, and reported as missing", sequence{{hasFailed, 1}, {isReady, 1}, {isModified, 1}}},
		},
		says: map[string]otherErrors{
			"s12-cr2": {"a kind that is gone neither prevents a status nor a removal", []string{
				"dependent bundle(s) are not ready: [s12-only-del]",
			}},
		},
	},
	"13-dependson.yaml": {
		before: map[string]func(*replay){
			"base-ready":          func(r *replay) { r.running.Store("s13", true) },
			"base-notready-again": func(r *replay) { r.running.Delete("s13") },
		},
	},
	"14-broken.yaml": {
		before: map[string]func(*replay){
			"settled": func(r *replay) {
				_, err := r.Kubernetes.CoreV1().Namespaces().Create(r.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "s14k"}}, metav1.CreateOptions{})
				require.NoError(r.t, err)
				_, err = r.Kubernetes.CoreV1().ConfigMaps("s14k").Create(r.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "taken"}}, metav1.CreateOptions{})
				require.NoError(r.t, err)
			},
		},
		differs: map[string]difference{
			"settled s14-yaml": {why: "the message names the file", change: failsWith("error while running post render on files: cm.yaml: yaml: line 3: mapping values are not allowed in this context")},
			"settled s14-conflict": {why: "what is not deployed is not applied", change: func(s *fleet.BundleDeploymentStatus) {
				message := strings.TrimPrefix(fleetstatus.Condition(s.Conditions, fleet.ConditionReady).Message, "not ready: ")
				*s = fleet.BundleDeploymentStatus{}
				failsWith(message)(s)
			}},
			"settled s14-clusterscoped": {why: "the message says what to do", change: failsWith("error while running post render on files: Namespace s14-made is cluster-scoped, " +
				"and the option namespace puts everything into namespace s14l; take it out of the Bundle, or use defaultNamespace")},
			"after-change s14-required":  {why: "there were more attempts", change: nil, release: true},
			"after-change s14-immutable": {why: "there were fewer attempts", change: func(*fleet.BundleDeploymentStatus) {}, release: true},
			"after-change s14-timeout":   {why: "Pods are not replaced here", change: nil, release: true},
		},
		writes: map[string]otherSequence{"s14-conflict": {"what is not deployed is not applied", sequence{{hasFailed, 1}}}},
		says: map[string]otherErrors{
			"s14-yaml": {"the message names the file", []string{
				"error while running post render on files: cm.yaml: yaml: line 3: mapping values are not allowed in this context",
			}},
			"s14-clusterscoped": {"the message says what to do", []string{
				"error while running post render on files: Namespace s14-made is cluster-scoped, and the option namespace puts everything into " +
					"namespace s14l; take it out of the Bundle, or use defaultNamespace",
			}},
			"s14-timeout": {"there are no Pods here, which could be terminating", []string{
				"resource Deployment/s14g/slow not ready. status: InProgress, message: Available: 0/1 context deadline exceeded",
			}},
		},
	},
	"15-paused.yaml": {
		before: map[string]func(*replay){
			"drift-while-paused": func(r *replay) { r.patch("/v1", "configmaps", "s15b", "c1", `{"data":{"a":"9"}}`) },
		},
		differs: map[string]difference{
			"settled s15-first":      {why: "what waits says for what", change: paused},
			"paused-first s15-first": {why: "what waits says for what", change: paused},
			"released s15-later": {why: "a change by a person does not stop a deployment", change: func(s *fleet.BundleDeploymentStatus) {
				s.AppliedDeploymentID, s.Release = "s-7796d29e4bdd2b5d143caef54088bb3918f5e8d79c7066149c310d251a153:e5e1d9249367188a8bfa5e6f2679fc124ddb0d42e6a2bce180c9adf6af2650da", "s15b/s15-later:2"
			}, release: true},
		},
		writes: map[string]otherSequence{
			"s15-first": {"what waits says for what", sequence{{waitsForEnd, 1}, {isReady, 1}}},
			"s15-later": {"a change by a person does not stop a deployment", sequence{{isReady, 2}}},
		},
		says: map[string]otherErrors{"s15-later": {why: "a change by a person does not stop a deployment"}},
	},
	"08-nested.yaml": {}, "09-kustomize.yaml": {}, "10-overlays.yaml": {}, "21-helmop.yaml": {},
	"17-downstream.yaml": {
		differs: map[string]difference{
			"settled s17-copy":    {why: "an unchanged agent deploys once more to note the generation", change: revision("s17/s17-copy:1"), release: true},
			"changed s17-copy":    {why: "one revision less, as before", change: revision("s17/s17-copy:2"), release: true},
			"settled s17-missing": {why: "what waits says for what", change: missingCopy},
			"changed s17-missing": {why: "what waits says for what", change: missingCopy},
			"deleted s17-missing": {why: "what waits says for what", change: missingCopy},
		},
		writes: map[string]otherSequence{"s17-missing": {"what waits says for what", sequence{{hasFailed, 1}}}},
		says: map[string]otherErrors{"s17-missing": {"the message names the option, and not the namespace on the hub", []string{
			`fetching Secret not-there, which downstreamResources names: secrets "not-there" not found`,
		}}},
	},
	// Restarted, an agent writes nothing. The recording of scene 26 has the history of the agent's own release removed.
	"24-registration.yaml": {
		cluster: "m1",
		before: map[string]func(*replay){
			"registered": func(r *replay) { r.install("24-registration.yaml") },
			"restarted":  func(r *replay) { r.restart() },
		},
		differs: map[string]difference{
			"deleted fleet-agent-m1": {why: "the agent removes nothing while its own BundleDeployment is gone, which may be a mistake", left: ptr.To(1)},
		},
		answers: map[string]int{"/api/v1/namespaces/cattle-fleet-system/secrets/sh.helm.release.v1.fleet-agent-m1.v1": 200},
	},
	// A person has started the agent, so that its Deployment comes with the Bundle.
	"27-registration-agent-initiated.yaml": {
		cluster: "cluster-764acf17d075",
		before: map[string]func(*replay){
			"registered": func(r *replay) { r.install("27-registration-agent-initiated.yaml", "Deployment") },
		},
	},
	"18-keep.yaml": {
		differs: map[string]difference{
			"deleted s18-keep-rel": {why: "nothing would ever remove a history that has no BundleDeployment", left: new(int)},
		},
		answers: map[string]int{"/api/v1/namespaces/s18n": 200}, // an unchanged agent ignores deleteNamespace; here no controller removes it
	},
}

// replay is an unchanged hub, a member, and an agent of this project between them.
type replay struct {
	*stage
	restart func()   // stops the agent and starts it again
	running sync.Map // namespaces whose Pods run although their image says never
	charts  string   // the URL of a chart repository
	last    map[string]fleet.BundleDeploymentStatus
}

// Given the objects of an unchanged hub, and no more rights on it than an unchanged agent, the agent ends with the same releases, objects
// and status as an unchanged agent.
func TestWire(t *testing.T) {
	sample.Long(t)
	for file, scene := range scenes {
		t.Run(strings.TrimSuffix(file, ".yaml"), func(t *testing.T) {
			r := &replay{stage: stageOn(t, testenv.On(t, ownPlane(t))), charts: chartRepository(t), last: map[string]fleet.BundleDeploymentStatus{}}
			r.agent = "cattle-fleet-system"
			_, err := r.Kubernetes.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.agent}}, metav1.CreateOptions{})
			require.NoError(t, err)
			go r.markDeployments(t.Context())
			r.cluster = cmp.Or(scene.cluster, r.cluster)
			written := r.recordWrites()
			hub := r.asRecordedAgent()
			asRecorded := func(c *deploy.Config) {
				c.Hub, c.Watching, c.HubCore = versioned.NewForConfigOrDie(hub), versioned.NewForConfigOrDie(hub), kubernetes.NewForConfigOrDie(hub)
				c.Timing.Depend = time.Hour
			}
			stop := r.run(asRecorded)
			r.restart = func() {
				require.NoError(t, stop())
				stop = r.run(asRecorded)
			}
			stages := recording.Stages[recordedStage](t, filepath.Join("testdata", "wire", file))
			for _, stage := range stages {
				if act := scene.before[stage.Stage]; act != nil && len(r.last) == 0 {
					act(r)
				}
				for _, b := range stage.Bundles {
					if base := scene.follows[b.Name]; base != "" && r.get(b.Name).Name == "" {
						r.state(base, fleet.Ready)
					}
					r.write(b)
				}
				if act := scene.before[stage.Stage]; act != nil && len(r.last) > 0 {
					act(r)
				}
				for _, b := range stage.Bundles {
					r.require(stage.Stage, b, scene.differs[stage.Stage+" "+b.Name])
				}
				for _, looked := range stage.AlsoLookedAt {
					want := cmp.Or(scene.answers[looked.Path], looked.Code)
					eventually(t, func() (bool, string) {
						got := 0
						r.Kubernetes.Discovery().RESTClient().Get().AbsPath(looked.Path).Do(context.Background()).StatusCode(&got)
						return got == want, fmt.Sprintf("%s answers %d, want %d", looked.Path, got, want)
					})
				}
			}
			r.requireSequences(stages, written, scene.writes)
			r.requireErrors(stages, written, scene.says)
			r.requireRemovals()
		})
	}
	assert.Greater(t, removals, 12)
	assert.Greater(t, compared, 46)
	assert.Greater(t, comparedErrors, 19)
}

// ownPlane has the kinds. No controller writes the status of its Deployments, because TestWire does.
func ownPlane(t *testing.T) *controlplane.ControlPlane {
	t.Helper()
	return controlplane.Own(t, controlplane.Options{
		Name: "own", ControllerManagerArgs: []string{"--controllers=-deployment-controller"}, BeforeControllerManager: withkinds.Install,
	})
}

// removals counts the releases whose removal was compared.
var removals int

// requireRemovals deletes all BundleDeployments, and requires the writes of an unchanged agent, in their order. A line of the recording
// has the release, the method and the path.
func (r *replay) requireRemovals() {
	r.t.Helper()
	lines, err := os.ReadFile(filepath.Join("testdata", "wire", "26-removals.txt"))
	require.NoError(r.t, err)
	want := map[string][]string{} // by release
	for line := range strings.Lines(string(lines)) {
		name, request, _ := strings.Cut(strings.TrimSpace(line), " ")
		want[name] = append(want[name], request)
	}
	before := len(r.member.Requests(""))
	r.removeAll()
	for _, status := range r.last {
		name, _, _ := strings.Cut(status.Release, ":")
		if len(want[name]) == 0 {
			continue
		}
		removals++
		ofOthers := func(request string) bool {
			for other, requests := range want {
				if other != name && slices.Contains(requests, request) {
					return true
				}
			}
			return false
		}
		namespace, _, _ := strings.Cut(name, "/")
		eventually(r.t, func() (bool, string) {
			var got []string
			for _, request := range r.member.Requests("")[before:] {
				isWrite := !strings.HasPrefix(request, "GET ") && !strings.HasPrefix(request, "PATCH ") // a comparison is a dry run
				if isWrite && strings.Contains(request, "/namespaces/"+namespace+"/") && !ofOthers(request) {
					got = append(got, request)
				}
			}
			return slices.Equal(want[name], got), fmt.Sprintf("removal of %s: want\n%s\ngot\n%s", name, strings.Join(want[name], "\n"), strings.Join(got, "\n"))
		})
	}
}

// asRecordedAgent returns a configuration for the hub with the rights that Fleet's own hub grants to an agent in the cluster namespace,
// and no others.
func (r *replay) asRecordedAgent() *rest.Config {
	r.t.Helper()
	ctx, user := r.t.Context(), "agent-of-"+r.hub
	meta, subjects := metav1.ObjectMeta{Name: user}, []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}}
	_, err := r.Kubernetes.RbacV1().Roles(r.hub).Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{fleet.SchemeGroupVersion.Group}, Resources: []string{"bundledeployments"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{fleet.SchemeGroupVersion.Group}, Resources: []string{"bundledeployments/status"}, Verbs: []string{"update", "patch"}},
		{APIGroups: []string{""}, Resources: []string{"secrets", "configmaps"}, Verbs: []string{"get"}},
	}}, metav1.CreateOptions{})
	require.NoError(r.t, err)
	_, err = r.Kubernetes.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{fleet.SchemeGroupVersion.Group}, Resources: []string{"contents"}, Verbs: []string{"get"}},
	}}, metav1.CreateOptions{})
	require.NoError(r.t, err)
	_, err = r.Kubernetes.RbacV1().RoleBindings(r.hub).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: meta, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user},
	}, metav1.CreateOptions{})
	require.NoError(r.t, err)
	_, err = r.Kubernetes.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
	}, metav1.CreateOptions{})
	require.NoError(r.t, err)
	config := r.hubWire.On(r.RESTConfig())
	config.Impersonate.UserName = user
	return config
}

// write makes the objects of the hub what they were.
func (r *replay) write(b recordedBundle) {
	r.t.Helper()
	ctx := r.t.Context()
	for _, c := range b.Contents {
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		_, err := w.Write([]byte(c.Unpacked))
		require.NoError(r.t, errors.Join(err, w.Close()))
		_, err = r.Fleet.Contents().Create(ctx, &fleet.Content{ObjectMeta: metav1.ObjectMeta{Name: c.Name}, Content: packed.Bytes(), SHA256Sum: c.SHA256Sum}, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			require.NoError(r.t, err)
		}
	}
	for _, s := range b.Secrets {
		if s.Kind == "ConfigMap" {
			copied := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: s.Name}, Data: s.Data}
			_, err := r.Kubernetes.CoreV1().ConfigMaps(r.hub).Create(ctx, copied, metav1.CreateOptions{})
			if !apierrors.IsAlreadyExists(err) {
				require.NoError(r.t, err)
			}
			continue
		}
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: s.Name}, Type: corev1.SecretType(s.Type), StringData: s.Data}
		secrets := r.Kubernetes.CoreV1().Secrets(r.hub)
		err := secrets.Delete(ctx, s.Name, metav1.DeleteOptions{})
		if !apierrors.IsNotFound(err) {
			require.NoError(r.t, err)
		}
		_, err = secrets.Create(ctx, secret, metav1.CreateOptions{})
		require.NoError(r.t, err)
	}
	if !b.Same && len(b.BundleDeployments) == 0 && r.get(b.Name).Name != "" {
		r.remove(b.Name)
	}
	client := r.Fleet.BundleDeployments(r.hub)
	for _, recorded := range b.BundleDeployments {
		if helm := recorded.Spec.Options.Helm; helm != nil {
			helm.Repo = strings.ReplaceAll(helm.Repo, "CHART-REPO-URL", r.charts)
			if helm.TimeoutSeconds == 5 { // of the Deployments that never become ready
				helm.TimeoutSeconds = 2
			}
		}
		err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			bd, err := client.Get(ctx, recorded.Metadata.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				bd = &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Name: recorded.Metadata.Name, Labels: recorded.Metadata.Labels}, Spec: recorded.Spec}
				_, err = client.Create(ctx, bd, metav1.CreateOptions{})
				return err
			}
			bd.Labels, bd.Spec = recorded.Metadata.Labels, recorded.Spec
			_, err = client.Update(ctx, bd, metav1.UpdateOptions{})
			return err
		})
		require.NoError(r.t, err)
	}
}

// require waits until status, release and objects are as recorded.
func (r *replay) require(stage string, b recordedBundle, d difference) {
	r.t.Helper()
	for _, recorded := range b.BundleDeployments {
		want := recorded.Status
		if d.change != nil {
			d.change(&want)
		}
		r.last[recorded.Metadata.Name] = want
	}
	name := stage + " " + b.Name
	if want, found := r.last[b.Name]; found && (b.Same || len(b.BundleDeployments) > 0) && (d.why == "" || d.change != nil) {
		var got fleet.BundleDeploymentStatus
		eventually(r.t, func() (bool, string) {
			got = r.get(b.Name).Status
			return assert.ObjectsAreEqual(comparableStatus(want, want), comparableStatus(got, want)), name + ": want " + asText(comparableStatus(want, want)) + "\ngot " + asText(comparableStatus(got, want))
		})
	}
	if _, was := r.last[b.Name]; was && !b.Same && len(b.BundleDeployments) == 0 {
		delete(r.last, b.Name)
		want := len(b.Releases)
		if d.left != nil {
			want = *d.left
		}
		r.requireLeft(name, b.Name, want)
	}
	if len(b.Releases) > 0 && !d.release && r.last[b.Name].Release != "" {
		r.requireRelease(name, b)
	}
	for _, want := range b.Objects {
		// An unchanged agent labels namespaces that exist, here that of everybody.
		if d.why != "" || want.GetKind() == "Namespace" && want.GetName() == metav1.NamespaceDefault {
			continue
		}
		resource, _ := meta.UnsafeGuessKindToResource(want.GroupVersionKind())
		got, err := r.read(want.GetAPIVersion(), resource.Resource, want.GetNamespace(), want.GetName())
		require.NoError(r.t, err, name)
		annotations := got.GetAnnotations()
		delete(annotations, "deployment.kubernetes.io/revision")
		assert.Equal(r.t, want.GetLabels(), got.GetLabels(), "%s: labels of %s %s", name, want.GetKind(), want.GetName())
		assert.Equal(r.t, want.GetAnnotations(), annotations, "%s: annotations of %s %s", name, want.GetKind(), want.GetName())
		assert.Equal(r.t, want.Object["data"], got.Object["data"], "%s: data of %s %s", name, want.GetKind(), want.GetName())
	}
}

// install creates the objects of the agent as a hub does that imports a cluster.
func (r *replay) install(scene string, without ...string) {
	r.t.Helper()
	var contents struct{ Resources []fleet.BundleResource }
	stages := recording.Stages[recordedStage](r.t, filepath.Join("testdata", "wire", scene))
	require.NoError(r.t, json.Unmarshal([]byte(stages[0].Bundles[0].Contents[0].Unpacked), &contents))
	for document := range strings.SplitSeq(contents.Resources[0].Content, "\n---\n") {
		o := &unstructured.Unstructured{}
		require.NoError(r.t, yaml.Unmarshal([]byte(document), &o.Object))
		if slices.Contains(without, o.GetKind()) {
			continue
		}
		resource, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
		data, err := o.MarshalJSON()
		require.NoError(r.t, err)
		collection := strings.TrimSuffix(path(o.GetAPIVersion(), resource.Resource, o.GetNamespace(), ""), "/")
		err = r.Kubernetes.CoreV1().RESTClient().Post().AbsPath(collection).Param("fieldManager", "fleetcontroller").Body(data).Do(r.t.Context()).Error()
		if !apierrors.IsAlreadyExists(err) { // as the ServiceAccount that each namespace has
			require.NoError(r.t, err)
		}
	}
}

// requireLeft waits until the member has so many revisions for a BundleDeployment that the hub does not have.
func (r *replay) requireLeft(name, bundleDeployment string, want int) {
	r.t.Helper()
	eventually(r.t, func() (bool, string) {
		left, err := r.Kubernetes.CoreV1().Secrets("").List(context.Background(), metav1.ListOptions{LabelSelector: release.DeploymentLabel + "=" + bundleDeployment})
		return err == nil && len(left.Items) == want, fmt.Sprintf("%s: want %d revisions, got %v %v", name, want, left, err)
	})
}

func (r *replay) requireRelease(name string, b recordedBundle) {
	r.t.Helper()
	want := slices.MaxFunc(b.Releases, func(a, b recordedRelease) int { return a.Version - b.Version })
	config, err := release.Configuration(r.RESTConfig(), want.Namespace)
	require.NoError(r.t, err)
	found, err := config.Releases.Last(want.Name)
	require.NoError(r.t, err, name)
	got := found.(*helm.Release)
	assert.Equal(r.t, want.Version, got.Version, name)
	assert.Equal(r.t, want.Status, string(got.Info.Status), name)
	if want.Chart != nil {
		assert.Equal(r.t, want.Description, got.Info.Description, name)
		delete(got.Chart.Metadata.Annotations, "muster.fleet.cattle.io/adopted") // only this agent notes what it adopts
		assert.Equal(r.t, want.Chart, got.Chart.Metadata, name)
	}
}

// comparableStatus is a status without what cannot be the same: times, UIDs, line breaks in messages, which this agent joins. Until
// something is deployed, an unchanged agent sets no condition Ready, and none that says why an upgrade failed; this one does, for
// the column of kubectl.
func comparableStatus(s, want fleet.BundleDeploymentStatus) fleet.BundleDeploymentStatus {
	s = *s.DeepCopy()
	var conditions []genericcondition.GenericCondition
	for _, c := range s.Conditions {
		if c.Type == fleet.ConditionReady && want.Display.State == string(fleet.ErrApplied) {
			continue
		}
		conditions = append(conditions, genericcondition.GenericCondition{Type: c.Type, Status: c.Status, Reason: c.Reason, Message: oneLine(c.Message)})
	}
	slices.SortFunc(conditions, func(a, b genericcondition.GenericCondition) int { return strings.Compare(a.Type, b.Type) })
	s.Conditions = conditions
	s.Display.Deployed, s.Display.Monitored = oneLine(s.Display.Deployed), oneLine(s.Display.Monitored)
	for i := range s.Resources {
		s.Resources[i].CreatedAt = metav1.Time{}
	}
	for i := range s.NonReadyStatus {
		s.NonReadyStatus[i].UID = ""
	}
	return s
}

// oneLine returns a text without line breaks.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// eventually does the same as testenv.Eventually with a shorter timeout, and continues after a failure.
func eventually(t *testing.T, check func() (bool, string)) {
	t.Helper()
	why := ""
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 30*time.Second, true, func(context.Context) (ok bool, _ error) {
		ok, why = check()
		return ok, nil
	})
	assert.NoError(t, err, why)
}

func asText(s fleet.BundleDeploymentStatus) string {
	text, _ := json.Marshal(s)
	return string(text)
}

func (r *replay) release(name, want string) {
	r.t.Helper()
	eventually(r.t, func() (bool, string) {
		got := r.get(name).Status.Release
		return got == want, "the release is " + got + ", want " + want
	})
}

func (r *replay) patch(apiVersion, resource, namespace, name, patch string) {
	r.t.Helper()
	request := r.Kubernetes.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath(path(apiVersion, resource, namespace, name))
	require.NoError(r.t, request.Param("fieldManager", "scene").Body([]byte(patch)).Do(r.t.Context()).Error())
}

func (r *replay) read(apiVersion, resource, namespace, name string) (*unstructured.Unstructured, error) {
	data, err := r.Kubernetes.CoreV1().RESTClient().Get().AbsPath(path(apiVersion, resource, namespace, name)).DoRaw(r.t.Context())
	if err != nil {
		return nil, err
	}
	o := &unstructured.Unstructured{}
	return o, o.UnmarshalJSON(data)
}

func path(apiVersion, resource, namespace, name string) string {
	root := "/apis/" + apiVersion
	if !strings.Contains(strings.TrimPrefix(apiVersion, "/"), "/") {
		root = "/api/" + strings.TrimPrefix(apiVersion, "/")
	}
	if namespace != "" {
		root += "/namespaces/" + namespace
	}
	return root + "/" + resource + "/" + name
}

// markDeployments writes the status of Deployments as the controller manager does: Pods become ready immediately, unless their image
// is named "never".
func (r *replay) markDeployments(ctx context.Context) {
	for ctx.Err() == nil {
		list, err := r.Kubernetes.AppsV1().Deployments("").List(ctx, metav1.ListOptions{LabelSelector: release.ManagedByLabel + "=" + release.ManagedByHelm})
		for i := range list.Items {
			d := &list.Items[i]
			replicas := int32(1)
			if d.Spec.Replicas != nil {
				replicas = *d.Spec.Replicas
			}
			status := appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: replicas, UpdatedReplicas: replicas}
			available := appsv1.DeploymentCondition{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionFalse, Reason: "MinimumReplicasUnavailable", Message: "Deployment does not have minimum availability."}
			if _, running := r.running.Load(d.Namespace); running || !strings.Contains(d.Spec.Template.Spec.Containers[0].Image, "never") {
				status.ReadyReplicas, status.AvailableReplicas = replicas, replicas
				available.Status, available.Reason, available.Message = corev1.ConditionTrue, "MinimumReplicasAvailable", "Deployment has minimum availability."
			} else {
				status.UnavailableReplicas = replicas
			}
			status.Conditions = []appsv1.DeploymentCondition{available, {Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"}}
			if err == nil && !assert.ObjectsAreEqual(status, d.Status) {
				d.Status = status
				_, _ = r.Kubernetes.AppsV1().Deployments(d.Namespace).UpdateStatus(ctx, d, metav1.UpdateOptions{})
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}
