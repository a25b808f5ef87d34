package agent

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	kubetesting "k8s.io/client-go/testing"

	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/agent/deploy"
	"github.com/muster-fleet/muster/pkg/agent/uninstall"
	"github.com/muster-fleet/muster/pkg/agentmanifest"
	"github.com/muster-fleet/muster/pkg/registration"
)

// installation is everything that an import, the chart and the agent's Bundle may have created on a member for an agent in the
// namespace, without the credential.
type installation struct {
	namespace string
	managed   bool // the ClusterRole of the import or the Bundle
	chart     bool // the ClusterRole of the chart
	admin     bool // a ClusterRoleBinding to another ClusterRole
	noClass   bool // no PriorityClass
}

func (i installation) objects() []runtime.Object {
	here := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: i.namespace, Name: name, UID: types.UID("uid-" + name)}
	}
	imported, _, err := agentmanifest.ImportMarks("")
	if err != nil {
		panic(err)
	}
	helm := func(release string) *corev1.Secret {
		s := &corev1.Secret{ObjectMeta: here("sh.helm.release.v1." + release + ".v1")}
		s.Labels = map[string]string{"owner": "helm", "name": release}
		return s
	}
	pull := &corev1.Secret{ObjectMeta: here("pull-secret")}
	pull.Labels = imported
	class := &schedulingv1.PriorityClass{Value: 5, ObjectMeta: metav1.ObjectMeta{
		Name: agentmanifest.PriorityClassName, UID: types.UID("uid-" + agentmanifest.PriorityClassName), Labels: imported,
	}}
	pods := map[string]string{"app": "fleet-agent"}
	deployment := &appsv1.Deployment{ObjectMeta: here("fleet-agent"), Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: pods},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: pods},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "fleet-agent", Image: "agent"}}},
		},
	}}
	all := []runtime.Object{
		&corev1.ConfigMap{ObjectMeta: here("fleet-agent")}, &corev1.ConfigMap{ObjectMeta: here("fleet-agent-hub")},
		&networkingv1.NetworkPolicy{ObjectMeta: here("default-allow-all")}, &policyv1.PodDisruptionBudget{ObjectMeta: here("fleet-agent-pod-disruption-budget")},
		&corev1.ServiceAccount{ObjectMeta: here("fleet-agent")}, &coordinationv1.Lease{ObjectMeta: here("fleet-agent")},
		deployment, helm("fleet-agent"), helm("fleet-agent-one"), pull,
		&corev1.Secret{ObjectMeta: here("fleet-agent-pending")},
		&corev1.Secret{ObjectMeta: here("fleet-agent-history")},
	}
	if !i.noClass {
		all = append(all, class)
	}
	if i.admin {
		all = append(all, i.role("", agentmanifest.ClusterRoleBindingName(i.namespace))[1])
	}
	if i.managed {
		all = append(all, i.role(agentmanifest.ClusterRoleName(i.namespace), agentmanifest.ClusterRoleBindingName(i.namespace))...)
	}
	if i.chart {
		all = append(all, i.role(agentmanifest.ChartClusterRole, agentmanifest.ChartClusterRoleBinding)...)
	}
	return all
}

func (i installation) role(role, binding string) []runtime.Object {
	return []runtime.Object{
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: role, UID: types.UID("uid-" + role)}, Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}, {Verbs: []string{"*"}, NonResourceURLs: []string{"*"}},
		}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: binding, UID: types.UID("uid-" + binding)},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: i.namespace, Name: "fleet-agent"}},
		},
	}
}

// bystanders returns objects of others with similar names.
func (i installation) bystanders() []runtime.Object {
	here := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: i.namespace, Name: name} }
	helm := &corev1.Secret{ObjectMeta: here("sh.helm.release.v1.fleet-agent-tools.v1")}
	helm.Labels = map[string]string{"owner": "helm", "name": "fleet-agent-tools"}
	return []runtime.Object{
		&corev1.ConfigMap{ObjectMeta: here("somebody-elses")}, &corev1.Secret{ObjectMeta: here("somebody-elses")},
		&corev1.ServiceAccount{ObjectMeta: here("somebody-elses")}, helm,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "other-" + i.namespace + "-fleet-agent-role"}},
	}
}

