package cli

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestRemove(t *testing.T) {
	sample.Long(t)
	p := atHub(t)
	member, _ := p.importsEast()
	p.hub.AwaitOwnBundle(t, p.namespace, "east")
	clusters := p.hub.Fleet.Clusters(p.namespace)

	out, _, err := p.run("remove", "east")
	require.EqualError(t, err, "nothing was removed: repeat the command with --yes")
	requireGolden(t, "remove.txt", out)
	require.Contains(t, p.mustRun("remove", "east", "--dry-run"), "\nNothing was removed: it was a dry run.\n")
	require.Nil(t, testenv.RequireThere(t, clusters.Get, "east").DeletionTimestamp)

	// Only a Cluster whose Bundles are all applied with keepResources is removed with --keep-workloads.
	bundles, onMember := p.hub.Fleet.Bundles(p.namespace), member.Kubernetes.CoreV1()
	workloads := member.Namespace(t)
	testenv.Create(t, bundles.Create, &fleet.Bundle{ObjectMeta: metav1.ObjectMeta{Name: "hello"}, Spec: fleet.BundleSpec{
		BundleDeploymentOptions: fleet.BundleDeploymentOptions{TargetNamespace: workloads},
		Resources:               []fleet.BundleResource{{Name: "cm.yaml", Content: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: stays}\n"}},
		Targets:                 []fleet.BundleTarget{{ClusterName: "east"}},
	}})
	testenv.EventuallyThere(t, onMember.ConfigMaps(workloads).Get, "stays")
	testenv.Merge(t, bundles.Patch, "hello", `{"spec":{"paused":true}}`)
	deployments := p.hub.Fleet.BundleDeployments(registration.ClusterNamespace(p.namespace, "east"))
	testenv.EventuallyIs(t, deployments.Get, "hello", func(d *fleet.BundleDeployment) (bool, string) { return d.Spec.Paused, "not paused" })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	waits := &cancelAt{text: "the hub (version unknown) has not set keepResources in BundleDeployment hello: the Bundle or the Cluster is paused, ", cancel: cancel}
	app := App(Streams{Out: io.Discard, Err: waits, Env: func(string) string { return "" }, Now: time.Now})
	err = app.RunContext(ctx, FlagsFirst(app, []string{"muster", "remove", "east", "--keep-workloads", "--yes", "--timeout", "5m", "-n", p.namespace}))
	require.ErrorContains(t, err, "nothing was removed: stopped waiting for Cluster "+p.namespace+"/east with --keep-workloads: context canceled")
	require.Contains(t, waits.String(), waits.text)
	east := testenv.RequireThere(t, clusters.Get, "east")
	require.Nil(t, east.DeletionTimestamp)
	require.NotContains(t, east.Annotations, fleet.KeepWorkloadsAnnotation)
	testenv.Merge(t, bundles.Patch, "hello", `{"spec":{"paused":false}}`)

	out = p.mustRun("remove", "east", "--keep-workloads", "--yes", "--timeout", "5m")
	require.Contains(t, out, "\nOn the member, the agent leaves the objects of 1 Bundles (hello), without the history of their Helm releases, and uninstalls itself.\n")
	require.Contains(t, out, "\nCluster "+p.namespace+"/east is removed.\n")
	_, err = clusters.Get(t.Context(), "east", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err))
	testenv.RequireThere(t, p.hub.Kubernetes.CoreV1().Secrets(p.namespace).Get, "east-kubeconfig")
	testenv.RequireGone(t, member.Kubernetes.CoreV1().Secrets(registration.DefaultSystemNamespace).Get, "Secret", registration.CredentialSecret)
	testenv.RequireThere(t, onMember.ConfigMaps(workloads).Get, "stays")
	history := testenv.List(t, onMember.Secrets(workloads).List, metav1.ListOptions{LabelSelector: "owner=helm"})
	require.Empty(t, history.Items)

	_, _, err = p.run("remove", "east", "--yes")
	require.EqualError(t, err, "there is no Cluster "+p.namespace+"/east: `muster clusters -A` lists all Clusters")
}

