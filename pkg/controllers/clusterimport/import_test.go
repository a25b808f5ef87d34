package clusterimport

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/testenv/heap"
	"github.com/muster-fleet/muster/pkg/agentmanifest"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/access"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/registration"
)

// fresh is a Cluster that is to be imported.
func fresh() *fleet.Cluster {
	return &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "uid"},
		Spec:       fleet.ClusterSpec{ClientID: "id", KubeConfigSecret: "kbcfg"},
	}
}

// importable returns a harness with a member that works, its kubeconfig and the import token.
func importable(t *testing.T, cluster *fleet.Cluster) (*harness, *fakeMember) {
	t.Helper()
	m := newFakeMember(t)
	h := newHarness(t, kubeconfigSecret(with(t, to(m.Server))))
	h.giveToken(t, cluster)
	return h, m
}

// importedCluster returns a Cluster that is imported.
func importedCluster(t *testing.T) (*harness, *fakeMember, *fleet.Cluster) {
	t.Helper()
	c := fresh()
	h, m := importable(t, c)
	h.requireImported(t, c)
	return h, m, c
}

// untilSettled reconciles after each call to the member, and returns the first result that is not Wait.
func (h *harness) untilSettled(t *testing.T, cluster *fleet.Cluster) result.Result {
	t.Helper()
	for range 5 {
		out := h.Reconcile(t.Context(), cluster)
		if !out.IsWait() {
			return out
		}
		h.Wait()
	}
	require.FailNow(t, "it waits forever")
	return result.Result{}
}

func (h *harness) requireImported(t *testing.T, cluster *fleet.Cluster) {
	t.Helper()
	out := h.untilSettled(t, cluster)
	require.True(t, out.IsDone(), out.Message)
}

var secretsResource = corev1.SchemeGroupVersion.WithResource("secrets")

func (h *harness) fail(verb, resource string, err error) {
	h.kube.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
}

func (h *harness) failFleet(verb, resource string, err error) {
	h.fleet.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
}

// update changes a Secret in the API server and in the cache of versions.
func (h *harness) update(t *testing.T, secret *corev1.Secret, version string) {
	t.Helper()
	secret.ResourceVersion = version
	require.NoError(t, h.kube.Tracker().Update(secretsResource, secret, secret.Namespace))
	h.see(t, secret)
}

// checksIn sets the status of an agent that has checked in with this generation; an agent of Fleet has none.
func checksIn(c *fleet.Cluster, generation string) {
	c.Status.Agent = fleet.AgentStatus{LastSeen: metav1.NewTime(start), Namespace: system, Generation: generation}
	if generation != "" {
		c.Status.Agent.Version = "v1"
	}
}

// request is a granted request; its credential may be invalid for a reason.
func request(name, reason string) *fleet.ClusterRegistration {
	return &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("r-" + name)},
		Spec:       fleet.ClusterRegistrationSpec{ClientID: "id"},
		Status: fleet.ClusterRegistrationStatus{Granted: true, Conditions: []genericcondition.GenericCondition{
			{Type: fleet.ConditionGranted, Reason: reason},
		}},
	}
}

// kept returns the kubeconfig Secret that the Importer keeps in memory.
func (h *harness) kept() *corev1.Secret { return h.kubeconfigs.get(clusterKey("c"), "u/1") }

// reads returns how often a Secret was read since the last call.
func (h *harness) reads() (count int) {
	for _, action := range h.kube.Actions() {
		if action.Matches("get", "secrets") {
			count++
		}
	}
	h.kube.ClearActions()
	return count
}

func TestReconcile(t *testing.T) {
	t.Run("an import is recorded", func(t *testing.T) {
		c := fresh()
		h, m := importable(t, c)
		first := h.Reconcile(t.Context(), c)
		assert.Equal(t, fleet.ReasonImporting, first.Reason)
		assert.True(t, first.IsWait(), "a worker does not wait for a member")
		h.requireImported(t, c)
		assert.Len(t, m.requests, 10, "a ping and nine objects")

		s := c.Status
		assert.Equal(t, ptr.To(int64(0)), s.AgentDeployedGeneration)
		assert.True(t, s.AgentMigrated && s.CattleNamespaceMigrated && s.AgentNamespaceMigrated)
		assert.Equal(t, "https://hub:6443", s.APIServerURL)
		assert.Equal(t, "system-store", s.AgentTLSMode)
		assert.Equal(t, &fleet.ImportStatus{
			KubeConfigSecretVersion: "u/1", SettingsHash: settingsHash(hubConfig), AgentNamespace: system,
			RegistrationKey: s.Import.RegistrationKey, RegistrationID: "uid", Generation: s.Import.RegistrationKey, ManifestHash: s.Import.ManifestHash,
			Time: metav1.NewTime(start), StaleAgentNamespaces: s.Import.StaleAgentNamespaces,
		}, s.Import)
		assert.Empty(t, s.Import.StaleAgentNamespaces)
		assert.NotEmpty(t, s.Import.RegistrationKey)
	})
	t.Run("the address has changed after the kubeconfig Secret was deleted", func(t *testing.T) {
		h, _, c := importedCluster(t)
		require.NoError(t, h.kube.CoreV1().Secrets("ns").Delete(t.Context(), c.Spec.KubeConfigSecret, metav1.DeleteOptions{}))
		require.NoError(t, h.SecretMetadata.GetStore().Delete(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: c.Spec.KubeConfigSecret}}))
		h.requireImported(t, c)
		moved := hubConfig
		moved.APIServerURL = "https://new:6443"
		h.Config.Set(moved)
		assert.Equal(t, fleet.ReasonWaitingForKubeconfig, h.Reconcile(t.Context(), c).Reason)
	})
	t.Run("an imported Cluster costs nothing", func(t *testing.T) {
		h, m, c := importedCluster(t)
		settled, requests := c.DeepCopy(), len(m.requests)
		h.kube.ClearActions()
		h.calls.drop(keyOf("c"))
		for range 3 {
			assert.True(t, h.Reconcile(t.Context(), c).IsDone())
		}
		h.Wait()
		assert.Equal(t, settled, c)
		assert.Empty(t, h.kube.Actions(), "not even a read")
		assert.Len(t, m.requests, requests)
	})
	t.Run("a failure is reported and retried when it is due", func(t *testing.T) {
		c := fresh()
		h, m := importable(t, c)
		m.fault = failAt(1, "forbid")
		out := h.untilSettled(t, c)
		assert.Equal(t, fleet.ReasonForbidden, out.Reason)
		assert.Greater(t, out.After, time.Duration(0))
		assert.Nil(t, c.Status.AgentDeployedGeneration)
		assert.Equal(t, out.Message, h.Reconcile(t.Context(), c).Message)
		assert.Len(t, m.requests, 2, "it is not due")
		assert.Nil(t, h.kept())

		m.fault = nil
		h.clock.Step(out.After)
		h.reads()
		assert.Equal(t, out.Message, h.Reconcile(t.Context(), c).Message, "until the retry has succeeded")
		h.Wait()
		assert.True(t, h.Reconcile(t.Context(), c).IsDone())
		assert.NotNil(t, c.Status.AgentDeployedGeneration)
		assert.Equal(t, 1, h.reads(), "for the call and its result")
		assert.Nil(t, h.kept())
	})
	t.Run("a corrected kubeconfig is tried at once", func(t *testing.T) {
		c := fresh()
		h, m := importable(t, c)
		m.fault = failAt(1, "forbid")
		require.Equal(t, fleet.ReasonForbidden, h.untilSettled(t, c).Reason)
		m.fault = nil
		corrected := with(t, to(m.Server))
		corrected["value"] = append(corrected["value"], "\n# corrected\npreferences: {colors: true}\n"...)
		h.update(t, kubeconfigSecret(corrected), "2")
		h.requireImported(t, c)
	})
	t.Run("a missing Secret does not affect an installed agent", func(t *testing.T) {
		h, m, c := importedCluster(t)
		requests := len(m.requests)
		require.NoError(t, h.SecretMetadata.GetStore().Replace(nil, ""))
		assert.True(t, h.Reconcile(t.Context(), c).IsDone())

		back := kubeconfigSecret(with(t, to(m.Server)))
		back.UID = "another"
		h.update(t, back, "9")
		assert.True(t, h.Reconcile(t.Context(), c).IsDone())
		assert.Equal(t, "another/9", c.Status.Import.KubeConfigSecretVersion)
		assert.Len(t, m.requests, requests, "the same address is not delivered again")
	})
	t.Run("keys that a new Secret lacks are waited for", func(t *testing.T) {
		c := fresh()
		h, m := importable(t, c)
		whole := kubeconfigSecret(with(t, to(m.Server)))
		whole.Data["apiServerURL"] = []byte("https://secret")
		h.update(t, whole, "2")
		h.requireImported(t, c)
		require.Equal(t, "https://secret", c.Status.APIServerURL)
		requests := len(m.requests)

		half := kubeconfigSecret(with(t, to(m.Server)))
		half.CreationTimestamp = metav1.NewTime(start.Add(-time.Second))
		h.update(t, half, "3")
		out := h.Reconcile(t.Context(), c)
		assert.True(t, out.IsSkip(), out.Message)
		assert.Equal(t, missingKeysPeriod-time.Second, out.After)
		assert.Len(t, m.requests, requests)

		h.clock.Step(missingKeysPeriod)
		h.requireImported(t, c)
		assert.Equal(t, "https://hub:6443", c.Status.APIServerURL)
	})
}

