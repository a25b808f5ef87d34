package bundle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/bundle/templates"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/registration"
)

// The labels of the Cluster are not in the cache, so the hub does not know which Bundles select it.
func TestReconcile_metadataTooLarge(t *testing.T) {
	s := newStage(t)
	alice, b := clusterNamed("alice"), everywhere()
	alice.Spec.MetadataTooLarge = true
	withdrawn := targetingAlice()
	withdrawn.Name = "withdrawn"
	s.has(t, alice, b, isReady(deployed(t, withdrawn)))
	cluster, out := s.reconcile(t, alice)
	assert.Empty(t, s.taken(), "nothing is deployed or deleted")
	assert.Equal(t, fleet.ReasonTooLarge, out.Reason)
	assert.Contains(t, out.Message, "metadata.labels takes more than 32 KiB")
	assert.Equal(t, "1/1", cluster.Status.Display.ReadyBundles)
	assert.Empty(t, s.matching(b))

	b.Spec.MetadataTooLarge = true
	b.Generation++
	assert.Equal(t, fleet.ReasonBundleInvalid, planOf(b).problem.reason)
}

// The agent sends heartbeats, and cannot deploy: its reports on BundleDeployments are old.
func TestReconcile_deploymentsStalled(t *testing.T) {
	s := newStage(t)
	alice := clusterNamed("alice")
	alice.Status.Agent.DeploymentsStalled = "reading the history key on the member: " + strings.Repeat("x", 1000)
	s.has(t, alice, targetingAlice(), isReady(deployed(t, targetingAlice())))
	_, out := s.reconcile(t, alice)
	assert.True(t, out.IsStalled())
	assert.Equal(t, fleet.ReasonDeploymentsStalled, out.Reason)
	assert.Contains(t, out.Message, "the agent deploys nothing: reading the history key on the member: x")
	assert.Less(t, len(out.Message), 500)

	alice.Status.Agent.DeploymentsStalled = ""
	_, out = s.reconcile(t, alice)
	assert.Equal(t, fleet.ReasonAllReady, out.Reason)
}

func TestReconcile(t *testing.T) {
	s := newStage(t)
	alice := clusterNamed("alice")
	s.has(t, alice, targetingAlice())
	cluster, out := s.reconcile(t, alice)
	log := s.log
	require.Len(t, s.taken(), 2)
	assert.Contains(t, log[0], "create Content", "the Content exists before the BundleDeployment that names it")
	assert.Equal(t, "create "+atHome, log[1])
	assert.Equal(t, fleet.ReasonNotReady, out.Reason)
	assert.Equal(t, fleet.ClusterDisplay{ReadyBundles: "0/1", State: "WaitApplied"}, cluster.Status.Display)

	_, out = s.reconcile(t, alice)
	assert.Empty(t, s.taken(), "it was created and is not in the cache yet")
	assert.Equal(t, expectations.Timeout, out.After, "in case its event is lost")

	s.has(t, deployed(t, targetingAlice()))
	_, out = s.reconcile(t, alice)
	assert.Empty(t, s.taken(), "settled")
	assert.Zero(t, out.After)

	s.lost(t, targetingAlice())
	cluster, out = s.reconcile(t, alice)
	assert.Equal(t, []string{"confirm app", "delete " + atHome + " uid-of-app", "kind bundles"}, s.taken())
	assert.Equal(t, "0/0", cluster.Status.Display.ReadyBundles)
	assert.True(t, out.IsDone())
	s.reconcile(t, alice)
	assert.Empty(t, s.taken(), "it was deleted and is still in the cache")
}

func TestReconcileWritesOnlyWhatDiffers(t *testing.T) {
	s := newStage(t)
	changed := targetingAlice()
	changed.Generation, changed.Spec.TargetNamespace = 2, "other"
	s.has(t, clusterNamed("alice"), changed, deployed(t, targetingAlice()))
	s.reconcile(t, clusterNamed("alice"))
	log := slices.DeleteFunc(s.taken(), func(line string) bool { return strings.HasPrefix(line, "create Content") })
	require.Len(t, log, 1)
	assert.Contains(t, log[0], "patch "+atHome+` [{"op":"replace","path":"/metadata/resourceVersion","value":"5"},{"op":"add","path":"/spec/options","value":{"namespace":"other"`)
	assert.NotContains(t, log[0], "/metadata/labels")
	assert.NotContains(t, log[0], "/spec/dependsOn")
}

func TestReconcileWithoutChanges(t *testing.T) {
	broken := targetingAlice()
	broken.Generation, broken.Spec.TargetCustomizationMode = 2, "x"
	fromElsewhere, deleted := deployed(t, targetingAlice()), deployed(t, targetingAlice())
	fromElsewhere.Labels[fleet.BundleNamespaceLabel] = "another-workspace"
	deleted.Name, deleted.Labels[fleet.BundleNameLabel], deleted.DeletionTimestamp = "deleted", "deleted", &metav1.Time{Time: noon}
	foreign := &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: home, Name: "foreign"}}
	for name, row := range map[string]struct {
		has   []metav1.Object
		ready string
	}{
		"a Bundle that cannot be deployed: what is deployed stays": {[]metav1.Object{broken, isReady(deployed(t, targetingAlice()))}, "1/1"},
		"BundleDeployments of others: never deleted":               {[]metav1.Object{fromElsewhere, deleted, foreign}, "0/0"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.has(t, append(row.has, clusterNamed("alice"))...)
			cluster, out := s.reconcile(t, clusterNamed("alice"))
			assert.Empty(t, s.taken())
			assert.Equal(t, row.ready, cluster.Status.Display.ReadyBundles)
			assert.True(t, out.IsDone())
		})
	}
}