// The command reports that the hub cannot ask an agent that is gone.
func TestRemoveWithoutAgent(t *testing.T) {
	sample.Long(t)
	p := atHub(t)
	values := p.hub.Token(t, p.namespace, "first", fleet.ClusterRegistrationTokenSpec{})
	request := p.hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: "edge", ClientRandom: p.namespace})
	granted, _ := p.hub.Granted(t, values, request)
	cluster := granted.Status.ClusterName
	out, _, err := p.run("remove", cluster)
	require.Error(t, err)
	require.Contains(t, out, "No agent has connected: there is nothing to remove on the member.\nThese stay: ClusterRegistrationToken "+p.namespace+"/first, ")

	testenv.Merge(t, p.hub.Fleet.Clusters(p.namespace).Patch, cluster, `{"status":{"agent":{"lastSeen":"2026-01-01T00:00:00Z","namespace":"x","checkinInterval":"1s"}}}`, "status")
	p.hub.ClusterCondition(t, p.namespace, cluster, fleet.ConditionConnected, "False")
	out, said, err := p.run("remove", cluster, "--yes", "--timeout", "5m")
	require.NoError(t, err)
	require.Contains(t, out, "The agent is not connected: the agent and what it deployed (")
	require.Contains(t, said, "something may be left on the member")
}

func TestRotateAnImport(t *testing.T) {
	sample.Long(t)
	p := atHub(t)
	p.importsEast()
	p.rotates("east")
}

func TestRotateWithTheMember(t *testing.T) {
	sample.Long(t)
	p := atHub(t)
	member := testenv.SharedCluster(t, "member")
	namespace := member.Namespace(t)
	values := p.hub.Token(t, p.namespace, "first", fleet.ClusterRegistrationTokenSpec{})
	testenv.BootstrapAgent(t, member, namespace, values, map[string]string{registration.ConfigKey: "clientID: edge-" + p.namespace})
	member.Agent(t, namespace)
	cluster := registration.ClusterName("edge-" + p.namespace)
	p.hub.WaitCondition(t, testenv.KindCluster, p.namespace, cluster, fleet.ConditionConnected, "True")

	_, _, err := p.run("rotate", cluster)
	require.EqualError(t, err, "the hub has no kubeconfig of Cluster "+p.namespace+"/"+cluster+": pass the kubeconfig of the member with --member-kubeconfig")
	p.rotates(cluster, "--member-kubeconfig", memberConfig(t, member))
	tokens := testenv.List(t, p.hub.Fleet.ClusterRegistrationTokens(p.namespace).List, metav1.ListOptions{})
	require.Len(t, tokens.Items, 1, "the token of the rotation is deleted")

	// A registration in progress is left alone.
	testenv.Create(t, member.Kubernetes.CoreV1().Secrets(namespace).Create, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: registration.BootstrapSecret},
	})
	_, _, err = p.run("rotate", cluster, "--member-kubeconfig", memberConfig(t, member))
	require.ErrorContains(t, err, "a registration is in progress")
}

// rotates checks that the agent gets another identity, that the earlier identity is deleted, and that the agent always has one.
func (p person) rotates(cluster string, flags ...string) {
	t := p.t
	t.Helper()
	get := p.hub.Fleet.Clusters(p.namespace).Get
	before := testenv.EventuallyIs(t, get, cluster, func(c *fleet.Cluster) (bool, string) {
		return c.Status.Agent.Registration != "", "no registration reported"
	}).Status.Agent.Registration
	out := p.mustRun(append([]string{"rotate", cluster, "--timeout", "5m"}, flags...)...)
	after := testenv.RequireThere(t, get, cluster).Status.Agent.Registration
	require.Equal(t, "The agent of Cluster "+p.namespace+"/"+cluster+" uses the credential of request "+after+" instead of "+before+".\n", out)
	require.NotEqual(t, before, after)
	testenv.RequireGone(t, p.hub.Fleet.ClusterRegistrations(p.namespace).Get, "ClusterRegistration", before)
}

func TestRotateNeedsAConnectedAgent(t *testing.T) {
	p := fleetOf(t, fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "new"}, Spec: fleet.ClusterSpec{KubeConfigSecret: "s"}})
	_, _, err := p.run("rotate", "new")
	require.EqualError(t, err, "Cluster "+p.namespace+"/new is New: only an agent that is registered and connected can register again with this command")
}