func TestReconcile_notStarted(t *testing.T) {
	foreignToken := func(h *harness, _ *fleet.Cluster) { h.tokens.All[0].OwnerReferences = nil }
	for _, row := range []struct {
		name   string
		change func(h *harness, c *fleet.Cluster)
		reason string
		says   string
		status corev1.ConditionStatus
		after  time.Duration
	}{
		{
			name: "no kubeconfig Secret", reason: fleet.ReasonAgentInitiated, status: corev1.ConditionTrue,
			change: func(_ *harness, c *fleet.Cluster) { c.Spec.KubeConfigSecret = "" },
		},
		{
			name: "local agent disabled", reason: fleet.ReasonLocalAgentDisabled, status: corev1.ConditionTrue,
			change: func(h *harness, c *fleet.Cluster) {
				c.Name = "local"
				h.Config.Set(config.Hub{Bootstrap: config.Bootstrap{Namespace: "ns", LocalAgentDisabled: true}})
			},
		},
		{
			name: "Secret does not exist", reason: fleet.ReasonWaitingForKubeconfig, says: "Secret ns/other", status: corev1.ConditionUnknown,
			change: func(_ *harness, c *fleet.Cluster) { c.Spec.KubeConfigSecret = "other" },
		},
		{
			name: "Secret was just deleted", reason: fleet.ReasonWaitingForKubeconfig, status: corev1.ConditionUnknown,
			change: func(h *harness, _ *fleet.Cluster) { _ = h.kube.Tracker().Delete(secretsResource, "ns", "kbcfg") },
		},
		{
			name: "Secret cannot be read", reason: fleet.ReasonError, says: "reading kubeconfig Secret ns/kbcfg: out", status: corev1.ConditionFalse,
			change: func(h *harness, _ *fleet.Cluster) { h.fail("get", "secrets", errors.New("out")) },
		},
		{
			name: "no URL configured", reason: fleet.ReasonAPIServerURLMissing, status: corev1.ConditionFalse,
			change: func(h *harness, _ *fleet.Cluster) { h.Config.Set(config.Hub{}) },
		},
		{
			name: "no token yet", reason: fleet.ReasonImporting, status: corev1.ConditionUnknown,
			change: func(h *harness, _ *fleet.Cluster) { h.tokens.All = nil },
		},
		{
			name: "token cannot be created", reason: fleet.ReasonError, says: "creating ClusterRegistrationToken ns/import-token-c", status: corev1.ConditionFalse,
			change: func(h *harness, _ *fleet.Cluster) {
				h.tokens.All = nil
				h.failFleet("create", "clusterregistrationtokens", errors.New("out"))
			},
		},
		{
			name: "token of another owner", reason: fleet.ReasonNameConflict, says: "ns/import-token-c", status: corev1.ConditionFalse,
			change: foreignToken, after: time.Minute,
		},
		{
			name: "token being deleted", reason: fleet.ReasonWaitingForToken, status: corev1.ConditionUnknown,
			change: func(h *harness, _ *fleet.Cluster) {
				h.tokens.All[0].DeletionTimestamp = ptr.To(metav1.Now())
			},
		},
		{
			name: "token that is refused", reason: fleet.ReasonWaitingForToken, status: corev1.ConditionUnknown,
			change: func(h *harness, _ *fleet.Cluster) { h.refuse() },
		},
		{
			name: "new token that is refused", reason: fleet.ReasonImporting, status: corev1.ConditionUnknown, after: reportTokenAfter - time.Second,
			change: func(h *harness, _ *fleet.Cluster) {
				h.refuse()
				h.tokens.All[0].CreationTimestamp = metav1.NewTime(start.Add(-time.Second))
			},
		},
		{
			name: "refused token created in the future", reason: fleet.ReasonImporting, status: corev1.ConditionUnknown, after: reportTokenAfter,
			change: func(h *harness, _ *fleet.Cluster) {
				h.refuse()
				h.tokens.All[0].CreationTimestamp = metav1.NewTime(start.Add(time.Hour))
			},
		},
		{
			name: "Secret with the values missing", reason: fleet.ReasonWaitingForToken, status: corev1.ConditionUnknown, after: time.Minute,
			change: func(h *harness, _ *fleet.Cluster) { h.values.All = nil },
		},
		{
			name: "Secret with the values of an earlier token", reason: fleet.ReasonWaitingForToken, status: corev1.ConditionUnknown,
			change: func(h *harness, _ *fleet.Cluster) { h.tokens.All[0].UID = "another" },
		},
		{
			name: "Secret of another type", reason: fleet.ReasonWaitingForToken, status: corev1.ConditionUnknown,
			change: func(h *harness, _ *fleet.Cluster) { h.values.All[0].Type = corev1.SecretTypeOpaque },
		},
		{
			name: "Secret without values", reason: fleet.ReasonWaitingForToken, status: corev1.ConditionUnknown,
			change: func(h *harness, _ *fleet.Cluster) { h.leaveOut(nil) },
		},
		{
			name: "Secret with values that are too large", reason: fleet.ReasonWaitingForToken, status: corev1.ConditionUnknown,
			change: func(h *harness, _ *fleet.Cluster) {
				text := "token: t\nother: [" + strings.Repeat("{},", 1000) + "]\n"
				h.leaveOut(map[string][]byte{registration.ValuesKey: []byte(text)})
			},
		},
		{
			name: "image pull Secret missing", reason: fleet.ReasonPullSecretMissing, says: system + "/pull", status: corev1.ConditionFalse, after: time.Minute,
			change: func(h *harness, _ *fleet.Cluster) {
				hub := hubConfig
				hub.ImagePullSecrets = []config.LocalObjectReference{{Name: "pull"}}
				h.Config.Set(hub)
			},
		},
		{
			name: "contradictory settings", reason: fleet.ReasonSettingsInvalid, status: corev1.ConditionFalse,
			change: func(_ *harness, c *fleet.Cluster) {
				c.Spec.AgentSchedulingCustomization = &fleet.AgentSchedulingCustomization{
					PodDisruptionBudget: &fleet.PodDisruptionBudgetSpec{MinAvailable: "1", MaxUnavailable: "1"},
				}
			},
		},
		{
			name: "large settings", reason: fleet.ReasonSettingsInvalid, says: "spec.agentTolerations; at most 65536 are accepted", status: corev1.ConditionFalse,
			change: func(_ *harness, c *fleet.Cluster) { c.Spec.AgentTolerations = make([]corev1.Toleration, 400_000) },
		},
		{
			name: "Secret that does not allow the namespace", reason: fleet.ReasonKubeconfigNotAllowed, says: "annotates it with", status: corev1.ConditionFalse,
			change: func(h *harness, c *fleet.Cluster) {
				c.Spec.KubeConfigSecretNamespace = "theirs"
				theirs := kubeconfigSecret(nil)
				theirs.Namespace = "theirs"
				_ = h.kube.Tracker().Add(theirs)
				_ = h.SecretMetadata.GetStore().Add(&metav1.PartialObjectMetadata{ObjectMeta: theirs.ObjectMeta})
			},
		},
		{
			name: "Secret of another Cluster", reason: fleet.ReasonKubeconfigInUse, says: "Cluster ns/older uses the same", status: corev1.ConditionFalse,
			after: result.Recheck,
			change: func(h *harness, c *fleet.Cluster) {
				older := installed()
				older.Name, older.UID = "older", "0"
				h.clusters.All = []*fleet.Cluster{c, older}
			},
		},
		{
			name: "not a kubeconfig", reason: fleet.ReasonKubeconfigInvalid, status: corev1.ConditionFalse,
			change: func(h *harness, _ *fleet.Cluster) {
				_ = h.kube.Tracker().Update(secretsResource, kubeconfigSecret(map[string][]byte{"value": []byte("x")}), "ns")
			},
		},
		{
			name: "larger than the hub keeps in memory", reason: fleet.ReasonKubeconfigInvalid, says: "262145 bytes, at most 262144", status: corev1.ConditionFalse,
			change: func(h *harness, _ *fleet.Cluster) {
				large := kubeconfigSecret(map[string][]byte{"value": make([]byte, maxKubeconfig), "apiServerCA": {1}})
				_ = h.kube.Tracker().Update(secretsResource, large, "ns")
			},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := fresh()
			h, m := importable(t, c)
			row.change(h, c)
			before := c.DeepCopy()
			var out result.Result
			allocates := heap.Allocated(func() { out = h.Reconcile(t.Context(), c) })
			assert.Less(t, allocates, 50<<20)
			assert.Equal(t, row.reason, out.Reason, out.Message)
			assert.Equal(t, row.status, out.Status())
			assert.Contains(t, out.Message, row.says)
			assert.Equal(t, row.after, out.After)
			assert.Equal(t, before, c, "the status records nothing")
			h.Wait()
			assert.Empty(t, m.requests, "no request is sent to the member")
			assert.NotContains(t, out.Message, confidential)
		})
	}
}