const (
	begunAnnotation = "muster.fleet.cattle.io/leaving"
	noBootstrap     = "-" // the value without a bootstrap Secret
)

// uninstallingAgent is an agent with all of its objects on the member.
type uninstallingAgent struct {
	*testAgent
	objects []runtime.Object
}

func newUninstallingAgent(t *testing.T, i installation) *uninstallingAgent {
	t.Helper()
	i.namespace = agentNamespace
	f := &uninstallingAgent{testAgent: newTestAgent(t), objects: i.objects()}
	for _, object := range append(i.objects(), i.bystanders()...) {
		require.NoError(t, f.core.Tracker().Add(object))
	}
	f.putSecrets(f.stored())
	return f
}

// storedUninstalling returns Secret fleet-agent of an agent that has begun to uninstall itself.
func (f *uninstallingAgent) storedUninstalling(value string) *corev1.Secret {
	f.Helper()
	secret := f.stored()
	secret.Annotations = map[string]string{begunAnnotation: value}
	return secret
}

// beginUninstall does what the agent does when the hub has asked it to uninstall itself and everything it deployed is removed.
func (f *uninstallingAgent) beginUninstall() error {
	return (&uninstall.Uninstaller{Member: f.member, Log: f.config.Log}).Begin(f.Context())
}

func describeObject(t *testing.T, object runtime.Object) (kind schema.GroupVersionKind, namespace, name string) {
	t.Helper()
	accessor, err := meta.Accessor(object)
	require.NoError(t, err)
	all, _, err := scheme.Scheme.ObjectKinds(object)
	require.NoError(t, err)
	return all[0], accessor.GetNamespace(), accessor.GetName()
}

func resourceOf(kind schema.GroupVersionKind) schema.GroupVersionResource {
	resource, _ := meta.UnsafeGuessKindToResource(kind)
	return resource
}

// owners returns the UIDs of the owners of an object; nil if the object does not exist.
func (f *uninstallingAgent) owners(object runtime.Object) []types.UID {
	f.Helper()
	kind, namespace, name := describeObject(f.T, object)
	got, err := f.core.Tracker().Get(resourceOf(kind), namespace, name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(f, err)
	accessor, err := meta.Accessor(got)
	require.NoError(f, err)
	owners := []types.UID{}
	for _, owner := range accessor.GetOwnerReferences() {
		owners = append(owners, owner.UID)
	}
	return owners
}

// waitUntilUninstalled waits until the agent reports its uninstallation.
func (f *uninstallingAgent) waitUntilUninstalled() {
	f.Helper()
	f.waitForLog("The agent is uninstalled: its objects in Namespace cattle-fleet-system are being deleted")
}

func TestUninstallDeletesTheOwnerOfAllObjects(t *testing.T) {
	for name, row := range map[string]struct {
		installation
		owner     string
		ownerName string
	}{
		"imported":                         {installation{managed: true}, "ClusterRole", "cattle-fleet-system-fleet-agent-role"},
		"by the chart":                     {installation{chart: true}, "ClusterRole", agentmanifest.ChartClusterRole},
		"the chart, adopted":               {installation{managed: true, chart: true}, "ClusterRole", "cattle-fleet-system-fleet-agent-role"},
		"with another role":                {installation{admin: true}, "ClusterRoleBinding", "cattle-fleet-system-fleet-agent-role-binding"},
		"with other rights":                {installation{}, "PriorityClass", agentmanifest.PriorityClassName},
		"nothing outside of its namespace": {installation{noClass: true}, "Deployment", "fleet-agent"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newUninstallingAgent(t, row.installation)
			f.putSecrets(f.storedUninstalling(noBootstrap))
			before := len(f.core.Actions())
			f.start()
			f.waitUntilUninstalled()
			owner := types.UID("uid-" + row.ownerName)
			for _, object := range append(f.objects, f.stored()) {
				kind, _, name := describeObject(t, object)
				if kind.Kind == row.owner && name == row.ownerName {
					assert.Nil(t, f.owners(object), "the owner is deleted")
					continue
				}
				assert.Equal(t, []types.UID{owner}, f.owners(object), "%s %s", kind.Kind, name)
			}
			for _, object := range (installation{namespace: agentNamespace}).bystanders() {
				assert.Equal(t, []types.UID{}, f.owners(object))
			}
			assert.Equal(t, []string{"delete " + row.ownerName}, f.writes(before))
			assert.Zero(t, f.hub.count(""), "the hub has forgotten it")
		})
	}
}