func TestReconcileErrors(t *testing.T) {
	outdated := deployed(t, targetingAlice())
	outdated.Spec.DeploymentID = "other:1"
	foreign := &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: home, Name: "app"}}
	for name, row := range map[string]struct {
		existing *fleet.BundleDeployment
		errors   map[string]error
		live     *fleet.BundleDeployment
		requests []string // about the BundleDeployment
		reason   string
		skip     bool
	}{
		"the Content cannot be created":           {errors: map[string]error{"create Content": errInternal}, reason: fleet.ReasonError},
		"the BundleDeployment cannot be created":  {errors: map[string]error{"create " + atHome: errInternal}, requests: []string{"create"}, reason: fleet.ReasonError},
		"it cannot be patched":                    {existing: outdated, errors: map[string]error{"patch": errInternal}, requests: []string{"patch"}, reason: fleet.ReasonError},
		"a conflict: retried without a condition": {existing: outdated, errors: map[string]error{"patch": errConflict}, requests: []string{"patch"}, skip: true},
		"it exists and cannot be read": {
			errors: map[string]error{"create " + atHome: errExists, "get": errInternal}, requests: []string{"create", "get"}, reason: fleet.ReasonError,
		},
		"it exists and is foreign":       {errors: map[string]error{"create " + atHome: errExists}, live: foreign, requests: []string{"create", "get"}, reason: fleet.ReasonNameConflict},
		"it is in the cache and foreign": {existing: foreign, reason: fleet.ReasonNameConflict},
		"it exists and is not in the cache": {
			errors: map[string]error{"create " + atHome: errExists}, live: outdated, requests: []string{"create", "get", "patch"}, reason: fleet.ReasonNotReady,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.has(t, clusterNamed("alice"), targetingAlice())
			if row.existing != nil {
				s.has(t, row.existing)
			}
			s.errors, s.live[atHome] = row.errors, row.live
			cluster, out := s.reconcile(t, clusterNamed("alice"))
			log := slices.DeleteFunc(s.taken(), func(line string) bool { return strings.Contains(line, "Content") && !strings.HasPrefix(line, "patch") })
			require.Len(t, log, len(row.requests))
			for i, line := range log {
				assert.Contains(t, line, row.requests[i]+" "+atHome)
			}
			assert.Equal(t, row.skip, out.IsSkip())
			assert.Equal(t, row.reason, out.Reason)
			assert.Equal(t, "0/1", cluster.Status.Display.ReadyBundles, "it counts")
		})
	}
}

func TestReconcileStopsAtItsDeadline(t *testing.T) {
	s := newStage(t)
	other := deployed(t, targetingAlice())
	other.Name, other.Labels[fleet.BundleNameLabel] = "left", "left"
	s.has(t, clusterNamed("alice"), targetingAlice(), other)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cluster := clusterNamed("alice")
	cluster.Status.Display.ReadyBundles = "7/9"
	out := s.Reconcile(ctx, cluster)
	require.ErrorIs(t, out.Err, context.Canceled)
	assert.Empty(t, s.taken(), "nothing is written or deleted")
	assert.Equal(t, "7/9", cluster.Status.Display.ReadyBundles)
}

func TestReconcileDeletes(t *testing.T) {
	for name, row := range map[string]struct {
		err   error
		done  bool
		again int
	}{
		"an error: repeated":          {errInternal, false, 2},
		"it is deleted already: done": {errNotFound, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.has(t, clusterNamed("alice"), deployed(t, targetingAlice()))
			s.errors = map[string]error{"delete": row.err}
			_, out := s.reconcile(t, clusterNamed("alice"))
			assert.Equal(t, row.done, out.IsDone())
			assert.Equal(t, []string{"confirm app", "delete " + atHome + " uid-of-app", "kind bundles"}, s.taken())
			s.reconcile(t, clusterNamed("alice"))
			assert.Len(t, s.taken(), row.again, "the answer about the kind counts for a second")
		})
	}
}

func TestReconcileConfirmsDeletions(t *testing.T) {
	ofGroup := bundleWith(func(s *fleet.BundleSpec) { s.Targets = []fleet.BundleTarget{{ClusterGroup: "edge"}} })
	elsewhere := bundleWith(func(s *fleet.BundleSpec) { s.Targets = []fleet.BundleTarget{{ClusterName: "bob"}} })
	ofLabel := bundleWith(func(s *fleet.BundleSpec) {
		s.Targets = []fleet.BundleTarget{{ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}}}
	})
	labelled, again := clusterNamed("alice"), clusterNamed("alice")
	labelled.Labels = map[string]string{"env": "prod"}
	again.UID = "another"
	newer, deleting := targetingAlice(), targetingAlice()
	newer.Generation, deleting.DeletionTimestamp = 2, &metav1.Time{Time: noon}
	finalized := deleting.DeepCopy()
	deleting.Finalizers, finalized.Finalizers = []string{fleet.BundleFinalizer}, []string{"other"}
	group := func(generation int64, ownLabels map[string]string) *fleet.ClusterGroup {
		return &fleet.ClusterGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "edge", UID: "uid", Generation: generation, Labels: ownLabels}}
	}
	toCluster, toGroups := []string{"confirm alice", "confirm app"}, []string{"confirm alice", "confirm app", "confirm groups"}
	for name, row := range map[string]struct {
		cached, uncached []metav1.Object
		errors           map[string]error
		requests         []string
		deletes          bool
	}{
		"the Bundle is not in the cache yet":     {nil, []metav1.Object{targetingAlice()}, nil, []string{"confirm app"}, false},
		"the Bundle targets the Cluster now":     {[]metav1.Object{elsewhere}, []metav1.Object{newer}, nil, []string{"confirm app"}, false},
		"a proxy says that nothing is there":     {nil, nil, map[string]error{"confirm": errNoKind}, []string{"confirm app", "kind bundles"}, false},
		"the API server does not answer":         {nil, nil, map[string]error{"confirm": errInternal}, []string{"confirm app"}, false},
		"the Bundle targets another Cluster":     {[]metav1.Object{elsewhere}, nil, nil, toCluster, true},
		"the Cluster has a label now":            {[]metav1.Object{ofLabel}, []metav1.Object{labelled}, nil, toCluster, false},
		"the Cluster is another of that name":    {[]metav1.Object{ofLabel}, []metav1.Object{again}, nil, toCluster, false},
		"the Cluster cannot be read":             {[]metav1.Object{ofLabel}, nil, map[string]error{"confirm alice": errInternal}, toCluster, false},
		"the Bundle is being deleted":            {nil, []metav1.Object{deleting}, nil, []string{"confirm app"}, false},
		"another finalizer keeps the Bundle":     {[]metav1.Object{finalized}, nil, nil, []string{"confirm app", "kind bundles"}, true},
		"the Bundle is gone":                     {nil, nil, nil, []string{"confirm app", "kind bundles"}, true},
		"the kind cannot be read":                {nil, nil, map[string]error{"kind": errInternal}, []string{"confirm app", "kind bundles"}, false},
		"the ClusterGroup is not in the cache":   {[]metav1.Object{ofGroup}, []metav1.Object{group(1, nil)}, nil, toGroups, false},
		"the ClusterGroup selects another label": {[]metav1.Object{ofGroup, group(1, nil)}, nil, nil, append(toGroups[:3:3], "kind clustergroups"), true},
		"the selector of the group has changed": {
			[]metav1.Object{ofGroup, group(1, nil)}, []metav1.Object{group(2, nil)}, nil, toGroups, false,
		},
		"the labels of the group have changed": {
			[]metav1.Object{ofGroup, group(1, nil)}, []metav1.Object{group(1, map[string]string{"a": "b"})}, nil, toGroups, false,
		},
		"the groups cannot be listed": {
			[]metav1.Object{ofGroup}, nil, map[string]error{"confirm groups": errInternal}, toGroups, false,
		},
		"a proxy says that there are no groups": {
			[]metav1.Object{ofGroup}, nil, map[string]error{"confirm groups": errNoKind}, append(toGroups[:3:3], "kind clustergroups"), false,
		},
		"the kind of groups is not served and cannot be read": {
			[]metav1.Object{ofGroup}, nil, map[string]error{"confirm groups": errNoKind, "kind": errInternal}, append(toGroups[:3:3], "kind clustergroups"), false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.has(t, append(row.cached, clusterNamed("alice"), isReady(deployed(t, targetingAlice())))...)
			s.uncached, s.errors = row.uncached, row.errors
			cluster, out := s.reconcile(t, clusterNamed("alice"))
			if row.deletes {
				assert.Equal(t, slices.Sorted(slices.Values(append(row.requests, "delete "+atHome+" uid-of-app"))), s.taken())
				return
			}
			assert.Equal(t, row.requests, s.taken())
			assert.Equal(t, "1/1", cluster.Status.Display.ReadyBundles, "it stays")
			if row.errors == nil {
				assert.Equal(t, expectations.Timeout, out.After)
			} else {
				assert.Equal(t, fleet.ReasonError, out.Reason)
			}
		})
	}
}

