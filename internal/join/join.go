// Package join registers a cluster with a hub from the member: it installs the agent with the values of a token, and waits until the hub has
// registered it. These values are its only access to the hub.
package join

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/charts"
	"github.com/muster-fleet/muster/internal/check"
	"github.com/muster-fleet/muster/internal/helminstall"
	"github.com/muster-fleet/muster/pkg/agent/credential"
	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	"github.com/muster-fleet/muster/pkg/agent/register"
	"github.com/muster-fleet/muster/pkg/agent/timing"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Action is the change that a member needs to be registered with a hub.
type Action string

// The actions. An agent that is connected to another hub, or registered in another workspace, is an error of Plan instead.
const (
	Nothing Action = "Nothing" // the agent is registered, and the hub accepts its credential
	Wait    Action = "Wait"    // the agent is installed with the same values, and not registered yet
	Replace Action = "Replace" // the agent has other values, a credential that the hub rejects, or an earlier address of the hub: Apply replaces the values
	Install Action = "Install" // there is no agent
)

// Joiner registers one cluster with the values of a token.
type Joiner struct {
	inputs    check.Inputs
	core      kubernetes.Interface
	namespace string
	values    []byte
	identity  *register.BootstrapIdentity

	action       Action
	newNamespace bool
	stored       *credential.Stored // the credential of the agent that the hub rejects, or that has an earlier address of the hub
	moved        bool               // the hub accepts the stored credential at the address in the values, and does not answer at the stored one
	oldRefusal   string             // the resource version of an event about an earlier attempt
}

// New prepares the registration of in.Member. The values are a values file of the chart fleet-agent.
func New(in check.Inputs, values []byte) (*Joiner, error) {
	core, err := kubernetes.NewForConfig(in.Member)
	if err != nil {
		return nil, err
	}
	if _, err := registration.DecodeValues(values); err != nil {
		return nil, err
	}
	m := &Joiner{inputs: in, core: core, namespace: in.AgentNamespace, values: values}
	m.identity, err = register.ParseIdentity(&corev1.Secret{Data: map[string][]byte{registration.ValuesKey: values}})
	if err != nil {
		return nil, fmt.Errorf("the file does not contain the values of a registration token, which `muster token create NAME -o values` prints: %w", err)
	}
	return m, nil
}

// Preflight runs the checks that can run before the agent is installed.
func (m *Joiner) Preflight(ctx context.Context) check.Diagnosis {
	return check.Preflight(ctx, m.inputs, m.values)
}