func TestCheckUnclaimed(t *testing.T) {
	at := func(second int) metav1.Time { return metav1.NewTime(start.Add(time.Duration(second) * time.Second)) }
	now := at(9)
	for _, row := range []struct {
		name   string
		others []fleet.Cluster
		first  string // the Cluster that has the agent, empty if this one may have it
	}{
		{name: "no other"},
		{name: "an older one", others: []fleet.Cluster{{ObjectMeta: metav1.ObjectMeta{Name: "a", CreationTimestamp: at(1)}}}, first: "ns/a"},
		{name: "a younger one", others: []fleet.Cluster{{ObjectMeta: metav1.ObjectMeta{Name: "a", CreationTimestamp: at(3)}}}},
		{name: "two older ones", others: []fleet.Cluster{
			{ObjectMeta: metav1.ObjectMeta{Name: "b", CreationTimestamp: at(1)}}, {ObjectMeta: metav1.ObjectMeta{Name: "a", CreationTimestamp: at(0)}},
		}, first: "ns/a"},
		{name: "one of the same second with a lower UID", others: []fleet.Cluster{{ObjectMeta: metav1.ObjectMeta{Name: "A", CreationTimestamp: at(2)}}}, first: "ns/A"},
		{name: "one that is being deleted", others: []fleet.Cluster{{ObjectMeta: metav1.ObjectMeta{Name: "a", CreationTimestamp: at(1), DeletionTimestamp: &now}}}},
		{name: "one of another controller", others: []fleet.Cluster{{ObjectMeta: metav1.ObjectMeta{
			Name: "a", CreationTimestamp: at(1), Labels: map[string]string{fleet.ClusterManagementLabel: "x"},
		}}}},
		{name: "one with another agent namespace", others: []fleet.Cluster{{
			ObjectMeta: metav1.ObjectMeta{Name: "a", CreationTimestamp: at(1)}, Spec: fleet.ClusterSpec{AgentNamespace: "theirs"},
		}}},
		{name: "an older one that may not use the Secret", others: []fleet.Cluster{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "evil", Name: "a", CreationTimestamp: at(1)}, Spec: fleet.ClusterSpec{KubeConfigSecretNamespace: "ns"},
		}}},
		{name: "an older one of another namespace", others: []fleet.Cluster{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "friend", Name: "a", CreationTimestamp: at(1)}, Spec: fleet.ClusterSpec{KubeConfigSecretNamespace: "ns"},
		}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			h := newHarness(t)
			secret := kubeconfigSecret(nil)
			secret.Annotations = map[string]string{fleet.KubeconfigAllowedAnnotation: "friend"}
			c := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "this", UID: "this", CreationTimestamp: at(2)}}
			c.Spec.KubeConfigSecret = secret.Name
			c.Status.AgentDeployedGeneration = ptr.To(int64(0))
			h.clusters.All = []*fleet.Cluster{c}
			for _, other := range row.others {
				other.UID = types.UID(other.Name)
				other.Namespace, other.Spec.KubeConfigSecret = cmp.Or(other.Namespace, "ns"), secret.Name
				other.Status.AgentDeployedGeneration = ptr.To(int64(0))
				h.clusters.All = append(h.clusters.All, &other)
			}
			out := h.checkUnclaimed(c, secret)
			assert.Equal(t, row.first == "", out.IsDone())
			if row.first != "" {
				assert.Equal(t, fleet.ReasonKubeconfigInUse, out.Reason)
				assert.Contains(t, out.Message, "Cluster "+row.first+" uses the same kubeconfig Secret")
			}
			for _, other := range h.clusters.All[1:] { // exactly one of two that may use it has the agent
				if row.name != "two older ones" && access.MayUse(other, secret) && other.DeletionTimestamp == nil && other.Spec.AgentNamespace == "" && len(other.Labels) == 0 {
					assert.NotEqual(t, out.IsDone(), h.checkUnclaimed(other, secret).IsDone())
				}
			}
		})
	}
}

func TestCheckUnclaimed_noAgentYet(t *testing.T) {
	h := newHarness(t)
	older, c := fresh(), fresh()
	older.Name, older.UID = "a", "a"
	h.clusters.All = []*fleet.Cluster{c, older}
	assert.True(t, h.checkUnclaimed(c, kubeconfigSecret(nil)).IsDone())
}

func TestCheckUnclaimed_onlyOneHasTheAgent(t *testing.T) {
	imported := func(name, agentNamespace string, age time.Duration) *fleet.Cluster {
		c := installed()
		c.Name, c.UID, c.CreationTimestamp = name, types.UID(name), metav1.NewTime(start.Add(-age))
		c.Status.Import.AgentNamespace = agentNamespace
		return c
	}
	younger, moved := imported("younger", system, time.Minute), imported("moved", "elsewhere", time.Hour)
	never := fresh()
	never.CreationTimestamp = metav1.NewTime(start.Add(-time.Hour))
	for _, row := range []struct {
		name    string
		cluster *fleet.Cluster
	}{
		{"an older one that was never imported", never},
		{"an older one whose agent was in another namespace", moved},
	} {
		t.Run(row.name, func(t *testing.T) {
			h := newHarness(t)
			h.clusters.All = []*fleet.Cluster{row.cluster, younger}
			out := h.checkUnclaimed(row.cluster, kubeconfigSecret(nil))
			assert.Equal(t, fleet.ReasonKubeconfigInUse, out.Reason)
			assert.Contains(t, out.Message, "Cluster ns/younger uses the same kubeconfig Secret and has its agent")
			assert.True(t, h.checkUnclaimed(younger, kubeconfigSecret(nil)).IsDone())
		})
	}
}

// meanwhile is a cache of Secrets that calls do before each answer.
type meanwhile struct {
	corecontrollers.SecretCache
	do func()
}

func (m meanwhile) Get(namespace, name string) (*corev1.Secret, error) {
	m.do()
	return m.SecretCache.Get(namespace, name)
}

// Two new Clusters with one kubeconfig are imported at the same time. Only one of them may write to the member.
func TestImport_twoNewClusters(t *testing.T) {
	setup := func() (h *harness, m *fakeMember, first, second *fleet.Cluster) {
		first, second = fresh(), fresh()
		first.CreationTimestamp = metav1.NewTime(start)
		second.Name, second.UID, second.CreationTimestamp = "older", "older", metav1.NewTime(start.Add(-time.Hour))
		h, m = importable(t, first)
		h.giveToken(t, second)
		h.clusters.All = []*fleet.Cluster{first, second}
		return h, m, first, second
	}
	refused := func(h *harness, c *fleet.Cluster, says string) {
		t.Helper()
		out := h.Reconcile(t.Context(), c)
		assert.Equal(t, fleet.ReasonKubeconfigInUse, out.Reason, out.Message)
		assert.Contains(t, out.Message, says)
		h.Wait()
		assert.Equal(t, absent, h.calls.last(callKey{nameOf(c), installing}).state)
	}

	t.Run("one begins before the other", func(t *testing.T) {
		h, m, first, second := setup()
		answer := make(chan struct{})
		m.fault = func(int, http.ResponseWriter, *http.Request) bool {
			<-answer
			return false
		}
		assert.Equal(t, fleet.ReasonImporting, h.Reconcile(t.Context(), first).Reason)
		out := h.Reconcile(t.Context(), second)
		assert.Equal(t, fleet.ReasonKubeconfigInUse, out.Reason, out.Message)
		close(answer)
		h.Wait()
		refused(h, second, "Cluster ns/c uses the same kubeconfig Secret and installs its agent") // its status does not record the import yet
		h.requireImported(t, first)
		refused(h, second, "Cluster ns/c uses the same kubeconfig Secret and has its agent")
	})
	t.Run("both check before either has a call", func(t *testing.T) {
		h, m, first, second := setup()
		values := h.secrets
		h.secrets = meanwhile{values, func() {
			h.secrets = values
			assert.Equal(t, fleet.ReasonImporting, h.Reconcile(t.Context(), second).Reason)
		}}
		refused(h, first, "Cluster ns/older uses the same kubeconfig Secret and installs its agent")
		h.requireImported(t, second)
		assert.Equal(t, 1, strings.Count(m.transcript(), "PATCH "+agentDeployment))
	})
	t.Run("a retry runs", func(t *testing.T) {
		h, m, first, second := setup()
		m.fault = failAt(1, "500")
		h.Reconcile(t.Context(), first)
		h.Wait()
		failed := h.Reconcile(t.Context(), first)
		assert.Equal(t, fleet.ReasonMemberError, failed.Reason)
		answer := make(chan struct{})
		m.fault = func(int, http.ResponseWriter, *http.Request) bool {
			<-answer
			return false
		}
		h.clock.Step(failed.After)
		assert.Equal(t, fleet.ReasonMemberError, h.Reconcile(t.Context(), first).Reason, "until the retry has succeeded")
		out := h.Reconcile(t.Context(), second)
		assert.Equal(t, fleet.ReasonKubeconfigInUse, out.Reason, out.Message)
		close(answer)
		h.Wait()
		h.requireImported(t, first)
	})
	t.Run("both have begun", func(t *testing.T) { // the spec of one has changed while its call runs
		h, _, first, second := setup()
		key := callKey{nameOf(first), installing}
		answer, begun, canceled := make(chan struct{}), make(chan struct{}), make(chan struct{})
		require.Equal(t, preparing, h.calls.reserve(key, "inputs").state)
		h.calls.begin(key, func(ctx context.Context) *failure {
			close(begun)
			<-ctx.Done()
			close(canceled)
			return nil
		})
		<-begun
		other := callKey{nameOf(second), installing}
		require.Equal(t, preparing, h.calls.reserve(other, "inputs").state)
		h.calls.begin(other, func(context.Context) *failure {
			<-answer
			return nil
		})
		out := h.Reconcile(t.Context(), first)
		assert.Equal(t, fleet.ReasonKubeconfigInUse, out.Reason, out.Message)
		assert.Contains(t, out.Message, "Cluster ns/older uses the same kubeconfig Secret and installs its agent")
		<-canceled
		close(answer)
		h.Wait()
		assert.Equal(t, absent, h.calls.last(key).state)
	})
	t.Run("the other one fails", func(t *testing.T) {
		h, m, first, second := setup()
		m.fault = failAt(1, "500")
		h.Reconcile(t.Context(), second)
		h.Wait()
		assert.Equal(t, fleet.ReasonMemberError, h.Reconcile(t.Context(), second).Reason)
		h.requireImported(t, first)
		h.clock.Step(time.Hour)
		refused(h, second, "Cluster ns/c uses the same kubeconfig Secret and has its agent")
	})
}