// A Schedule of Fleet forbids changes on the Cluster. As with Fleet's controllers, the BundleDeployment is deleted then only if its Bundle is
// deleted.
func TestReconcile_offSchedule(t *testing.T) {
	s := newStage(t)
	elsewhere := bundleWith(func(s *fleet.BundleSpec) { s.Targets = []fleet.BundleTarget{{ClusterName: "bob"}} })
	deployment := deployed(t, targetingAlice())
	deployment.Spec.OffSchedule = true
	s.has(t, elsewhere, clusterNamed("alice"), deployment)
	s.reconcile(t, clusterNamed("alice"))
	assert.Empty(t, s.taken())

	elsewhere.DeletionTimestamp = &metav1.Time{Time: noon}
	s.handle(t, elsewhere)
	assert.Equal(t, []string{"delete " + atHome + " uid-of-app", "enqueue Bundle app in 30s", "kind bundles"}, s.taken())
}

// Whoever deletes a kind may not mean to remove all workloads.
func TestReconcileKeepsWhatADeletedKindRequired(t *testing.T) {
	created := metav1.NewTime(noon.Add(-48 * time.Hour)) // the BundleDeployment
	named := func(group string) *fleet.Bundle {
		return bundleWith(func(s *fleet.BundleSpec) { s.Targets = []fleet.BundleTarget{{ClusterGroup: group}} })
	}
	selecting := func(values map[string]string) *fleet.Bundle {
		return bundleWith(func(s *fleet.BundleSpec) {
			s.Targets = []fleet.BundleTarget{{ClusterGroupSelector: &metav1.LabelSelector{MatchLabels: values}}}
		})
	}
	edge := &fleet.ClusterGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "edge", Labels: map[string]string{"a": "b"}}}
	terminating := kindSince(noon.Add(-100 * time.Hour))
	terminating.DeletionTimestamp = &metav1.Time{Time: noon}
	anHourAgo, aDayAgo, earlier := kindSince(noon.Add(-time.Hour)), kindSince(noon.Add(-25*time.Hour)), kindSince(created.Time)
	for name, row := range map[string]struct {
		kind       string
		definition *metav1.PartialObjectMetadata
		cached     []metav1.Object
		deletes    bool
	}{
		"the kind of Bundles is being deleted":                      {"bundles", terminating, nil, false},
		"the kind of Bundles is gone":                               {"bundles", nil, nil, false},
		"the kind of Bundles was created again":                     {"bundles", aDayAgo, nil, false},
		"the kind of Bundles is older than the BundleDeployment":    {"bundles", earlier, nil, true},
		"the kind of groups is gone":                                {"clustergroups", nil, []metav1.Object{named("edge")}, false},
		"the kind of groups is being deleted":                       {"clustergroups", terminating, []metav1.Object{named("edge")}, false},
		"the kind of groups was created again: no group":            {"clustergroups", aDayAgo, []metav1.Object{named("edge")}, false},
		"the kind of groups was created again: no such label":       {"clustergroups", aDayAgo, []metav1.Object{selecting(map[string]string{"a": "c"}), edge}, false},
		"the kind of groups was created an hour ago, and a group":   {"clustergroups", anHourAgo, []metav1.Object{selecting(edge.Labels), edge}, false},
		"the kind of groups was created an hour ago, and the group": {"clustergroups", anHourAgo, []metav1.Object{named("edge"), edge}, false},
		"the kind of groups was created a day ago, and the group":   {"clustergroups", aDayAgo, []metav1.Object{named("edge"), edge}, true},
		"the kind of groups was created a day ago, and a label":     {"clustergroups", aDayAgo, []metav1.Object{selecting(edge.Labels), edge}, true},
		"the kind of groups is older than the BundleDeployment":     {"clustergroups", earlier, []metav1.Object{named("edge")}, true},
		"the targets select no group":                               {"clustergroups", nil, []metav1.Object{bundleWith(func(*fleet.BundleSpec) {})}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.kinds = map[string]*metav1.PartialObjectMetadata{row.kind + ".fleet.cattle.io": row.definition}
			if row.definition == nil { // the API server does not serve the kind
				s.errors = map[string]error{map[string]string{"bundles": "confirm app", "clustergroups": "confirm groups"}[row.kind]: errNoKind}
			}
			deployment := isReady(deployed(t, targetingAlice()))
			deployment.CreationTimestamp = created
			s.has(t, append(row.cached, clusterNamed("alice"), deployment)...)
			_, out := s.reconcile(t, clusterNamed("alice"))
			deletes := slices.Contains(s.taken(), "delete "+atHome+" uid-of-app")
			assert.Equal(t, row.deletes, deletes)
			if !row.deletes {
				assert.Equal(t, fleet.ReasonKindDeleted, out.Reason)
				assert.Contains(t, out.Message, "CustomResourceDefinition "+row.kind+".fleet.cattle.io was deleted")
				assert.Equal(t, 30*s.RecheckDelay(), out.After)
			}
		})
	}
}