func TestUninstallWithoutAnOwner(t *testing.T) {
	f := newTestAgent(t)
	secret := f.stored()
	secret.Annotations = map[string]string{begunAnnotation: noBootstrap}
	f.putSecrets(secret)
	f.putConfigMap(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: registration.AgentHubConfigMap}})
	before := len(f.core.Actions())
	f.start()
	f.waitForLog("The agent is uninstalled")
	assert.Nil(t, f.secret(registration.CredentialSecret))
	writes := f.writes(before)
	assert.Equal(t, "delete fleet-agent", writes[len(writes)-1])
	assert.Contains(t, writes, "delete fleet-agent-hub")
}

func TestUninstallKeepsAPriorityClassThatAnotherAgentUses(t *testing.T) {
	f := newUninstallingAgent(t, installation{managed: true})
	other := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: registration.AgentName}}
	other.Spec.Template.Spec.PriorityClassName = agentmanifest.PriorityClassName
	require.NoError(t, f.core.Tracker().Add(other))
	f.putSecrets(f.storedUninstalling(noBootstrap))
	f.start()
	f.waitUntilUninstalled()
	class, err := f.core.SchedulingV1().PriorityClasses().Get(t.Context(), agentmanifest.PriorityClassName, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Empty(t, f.owners(class))
}

// A person has given the agent a Role that does not allow to list all Deployments.
func TestUninstallKeepsThePriorityClassWithFewerRights(t *testing.T) {
	f := newUninstallingAgent(t, installation{managed: true})
	f.core.PrependReactor("list", "deployments", func(a kubetesting.Action) (bool, runtime.Object, error) {
		return a.GetNamespace() == "", nil, apierrors.NewForbidden(appsv1.Resource("deployments"), "", nil)
	})
	f.putSecrets(f.storedUninstalling(noBootstrap))
	f.start()
	f.waitUntilUninstalled()
	class, err := f.core.SchedulingV1().PriorityClasses().Get(t.Context(), agentmanifest.PriorityClassName, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Empty(t, f.owners(class))
}

func TestUninstallKeepsObjectsOfOtherAgents(t *testing.T) {
	f := newUninstallingAgent(t, installation{managed: true})
	theirs := installation{namespace: "elsewhere", chart: true}
	for _, object := range theirs.role(agentmanifest.ChartClusterRole, agentmanifest.ChartClusterRoleBinding) {
		require.NoError(t, f.core.Tracker().Add(object))
	}
	class, err := f.core.SchedulingV1().PriorityClasses().Get(t.Context(), agentmanifest.PriorityClassName, metav1.GetOptions{})
	require.NoError(t, err)
	class.Labels = map[string]string{"objectset.rio.cattle.io/hash": "another agent's"}
	_, err = f.core.SchedulingV1().PriorityClasses().Update(t.Context(), class, metav1.UpdateOptions{})
	require.NoError(t, err)
	f.putSecrets(f.storedUninstalling(noBootstrap))
	f.start()
	f.waitUntilUninstalled()
	for _, object := range append(theirs.role(agentmanifest.ChartClusterRole, agentmanifest.ChartClusterRoleBinding), class) {
		assert.Equal(t, []types.UID{}, f.owners(object))
	}
}

func TestUninstallMarksTheCredentialFirst(t *testing.T) {
	for name, row := range map[string]struct {
		bootstrap func(f *uninstallingAgent) []*corev1.Secret
		want      string
	}{
		"nothing to register with": {func(*uninstallingAgent) []*corev1.Secret { return nil }, noBootstrap},
		"with a leftover":          {func(f *uninstallingAgent) []*corev1.Secret { return []*corev1.Secret{f.bootstrap()} }, "uid-of-it"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newUninstallingAgent(t, installation{managed: true})
			f.putSecrets(row.bootstrap(f)...)
			before := len(f.core.Actions())
			require.NoError(t, f.beginUninstall())
			assert.Equal(t, []string{"update fleet-agent"}, f.writes(before))
			assert.Equal(t, row.want, f.secret(registration.CredentialSecret).Annotations[begunAnnotation])
			f.start()
			f.waitUntilUninstalled()
			assert.Nil(t, f.secret(registration.BootstrapSecret))
			assert.Empty(t, f.hub.registrations())
		})
	}
	t.Run("without a credential the uninstallation cannot begin", func(t *testing.T) {
		f := newUninstallingAgent(t, installation{managed: true})
		f.deleteSecret(registration.CredentialSecret)
		require.ErrorContains(t, f.beginUninstall(), "Secret cattle-fleet-system/fleet-agent")
	})
}