func TestWaitingForKubeconfigOf(t *testing.T) {
	h := newHarness(t)
	imported := func(name string) *fleet.Cluster {
		return &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: fleet.ClusterSpec{KubeConfigSecret: "kbcfg"}}
	}
	first, second := imported("first"), imported("second")
	h.clusters.All = []*fleet.Cluster{first, second}
	deleted := first.DeepCopy()
	deleted.DeletionTimestamp = &metav1.Time{Time: start}
	waiting := []types.NamespacedName{{Namespace: "ns", Name: "second"}}
	assert.Equal(t, waiting, h.waitingForKubeconfigOf(first, deleted))
	assert.Equal(t, waiting, h.waitingForKubeconfigOf(deleted, nil))
	assert.Empty(t, h.waitingForKubeconfigOf(nil, first))
	assert.Empty(t, h.waitingForKubeconfigOf(first, first))
	assert.Empty(t, h.waitingForKubeconfigOf(deleted, deleted))
	agentInitiated := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}
	assert.Empty(t, h.waitingForKubeconfigOf(agentInitiated, nil))
}

func TestReconcile_valuesLeftOutOfTheCache(t *testing.T) {
	c := fresh()
	h, _ := importable(t, c)
	h.leaveOut(h.values.All[0].Data)
	h.requireImported(t, c)
}

// refuse gives the token the status that the controller of tokens writes if its rights cannot be created.
func (h *harness) refuse() {
	h.tokens.All[0].Status.Conditions = []genericcondition.GenericCondition{{Type: fleet.ConditionReady, Status: corev1.ConditionFalse}}
}

func TestReconcile_token(t *testing.T) {
	c := fresh()
	h, _ := importable(t, c)
	created := func() (tokens []*fleet.ClusterRegistrationToken) {
		for _, action := range h.fleet.Actions() {
			if create, ok := action.(clienttesting.CreateAction); ok {
				tokens = append(tokens, create.GetObject().(*fleet.ClusterRegistrationToken))
			}
		}
		return tokens
	}
	token := h.tokens.All[0]
	h.tokens.All = nil
	h.Reconcile(t.Context(), c)
	require.Len(t, created(), 1)
	assert.Equal(t, &fleet.ClusterRegistrationToken{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "import-token-c", OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "fleet.cattle.io/v1alpha1", Kind: "Cluster", Name: "c", UID: "uid",
		}}},
		Spec: fleet.ClusterRegistrationTokenSpec{TTL: &metav1.Duration{Duration: 12 * time.Hour}},
	}, created()[0])

	out := h.Reconcile(t.Context(), c)
	assert.Equal(t, fleet.ReasonImporting, out.Reason)
	assert.Equal(t, expectations.Timeout, out.After, "the token may be deleted before the cache contains it")
	assert.Len(t, created(), 1, "while the cache does not contain it")

	h.tokens.All = []*fleet.ClusterRegistrationToken{token}
	h.Reconcile(t.Context(), c)
	h.tokens.All = nil // by a user
	require.NoError(t, h.fleet.Tracker().Delete(fleet.SchemeGroupVersion.WithResource("clusterregistrationtokens"), "ns", "import-token-c"))
	h.Reconcile(t.Context(), c)
	assert.Len(t, created(), 2)
	h.clock.Step(expectations.Timeout)
	h.Reconcile(t.Context(), c)
	assert.Len(t, created(), 3)
}

// A user who may create Clusters must not learn which Secrets exist in the namespaces of others.
func TestForeignSecretIsNotRevealed(t *testing.T) {
	answer := func(t *testing.T, name string, exists bool) (result.Result, *fleet.Cluster) {
		t.Helper()
		h, m, c := importedCluster(t)
		checksIn(c, c.Status.Import.Generation)
		c.Spec.KubeConfigSecretNamespace, c.Spec.KubeConfigSecret = "theirs", "guess"
		if exists {
			theirs := kubeconfigSecret(with(t, to(m.Server)))
			theirs.Namespace, theirs.Name, theirs.UID = "theirs", "guess", "theirs"
			require.NoError(t, h.kube.Tracker().Add(theirs))
			h.see(t, theirs)
		}
		switch name {
		case "an installed agent":
		case "an import":
			c.Spec.RedeployAgentGeneration++
		case "a status without a version of the Secret": // the user has written it
			c.Status.Import.KubeConfigSecretVersion = ""
		case "an agent in an earlier namespace":
			c.Status.Import.KubeConfigSecretVersion, c.Status.Import.StaleAgentNamespaces = "", []string{"old"}
		case "new image pull Secrets":
			c.Status.Import.KubeConfigSecretVersion, c.Status.Import.PullSecretsHash = "", "changed"
		case "a removal":
			out, err := h.Uninstall(t.Context(), c, h.clock.Now().Add(time.Minute))
			require.NoError(t, err)
			assert.True(t, out.IsGivenUp())
			return result.Stalled(out.Reason, out.Message), c
		case "a question to the member":
			belongs, canAsk, err := h.AgentBelongsTo(t.Context(), c, []*fleet.Cluster{c})
			require.NoError(t, err)
			assert.False(t, belongs)
			assert.True(t, canAsk)
			return result.Stalled(fleet.ReasonKubeconfigNotAllowed, ""), c
		}
		return h.Reconcile(t.Context(), c), c
	}
	for _, name := range []string{
		"an installed agent", "an import", "a status without a version of the Secret", "an agent in an earlier namespace", "new image pull Secrets", "a removal",
		"a question to the member",
	} {
		t.Run(name, func(t *testing.T) {
			without, cluster := answer(t, name, false)
			with, same := answer(t, name, true)
			assert.Equal(t, without, with)
			assert.Equal(t, fleet.ReasonKubeconfigNotAllowed, with.Reason)
			assert.Equal(t, cluster.Status.Import.KubeConfigSecretVersion, same.Status.Import.KubeConfigSecretVersion)
			assert.Equal(t, cluster.Status.AgentConfigChanged, same.Status.AgentConfigChanged)
		})
	}
}

// A workspace may have thousands of imports, and 64 slots for them. Their servers accept connections and never answer.
func TestReconcile_waitingForASlot(t *testing.T) {
	const imports, limit = 200, 26 << 20
	c := fresh()
	h, m := importable(t, c)
	secret := kubeconfigSecret(with(t, to(m.Server)))
	secret.Data["apiServerCA"] = append(pemOf(m.Certificate()), make([]byte, maxKubeconfig-10_000)...)
	h.update(t, secret, "2")
	h.calls.takeSlots(t, h.calls.first, firstPerWorkspace)
	renderer := h.renderer
	h.renderer = nil // nothing may be rendered
	require.Equal(t, fleet.ReasonImporting, h.Reconcile(t.Context(), c).Reason)
	before := heap.InUse()
	for n := range imports {
		other := fresh()
		other.Name = fmt.Sprint("other-", n)
		h.giveToken(t, other)
		require.Equal(t, fleet.ReasonImporting, h.Reconcile(t.Context(), other).Reason)
	}
	assert.Less(t, heap.InUse()-before, limit)

	t.Log("with a slot it goes on")
	h.renderer = renderer
	h.calls.releaseSlot(h.calls.first)
	require.Equal(t, offered, h.calls.last(keyOf("c")).state)
	h.reads()
	require.Equal(t, fleet.ReasonImporting, h.Reconcile(t.Context(), c).Reason)
	require.Eventually(t, func() bool { return !h.calls.last(keyOf("c")).state.isPending() }, patience, pause)
	assert.True(t, h.Reconcile(t.Context(), c).IsDone())
	assert.Zero(t, h.reads(), "its kubeconfig was kept")
}

// What fails after a call has its slot must not keep it.
func TestReconcile_givesItsSlotBack(t *testing.T) {
	c := fresh()
	h, _ := importable(t, c)
	hub := hubConfig
	hub.ImagePullSecrets = []config.LocalObjectReference{{Name: "pull"}}
	h.Config.Set(hub)
	pull := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "pull", UID: "p", ResourceVersion: "1"}}
	require.NoError(t, h.kube.Tracker().Add(pull))
	h.see(t, pull)
	reads := 0
	h.kube.PrependReactor("get", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.(clienttesting.GetAction).GetName() != "pull" {
			return false, nil, nil
		}
		reads++
		return reads == 2, nil, errors.New("out") // the first read is for its digest
	})
	out := h.Reconcile(t.Context(), c)
	require.ErrorContains(t, out.Err, "out")
	h.Wait()
	assertUnused(t, h.calls.first)
	h.requireImported(t, c)
}

// The slots of a workspace must not stay occupied by imports that are necessary no more.
func TestReconcile_waitsNoMore(t *testing.T) {
	for name, hasOffer := range map[string]bool{"it waits for a slot": false, "a slot is offered to it": true} {
		t.Run(name, func(t *testing.T) {
			c := fresh()
			h, m := importable(t, c)
			h.calls.takeSlots(t, h.calls.first, firstPerWorkspace)
			require.Equal(t, fleet.ReasonImporting, h.Reconcile(t.Context(), c).Reason)
			free := firstPerWorkspace
			if hasOffer {
				h.calls.releaseSlot(h.calls.first)
				free--
				require.Equal(t, offered, h.calls.last(keyOf("c")).state)
			}
			c.Spec.Quarantined = true
			require.True(t, h.Reconcile(t.Context(), c).IsSkip())
			h.Wait()
			assert.Equal(t, free, h.calls.asked(h.calls.first))
			assert.Empty(t, m.requests)
			require.True(t, h.Reconcile(t.Context(), c).IsSkip())
			assert.Nil(t, h.kept())
		})
	}
}

func TestReconcile_givesItsSlotBackWhenItPanics(t *testing.T) {
	c := fresh()
	h, _ := importable(t, c)
	renderer := h.renderer
	h.renderer = nil
	assert.Panics(t, func() { h.Reconcile(t.Context(), c) })
	h.Wait()
	assertUnused(t, h.calls.first)
	h.renderer = renderer
	h.requireImported(t, c)
}