// A deleted kind must not have Clusters deployed to as if its objects had never existed.
func TestReconcile_switchesNoTargetForADeletedKind(t *testing.T) {
	terminating := kindSince(noon.Add(-100 * time.Hour))
	terminating.DeletionTimestamp = &metav1.Time{Time: noon}
	for name, row := range map[string]struct {
		definition *metav1.PartialObjectMetadata
		changes    bool
	}{
		"the kind is gone":                     {nil, false},
		"the kind is being deleted":            {terminating, false},
		"the kind was created again":           {kindSince(noon.Add(-time.Hour)), false},
		"the kind was created again a day ago": {kindSince(noon.Add(-25 * time.Hour)), true},
		"the kind is older: the group is gone": {kindSince(noon.Add(-100 * time.Hour)), true},
	} {
		for target, b := range map[string]*fleet.Bundle{
			"another target": withTargets(toProd, toOthers), "by label": withTargets(toGold, toOthers),
			"an exclusion": withTargets(notProd, toOthers), "an exclusion by label": withTargets(notGold, toOthers),
		} {
			t.Run(name+"/"+target, func(t *testing.T) {
				s := newStage(t)
				s.kinds = map[string]*metav1.PartialObjectMetadata{"clustergroups.fleet.cattle.io": row.definition}
				b.CreationTimestamp = metav1.NewTime(noon.Add(-48 * time.Hour))
				other := groupProd(1, func(g *fleet.ClusterGroup) { g.Name, g.Spec.Selector = "other", selector("env", "dev") })
				s.has(t, clusterNamed("alice"), b, other)
				isDeployed := !strings.Contains(target, "exclusion")
				if isDeployed {
					s.has(t, isReady(deployed(t, b)))
				}
				_, out := s.reconcile(t, clusterNamed("alice"))
				if row.changes {
					assert.Regexp(t, "create "+atHome+"|patch "+atHome, strings.Join(s.taken(), "\n"))
					return
				}
				inOneRecheck := fmt.Sprintf("enqueue Bundle app in %s", s.RecheckDelay())
				assert.Equal(t, []string{inOneRecheck, "kind clustergroups"}, slices.Compact(s.taken()), "nothing is created or changed")
				assert.Equal(t, fleet.ReasonKindDeleted, out.Reason)
				assert.Contains(t, out.Message, "CustomResourceDefinition clustergroups.fleet.cattle.io was deleted")
				assert.Equal(t, s.RecheckDelay(), out.After)

				s.has(t, groupProd(1))
				_, out = s.reconcile(t, clusterNamed("alice"))
				assert.NotRegexp(t, "create "+atHome+"|patch|kind", strings.Join(s.taken(), "\n"), "it is as it was")
				assert.True(t, out.IsDone())
			})
		}
	}
}

// The groups that are there, and targets without groups, decide about a Cluster although other groups may be missing.
func TestReconcile_deletedKindOfOtherClusters(t *testing.T) {
	byName, elsewhere := fleet.BundleTarget{ClusterName: "alice"}, fleet.BundleTarget{ClusterName: "bob", ClusterGroup: "gone"}
	dev := groupProd(1, func(g *fleet.ClusterGroup) { g.Name, g.Labels, g.Spec.Selector = "dev", nil, selector("env", "dev") })
	notDev := fleet.BundleTarget{ClusterGroup: "dev", DoNotDeploy: true}
	created, deleted := "create "+atHome, "delete "+atHome+" uid-of-app"
	for name, row := range map[string]struct {
		targets []fleet.BundleTarget
		does    string
	}{
		"an earlier target":                {[]fleet.BundleTarget{byName, {ClusterGroup: "gone"}}, created},
		"a target of another Cluster":      {[]fleet.BundleTarget{elsewhere, byName}, created},
		"only a target of another Cluster": {[]fleet.BundleTarget{elsewhere}, deleted},
		"the group is there":               {[]fleet.BundleTarget{toProd, toOthers}, created},
		"a group with the label":           {[]fleet.BundleTarget{toGold, toOthers}, created},
		"the group does not select it":     {[]fleet.BundleTarget{notDev, byName}, created},
		"a group excludes it":              {[]fleet.BundleTarget{notGold, toOthers}, deleted},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.kinds = map[string]*metav1.PartialObjectMetadata{"clustergroups.fleet.cattle.io": kindSince(noon.Add(-time.Hour))}
			s.has(t, clusterNamed("alice"), withTargets(row.targets...), groupProd(1), dev)
			if row.does == deleted {
				s.has(t, isReady(deployed(t, targetingAlice())))
			}
			_, out := s.reconcile(t, clusterNamed("alice"))
			assert.Contains(t, s.taken(), row.does)
			assert.NotEqual(t, fleet.ReasonKindDeleted, out.Reason)
		})
	}
}

// A group that is still missing may select the Cluster of a BundleDeployment that was created while the groups came back.
func TestReconcile_deletedKindAndALaterBundleDeployment(t *testing.T) {
	s := newStage(t)
	s.kinds = map[string]*metav1.PartialObjectMetadata{"clustergroups.fleet.cattle.io": kindSince(noon.Add(-time.Hour))}
	later := isReady(deployed(t, withTargets(toGold)))
	later.CreationTimestamp = metav1.NewTime(noon.Add(-time.Minute))
	s.has(t, clusterNamed("alice"), withTargets(toGold), later)
	_, out := s.reconcile(t, clusterNamed("alice"))
	log := s.taken()
	assert.NotContains(t, log, "delete "+atHome+" uid-of-app")
	assert.Contains(t, log, fmt.Sprintf("enqueue Bundle app in %s", s.RecheckDelay()))
	assert.Equal(t, fleet.ReasonKindDeleted, out.Reason)
}

// Most Bundles lack no group, or are as they should be: the hub asks nothing about them.
func TestReconcile_asksAboutNoKind(t *testing.T) {
	b := withTargets(toOthers, toProd)
	s := newStage(t)
	s.has(t, clusterNamed("alice"), b, isReady(deployed(t, b)))
	s.reconcile(t, clusterNamed("alice"))
	assert.NotContains(t, s.taken(), "kind clustergroups", "nothing changes")
	for name, targets := range map[string][]fleet.BundleTarget{"the group exists": {toProd, toOthers}, "it selects the Cluster": {toGold}, "no group decides": {toOthers, toGold}} {
		s = newStage(t)
		s.has(t, clusterNamed("alice"), withTargets(targets...), groupProd(1))
		s.reconcile(t, clusterNamed("alice"))
		log := s.taken()
		assert.Contains(t, log, "create "+atHome, name)
		assert.NotContains(t, log, "kind clustergroups", name)
	}
}