// Plan returns the Action for the state of the member, and the reason for it.
func (m *Joiner) Plan(ctx context.Context) (action Action, reason string, err error) {
	namespace, err := m.core.CoreV1().Namespaces().Get(ctx, m.namespace, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		m.action, m.newNamespace = Install, true
		return Install, "there is no agent on the member", nil
	case err != nil:
		return "", "", err
	case namespace.DeletionTimestamp != nil:
		return "", "", fmt.Errorf("Namespace %s on the member is being deleted: run the command again when it is gone", m.namespace)
	}
	_, err = m.core.AppsV1().Deployments(m.namespace).Get(ctx, registration.AgentName, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return "", "", err
	}
	installed := err == nil

	stored, d := check.Credential(ctx, m.inputs)
	if stored != nil {
		cluster := stored.Workspace + "/" + stored.ClusterName
		sameServer := strings.TrimRight(stored.Server, "/") == strings.TrimRight(m.identity.Server, "/")
		accepted, _ := d.Line("way-authenticated")
		lives, _ := d.Line("agent-credential-lives")
		rejected := accepted.Result == check.Fail || lives.Result == check.Fail
		switch {
		case stored.Workspace != m.identity.Workspace(), !sameServer && accepted.Result == check.Pass:
			return "", "", fmt.Errorf("the member is registered as Cluster %s with the hub at %s, and the values are for namespace %s of the hub at %s: "+
				"use values of that hub and namespace, or, to move the agent to the hub of the values, follow docs/operations.md#registering-again",
				cluster, stored.Server, m.identity.Workspace(), m.identity.Server)
		case accepted.Result == check.Pass && installed:
			m.action = Nothing
			return Nothing, fmt.Sprintf("the member is registered as Cluster %s with the hub at %s", cluster, stored.Server), nil
		case accepted.Result == check.Pass:
			m.action = Install
			return Install, fmt.Sprintf("there is a credential of Cluster %s, and no agent", cluster), nil
		case !rejected && (sameServer || !m.acceptedByValues(ctx, stored)):
			return "", "", fmt.Errorf("the member has a credential of Cluster %s for the hub at %s, and it is not known whether that hub accepts it: %s",
				cluster, stored.Server, d.Summary)
		case !rejected:
			m.moved = true
		}
		m.stored = stored
	}
	if !installed {
		m.action = Install
		return Install, "there is no agent on the member", nil
	}
	bootstrap, err := m.core.CoreV1().Secrets(m.namespace).Get(ctx, registration.BootstrapSecret, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return "", "", err
	}
	if err == nil && m.hasValues(bootstrap) {
		m.action = Wait
		return Wait, "the agent is installed with these values, and not registered yet", nil
	}
	m.action = Replace
	switch {
	case m.moved:
		return Replace, fmt.Sprintf("the agent is installed, and the hub of its Cluster %s/%s is now at %s instead of %s",
			m.stored.Workspace, m.stored.ClusterName, m.identity.Server, m.stored.Server), nil
	case m.stored != nil:
		return Replace, "the agent is installed, and the hub rejects its credential of Cluster " + m.stored.Workspace + "/" + m.stored.ClusterName, nil
	}
	return Replace, "the agent is installed with other values, and not registered", nil
}

// acceptedByValues reports whether the hub of the values accepts the stored credential: it is then the hub of the credential at another address. An
// agent that gets the values sends its credential to this hub as well.
func (m *Joiner) acceptedByValues(ctx context.Context, stored *credential.Stored) bool {
	log := logrus.New()
	log.SetOutput(io.Discard)
	dialer := &hubclient.Dialer{UserAgent: "muster-join/" + m.inputs.Version, Timing: timing.Default(), Clock: clock.RealClock{}, Log: log}
	conn, verdict, _ := dialer.DialAndVerify(ctx, stored.At(m.identity.EndpointIn(stored.TLSMode())))
	conn.Close()
	return verdict == hubclient.Accepted
}

// hasValues reports whether a bootstrap Secret contains the same identity as the values.
func (m *Joiner) hasValues(bootstrap *corev1.Secret) bool {
	found, err := register.ParseIdentity(bootstrap)
	return err == nil && found.Server == m.identity.Server && bytes.Equal(found.CA, m.identity.CA) && found.Workspace() == m.identity.Workspace() &&
		found.Token == m.identity.Token && found.TokenName == m.identity.TokenName
}

// Objects returns the objects of an installation, as KIND NAMESPACE/NAME. It fails if the values do not fit the chart.
func (m *Joiner) Objects() ([]string, error) {
	values, err := m.chartValues()
	if err != nil {
		return nil, err
	}
	files, err := charts.Render(charts.Agent, charts.Release{Name: charts.Agent, Namespace: m.namespace}, values)
	if err != nil {
		return nil, err
	}
	var objects []string
	for _, file := range files {
		documents, err := charts.Documents(file)
		if err != nil {
			return nil, err
		}
		for _, document := range documents {
			var object metav1.PartialObjectMetadata
			if err := yaml.Unmarshal(document, &object); err != nil {
				return nil, err
			}
			objects = append(objects, strings.TrimSpace(object.Kind+" "+strings.TrimPrefix(object.Namespace+"/"+object.Name, "/")))
		}
	}
	slices.Sort(objects)
	return objects, nil
}