func TestReconcile_kubeconfigInMemory(t *testing.T) {
	// waiting is an import that has read its Secret and waits for its token.
	waiting := func(t *testing.T) (*harness, *fakeMember, *fleet.Cluster, *fleet.ClusterRegistrationToken) {
		t.Helper()
		c := fresh()
		h, m := importable(t, c)
		token := h.tokens.All[0]
		h.tokens.All = nil
		for range 2 {
			require.Equal(t, fleet.ReasonImporting, h.Reconcile(t.Context(), c).Reason)
		}
		require.Equal(t, 1, h.reads(), "the Secret is read once for several passes")
		require.NotNil(t, h.kept())
		return h, m, c, token
	}
	t.Run("it is dropped at the end of the import", func(t *testing.T) {
		h, _, c, token := waiting(t)
		h.tokens.All = []*fleet.ClusterRegistrationToken{token}
		h.requireImported(t, c)
		assert.Zero(t, h.reads())
		assert.Nil(t, h.kept())
	})
	t.Run("only the keys that the hub uses are kept", func(t *testing.T) {
		c := fresh()
		secret := kubeconfigSecret(with(t, to(newFakeMember(t).Server)))
		secret.Data["other"] = make([]byte, 1000)
		h := newHarness(t, secret)
		require.Equal(t, fleet.ReasonImporting, h.Reconcile(t.Context(), c).Reason)
		kept := h.kubeconfigs.byCluster[clusterKey("c")].Data
		assert.Contains(t, kept, "other", "its name may be shown")
		assert.Empty(t, kept["other"])
		assert.NotEmpty(t, kept["value"])
	})
	t.Run("it is read again when the Secret changes", func(t *testing.T) {
		h, m, c, token := waiting(t)
		changed := kubeconfigSecret(with(t, to(m.Server)))
		changed.Data["apiServerURL"] = []byte("https://changed")
		h.update(t, changed, "2")
		h.tokens.All = []*fleet.ClusterRegistrationToken{token}
		h.requireImported(t, c)
		assert.Equal(t, 1, h.reads())
		assert.Equal(t, "https://changed", c.Status.APIServerURL)
	})
	t.Run("it is dropped when the Secret no longer allows its use", func(t *testing.T) {
		c := fresh()
		theirs := kubeconfigSecret(with(t, to(newFakeMember(t).Server)))
		theirs.Namespace, theirs.Annotations = "theirs", map[string]string{fleet.KubeconfigAllowedAnnotation: "ns"}
		h := newHarness(t, theirs)
		c.Spec.KubeConfigSecretNamespace = "theirs"
		require.Equal(t, fleet.ReasonImporting, h.Reconcile(t.Context(), c).Reason)
		require.NotNil(t, h.kept())
		theirs.Annotations = nil
		h.update(t, theirs, "2")
		assert.Equal(t, fleet.ReasonKubeconfigNotAllowed, h.Reconcile(t.Context(), c).Reason)
		assert.NotContains(t, h.kubeconfigs.byCluster, clusterKey("c"))
	})
	for name, end := range map[string]func(*harness, *fleet.Cluster){
		"the Secret is deleted": func(h *harness, c *fleet.Cluster) {
			_ = h.SecretMetadata.GetStore().Replace(nil, "")
			assert.Equal(t, fleet.ReasonWaitingForKubeconfig, h.Reconcile(t.Context(), c).Reason)
		},
		"another controller takes over the Cluster": func(h *harness, c *fleet.Cluster) {
			c.Labels = map[string]string{fleet.ClusterManagementLabel: "other"}
			assert.True(t, h.Reconcile(t.Context(), c).IsSkip())
		},
		"the Cluster is deleted": func(h *harness, _ *fleet.Cluster) { h.Forget("ns/c") },
	} {
		t.Run("it is dropped when "+name, func(t *testing.T) {
			h, _, c, _ := waiting(t)
			end(h, c)
			assert.Nil(t, h.kept())
		})
	}
}

func TestReconcile_reregistration(t *testing.T) {
	t.Run("a revoked credential causes one import", func(t *testing.T) {
		h, m, c := importedCluster(t)
		first := c.Status.Import.RegistrationKey
		checksIn(c, first)
		h.requests.All = []*fleet.ClusterRegistration{request("r1", fleet.ReasonCredentialRevoked)}
		m.fault = failAt(len(m.requests)+1, "forbid")
		out := h.untilSettled(t, c)
		assert.Equal(t, fleet.ReasonForbidden, out.Reason)
		h.clock.Step(out.After)
		h.Reconcile(t.Context(), c)
		h.Wait()
		h.requireImported(t, c)
		assert.Equal(t, "uid/r-r1", c.Status.Import.RegistrationID)
		second := c.Status.Import.RegistrationKey
		assert.NotEqual(t, first, second, "the agent has to register again")
		assert.True(t, c.Status.Agent.LastSeen.IsZero())

		requests := len(m.requests)
		for range 3 {
			h.requireImported(t, c)
		}
		h.requests.All = []*fleet.ClusterRegistration{request("r2", fleet.ReasonGranted)}
		checksIn(c, second)
		h.requireImported(t, c)
		assert.Equal(t, second, c.Status.Import.RegistrationKey, "the end of the cause requires nothing")
		assert.Len(t, m.requests, requests)
	})
	t.Run("an unreadable cache of requests causes none", func(t *testing.T) {
		c := fresh()
		h, m := importable(t, c)
		h.requests.Err = errors.New("out")
		assert.Equal(t, fleet.ReasonError, h.Reconcile(t.Context(), c).Reason)
		h.Wait()
		assert.Empty(t, m.requests)
	})
	for name, generation := range map[string]string{"an imported agent": "x/0", "an agent with its Bundle": "managed/0"} {
		t.Run("a new URL does not require it of "+name, func(t *testing.T) {
			h, _, c := importedCluster(t)
			key := c.Status.Import.RegistrationKey
			checksIn(c, generation)
			moved := hubConfig
			moved.APIServerURL = "https://moved"
			h.Config.Set(moved)
			h.requireImported(t, c)
			assert.Equal(t, "https://moved", c.Status.APIServerURL)
			assert.Equal(t, key, c.Status.Import.RegistrationKey)
			assert.False(t, c.Status.Agent.LastSeen.IsZero())
		})
	}
	t.Run("a new URL requires it of an agent of Fleet", func(t *testing.T) {
		h, m, c := importedCluster(t)
		key := c.Status.Import.RegistrationKey
		checksIn(c, "")
		m.put(credentialPath, map[string]any{"kind": "Secret", "apiVersion": "v1", "data": map[string]any{"kubeconfig": "eA=="}})
		moved := hubConfig
		moved.APIServerURL = "https://moved"
		h.Config.Set(moved)
		h.requireImported(t, c)
		assert.NotEqual(t, key, c.Status.Import.RegistrationKey)
		assert.Equal(t, c.Status.Import.RegistrationKey, m.generation(t), "which restarts the agent")
		assert.NotContains(t, m.paths(), credentialPath)

		assert.True(t, c.Status.Import.UnlabelledReleases)
		c.Spec.RedeployAgentGeneration++
		h.requireImported(t, c)
		assert.True(t, c.Status.Import.UnlabelledReleases, "no other agent has sent a heartbeat since")
		checksIn(c, c.Status.Import.RegistrationKey)
		c.Spec.RedeployAgentGeneration++
		h.requireImported(t, c)
		assert.False(t, c.Status.Import.UnlabelledReleases, "the later agent has labelled them")
	})
}

// A hub is killed after it has replaced an agent of Fleet, and before it has written the status.
func TestReconcile_killedBeforeTheStatus(t *testing.T) {
	for name, report := range map[string]*fleet.AgentStatus{
		"before the first heartbeat of the new agent": nil,
		"after the first heartbeat of the new agent":  {LastSeen: metav1.NewTime(start), Version: "v1"},
	} {
		t.Run(name, func(t *testing.T) {
			h, m, c := importedCluster(t)
			checksIn(c, "")
			moved := hubConfig
			moved.APIServerURL = "https://moved"
			h.Config.Set(moved)
			require.True(t, h.Reconcile(t.Context(), c.DeepCopy()).IsWait())
			h.Wait()
			delivered := m.generation(t)
			require.NotEqual(t, c.Status.Import.RegistrationKey, delivered)

			h.calls.drop(keyOf("c"))
			h.kubeconfigs.drop(clusterKey("c"))
			if report != nil {
				c.Status.Agent = *report
				c.Status.Agent.Generation = delivered
			}
			h.requireImported(t, c)
			assert.Equal(t, delivered, m.generation(t))
			assert.Equal(t, delivered, c.Status.Import.RegistrationKey, "the agent registers once")
			assert.Equal(t, report == nil, c.Status.Import.UnlabelledReleases)
		})
	}
}

// generation is the GENERATION of the agent's Deployment on the member.
func (m *fakeMember) generation(t *testing.T) string {
	t.Helper()
	object := m.state(t)[agentDeployment]
	require.NotNil(t, object)
	pod := object["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	for _, env := range pod["containers"].([]any)[0].(map[string]any)["env"].([]any) {
		if v := env.(map[string]any); v["name"] == "GENERATION" {
			return v["value"].(string)
		}
	}
	return ""
}