// Another Bundle stalls too: the hub tries that one again soon, and asks nothing about the BundleDeployment that stays.
func TestReconcileKeepsWhatADeletedKindRequired_beside(t *testing.T) {
	s := newStage(t)
	s.kinds = map[string]*metav1.PartialObjectMetadata{"bundles.fleet.cattle.io": nil}
	s.errors = map[string]error{"confirm abandoned": errNoKind}
	abandoned := deployed(t, targetingAlice())
	abandoned.Name, abandoned.UID, abandoned.Labels[fleet.BundleNameLabel] = "abandoned", "uid-of-abandoned", "abandoned"
	foreign := deployed(t, targetingAlice())
	foreign.Labels = nil
	s.has(t, clusterNamed("alice"), targetingAlice(), foreign, abandoned)
	asked := []string{"confirm abandoned", "kind bundles"}
	_, out := s.reconcile(t, clusterNamed("alice"))
	assert.Equal(t, asked, s.taken())
	assert.True(t, out.IsStalled())
	assert.Equal(t, s.RecheckDelay(), out.After, "for the other Bundle")
	for range 2 {
		s.clock.Step(s.RecheckDelay())
		_, out = s.reconcile(t, clusterNamed("alice"))
		assert.Empty(t, s.taken())
		assert.Contains(t, out.Message, "/abandoned stays")
	}
	s.clock.Step(28 * s.RecheckDelay())
	s.reconcile(t, clusterNamed("alice"))
	assert.Equal(t, asked, s.taken())

	t.Log("its Bundle exists again, and targets another Cluster: it is decided at once")
	s.kinds, s.errors = nil, nil
	again := bundleWith(func(b *fleet.BundleSpec) { b.Targets = []fleet.BundleTarget{{ClusterName: "bob"}} })
	again.Name, again.UID = "abandoned", "again"
	s.has(t, again)
	s.reconcile(t, clusterNamed("alice"))
	assert.Contains(t, s.taken(), "delete "+home+"/abandoned uid-of-abandoned")

	assert.Equal(t, 1, s.retained.Len())
	s.clock.Step(29 * s.RecheckDelay())
	s.reconcile(t, clusterNamed("bob"))
	assert.Zero(t, s.retained.Len(), "entries in memory")
}

// A cache that gets the current Bundle after the pass has decided on an earlier one must not count as confirmation of the decision.
func TestReconcileDecidesOnDeletionWithWhatIsConfirmed(t *testing.T) {
	elsewhere := bundleWith(func(s *fleet.BundleSpec) { s.Targets = []fleet.BundleTarget{{ClusterName: "bob"}} })
	newer := targetingAlice()
	newer.Generation = 2
	removed := targetingAlice()
	removed.Name, removed.UID = "abandoned", "uid-of-abandoned"
	s := newStage(t)
	s.has(t, clusterNamed("alice"), elsewhere, deployed(t, targetingAlice()), deployed(t, removed))
	s.after = map[string]func(){"confirm abandoned": func() { s.has(t, newer) }}
	_, out := s.reconcile(t, clusterNamed("alice"))
	log := s.taken()
	assert.Len(t, log, 4)
	assert.Equal(t, []string{"confirm abandoned", "confirm app"}, log[:2])
	assert.Contains(t, log[2], "delete "+home+"/abandoned ")
	assert.Equal(t, expectations.Timeout, out.After)
}

func TestReconcileKeepsWhatADeletedGroupExcludes(t *testing.T) {
	group := &fleet.ClusterGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "edge", UID: "uid", Generation: 1}}
	group.Spec.Selector = &metav1.LabelSelector{}
	butEdge := bundleWith(func(s *fleet.BundleSpec) {
		s.Targets = []fleet.BundleTarget{{ClusterGroup: "edge", DoNotDeploy: true}, {ClusterSelector: &metav1.LabelSelector{}}}
	})
	s := newStage(t)
	s.has(t, clusterNamed("alice"), group, butEdge, isReady(deployed(t, targetingAlice())))
	s.after = map[string]func(){"confirm alice": func() { s.lost(t, group) }}
	s.reconcile(t, clusterNamed("alice"))
	assert.Equal(t, []string{"confirm alice", "confirm app", "confirm groups"}, s.taken())
}

func TestReconcileQuarantinedCluster(t *testing.T) {
	quarantined := clusterNamed("alice")
	quarantined.Spec.Quarantined = true
	changed := targetingAlice()
	changed.Generation, changed.Spec.TargetNamespace = 2, "other"
	for name, bundles := range map[string][]metav1.Object{"the Bundle changes": {changed}, "the Bundle is deleted": nil} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.has(t, append(bundles, quarantined, isReady(deployed(t, targetingAlice())))...)
			after, out := s.reconcile(t, quarantined)
			assert.Empty(t, s.taken(), "nothing is sent to the agent")
			assert.Equal(t, "1/1", after.Status.Display.ReadyBundles)
			assert.True(t, out.IsDone())
			assert.Equal(t, [][]string{nil}, s.rights.secrets, "the agent may read no Secret")
			s.reconcile(t, clusterNamed("alice"))
			assert.NotEmpty(t, s.taken(), "what changed during the quarantine is written afterwards")
		})
	}
}

// A heartbeat costs a pass, so a pass over a settled Cluster must cost little, however many other Clusters there are.
func BenchmarkSettledReconcile(b *testing.B) {
	for _, others := range []int{0, 10_000} {
		b.Run(fmt.Sprint(others, " other Clusters"), func(b *testing.B) {
			s := newStage(b)
			for i := range others {
				other := bundleWith(func(s *fleet.BundleSpec) { s.Targets = []fleet.BundleTarget{{ClusterName: fmt.Sprint("c", i)}} })
				other.Name = fmt.Sprint("fleet-agent-c", i)
				s.has(b, other)
			}
			for i := range 20 {
				bundle := targetingAlice()
				bundle.Name = fmt.Sprint("app", i)
				s.has(b, bundle, deployed(b, bundle))
			}
			cluster := clusterNamed("alice")
			s.Reconcile(b.Context(), cluster)
			s.taken()
			for b.Loop() {
				s.Reconcile(b.Context(), cluster)
			}
			require.Empty(b, s.taken())
		})
	}
}

func someVariant(namespace, id string) variant {
	return variant{options: fleet.BundleDeploymentOptions{DefaultNamespace: namespace}, deploymentID: id}
}

