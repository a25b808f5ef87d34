//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/inventory"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// enrolled is a Cluster of a scene: a name on the hub, and the namespace of its agent on the member.
type enrolled struct {
	s               *scene
	on              *cluster
	namespace, name string
	agentNamespace  string
	clientID        string // of an agent that the chart installed

	how    manner
	others []string // further namespaces on the member
}

// manner is how an agent was installed, which determines how it is removed.
type manner struct {
	leave func(ctx context.Context, e *enrolled) error // deletes the Cluster; the agent has to remove itself
	tidy  func(ctx context.Context, e *enrolled) error // deletes the objects that the agent leaves on the member
}

var imported = manner{leave: leaveImported, tidy: tidyImported}

func (e *enrolled) String() string { return "Cluster " + e.namespace + "/" + e.name }

// mark is part of the names of all objects of the Cluster, on hub and member, and of no others.
func (e *enrolled) mark() string { return e.namespace + "-" + e.name + "-" }

// enrol creates a kubeconfig Secret and a Cluster, so that the hub installs an agent on the member.
func (s *scene) enrol(name string, change ...func(*fleet.Cluster)) *enrolled {
	s.Helper()
	s.giveKubeconfig(name)
	return s.announce(name, change...)
}

// giveKubeconfig creates the kubeconfig Secret for a Cluster.
func (s *scene) giveKubeconfig(name string) {
	s.Helper()
	kubeconfig, err := s.member.kubeconfig()
	s.fail(err)
	_, err = s.hub.kube.CoreV1().Secrets(s.id).Create(s.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-kubeconfig"},
		Data:       map[string][]byte{registration.KubeconfigValue: kubeconfig},
	}, metav1.CreateOptions{})
	s.fail(err)
}

// announce creates the Cluster, which names a kubeconfig Secret.
func (s *scene) announce(name string, change ...func(*fleet.Cluster)) *enrolled {
	s.Helper()
	e := &enrolled{s: s, on: s.member, namespace: s.id, name: name, agentNamespace: s.named(name + "-agent"), how: imported}
	object := &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: name},
		Spec:       fleet.ClusterSpec{KubeConfigSecret: name + "-kubeconfig", AgentNamespace: e.agentNamespace},
	}
	for _, f := range change {
		f(object)
	}
	s.enrolled = append(s.enrolled, e)
	_, err := s.hub.fleet.Clusters(e.namespace).Create(s.Context(), object, metav1.CreateOptions{})
	s.fail(err)
	return e
}

// leaveImported deletes the Cluster. Nothing of its agent is left on the member.
func leaveImported(ctx context.Context, e *enrolled) error {
	if err := e.s.deleteCluster(ctx, e.namespace, e.name); err != nil {
		return err
	}
	return e.on.nothingLeft(ctx, e.mark(), inventory.OfNamespace)
}

// tidyImported removes the namespaces.
func tidyImported(ctx context.Context, e *enrolled) error {
	return e.on.deleteNamespaces(ctx, append(e.others, e.agentNamespace)...)
}

func (s *suite) deleteCluster(ctx context.Context, namespace, name string) error {
	clusters := s.hub.fleet.Clusters(namespace)
	return gone(ctx, "Cluster "+namespace+"/"+name, func(ctx context.Context) error {
		_, err := clusters.Get(ctx, name, metav1.GetOptions{})
		return err
	}, func(ctx context.Context) error {
		return clusters.Delete(ctx, name, metav1.DeleteOptions{})
	})
}

func (e *enrolled) get(ctx context.Context) (*fleet.Cluster, error) {
	return e.s.hub.fleet.Clusters(e.namespace).Get(ctx, e.name, metav1.GetOptions{})
}

// cluster waits until the Cluster fulfils a condition, and returns it.
func (e *enrolled) cluster(what string, so func(*fleet.Cluster) bool) (found *fleet.Cluster) {
	e.s.Helper()
	e.s.until(e.String()+": "+what, func(ctx context.Context) (bool, string) {
		latest, err := e.get(ctx)
		if err != nil {
			return false, err.Error()
		}
		found = latest
		return so(latest), story(latest)
	})
	return found
}

// condition waits for a condition with the given status and reason.
func (e *enrolled) condition(kind, want string) *fleet.Cluster {
	e.s.Helper()
	return e.cluster("condition "+kind+" to be "+want, func(c *fleet.Cluster) bool {
		return strings.HasPrefix(describe(c.Status.Conditions, kind), want)
	})
}

// registered waits until condition Registered of the Cluster is true and the agent has stored its credential on the member.
func (e *enrolled) registered() *fleet.Cluster {
	e.s.Helper()
	e.condition(fleet.ConditionRegistered, "True")
	c := e.condition(fleet.ConditionConnected, "True")
	e.exchanged()
	return c
}

func (e *enrolled) exchanged() {
	e.s.Helper()
	secrets := e.on.kube.CoreV1().Secrets(e.agentNamespace)
	e.s.until("the agent of "+e.String()+" to use its own credential", func(ctx context.Context) (bool, string) {
		credential, err := secrets.Get(ctx, registration.CredentialSecret, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		if name := string(credential.Data[registration.CredentialClusterName]); name != e.name {
			return false, "it is the credential of Cluster " + name
		}
		_, err = secrets.Get(ctx, registration.BootstrapSecret, metav1.GetOptions{})
		return apierrors.IsNotFound(err), fmt.Sprintf("Secret %s is still there (%v)", registration.BootstrapSecret, err)
	})
}

// requests are the ClusterRegistrations of the Cluster, including those that the hub has not processed yet.
func (e *enrolled) requests(ctx context.Context) ([]fleet.ClusterRegistration, error) {
	id, err := e.identity(ctx)
	if err != nil {
		return nil, err
	}
	list, err := e.s.hub.fleet.ClusterRegistrations(e.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(r fleet.ClusterRegistration) bool { return r.Spec.ClientID != id }), nil
}

// identity is the clientID of the agent, or of the Cluster if the hub has set it.
func (e *enrolled) identity(ctx context.Context) (string, error) {
	if e.clientID != "" {
		return e.clientID, nil
	}
	c, err := e.get(ctx)
	if err != nil {
		return "", err
	}
	if c.Spec.ClientID == "" {
		return "", fmt.Errorf("%s has no client ID", e)
	}
	return c.Spec.ClientID, nil
}

// theRequest is the name of the only request of the cluster. If it does not change, the agent did not register again.
func (e *enrolled) theRequest() string {
	e.s.Helper()
	requests, err := e.requests(e.s.Context())
	e.s.fail(err)
	if len(requests) != 1 {
		e.s.Fatalf("%s has %d ClusterRegistrations, not one", e, len(requests))
	}
	return requests[0].Name
}

// story summarizes a Cluster in one line, for failures.
func story(c *fleet.Cluster) string {
	lines := []string{fmt.Sprintf("last seen %s at %s", c.Status.Agent.LastSeen, c.Status.Agent.Namespace)}
	for _, kind := range []string{fleet.ConditionProcessed, fleet.ConditionImported, fleet.ConditionRegistered, fleet.ConditionConnected, fleet.ConditionReconciled} {
		lines = append(lines, kind+"="+describe(c.Status.Conditions, kind))
	}
	return strings.Join(lines, "; ")
}

// describe is "True Reason: message".
func describe(conditions []genericcondition.GenericCondition, kind string) string {
	for _, c := range conditions {
		if c.Type == kind {
			return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
		}
	}
	return "absent"
}