func (m *Joiner) chartValues() (values map[string]any, err error) {
	if yaml.Unmarshal(m.values, &values) != nil {
		return nil, errors.New("the values are not a YAML object") // the error of the library can quote a token
	}
	return values, nil
}

// Apply performs the Action that Plan has returned.
func (m *Joiner) Apply(ctx context.Context) error {
	switch m.action {
	case Install:
		values, err := m.chartValues()
		if err != nil {
			return err
		}
		return helminstall.Install(ctx, m.inputs.Member, m.namespace, charts.Agent, values)
	case Replace:
		if event, err := m.refusal(ctx); err == nil {
			m.oldRefusal = event.ResourceVersion
		}
		return m.replace(ctx)
	case Nothing, Wait:
	}
	return nil
}

// replace writes the values to the bootstrap Secret, which an installed agent watches.
func (m *Joiner) replace(ctx context.Context) error {
	secrets := m.core.CoreV1().Secrets(m.namespace)
	data := map[string][]byte{registration.ValuesKey: m.values}
	bootstrap, err := secrets.Get(ctx, registration.BootstrapSecret, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: registration.BootstrapSecret}, Data: data}, metav1.CreateOptions{})
	case err == nil:
		bootstrap.Data = data
		_, err = secrets.Update(ctx, bootstrap, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("Secret %s/%s on the member: %w", m.namespace, registration.BootstrapSecret, err)
	}
	return nil
}

// pollInterval is the pause between two requests of Await.
const pollInterval = time.Second

// Await waits until the agent has stored a credential, or another address of the hub, which it does only if the hub accepts the credential there. It
// calls progress when the agent's state changes.
func (m *Joiner) Await(ctx context.Context, progress func(string)) (cluster string, err error) {
	state := ""
	err = wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		secret, err := m.core.CoreV1().Secrets(m.namespace).Get(ctx, registration.CredentialSecret, metav1.GetOptions{})
		if err == nil {
			if stored, err := credential.Parse(secret); err == nil && (m.stored == nil || stored.Token != m.stored.Token || stored.Server != m.stored.Server) {
				cluster = stored.Workspace + "/" + stored.ClusterName
				return true, nil
			}
		}
		if now := m.waitsFor(ctx, err); now != state && ctx.Err() == nil {
			state = now
			progress(state)
		}
		return false, nil
	})
	switch {
	case err == nil:
		return cluster, nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return "", fmt.Errorf("the member was not registered in time: %s", state)
	}
	return "", fmt.Errorf("stopped waiting for the registration: %w", err)
}

// waitsFor returns the reason why the agent has no credential: a failed request to the member, the event in which the agent records a refusal by
// the hub, or the problem of its pod.
func (m *Joiner) waitsFor(ctx context.Context, failed error) string {
	if failed != nil && !apierrors.IsNotFound(failed) {
		return "the member does not answer: " + failed.Error()
	}
	if event, err := m.refusal(ctx); err == nil && event.ResourceVersion != m.oldRefusal {
		return event.Message
	}
	if problem := check.Pod(ctx, m.inputs).Problem(); problem != "" {
		return problem
	}
	return "the agent runs, and waits for the response of the hub"
}

func (m *Joiner) refusal(ctx context.Context) (*corev1.Event, error) {
	return m.core.CoreV1().Events(m.namespace).Get(ctx, registration.AgentName+"."+strings.ToLower(register.ReasonRegistrationRefused), metav1.GetOptions{})
}

// Undo returns the commands of helm and kubectl, in the namespace of the agent, that undo Apply. They lack the connection flags.
func (m *Joiner) Undo() (commands [][]string) {
	switch m.action {
	case Install:
		commands = append(commands, []string{"helm", "uninstall", charts.Agent})
		if m.newNamespace {
			commands = append(commands, []string{"kubectl", "delete", "namespace", m.namespace})
		}
	case Replace:
		commands = append(commands, []string{"kubectl", "delete", "secret", registration.BootstrapSecret})
	case Nothing, Wait:
	}
	return commands
}