func TestDesired(t *testing.T) {
	old := &fleet.BundleDeployment{Spec: fleet.BundleDeploymentSpec{
		StagedOptions: fleet.BundleDeploymentOptions{DefaultNamespace: "old"}, StagedDeploymentID: "s-old:1",
		Options: fleet.BundleDeploymentOptions{DefaultNamespace: "old"}, DeploymentID: "s-old:1",
	}}
	for name, row := range map[string]struct {
		pausedBundle, pausedCluster  bool
		existing                     *fleet.BundleDeployment
		deployed, namespace, content string
	}{
		"the first version":                  {false, false, nil, "s-new:2", "new", "s-new"},
		"a change":                           {false, false, old, "s-new:2", "new", "s-new"},
		"a paused Bundle: only staged":       {true, false, old, "s-old:1", "old", "s-new"},
		"a paused Cluster: only staged":      {false, true, old, "s-old:1", "old", "s-new"},
		"paused before the first deployment": {true, true, nil, "", "", "s-new"},
	} {
		t.Run(name, func(t *testing.T) {
			b, c := bundleWith(func(s *fleet.BundleSpec) { s.Paused = row.pausedBundle }), clusterNamed("alice")
			c.Spec.Paused = row.pausedCluster
			d := desired(b, someVariant("new", "s-new:2"), helmValues{}, isPaused(b, c), c, row.existing)
			assert.Equal(t, row.deployed, d.Spec.DeploymentID)
			assert.Equal(t, row.namespace, d.Spec.Options.DefaultNamespace)
			assert.Equal(t, "s-new:2", d.Spec.StagedDeploymentID)
			assert.Equal(t, "new", d.Spec.StagedOptions.DefaultNamespace)
			assert.Equal(t, row.content, d.Labels["fleet.cattle.io/content-name"])
			assert.Equal(t, row.pausedBundle || row.pausedCluster, d.Spec.Paused)
		})
	}
	t.Run("the rollout has not reached its partition: only the staged fields, as with Fleet's hub; also paused if the agent is Fleet's", func(t *testing.T) {
		b := bundleWith(func(s *fleet.BundleSpec) { s.DependsOn = []fleet.BundleRef{{Name: "base"}} })
		v := someVariant("new", "s-new:2")
		v.options.CorrectDrift = &fleet.CorrectDrift{Enabled: true}
		alice := clusterNamed("alice")
		d := desired(b, v, helmValues{staged: []byte(`{"a":1}`)}, true, alice, nil)
		assert.False(t, d.Spec.Paused, "no agent has sent a heartbeat")
		alice.Status.Agent.LastSeen = metav1.NewTime(noon)
		d = desired(b, v, helmValues{staged: []byte(`{"a":1}`)}, true, alice, d)
		assert.True(t, d.Spec.Paused, "it is an agent of Fleet")
		alice.Status.Agent.Version = "v1"
		d = desired(b, v, helmValues{staged: []byte(`{"a":1}`)}, true, alice, d)
		assert.JSONEq(t, `{"stagedOptions":{"defaultNamespace":"new","correctDrift":{"enabled":true}},"stagedDeploymentID":"s-new:2","options":{},
			"dependsOn":[{"name":"base"}],"correctDrift":{"enabled":true},"valuesHash":"015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"}`, asJSON(t, d.Spec))
		assert.Equal(t, "s-new", d.Labels[fleet.ContentNameLabel])
	})
	t.Run("correctDrift changes without the deployment ID: as with Fleet's hub, the options keep it", func(t *testing.T) {
		b := bundleWith(func(*fleet.BundleSpec) {})
		drifts := []*fleet.CorrectDrift{nil, {}, {Enabled: true}, {Enabled: true, Force: true}}
		for _, before := range drifts {
			for _, after := range drifts {
				v := someVariant("n", "s:1")
				v.options.CorrectDrift = before
				whole := desired(b, v, helmValues{}, false, clusterNamed("alice"), nil)
				v.options.CorrectDrift, v.options.Diff = after, &fleet.DiffOptions{ComparePatches: []fleet.ComparePatch{{Kind: "K"}}}
				v.digest, _ = digestOf(v.options, nil)
				d := desired(b, v, helmValues{}, false, clusterNamed("alice"), whole)
				assert.Equal(t, []*fleet.CorrectDrift{before, after, after}, []*fleet.CorrectDrift{d.Spec.Options.CorrectDrift, d.Spec.StagedOptions.CorrectDrift, d.Spec.CorrectDrift})
				assert.Equal(t, v.options.Diff, d.Spec.Options.Diff)

				reduced := whole.DeepCopy()
				Reduce(&reduced.Spec)
				got := desired(b, v, helmValues{}, false, clusterNamed("alice"), reduced)
				assert.Equal(t, d.Spec.Options, got.Spec.Options)
				Reduce(&d.Spec)
				assert.True(t, isSpecEqual(&d.Spec, &got.Spec))
				assert.Equal(t, d.Spec.CachedDigests, got.Spec.CachedDigests)

				v.deploymentID = "s:2"
				assert.Equal(t, after, desired(b, v, helmValues{}, false, clusterNamed("alice"), reduced).Spec.Options.CorrectDrift)
			}
		}
	})
	t.Run("the newest is from an OCI registry: no Content is named", func(t *testing.T) {
		b := bundleWith(func(s *fleet.BundleSpec) { s.ContentsID = "s-artifact" })
		for _, isPostponed := range []bool{false, true} {
			assert.NotContains(t, desired(b, someVariant("n", "s-artifact:2"), helmValues{}, isPostponed, clusterNamed("alice"), old).Labels, fleet.ContentNameLabel)
		}
	})
	t.Run("a BundleDeployment of another fleet controller: taken over", func(t *testing.T) {
		existing := &fleet.BundleDeployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "app", UID: "u", Finalizers: []string{"f"}, Annotations: map[string]string{"a": "b"}, Labels: map[string]string{"old": "x"}},
			Spec: fleet.BundleDeploymentSpec{
				OCIContents: true, HelmChartOptions: &fleet.GenericMap{}, ValuesHash: "x", WaitingForValues: true, OffSchedule: true, DownstreamResourcesGeneration: 3,
			},
		}
		before := existing.DeepCopy()
		d := desired(bundleWith(func(*fleet.BundleSpec) {}), someVariant("n", "s:1"), helmValues{}, false, clusterNamed("alice"), existing)
		assert.Equal(t, before, existing, "the object in the cache is not modified")
		assert.False(t, d.Spec.OCIContents || d.Spec.WaitingForValues)
		assert.Nil(t, d.Spec.HelmChartOptions)
		assert.Empty(t, d.Spec.ValuesHash)
		assert.True(t, d.Spec.OffSchedule, "another component sets it")
		assert.Equal(t, int64(3), d.Spec.DownstreamResourcesGeneration)
		assert.Equal(t, []any{existing.UID, existing.Finalizers, existing.Annotations}, []any{d.UID, d.Finalizers, d.Annotations})
		assert.NotContains(t, d.Labels, "old")
	})
	t.Run("labels of a Bundle: copied, except for those of other tools", func(t *testing.T) {
		b := bundleWith(func(*fleet.BundleSpec) {})
		b.Labels = map[string]string{
			"app": "x", "fleet.cattle.io/repo-name": "r", "example.com/team": "t",
			"objectset.rio.cattle.io/hash": "h", "example.com/cattle.io": "c", "kubectl.kubernetes.io/default-container": "k",
		}
		d := desired(b, someVariant("n", "s:1"), helmValues{}, false, clusterNamed("alice"), nil)
		for _, label := range []string{"app", "fleet.cattle.io/repo-name", "example.com/team"} {
			assert.Contains(t, d.Labels, label)
		}
		for _, label := range []string{"objectset.rio.cattle.io/hash", "example.com/cattle.io", "kubectl.kubernetes.io/default-container"} {
			assert.NotContains(t, d.Labels, label)
		}
	})
	t.Run("names too long for a label: shortened, and the Bundle is found", func(t *testing.T) {
		long := strings.Repeat("x", 80)
		b, c := bundleWith(func(*fleet.BundleSpec) {}), clusterNamed(long)
		b.Name = long
		d := desired(b, someVariant("n", "s-c:1"), helmValues{}, false, c, nil)
		assert.Equal(t, long, d.Name)
		assert.Equal(t, registration.ClusterNamespace("ws", long), d.Namespace)
		assert.Len(t, d.Labels["fleet.cattle.io/bundle-name"], 63)
		assert.Len(t, d.Labels["fleet.cattle.io/cluster"], 63)
		assert.Equal(t, key{Namespace: "ws", Name: long}, bundleOf(d))
	})
}