func TestReconcile_settings(t *testing.T) {
	t.Run("the Bundle delivers them to a connected agent", func(t *testing.T) {
		h, m, c := importedCluster(t)
		h.requests.All = []*fleet.ClusterRegistration{request("r1", fleet.ReasonGranted)}
		key := c.Status.Import.RegistrationKey
		assert.Equal(t, key, m.generation(t))
		checksIn(c, "managed/0")
		requests := len(m.requests)
		c.Spec.AgentEnvVars = []corev1.EnvVar{{Name: "A", Value: "b"}}
		h.requireImported(t, c)
		assert.Len(t, m.requests, requests)

		c.Spec.AgentSchedulingCustomization = &fleet.AgentSchedulingCustomization{PriorityClass: &fleet.PriorityClassSpec{Value: 1}}
		h.requireImported(t, c)
		assert.Greater(t, len(m.requests), requests, "except a PriorityClass")
		assert.Equal(t, "managed/0", m.generation(t))
		assert.Equal(t, key, c.Status.Import.RegistrationKey)
		assert.False(t, c.Status.Agent.LastSeen.IsZero(), "the agent stays registered")

		c.Spec.RedeployAgentGeneration = 1
		h.requireImported(t, c)
		assert.Equal(t, "managed/1", m.generation(t))
		assert.NotEqual(t, key, c.Status.Import.RegistrationKey)
		assert.True(t, c.Status.Agent.LastSeen.IsZero())
	})
	t.Run("a disconnected agent gets them once by an import", func(t *testing.T) {
		h, m, c := importedCluster(t)
		h.requests.All = []*fleet.ClusterRegistration{request("r1", fleet.ReasonGranted)}
		checksIn(c, "managed/0")
		requests := len(m.requests)
		image := hubConfig
		image.AgentImage = "another:image"
		h.Config.Set(image)
		h.requireImported(t, c)
		assert.Len(t, m.requests, requests)
		disconnect(c)
		h.requireImported(t, c)
		assert.Greater(t, len(m.requests), requests)
		requests = len(m.requests)
		h.requireImported(t, c)
		assert.Len(t, m.requests, requests)
	})
	t.Run("an agent without a Bundle gets them by an import", func(t *testing.T) {
		c := fresh()
		h, m := importable(t, c)
		unmanaged := hubConfig
		unmanaged.ManageAgent = ptr.To(false)
		h.Config.Set(unmanaged)
		h.requireImported(t, c)
		checksIn(c, "managed/0")
		c.Spec.PrivateRepoURL = "registry"
		h.requireImported(t, c)
		assert.Equal(t, c.Status.Import.RegistrationKey, m.generation(t))
		assert.Equal(t, "registry", c.Status.AgentPrivateRepoURL)
	})
}

func TestImportStatus_agentOfAnotherRelease(t *testing.T) {
	for name, row := range map[string]struct{ reported, want string }{
		"the namespace that the agent reported":     {"elsewhere", "elsewhere"},
		"the configured namespace without a report": {"", system},
	} {
		c := installed()
		c.Status.Import, c.Status.Agent.Namespace = nil, row.reported
		assert.Equal(t, row.want, importStatus(c, hubConfig, kubeconfigSecret(nil), hubInfo{}, system).AgentNamespace, name)
	}
}

// withPullSecret returns an imported Cluster whose agent has a copy of the hub's image pull Secret.
func withPullSecret(t *testing.T) (*harness, *fakeMember, *fleet.Cluster, *corev1.Secret) {
	t.Helper()
	c := fresh()
	h, m := importable(t, c)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "pull", UID: "p", ResourceVersion: "1"},
		Type:       corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte("{}")},
	}
	require.NoError(t, h.kube.Tracker().Add(secret))
	h.see(t, secret)
	hub := hubConfig
	hub.ImagePullSecrets = []config.LocalObjectReference{{Name: "pull"}}
	h.Config.Set(hub)
	h.requireImported(t, c)
	checksIn(c, "managed/0")
	h.requests.All = []*fleet.ClusterRegistration{request("r1", fleet.ReasonGranted)}
	h.requireImported(t, c)
	return h, m, c, secret.DeepCopy()
}

const copyPath = "/api/v1/namespaces/" + system + "/secrets/pull"

// maintained reconciles until nothing is left to do.
func (h *harness) maintained(t *testing.T, c *fleet.Cluster) {
	t.Helper()
	for range 3 {
		out := h.Reconcile(t.Context(), c)
		require.True(t, out.IsDone(), out.Message)
		h.Wait()
	}
}

func TestReconcile_pullSecrets(t *testing.T) {
	t.Run("changed content is copied, and nothing else", func(t *testing.T) {
		h, m, c, secret := withPullSecret(t)
		assert.Equal(t, []string{"pull"}, c.Status.Import.PullSecrets)
		m.requests = nil
		secret.Data[corev1.DockerConfigJsonKey] = []byte("changed")
		h.update(t, secret, "2")
		h.maintained(t, c)
		assert.Len(t, m.requests, 3, "version, namespace, and the copy")
		assert.Equal(t, map[string]any{".dockerconfigjson": "Y2hhbmdlZA=="}, m.state(t)[copyPath]["data"])
	})
	t.Run("a workspace that the configuration does not name gets no copy, and loses the one it has", func(t *testing.T) {
		h, m, c, _ := withPullSecret(t)
		require.Contains(t, m.paths(), copyPath)
		hub := h.Config.Get()
		hub.ImagePullSecretWorkspaces = []string{"another"}
		h.Config.Set(hub)
		h.maintained(t, c)
		assert.NotContains(t, m.paths(), copyPath)
		assert.Empty(t, c.Status.Import.PullSecrets)

		mallory := fresh()
		h, m = importable(t, mallory)
		h.Config.Set(hub)
		h.requireImported(t, mallory)
		assert.NotContains(t, m.transcript(), "/secrets/pull")
	})
	t.Run("a new version with the same content is read once and not copied", func(t *testing.T) {
		h, m, c, secret := withPullSecret(t)
		m.requests = nil
		h.update(t, secret, "2")
		h.reads()
		h.maintained(t, c)
		assert.Empty(t, m.requests)
		assert.Equal(t, 1, h.reads())
	})
	t.Run("a copy under way is not interrupted when the content changes back", func(t *testing.T) {
		h, m, c, secret := withPullSecret(t)
		begun, end := make(chan struct{}), make(chan struct{})
		m.fault = func(_ int, _ http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == copyPath {
				close(begun)
				<-end
			}
			return false
		}
		before := secret.DeepCopy()
		secret.Data[corev1.DockerConfigJsonKey] = []byte("changed")
		h.update(t, secret, "2")
		require.True(t, h.Reconcile(t.Context(), c).IsDone())
		<-begun
		h.update(t, before, "3")
		require.True(t, h.Reconcile(t.Context(), c).IsDone())
		close(end)
		h.Wait()
		assert.Equal(t, ended, h.calls.last(keyOf("c")).state, "nothing is kept for a call that was cancelled")
		require.True(t, h.Reconcile(t.Context(), c).IsDone())
		assert.Equal(t, absent, h.calls.last(keyOf("c")).state)
	})
	t.Run("a Secret that is no longer wanted is removed", func(t *testing.T) {
		h, m, c, _ := withPullSecret(t)
		h.Config.Set(hubConfig)
		h.maintained(t, c)
		assert.NotContains(t, m.paths(), copyPath)
		assert.Empty(t, c.Status.Import.PullSecrets)
	})
	t.Run("a Secret of a person stays: the agent uses it, or it is not a copy any more", func(t *testing.T) {
		theirs := map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"namespace": system, "name": "pull", "uid": "theirs"}}
		for _, row := range []struct {
			name       string
			isNamed    bool // by the Cluster; kubectl apply has kept the labels of the copy
			generation int64
		}{
			{"named by the Cluster", true, 0},
			{"named by the Cluster, which is imported again", true, 1},
			{"in the place of the copy", false, 0},
			{"in the place of the copy, and the Cluster is imported again", false, 1},
		} {
			h, m, c, _ := withPullSecret(t)
			if row.isNamed {
				c.Spec.AgentPullSecrets = &[]corev1.LocalObjectReference{{Name: "pull"}}
			} else {
				m.put(copyPath, theirs)
				h.Config.Set(hubConfig)
			}
			c.Spec.RedeployAgentGeneration = row.generation
			h.requireImported(t, c)
			h.maintained(t, c)
			assert.Contains(t, m.paths(), copyPath, row.name)
			assert.Empty(t, c.Status.Import.PullSecrets, row.name)
		}
	})
	t.Run("a missing Secret is an error unless it was copied before", func(t *testing.T) {
		h, m, c, secret := withPullSecret(t)
		require.NoError(t, h.kube.Tracker().Delete(secretsResource, system, "pull"))
		require.NoError(t, h.SecretMetadata.GetStore().Delete(&metav1.PartialObjectMetadata{ObjectMeta: secret.ObjectMeta}))
		m.requests = nil
		h.maintained(t, c)
		assert.Empty(t, m.requests)
		hub := hubConfig
		hub.ImagePullSecrets = []config.LocalObjectReference{{Name: "pull"}, {Name: "another"}}
		h.Config.Set(hub)
		assert.Equal(t, fleet.ReasonPullSecretMissing, h.Reconcile(t.Context(), c).Reason)
	})
	t.Run("a failed copy is reported and retried", func(t *testing.T) {
		h, m, c, secret := withPullSecret(t)
		for at := range 2 {
			m.fault = failAt(len(m.requests)+1+at, "forbid") // after Namespace kube-system
			secret.Data[corev1.DockerConfigJsonKey] = []byte("changed " + string(rune('a'+at)))
			h.update(t, secret, "1"+string(rune('0'+at)))
			h.Reconcile(t.Context(), c)
			h.Wait()
			out := h.Reconcile(t.Context(), c)
			assert.Equal(t, fleet.ReasonForbidden, out.Reason, "request %d", at)
			assert.NotContains(t, out.Message, "changed")
			m.fault = nil
			h.clock.Step(out.After)
			h.Reconcile(t.Context(), c)
			h.Wait()
			h.maintained(t, c)
		}
		h.fail("get", "secrets", errors.New("out"))
		h.update(t, secret, "20")
		assert.Equal(t, fleet.ReasonError, h.Reconcile(t.Context(), c).Reason)
	})
	t.Run("the copies follow the agent to another namespace", func(t *testing.T) {
		h, m, c, _ := withPullSecret(t)
		c.Spec.AgentNamespace = "elsewhere"
		h.requireImported(t, c)
		assert.Contains(t, m.paths(), "/api/v1/namespaces/elsewhere/secrets/pull")
		c.Status.Agent = fleet.AgentStatus{Namespace: "elsewhere", LastSeen: metav1.NewTime(start), Version: "v1", Generation: "managed/0"}
		h.maintained(t, c)
		assert.NotContains(t, m.paths(), copyPath)
	})
	t.Run("the Cluster's own pull Secrets are not copied", func(t *testing.T) {
		h, c := newHarness(t), installed()
		hub := config.Hub{ImagePullSecrets: []config.LocalObjectReference{{Name: "hubs"}}}
		for _, own := range [][]corev1.LocalObjectReference{{{Name: "own"}}, {}} {
			c.Spec.AgentPullSecrets = &own
			pull, out := h.pullSecrets(t.Context(), hub, c)
			assert.True(t, out.IsDone())
			assert.Empty(t, pull)
		}
	})
	t.Run("an agent beside the hub uses the Secrets of the hub themselves", func(t *testing.T) {
		h, _, c, _ := withPullSecret(t)
		hub := h.Config.Get()
		hub.Bootstrap.Namespace, c.Name = c.Namespace, registration.LocalCluster
		for _, name := range []string{"pull", "another"} {
			hub.ImagePullSecrets = []config.LocalObjectReference{{Name: name}}
			pull, out := h.pullSecrets(t.Context(), hub, c)
			assert.True(t, out.IsDone())
			assert.Empty(t, pull)
			assert.Empty(t, h.pullSecretLeftovers(hub, c), "the Secret of the hub, which an earlier version counted as a copy")
		}
		c.Spec.AgentNamespace, c.Status.Import.AgentNamespace = "elsewhere", "elsewhere"
		assert.Equal(t, []agentmanifest.OwnedObject{{Kind: "Secret", Namespace: "elsewhere", Name: "pull"}}, h.pullSecretLeftovers(hub, c))
	})
	t.Run("only the configured Secrets enqueue all Clusters", func(t *testing.T) {
		h, _, _, secret := withPullSecret(t)
		assert.True(t, h.isPullSecret(secret))
		assert.False(t, h.isPullSecret(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pull"}}))
		assert.False(t, h.isPullSecret(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "other"}}))
	})
}

