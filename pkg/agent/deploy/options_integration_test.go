package deploy_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/pkg/agent/deploy"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/release"
)

// The release moves to another namespace, and the objects in the former one stay, because keepResources says so.
func TestRun_movedReleaseKeepsResources(t *testing.T) {
	s := onStage(t)
	s.run()
	keep := func(bd *fleet.BundleDeployment) { bd.Spec.Options.KeepResources = true }
	s.put("app", configMap("a", "one"), keep)
	s.state("app", fleet.Ready)
	other := s.Namespace(t)
	s.put("app", configMap("a", "two"), keep, func(bd *fleet.BundleDeployment) { bd.Spec.Options.DefaultNamespace = other })
	s.state("app", fleet.Ready)
	testenv.Eventually(t, func() (bool, string) {
		found := s.releases()
		return len(found) == 1 && found[0].Namespace == other, fmt.Sprint("the history in the former namespace stays: ", found)
	})
	s.value("a", "one")
	moved, err := s.Kubernetes.CoreV1().ConfigMaps(other).Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "two", moved.Data["k"])
}

// A commit changes the release name and is reverted. Its release has adopted the object of the former one, which is still deployed with the
// deployment ID of the reverted BundleDeployment.
func TestRun_revertedName(t *testing.T) {
	const invalidService = "apiVersion: v1\nkind: Service\nmetadata:\n  name: z\nspec:\n  ports: [{port: 0}]\n"
	isApply := func(req *http.Request) bool {
		return req.Method == http.MethodPatch && strings.HasSuffix(req.URL.Path, "/services/z")
	}
	isHistory := func(req *http.Request) bool { // of the former release
		return strings.HasSuffix(req.URL.Path, "/secrets") && strings.HasPrefix(req.URL.Query().Get("labelSelector"), "name=app,")
	}
	for name, row := range map[string]struct {
		more    string                   // what the commit adds
		fails   func(*http.Request) bool // requests to the member that fail until the revert
		restart bool
		state   fleet.BundleState // after the commit
	}{
		"the deployment has failed":                {more: configMap("b", "two") + invalidService, state: fleet.ErrApplied},
		"the agent was killed meanwhile":           {more: configMap("b", "two") + invalidService, fails: isApply, restart: true},
		"the former release could not be removed":  {more: configMap("b", "two"), fails: isHistory, state: fleet.Ready},
		"the same, and the agent starts again":     {more: configMap("b", "two"), fails: isHistory, state: fleet.Ready, restart: true},
		"the deployment has failed before a start": {more: configMap("b", "two") + invalidService, state: fleet.ErrApplied, restart: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := onStage(t)
			stop := s.run()
			s.put("app", configMap("a", "one"))
			id := s.state("app", fleet.Ready).Spec.DeploymentID
			before, err := s.configMap("a")
			require.NoError(t, err)

			reached := make(chan struct{})
			var once sync.Once
			if row.fails != nil {
				s.member.Inject(func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
					if !row.fails(req) {
						return send()
					}
					once.Do(func() { close(reached) })
					if row.state == "" { // until the agent is killed
						<-req.Context().Done()
					}
					return nil, errKilled
				})
			}
			s.put("app", configMap("a", "two")+row.more, func(bd *fleet.BundleDeployment) { bd.Spec.Options.Helm = &fleet.HelmOptions{ReleaseName: "renamed"} })
			if row.state == "" {
				<-reached
			} else {
				s.state("app", row.state)
			}
			s.value("a", "two")
			require.Len(t, s.releases(), 2)

			if row.restart {
				require.NoError(t, stop())
			}
			s.member.Inject(nil)
			s.put("app", configMap("a", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.Options.Helm = nil })
			require.Equal(t, id, s.get("app").Spec.DeploymentID)
			if row.restart {
				s.run()
			}
			testenv.Eventually(t, func() (bool, string) {
				found := s.releases()
				return len(found) == 1 && found[0].Name == "app", fmt.Sprint("the release of the reverted commit is there: ", found)
			})
			s.gone("b")
			s.value("a", "one")
			s.state("app", fleet.Ready)
			after, err := s.configMap("a")
			require.NoError(t, err)
			assert.Equal(t, before.UID, after.UID, "it was never deleted")
			assert.Equal(t, "app", after.Annotations[release.NameAnnotation])
		})
	}
}