// The agent is stopped at its n-th write, before or after the write was carried out; another process finishes.
func TestUninstallSurvivesAStopAtAnyWrite(t *testing.T) {
	for _, carriedOut := range []bool{false, true} {
		for n := range sample.Numbers(t, 4) {
			f := newUninstallingAgent(t, installation{managed: true, chart: true})
			f.putSecrets(f.bootstrap())
			require.NoError(t, f.beginUninstall())
			killed := f.killAtWrite(n, carriedOut, func() bool { return f.countLogs("The agent is uninstalled") > 0 })
			if _, err := f.core.RbacV1().ClusterRoles().Get(t.Context(), agentmanifest.ClusterRoleName(agentNamespace), metav1.GetOptions{}); err == nil {
				f.log.Reset()
				f.start()
				f.waitUntilUninstalled()
			}
			for _, object := range f.objects {
				owners := f.owners(object)
				assert.True(t, owners == nil || slices.Contains(owners, types.UID("uid-cattle-fleet-system-fleet-agent-role")), "%T", object)
			}
			if !killed {
				require.Greater(t, n, 15, "an uninstallation has more writes than that")
				break
			}
		}
	}
}

func TestUninstallIsCancelledWhenInstalledAgain(t *testing.T) {
	another := func(f *uninstallingAgent, edits ...string) *corev1.Secret {
		secret := f.bootstrap(edits...)
		secret.UID = "uid-of-another"
		return secret
	}
	for name, arrange := range map[string]func(f *uninstallingAgent){
		"it is there at the start": func(f *uninstallingAgent) { f.putSecrets(f.storedUninstalling(noBootstrap), another(f)) },
		"in place of a leftover":   func(f *uninstallingAgent) { f.putSecrets(f.storedUninstalling("uid-of-it"), another(f)) },
		"the leftover asks for another registration": func(f *uninstallingAgent) {
			f.putSecrets(f.storedUninstalling("uid-of-it"), f.bootstrap("registration", "uid/9"))
		},
		"it comes in the middle": func(f *uninstallingAgent) {
			f.putSecrets(f.storedUninstalling(noBootstrap))
			var once sync.Once
			f.core.PrependReactor("patch", "deployments", func(kubetesting.Action) (bool, runtime.Object, error) {
				once.Do(func() { _ = f.core.Tracker().Add(another(f)) })
				return false, nil, nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newUninstallingAgent(t, installation{managed: true, chart: true})
			f.hub.rejected[oldToken] = true
			arrange(f)
			f.start()
			f.waitUntilSettled(newToken)
			assert.Zero(t, f.countLogs("The agent is uninstalled"))
			for _, object := range append(f.objects, f.stored()) {
				if _, _, name := describeObject(t, object); name != registration.PendingSecret {
					assert.Equal(t, []types.UID{}, f.owners(object), "%T %s", object, name)
				}
			}
			assert.Empty(t, f.secret(registration.CredentialSecret).Annotations)
		})
	}
}

// deployNothingAndUninstall removes all deployments as soon as it runs, and calls between before it ends.
func deployNothingAndUninstall(between func()) deployFunc {
	return func(ctx context.Context, c deploy.Config) error {
		if err := c.BeginUninstall(ctx); err != nil {
			return err
		}
		between()
		return deploy.ErrUninstall
	}
}

func TestUninstallAfterTheDeployments(t *testing.T) {
	f := newUninstallingAgent(t, installation{managed: true})
	f.startWith(deployNothingAndUninstall(func() {}))
	f.waitUntilUninstalled()
	assert.Zero(t, f.countLogs("The work with the stored credential has ended"))
}

// While the hub is away, the agent cannot report that everything is removed. It may be installed again in that time.
func TestUninstallIsCancelledBeforeTheHubKnows(t *testing.T) {
	f := newUninstallingAgent(t, installation{managed: true})
	var deployRuns atomic.Int32
	f.startWith(func(ctx context.Context, c deploy.Config) error {
		if deployRuns.Add(1) > 1 {
			<-ctx.Done()
			return nil
		}
		for again := time.NewTicker(time.Millisecond); ; {
			_ = c.BeginUninstall(ctx)
			select {
			case <-ctx.Done():
				again.Stop()
				return nil
			case <-again.C:
			}
		}
	})
	f.eventually(func() bool { return uninstall.Begun(f.secret(registration.CredentialSecret)) }, "the uninstallation has begun")
	assert.Empty(t, f.hub.registrations())
	var refusals atomic.Int32
	f.hub.set(func() {
		f.hub.fault = func(r *http.Request) (int, string) {
			if r.Method == http.MethodPost && refusals.Add(1) <= 3 {
				return http.StatusBadGateway, "away"
			}
			return 0, ""
		}
	})
	another := f.bootstrap()
	another.UID = "uid-of-another"
	f.putSecrets(another)
	f.waitUntilSettled(newToken)
	assert.Greater(t, refusals.Load(), int32(3))
	assert.Zero(t, f.countLogs("The agent is uninstalled"))
	assert.False(t, uninstall.Begun(f.secret(registration.CredentialSecret)))
}

func TestUninstallContinuesAfterAStopBeforeTheHubKnows(t *testing.T) {
	f := newUninstallingAgent(t, installation{managed: true})
	ctx, die := context.WithCancel(t.Context())
	runLoop(ctx, f.config, f.member, deployNothingAndUninstall(die))
	assert.True(t, uninstall.Begun(f.secret(registration.CredentialSecret)))
	f.hub.set(func() { f.hub.rejected[oldToken] = true }) // forgotten
	f.start()
	f.waitUntilUninstalled()
}

func TestUninstallRetriesOnAMemberInTrouble(t *testing.T) {
	for resource, owner := range map[string]string{
		"clusterroles": "cattle-fleet-system-fleet-agent-role", "priorityclasses": agentmanifest.PriorityClassName, "deployments": "fleet-agent",
	} {
		f := newUninstallingAgent(t, installation{managed: resource == "clusterroles", noClass: resource == "deployments"})
		var mutex sync.Mutex
		failures := 0
		f.core.PrependReactor("get", resource, func(kubetesting.Action) (bool, runtime.Object, error) {
			mutex.Lock()
			defer mutex.Unlock()
			if failures++; failures < 5 {
				return true, nil, apierrors.NewServiceUnavailable("later")
			}
			return false, nil, nil
		})
		f.putSecrets(f.storedUninstalling(noBootstrap))
		before := len(f.core.Actions())
		f.start()
		f.waitForLog("Cannot uninstall yet")
		f.waitUntilUninstalled()
		assert.Equal(t, []string{"delete " + owner}, f.writes(before), "the owner is known in the end, and nothing goes before it")
	}
}