// register makes the agent on the member that of a Cluster; an empty key is that of its import.
func (m *fakeMember) register(cluster *fleet.Cluster, key string) {
	inBase64 := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	delete(m.objects, credentialPath+"-bootstrap")
	m.put(credentialPath, map[string]any{"apiVersion": "v1", "kind": "Secret", "data": map[string]any{
		registration.CredentialWorkspace: inBase64(cluster.Namespace), registration.CredentialClusterName: inBase64(cluster.Name),
		registration.BootstrapRegistrationKey: inBase64(cmp.Or(key, registrationKey(cluster, string(cluster.UID)))),
	}})
}

// A second Cluster is imported with a copy of the kubeconfig of the first one, whose agent it replaces. The first one says so when it becomes
// disconnected, and is imported again when the second one is gone.
func TestReconcile_agentReplacedByAnotherCluster(t *testing.T) {
	const message = " has imported the same member later, and has replaced the agent in namespace " + system +
		" there; delete one of the two, or set another spec.agentNamespace"
	later := func(seconds int) metav1.Time { return metav1.NewTime(start.Add(time.Duration(seconds) * time.Second)) }
	for _, row := range []struct {
		name    string
		change  func(h *harness, c, other *fleet.Cluster)
		message string // "": the Cluster has no problem
	}{
		{name: "disconnected", message: "Cluster ns/other" + message},
		{name: "in another workspace", message: "a Cluster of another workspace" + message, change: func(_ *harness, _, other *fleet.Cluster) { other.Namespace = "theirs" }},
		{name: "the other one has not registered", message: "Cluster ns/other" + message, change: func(_ *harness, _, other *fleet.Cluster) {
			other.Status.Agent.LastSeen = metav1.Time{}
		}},
		{name: "the other one is disconnected", message: "Cluster ns/other" + message, change: func(_ *harness, _, other *fleet.Cluster) { disconnect(other) }},
		{name: "the other one is being deleted", message: "Cluster ns/other" + message, change: func(_ *harness, _, other *fleet.Cluster) {
			other.DeletionTimestamp = &metav1.Time{Time: start}
		}},
		{name: "without its own kubeconfig", message: "Cluster ns/other" + strings.Replace(message, "set another spec.agentNamespace", "install the agent of this one in another namespace", 1), change: func(_ *harness, c, _ *fleet.Cluster) {
			c.Spec.KubeConfigSecret, c.Status.Import = "", nil
			c.Status.Agent.Namespace = system
		}},
		{name: "the kubeconfig Secret was deleted", message: "Cluster ns/other" + message, change: func(h *harness, c, _ *fleet.Cluster) {
			_ = h.SecretMetadata.GetStore().Delete(kubeconfigSecret(nil)) // never fails
		}},
		{name: "the settings of the hub have changed", message: "Cluster ns/other" + message, change: func(h *harness, _, _ *fleet.Cluster) {
			changed := hubConfig
			changed.APIServerURL = "https://elsewhere:6443"
			h.Config.Set(changed)
		}},
		{name: "the credential has expired", message: "Cluster ns/other" + message, change: func(_ *harness, c, other *fleet.Cluster) {
			disconnect(other)
			c.Status.Agent.CredentialExpires = &metav1.Time{Time: start}
		}},
		{name: "the Cluster has another UID", change: func(_ *harness, c, _ *fleet.Cluster) { c.UID = "new" }},
		{name: "connected", change: func(_ *harness, c, _ *fleet.Cluster) { c.Status.Conditions = nil }},
		{name: "imported again since", change: func(_ *harness, c, _ *fleet.Cluster) { c.Status.Import.Time = later(3600) }},
		{name: "registered again since", change: func(_ *harness, c, _ *fleet.Cluster) { c.Status.Agent.LastSeen = later(7200) }},
		{name: "the other one has moved its agent", change: func(_ *harness, _, other *fleet.Cluster) { other.Status.Import.AgentNamespace = "elsewhere" }},
	} {
		t.Run(row.name, func(t *testing.T) {
			h, m, c, other := replacedCluster(t)
			if row.change != nil {
				row.change(h, c, other)
			}
			before := len(m.paths())
			out := h.untilSettled(t, c)
			assert.Equal(t, row.message, out.Message)
			assert.Equal(t, row.message == "", out.IsDone())
			if row.message != "" {
				assert.Equal(t, fleet.ReasonKubeconfigInUse, out.Reason)
			}
			assert.Len(t, m.paths(), before, "nothing is installed")
			assert.Equal(t, row.message != "" && c.Spec.KubeConfigSecret != "", hasLostAgent(c))
		})
	}

	inUse := func(t *testing.T) (h *harness, m *fakeMember, c *fleet.Cluster) {
		h, m, c, _ = replacedCluster(t)
		out := h.untilSettled(t, c)
		require.Equal(t, fleet.ReasonKubeconfigInUse, out.Reason)
		result.Set(&c.Status.Conditions, fleet.ConditionImported, out, start)
		return h, m, c
	}
	t.Run("the other one is gone", func(t *testing.T) {
		h, m, c := inUse(t)
		tokens := h.tokens.All
		h.clusters.All, h.tokens.All = []*fleet.Cluster{c}, nil // the token of the import has expired
		before := c.Status.Import.Time
		h.clock.Step(time.Minute)
		out := h.Reconcile(t.Context(), c)
		require.True(t, out.IsWait(), "for the token")
		result.Set(&c.Status.Conditions, fleet.ConditionImported, out, start)
		h.tokens.All = tokens
		h.requireImported(t, c)
		assert.True(t, before.Before(&c.Status.Import.Time))
		assert.Contains(t, m.objects, credentialPath+"-bootstrap")
		assert.False(t, hasLostAgent(c))
	})
	t.Run("its agent has come back by itself", func(t *testing.T) {
		h, m, c := inUse(t)
		before := len(m.paths())
		c.Status.Agent.LastSeen = later(7200) // the controller of Clusters calls the Importer before it sets condition Connected
		for range 2 {
			out := h.untilSettled(t, c)
			assert.Equal(t, fleet.ReasonImported, out.Reason)
			assert.True(t, c.Status.Import.AgentLost.IsZero())
			assert.Len(t, m.paths(), before, "nothing is installed")
			c.Status.Conditions = nil
		}
	})
	t.Run("its kubeconfig Secret is written again, and the other one is disconnected", func(t *testing.T) {
		h, m, c := inUse(t)
		disconnect(h.clusters.All[1])
		h.update(t, kubeconfigSecret(with(t, to(m.Server))), "2")
		out := h.untilSettled(t, c)
		assert.Contains(t, out.Message, "Cluster ns/other has imported the same member with another kubeconfig Secret")
		assert.NotContains(t, m.objects, credentialPath+"-bootstrap")
	})
	t.Run("a person asks for another registration", func(t *testing.T) {
		h, _, c := inUse(t)
		result.Set(&h.clusters.All[1].Status.Conditions, fleet.ConditionConnected, result.Done("", ""), start)
		c.Spec.RedeployAgentGeneration++
		out := h.untilSettled(t, c)
		assert.Contains(t, out.Message, "Cluster ns/other has imported the same member with another kubeconfig Secret", "which the member has said")
	})
	t.Run("the other one moves to another member", func(t *testing.T) {
		h, _, c := inUse(t)
		other, elsewhere := h.clusters.All[1], newFakeMember(t)
		secret := kubeconfigSecret(with(t, to(elsewhere.Server)))
		secret.Name, secret.UID = "copy", "copy"
		h.update(t, secret, "2")
		other.Spec.RedeployAgentGeneration++
		h.requireImported(t, other)
		assert.Empty(t, other.Status.Import.ReplacedCluster)
		h.requireImported(t, c)
		assert.True(t, c.Status.Agent.LastSeen.IsZero(), "the agent must register again")
	})
	t.Run("it wants another namespace", func(t *testing.T) {
		h, m, c := inUse(t)
		c.Spec.AgentNamespace = "elsewhere"
		h.requireImported(t, c)
		assert.Contains(t, m.objects, "/api/v1/namespaces/elsewhere/secrets/fleet-agent-bootstrap")
	})
	t.Run("its kubeconfig Secret leads to another member now", func(t *testing.T) {
		h, _, c := inUse(t)
		elsewhere := newFakeMember(t)
		h.update(t, kubeconfigSecret(with(t, to(elsewhere.Server))), "2")
		h.clock.Step(time.Minute)
		h.requireImported(t, c)
		assert.Contains(t, elsewhere.objects, credentialPath+"-bootstrap")
		assert.Equal(t, fleet.ReasonImported, h.Reconcile(t.Context(), c).Reason, "it is not replaced any more")
	})
}