// A person sets keepResources and deletes the Bundle before that is deployed.
func TestRun_keepResourcesBeforeTheDeletion(t *testing.T) {
	s := onStage(t)
	s.run()
	for name, change := range map[string]func(*fleet.BundleDeployment){
		"staged": func(bd *fleet.BundleDeployment) { bd.Spec.Paused, bd.Spec.StagedOptions.KeepResources = true, true },
		"failed": func(bd *fleet.BundleDeployment) {
			bd.Spec.Options.KeepResources, bd.Spec.DeploymentID = true, "s-missing:2"
		},
	} {
		s.put(name, configMap(name, "one"))
		s.state(name, fleet.Ready)
		require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error { // the agent writes the status meanwhile
			bd := s.get(name)
			change(bd)
			_, err := s.Fleet.BundleDeployments(s.hub).Update(t.Context(), bd, metav1.UpdateOptions{})
			return err
		}))
		s.remove(name)
		testenv.Eventually(t, func() (bool, string) { return len(s.releases()) == 0, "the history is there" })
		s.value(name, "one")
	}

	s.put("staged", configMap("b", "two"))
	s.state("staged", fleet.Ready)
	s.remove("staged")
	s.gone("b")
}

// Fleet's hub has a finalizer on its BundleDeployments, or a Bundle is deleted in the foreground: the BundleDeployment is being deleted for a while.
func TestRun_keepResourcesWithFinalizer(t *testing.T) {
	s := onStage(t)
	s.run()
	s.put("app", configMap("a", "one"))
	s.state("app", fleet.Ready)
	s.update("app", func(bd *fleet.BundleDeployment) {
		bd.Finalizers, bd.Spec.Paused, bd.Spec.StagedOptions.KeepResources = []string{"example.com/slow"}, true, true
	})
	s.remove("app")
	testenv.Eventually(t, func() (bool, string) { return len(s.releases()) == 0, "the history is there" })
	s.value("a", "one")
	s.update("app", func(bd *fleet.BundleDeployment) { bd.Finalizers = nil })
}

// A person sets keepResources and deletes the Cluster before that is deployed.
func TestRun_keepResourcesBeforeTheClusterIsDeleted(t *testing.T) {
	for name, row := range map[string]struct{ isStopped, listsFail bool }{
		"the agent runs":                                  {},
		"the agent runs, and cannot list":                 {listsFail: true},
		"the agent is stopped meanwhile":                  {isStopped: true},
		"the agent is stopped meanwhile, and cannot list": {isStopped: true, listsFail: true},
	} {
		isStopped := row.isStopped
		t.Run(name, func(t *testing.T) {
			s := onStage(t)
			start := s.ends
			if isStopped {
				start = s.run
			}
			agent := start(func(c *deploy.Config) { c.Timing.RemovalDelay = time.Hour })
			for _, name := range []string{"removed", "staged", "failed", "deleted", s.ownBundle()} {
				s.put(name, configMap(name, "one"))
				s.state(name, fleet.Ready)
			}
			if isStopped {
				require.NoError(t, agent())
			}
			stage := func(bd *fleet.BundleDeployment) { bd.Spec.Paused, bd.Spec.StagedOptions.KeepResources = true, true }
			s.update("staged", stage)
			s.update("failed", func(bd *fleet.BundleDeployment) {
				bd.Spec.Options.KeepResources, bd.Spec.DeploymentID = true, "s-missing:2"
			})
			if !isStopped { // an agent that has not seen the options cannot know them
				s.update("deleted", stage)
				s.remove("deleted")
			}
			if row.listsFail { // the first list of a watch is part of the watch
				s.hubWire.Inject(func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
					if req.Method == http.MethodGet && strings.HasSuffix(req.URL.Path, "/bundledeployments") && !req.URL.Query().Has("watch") {
						return nil, errKilled
					}
					return send()
				})
			}
			s.update(s.ownBundle(), func(bd *fleet.BundleDeployment) { bd.Annotations = map[string]string{fleet.FarewellAnnotation: "true"} })
			if isStopped {
				agent = s.ends()
			}
			require.ErrorIs(t, agent(), deploy.ErrUninstall)
			assert.Empty(t, s.releases())
			s.gone("removed")
			kept := []string{"staged", "failed"}
			if !isStopped {
				kept = append(kept, "deleted")
			}
			for _, name := range kept {
				_, err := s.configMap(name)
				require.NoError(t, err)
			}
		})
	}
}

// keepResources changes while no agent runs.
func TestRun_keepResourcesWhileDown(t *testing.T) {
	s := onStage(t)
	stop := s.run()
	keep := func(kept bool) func(*fleet.BundleDeployment) {
		return func(bd *fleet.BundleDeployment) { bd.Spec.Options.KeepResources = kept }
	}
	s.put("kept", configMap("kept", "one"))
	s.put("removed", configMap("removed", "one"), keep(true))
	s.state("kept", fleet.Ready)
	s.state("removed", fleet.Ready)
	require.NoError(t, stop())
	s.put("kept", configMap("kept", "one"), keep(true))
	s.put("removed", configMap("removed", "one"), keep(false))
	s.run()
	s.state("kept", fleet.Ready)
	s.state("removed", fleet.Ready)
	s.removeAll()
	s.gone("removed")
	testenv.Eventually(t, func() (bool, string) { return len(s.releases()) == 0, "the history is there" })
	s.value("kept", "one")
}