func TestIsFromWorkspace(t *testing.T) {
	assert.True(t, isFromWorkspace(deployed(t, targetingAlice()), "ws"))
	assert.False(t, isFromWorkspace(deployed(t, targetingAlice()), "other"))
	for name, change := range map[string]func(*fleet.BundleDeployment){
		"not managed":        func(d *fleet.BundleDeployment) { delete(d.Labels, fleet.ManagedLabel) },
		"without namespace":  func(d *fleet.BundleDeployment) { delete(d.Labels, fleet.BundleNamespaceLabel) },
		"of another Bundle":  func(d *fleet.BundleDeployment) { d.Labels[fleet.BundleNameLabel] = "other" },
		"without any labels": func(d *fleet.BundleDeployment) { d.Labels = nil },
	} {
		t.Run(name, func(t *testing.T) {
			d := deployed(t, targetingAlice())
			change(d)
			assert.False(t, isFromWorkspace(d, "ws"))
			assert.False(t, isFromWorkspace(d, ""))
			assert.Equal(t, key{}, bundleOf(d))
		})
	}
}

func TestContentsOf(t *testing.T) {
	d := &fleet.BundleDeployment{Spec: fleet.BundleDeploymentSpec{DeploymentID: "a:1", StagedDeploymentID: "b:2"}}
	assert.Equal(t, []string{"a", "b"}, contentsOf(d))
	d.Labels = map[string]string{"fleet.cattle.io/content-name": "c"}
	assert.Equal(t, []string{"c", "a", "b"}, contentsOf(d))
	d.Spec.DeploymentID, d.Spec.StagedDeploymentID = "c:1", ""
	assert.Equal(t, []string{"c"}, contentsOf(d))
	assert.Empty(t, contentsOf(&fleet.BundleDeployment{Spec: fleet.BundleDeploymentSpec{DeploymentID: "no colon"}}))
}

func TestJoinErrors(t *testing.T) {
	require.NoError(t, joinErrors(nil, nil))
	assert.EqualError(t, joinErrors(errors.New("a"), nil, errors.New("b")), "a; b")
	assert.EqualError(t, joinErrors(slices.Repeat([]error{errors.New("x")}, 12)...), strings.Repeat("x; ", 10)+"and 2 more")

	foreign := foreignDeployment(&fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "n"}})
	_, invalid := templates.Render(t.Context(), &fleet.HelmOptions{TemplateValues: map[string]string{"a": "${ none }"}}, clusterNamed("alice"))
	template := fmt.Errorf("Bundle app: %w", invalid)
	assert.Equal(t, fleet.ReasonNameConflict, stalledReason(joinErrors(foreign, foreign)))
	assert.EqualError(t, foreign, "BundleDeployment ns/n exists and was not made from a Bundle; if it is deleted, the agent uninstalls its release: "+
		"to keep that, deploy this Bundle under another name")
	mapped := &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{fleet.BundleNamespaceLabel: "other"}}}
	assert.ErrorContains(t, foreignDeployment(mapped), "exists and belongs to a Bundle of namespace other; ")
	assert.Equal(t, fleet.ReasonNameConflict, stalledReason(joinErrors(template, foreign)))
	assert.Equal(t, fleet.ReasonBundleInvalid, stalledReason(joinErrors(template)))
	assert.Empty(t, stalledReason(joinErrors(foreign, errInternal)), "a retry may help")
	assert.Empty(t, stalledReason(errInternal))
	assert.Empty(t, stalledReason(nil))
}