// replacedCluster returns two Clusters of one member: the first is disconnected, because the import of the other one has replaced its agent.
func replacedCluster(t *testing.T) (h *harness, m *fakeMember, c, other *fleet.Cluster) {
	t.Helper()
	h, m, c = importedCluster(t)
	c.Status.Agent.LastSeen = metav1.NewTime(start)
	h.requests.All = []*fleet.ClusterRegistration{request("r1", fleet.ReasonGranted)}
	m.register(c, "")
	other = fresh()
	other.Name, other.UID, other.Spec.KubeConfigSecret = "other", "other", "copy"
	secret := kubeconfigSecret(with(t, to(m.Server)))
	secret.Name, secret.UID = "copy", "copy"
	require.NoError(t, h.kube.Tracker().Add(secret))
	h.see(t, secret)
	h.giveToken(t, other)
	h.clusters.All = []*fleet.Cluster{c, other}
	h.clock.Step(time.Minute)
	h.requireImported(t, other)
	require.Equal(t, replacedKey(c), other.Status.Import.ReplacedCluster)
	require.True(t, h.Reconcile(t.Context(), other).IsDone(), "the status that has been written causes another pass")
	other.Status.Agent.LastSeen = metav1.NewTime(h.clock.Now())
	m.register(other, "")
	disconnect(c)
	return h, m, c, other
}

func TestImport_replacesNoAgent(t *testing.T) {
	for name, registers := range map[string]func(m *fakeMember, c *fleet.Cluster){
		"no agent": func(*fakeMember, *fleet.Cluster) {},
		"its own":  func(m *fakeMember, c *fleet.Cluster) { m.register(c, "") },
		"that of a Cluster of another hub": func(m *fakeMember, _ *fleet.Cluster) {
			other := fresh()
			other.Name = "other"
			m.register(other, "of-another-hub/0")
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, m, c := importedCluster(t)
			other := fresh()
			other.Name, other.UID = "other", "other"
			h.clusters.All = []*fleet.Cluster{c, other}
			registers(m, c)
			c.Spec.RedeployAgentGeneration++
			h.requireImported(t, c)
			assert.Empty(t, c.Status.Import.ReplacedCluster)
		})
	}
}

// An agent that registered with a token has a credential without a registration key. The server of a member can write any names into it.
func TestClusterOf_withoutKey(t *testing.T) {
	h := newHarness(t)
	c := fresh()
	h.clusters.All = []*fleet.Cluster{c}
	stored := map[string]string{registration.CredentialWorkspace: c.Namespace, registration.CredentialClusterName: c.Name}
	clusterNamespace := registration.ClusterNamespace(c.Namespace, c.Name)
	for _, namespace := range []string{clusterNamespace, "theirs"} {
		require.NoError(t, h.kube.Tracker().Add(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "account", UID: "known"}}))
	}
	for _, row := range []struct {
		name, namespace, account, uid string
		owner                         *fleet.Cluster
	}{
		{"its own", clusterNamespace, "account", "known", c},
		{"of an agent of another workspace", "theirs", "account", "known", nil},
		{"with another UID", clusterNamespace, "account", "guessed", nil},
		{"without a UID", clusterNamespace, "account", "", nil},
		{"of a ServiceAccount that does not exist", clusterNamespace, "other", "known", nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			claims := map[string]any{"namespace": row.namespace, "serviceaccount": map[string]any{"name": row.account, "uid": row.uid}}
			token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"kubernetes.io": claims}).SignedString([]byte("k"))
			require.NoError(t, err)
			assert.Equal(t, row.owner, h.clusterOf(t.Context(), stored, credential.Token(token)))
		})
	}
	assert.Nil(t, h.clusterOf(t.Context(), stored, ""))
}

// The import of another Cluster has replaced the agent, and fails then. Its next try finds its own bootstrap Secret, and the same credential.
func TestImport_replacesAnAgentAndFails(t *testing.T) {
	h, m, c, other := replacedCluster(t)
	m.register(c, "")
	other.Spec.RedeployAgentGeneration++
	other.Status.Import.ReplacedCluster = ""
	seen := false
	m.fault = func(n int, w http.ResponseWriter, r *http.Request) bool {
		failed := seen && failAt(n, "500")(n, w, r)
		seen = seen || r.Method == http.MethodGet && r.URL.Path == credentialPath
		return failed
	}
	out := h.untilSettled(t, other)
	require.Equal(t, fleet.ReasonMemberError, out.Reason)
	m.fault = nil
	m.register(other, "")
	h.clock.Step(out.After)
	for range 3 {
		h.Reconcile(t.Context(), other)
		h.Wait()
	}
	assert.Equal(t, replacedKey(c), other.Status.Import.ReplacedCluster)
}

func TestReplacedClusters(t *testing.T) {
	imported := func(replaced, namespace string, seconds int) *fleet.Cluster {
		return &fleet.Cluster{Status: fleet.ClusterStatus{Import: &fleet.ImportStatus{
			ReplacedCluster: replaced, AgentNamespace: namespace, ReplacedTime: metav1.NewTime(start.Add(time.Duration(seconds) * time.Second)),
		}}}
	}
	one, first := imported("ns/c/uid", system, 0), []types.NamespacedName{{Namespace: "ns", Name: "c"}}
	assert.Equal(t, first, replacedClusters(nil, one))
	assert.Equal(t, first, replacedClusters(one, nil))
	assert.Equal(t, first, replacedClusters(fresh(), one))
	assert.Empty(t, replacedClusters(one, one))
	assert.Empty(t, replacedClusters(nil, fresh()))
	assert.Empty(t, replacedClusters(imported("", system, 0), imported("", "elsewhere", 0)))
	assert.Len(t, replacedClusters(one, imported("ns/c/uid", "elsewhere", 0)), 2)
	assert.Len(t, replacedClusters(one, imported("ns/c/uid", system, 1)), 2)
}

// Two Clusters have kubeconfig Secrets of one member. The later import has taken the agent, and the earlier Cluster would take it back when its credential
// has expired.
func TestReconcile_agentTakenByAnotherCluster(t *testing.T) {
	const message = " has imported the same member with another kubeconfig Secret, and has its agent in namespace " + system +
		" there; delete one of the two, or set another spec.agentNamespace"
	for _, row := range []struct {
		name    string
		change  func(c, other *fleet.Cluster)
		key     string // of the credential on the member, if it is not the one of the other Cluster
		message string // empty: the Cluster takes the agent
	}{
		{"the other Cluster is connected", func(*fleet.Cluster, *fleet.Cluster) {}, "", "Cluster ns/other" + message},
		{"in another workspace", func(_, other *fleet.Cluster) { other.Namespace = "theirs" }, "", "a Cluster of another workspace" + message},
		{"the other Cluster is not connected", func(_, other *fleet.Cluster) { disconnect(other) }, "", ""},
		{"the other Cluster is being deleted", func(_, other *fleet.Cluster) { other.DeletionTimestamp = &metav1.Time{Time: start} }, "", ""},
		{"another hub has a Cluster of that name", func(*fleet.Cluster, *fleet.Cluster) {}, "of-another-hub/0", ""},
		{"this Cluster has not lost its agent", func(c, _ *fleet.Cluster) { c.Status.Conditions = nil }, "", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			h, m, c := importedCluster(t)
			other := fresh()
			other.Name, other.UID, other.Spec.KubeConfigSecret = "other", "other", "of-other"
			disconnect(c)
			result.Set(&other.Status.Conditions, fleet.ConditionConnected, result.Done("", ""), start)
			row.change(c, other)
			h.clusters.All = []*fleet.Cluster{c, other}
			m.register(other, row.key)

			c.Spec.RedeployAgentGeneration++
			out := h.untilSettled(t, c)
			assert.Equal(t, row.message, out.Message)
			assert.Equal(t, row.message == "", slices.Contains(m.paths(), credentialPath+"-bootstrap"))
			if row.message != "" {
				assert.Equal(t, fleet.ReasonKubeconfigInUse, out.Reason)
			}
		})
	}
}

// A hub that started with an invalid configuration would install the agent again, with defaults.
func TestImportWithInvalidConfiguration(t *testing.T) {
	h, m, c := importedCluster(t)
	before := m.transcript()
	h.Config.SetFallback(config.Hub{}, "correct it")
	c.Spec.RedeployAgentGeneration++
	out := h.Reconcile(t.Context(), c)
	assert.Equal(t, fleet.ReasonConfigInvalid, out.Reason)
	assert.Equal(t, "correct it", out.Message)
	assert.Positive(t, out.After)
	h.Wait()
	assert.Equal(t, before, m.transcript())
}

func TestMissingKeysDelay_clockOfTheHubIsBehind(t *testing.T) {
	h := newHarness(t)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(start.Add(time.Hour))}}
	assert.Equal(t, missingKeysPeriod, h.missingKeysDelay(&fleet.ImportStatus{APIServerURLFromSecret: true}, secret, hubInfo{}))
}