// Fleet's hub creates the BundleDeployments of Clusters whose partition of a rollout has not begun, without a deployment ID.
func TestRun_waitsForItsPartition(t *testing.T) {
	s := onStage(t)
	s.run()
	s.put("app", configMap("a", "one"), func(bd *fleet.BundleDeployment) { bd.Spec.Paused = true })
	client := s.Fleet.BundleDeployments(s.hub)
	bd := s.get("app")
	staged := bd.Spec.DeploymentID
	bd.Spec.Paused, bd.Spec.DeploymentID, bd.Spec.Options = false, "", fleet.BundleDeploymentOptions{}
	testenv.Eventually(t, func() (bool, string) {
		latest := s.get("app")
		latest.Spec = bd.Spec
		_, err := client.Update(context.Background(), latest, metav1.UpdateOptions{})
		return err == nil, fmt.Sprint(err)
	})
	s.still()
	got := s.get("app")
	assert.Empty(t, got.Status.AppliedDeploymentID)
	assert.Empty(t, s.releases())
	assert.Empty(t, s.hubWire.Requests("/contents/"))

	got.Spec.DeploymentID, got.Spec.Options = staged, got.Spec.StagedOptions
	_, err := client.Update(t.Context(), got, metav1.UpdateOptions{})
	require.NoError(t, err)
	s.state("app", fleet.Ready)
	s.value("a", "one")
}

// A renamed release does not leave the copies of its former options behind.
func TestRun_renamedReleaseWithoutCopies(t *testing.T) {
	s := onStage(t)
	s.run()
	s.deployWithCopy()
	s.put("app", configMap("a", "two"), func(bd *fleet.BundleDeployment) {
		bd.Spec.Options.DownstreamResources = nil
		bd.Spec.Options.Helm = &fleet.HelmOptions{ReleaseName: "renamed"}
	})
	s.state("app", fleet.Ready)
	testenv.Eventually(t, func() (bool, string) {
		found := s.releases()
		return len(found) == 1 && found[0].Name == "renamed", "the old release is there"
	})
	s.value("a", "two")
	s.removeWithCopy()
}

// An object that a release has adopted with takeOwnership stays when the former release is removed.
func TestRun_takenOverObjects(t *testing.T) {
	s := onStage(t)
	s.run()
	_, err := s.Kubernetes.CoreV1().ConfigMaps(s.target).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "exists"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	other := func(more string) {
		s.put("other", configMap("of-other", "one")+more, func(bd *fleet.BundleDeployment) { bd.Spec.CorrectDrift = &fleet.CorrectDrift{Enabled: true} })
	}
	other("")
	s.state("other", fleet.Ready)
	s.put("adopter", configMap("exists", "two")+configMap("of-other", "two"), func(bd *fleet.BundleDeployment) {
		bd.Spec.Options.Helm = &fleet.HelmOptions{TakeOwnership: true}
	})
	s.state("adopter", fleet.Ready)
	s.value("exists", "two")
	s.value("of-other", "two")
	s.state("other", fleet.Modified)
	s.still() // the former release does not take it back, neither by a correction nor by an upgrade
	assert.Equal(t, s.target+"/other:1", s.get("other").Status.Release)
	other(configMap("more", "one"))
	s.value("more", "one")
	s.value("of-other", "two")
	s.condition("other", fleet.ConditionReady, "False")
	s.still()
	assert.Equal(t, s.target+"/other:2", s.get("other").Status.Release)
	assert.Equal(t, []fleet.ModifiedStatus{
		{Kind: "ConfigMap", APIVersion: "v1", Namespace: s.target, Name: "of-other", Create: true, Exist: true},
	}, s.get("other").Status.ModifiedStatus)
	s.value("of-other", "two")
	s.remove("other")
	testenv.Eventually(t, func() (bool, string) { return len(s.releases()) == 1, "the former release is there" })
	s.value("of-other", "two")
	s.state("adopter", fleet.Ready)
	before := len(s.member.Requests(""))
	s.remove("adopter")
	s.gone("exists")
	s.gone("of-other")
	var deleted []string
	for _, request := range s.member.Requests("")[before:] {
		if strings.HasPrefix(request, "DELETE ") && strings.Contains(request, "/configmaps/") {
			deleted = append(deleted, request[strings.LastIndex(request, "/")+1:])
		}
	}
	assert.ElementsMatch(t, []string{"of-other", "exists"}, deleted) // Helm deletes the objects of one kind at the same time
}