func TestReconcile_display(t *testing.T) {
	condition := func(conditionType string, status corev1.ConditionStatus, reason, message string) genericcondition.GenericCondition {
		return genericcondition.GenericCondition{Type: conditionType, Status: status, Reason: reason, Message: message}
	}
	const head = `{"metadata":{"resourceVersion":"5","uid":"uid-of-app"},"status":{"display":`
	for _, row := range []struct {
		name       string
		ready      bool
		conditions []genericcondition.GenericCondition
		display    fleet.BundleDeploymentDisplay
		patch      string
	}{
		{"no report yet", false, nil, fleet.BundleDeploymentDisplay{}, ""},
		{
			"Fleet's agent: ready", true,
			[]genericcondition.GenericCondition{condition("Installed", "True", "", ""), condition("Deployed", "True", "", ""), condition("Monitored", "True", "", "")},
			fleet.BundleDeploymentDisplay{},
			head + `{"deployed":"True","monitored":"True","state":"Ready"}}}`,
		},
		{
			"Fleet's agent: failed", false,
			[]genericcondition.GenericCondition{condition("Deployed", "False", "Error", "no chart")},
			fleet.BundleDeploymentDisplay{Deployed: "True", Monitored: "True", State: "Ready"},
			head + `{"deployed":"Error: no chart","monitored":null,"state":"ErrApplied"}}}`,
		},
		{
			"Fleet's agent: equal", false,
			[]genericcondition.GenericCondition{condition("Deployed", "False", "Error", "no chart")},
			fleet.BundleDeploymentDisplay{Deployed: "Error: no chart", State: "ErrApplied"},
			"",
		},
		{
			"a reason that Fleet's agent does not use", false,
			[]genericcondition.GenericCondition{condition("Deployed", "Unknown", fleet.ReasonPaused, "")},
			fleet.BundleDeploymentDisplay{},
			"",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newStage(t)
			d := deployed(t, targetingAlice())
			if row.ready {
				d = isReady(d)
			}
			d.Status.Conditions, d.Status.Display = row.conditions, row.display
			s.has(t, clusterNamed("alice"), targetingAlice(), d)
			s.contents.made.Expect(contentOf(d.Spec.DeploymentID))
			_, out := s.reconcile(t, clusterNamed("alice"))
			require.NoError(t, out.Err)
			var want []string
			if row.patch != "" {
				want = []string{"patch " + atHome + " " + row.patch}
			}
			assert.Equal(t, want, s.taken())
			assert.Equal(t, row.patch != "", lacksDisplay(d))

			ours := clusterNamed("alice")
			ours.Status.Agent.Version = "v1"
			s.reconcile(t, ours)
			assert.Empty(t, s.taken(), "an agent of this project sets it itself")
		})
	}
}

// Fleet's agent writes no status of a BundleDeployment that is paused before its first deployment.
func TestReconcile_displayWhilePaused(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*fleet.Cluster)
		shows  bool
	}{
		"Fleet's agent":            {func(c *fleet.Cluster) { c.Status.Agent.LastSeen = metav1.NewTime(noon) }, true},
		"no agent yet":             {func(*fleet.Cluster) {}, false},
		"an agent of this project": {func(c *fleet.Cluster) { c.Status.Agent.LastSeen, c.Status.Agent.Version = metav1.NewTime(noon), "v1" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			b, alice := targetingAlice(), clusterNamed("alice")
			b.Spec.Paused = true
			row.change(alice)
			v, err := planOf(b).variant(t.Context(), []int{0}, alice)
			require.NoError(t, err)
			d := desired(b, v, helmValues{}, true, alice, nil)
			d.UID, d.ResourceVersion = "uid-of-app", "5"
			s.has(t, alice, b, d)
			s.reconcile(t, alice)
			writes := slices.DeleteFunc(s.taken(), func(line string) bool { return !strings.HasPrefix(line, "patch ") })
			if row.shows {
				require.Len(t, writes, 1)
				assert.Contains(t, writes[0], `{"resourceVersion":"5","uid":"uid-of-app"},"status":{"display":{"state":"NotReady"},`)
			} else {
				assert.Empty(t, writes)
			}
		})
	}
}

// The response to the patch that adds the finalizer has the whole spec, which the cache has dropped.
func TestOnBundle_tooLarge(t *testing.T) {
	s := newStage(t)
	whole := everywhere()
	whole.Finalizers = nil
	large := whole.DeepCopy()
	large.Spec = fleet.BundleSpec{Targets: []fleet.BundleTarget{{}}, TooLarge: true}
	s.has(t, clusterNamed("alice"), large)
	s.bundle = whole
	_, err := s.onBundle("ws/app", large)
	require.NoError(t, err)
	require.NotNil(t, s.plans.of(t.Context(), large).problem)
	assert.Contains(t, s.plans.of(t.Context(), large).problem.message, "takes more than 8 MiB")
}

// The cache has the spec of a Bundle again, in the same generation, when there is room for it.
func TestOnBundle_restored(t *testing.T) {
	s := newStage(t)
	whole := targetingAlice()
	dropped := whole.DeepCopy()
	dropped.Spec = fleet.BundleSpec{Targets: []fleet.BundleTarget{{}}, TooLarge: true, Excess: fleet.MemoryExcess{Size: 99 << 10, Limit: 16 << 20}}
	s.has(t, clusterNamed("alice"), dropped)
	s.handle(t, dropped)
	require.NotNil(t, s.plans.of(t.Context(), dropped).problem)
	assert.Contains(t, s.plans.of(t.Context(), dropped).problem.message, "this object takes 99 KiB of the hub's memory, and the large objects of this workspace "+
		"would take more than 16 MiB together; ")
	s.taken()
	s.has(t, whole)
	s.handle(t, whole)
	assert.Nil(t, s.plans.of(t.Context(), whole).problem)
	assert.Contains(t, s.taken(), "enqueue Cluster alice in 0s")
}

// The cache drops the spec of a Bundle that has become too large. Nothing that the Bundle deployed is removed by that.
func TestReconcile_tooLarge(t *testing.T) {
	s := newStage(t)
	large := targetingAlice()
	large.Generation, large.Spec = 2, fleet.BundleSpec{Targets: []fleet.BundleTarget{{}}, TooLarge: true}
	alice := clusterNamed("alice")
	s.has(t, alice, large, isReady(deployed(t, targetingAlice())))
	cluster, out := s.reconcile(t, alice)
	require.NoError(t, out.Err)
	assert.Empty(t, s.taken())
	assert.Equal(t, "1/1", cluster.Status.Display.ReadyBundles)
}

// A Bundle that is invalid and targets another Cluster removes nothing, and the Cluster does not wait for it with passes and requests.
func TestReconcile_invalidElsewhere(t *testing.T) {
	s := newStage(t)
	invalid := targetingAlice()
	invalid.Generation, invalid.Spec.TargetCustomizationMode = 2, "x"
	invalid.Spec.Targets = []fleet.BundleTarget{{ClusterName: "bob"}}
	require.NotNil(t, s.plans.of(t.Context(), invalid).problem)
	alice := clusterNamed("alice")
	s.has(t, alice, invalid, isReady(deployed(t, targetingAlice())))
	cluster, out := s.reconcile(t, alice)
	assert.True(t, out.IsDone())
	assert.Zero(t, out.After)
	assert.Empty(t, s.taken())
	assert.Equal(t, "1/1", cluster.Status.Display.ReadyBundles)
}