// valuesFrom names a ConfigMap that another program creates later.
func TestRun_valuesThatComeLater(t *testing.T) {
	s := onStage(t)
	s.run()
	s.put("app", configMap("a", "one"), func(bd *fleet.BundleDeployment) {
		bd.Spec.Options.Helm = &fleet.HelmOptions{ValuesFrom: []fleet.ValuesFrom{{ConfigMapKeyRef: &fleet.KeySelector{Name: "nothere"}}}}
	})
	s.state("app", fleet.ErrApplied)
	_, err := s.Kubernetes.CoreV1().ConfigMaps(s.target).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "nothere"}, Data: map[string]string{"values.yaml": "k: v"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	s.state("app", fleet.Ready)
}

// The labels of the namespace that a target sets are no part of the deployment ID. Another Bundle deploys to the same namespace.
func TestRun_namespaceLabels(t *testing.T) {
	s := onStage(t)
	stop := s.run()
	with := func(labels map[string]string) func(*fleet.BundleDeployment) {
		return func(bd *fleet.BundleDeployment) { bd.Spec.Options.NamespaceLabels = labels }
	}
	requireLabels := func(want map[string]string) {
		t.Helper()
		testenv.EventuallyIs(t, s.Kubernetes.CoreV1().Namespaces().Get, s.target, func(namespace *corev1.Namespace) (bool, string) {
			got := maps.Clone(namespace.Labels)
			maps.DeleteFunc(got, func(key, _ string) bool { return !strings.HasPrefix(key, "of-") })
			return maps.Equal(got, want), fmt.Sprint(got)
		})
	}
	change := func(name string, labels map[string]string) {
		t.Helper()
		require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error { // the agent writes the status meanwhile
			bd := s.get(name)
			bd.Spec.Options.NamespaceLabels = labels
			_, err := s.Fleet.BundleDeployments(s.hub).Update(t.Context(), bd, metav1.UpdateOptions{})
			return err
		}))
	}
	s.put("app", configMap("a", "one"), with(map[string]string{"of-app": "one"}))
	deployed := s.state("app", fleet.Ready).Status.Release
	requireLabels(map[string]string{"of-app": "one"})

	s.put("other", configMap("b", "one"))
	s.state("other", fleet.Ready)
	requireLabels(map[string]string{"of-app": "one"})

	change("app", map[string]string{"of-app": "two"})
	requireLabels(map[string]string{"of-app": "two"})
	change("other", map[string]string{"of-other": "x"})
	requireLabels(map[string]string{"of-app": "two", "of-other": "x"})
	change("app", nil)
	requireLabels(map[string]string{"of-other": "x"})

	require.NoError(t, stop())
	change("app", map[string]string{"of-app": "three"})
	change("other", nil)
	s.run()
	requireLabels(map[string]string{"of-app": "three"})
	assert.Equal(t, deployed, s.state("app", fleet.Ready).Status.Release, "no new revision")
}

// The ServiceAccount may deploy, but not label the namespace of the release.
func TestRun_forbiddenNamespaceLabels(t *testing.T) {
	s := onStage(t)
	s.run()
	s.tenant("tenant")
	roles := s.Kubernetes.RbacV1()
	bindings, err := roles.RoleBindings(s.target).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, bindings.Items, 1)
	binding := bindings.Items[0]
	require.NoError(t, roles.RoleBindings(s.target).Delete(t.Context(), binding.Name, metav1.DeleteOptions{}))
	_, err = roles.Roles(s.target).Create(t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "tenant"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{rbacv1.VerbAll}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	limited := rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "limited"}, Subjects: binding.Subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "tenant"}}
	_, err = roles.RoleBindings(s.target).Create(t.Context(), &limited, metav1.CreateOptions{})
	require.NoError(t, err)

	s.put("app", configMap("a", "one"), func(bd *fleet.BundleDeployment) {
		bd.Spec.Options.ServiceAccount, bd.Spec.Options.NamespaceLabels = "tenant", map[string]string{"of-app": "one"}
	})
	s.value("a", "one")
	s.state("app", fleet.NotReady)
	s.condition("app", fleet.ConditionReady, "False Error: setting namespaceLabels and namespaceAnnotations of namespace "+s.target)
	s.condition("app", fleet.ConditionDeployed, "True")
	binding.ResourceVersion = ""
	_, err = roles.RoleBindings(s.target).Create(t.Context(), &binding, metav1.CreateOptions{})
	require.NoError(t, err)
	assert.Equal(t, s.target+"/app:1", s.state("app", fleet.Ready).Status.Release, "no new revision")

	require.NoError(t, roles.RoleBindings(s.target).Delete(t.Context(), binding.Name, metav1.DeleteOptions{}))
	require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error { // the agent writes the status meanwhile
		bd := s.get("app")
		bd.Spec.Options.NamespaceLabels = map[string]string{"of-app": "two"}
		_, err := s.Fleet.BundleDeployments(s.hub).Update(t.Context(), bd, metav1.UpdateOptions{})
		return err
	}))
	s.state("app", fleet.NotReady)
}
