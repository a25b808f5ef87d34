package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/internal/bench/figures"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/credential"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Agents register with one token, as unchanged agents of Fleet do: each creates a ClusterRegistration with a generated name and then
// reads the Secret with its credential. One watch tells all agents that their Secret exists; a real agent polls every two seconds,
// which would hide the time that the hub takes.
type Agents struct {
	api    *API
	values registration.Values
	core   kubernetes.Interface
	fleet  fleetclient.FleetV1alpha1Interface
	run    string // is part of each clientID, because a control plane can have clusters of several runs
	issued names  // answer Secrets
	// Leases is true for agents of this project that renew their credential and send heartbeats to a Lease. It is set before the first agent
	// registers.
	Leases bool
	// Registered has the agents in the order of their numbers.
	Registered []Agent
}

// Agent is a registered agent.
type Agent struct {
	// Cluster is the name of its Cluster, and Request that of its ClusterRegistration.
	Cluster, Request string
	// Account is its ServiceAccount, in the cluster namespace; its Lease, if it has one, has the same name. Agents without Leases leave it
	// empty, because they cannot know it.
	Account string
	token   string
}

// NewAgents creates a registration token, connects with it, and follows the answer Secrets until ctx ends.
func NewAgents(ctx context.Context, api *API, run string) (*Agents, error) {
	a := &Agents{api: api, run: run}
	token := &fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Name: "bench-" + run}}
	if _, err := api.Fleet.ClusterRegistrationTokens(api.Workspace).Create(ctx, token, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	err := Await(ctx, "the values of token "+token.Name, func(ctx context.Context) (bool, error) {
		secret, err := api.Core.CoreV1().Secrets(api.Workspace).Get(ctx, token.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		} else if err != nil {
			return false, err
		}
		a.values, err = registration.DecodeValues(secret.Data[registration.ValuesKey])
		return a.values.Token != "", err
	})
	if err != nil {
		return nil, err
	}
	if err := connect(api.as(a.values.Token), &a.core, &a.fleet); err != nil {
		return nil, err
	}
	secrets := api.Core.CoreV1().Secrets(a.values.SystemRegistrationNamespace)
	return a, follow(ctx, &corev1.Secret{}, secrets, func(secret *corev1.Secret) { a.issued.add(secret.Name) })
}

// Token is the registration token of the agents.
func (a *Agents) Token() string { return a.values.Token }

// TokenName is the name of the ClusterRegistrationToken of the agents.
func (a *Agents) TokenName() string { return a.values.TokenName }

// Identity returns what identifies the agent with a number. The names of all agents are equally long.
func (a *Agents) Identity(n int) (clientID, clientRandom string) {
	clientID = fmt.Sprintf("%s-%07d", a.run, n)
	return clientID, "random-" + clientID
}

// Authenticate gives tokens to the agents with these numbers that have none, because they did not register here.
func (a *Agents) Authenticate(ctx context.Context, numbers []int, limit int) error {
	return InParallel(len(numbers), limit, func(n int) error {
		agent := &a.Registered[numbers[n]]
		if agent.token != "" {
			return nil
		}
		accounts := a.api.Core.CoreV1().ServiceAccounts(registration.ClusterNamespace(a.api.Workspace, agent.Cluster))
		reply, err := accounts.CreateToken(ctx, agent.Account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("a token for the agent of Cluster %s: %w", agent.Cluster, err)
		}
		agent.token = reply.Status.Token
		return nil
	})
}

// Register registers more agents and returns how long each took, from its request until it could read its credential.
func (a *Agents) Register(ctx context.Context, count, limit int) (figures.Samples, error) {
	return a.more(count, limit, func(n int) (Agent, error) { return a.register(ctx, n) })
}

// Join registers more agents, each of which continues like a real agent: it sends its first heartbeat, follows the
// BundleDeployments of its cluster, reads the Content of the agent's own Bundle, and reports that it is deployed. Join returns how
// long each took, from its request until that report. The watches stay open until ctx ends.
func (a *Agents) Join(ctx context.Context, count, limit int) (figures.Samples, error) {
	return a.more(count, limit, func(n int) (Agent, error) {
		agent, err := a.register(ctx, n)
		if err != nil {
			return agent, err
		}
		if err := a.beat(ctx, agent, Beats{}, new(atomic.Int64)); err != nil {
			return agent, err
		}
		return agent, a.deploy(ctx, agent)
	})
}

func (a *Agents) more(count, limit int, do func(n int) (Agent, error)) (figures.Samples, error) {
	took, first := make(figures.Samples, count), len(a.Registered)
	a.Registered = append(a.Registered, make([]Agent, count)...)
	err := InParallel(count, limit, func(n int) (err error) {
		began := time.Now()
		a.Registered[first+n], err = do(first + n)
		took[n] = time.Since(began)
		return err
	})
	return took, err
}

// Request sends the requests of further agents, which do not wait for an answer, and never connect.
func (a *Agents) Request(ctx context.Context, count, limit int) error {
	_, err := a.more(count, limit, func(n int) (Agent, error) {
		request, err := a.request(ctx, n)
		return Agent{Request: request}, err
	})
	return err
}

// request sends the request of an agent and returns its name.
func (a *Agents) request(ctx context.Context, n int) (name string, err error) {
	id, random := a.Identity(n)
	request := &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: registration.RequestPrefix, Labels: map[string]string{fleet.RegistrationTokenLabel: a.values.TokenName}},
		Spec:       fleet.ClusterRegistrationSpec{ClientID: id, ClientRandom: random},
	}
	if a.Leases {
		request.Name = registration.RequestName(random)
		request.Annotations = map[string]string{registration.RenewalAnnotation: "true", registration.LeaseAnnotation: "true"}
	}
	request, err = a.fleet.ClusterRegistrations(a.api.Workspace).Create(ctx, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("agent %s: %w", id, err)
	}
	return request.Name, nil
}

func (a *Agents) register(ctx context.Context, n int) (agent Agent, err error) {
	id, random := a.Identity(n)
	request, err := a.request(ctx, n)
	if err != nil {
		return agent, err
	}
	name := registration.AnswerSecretName(id, random)
	if err := a.issued.wait(ctx, name); err != nil {
		return agent, fmt.Errorf("agent %s: %w", id, err)
	}
	secrets := a.core.CoreV1().Secrets(a.values.SystemRegistrationNamespace)
	err = Await(ctx, "the right to read Secret "+name, func(ctx context.Context) (bool, error) {
		secret, err := secrets.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
			return false, nil
		} else if err != nil {
			return false, err
		}
		agent = Agent{
			Cluster: string(secret.Data[registration.CredentialClusterName]), Request: request,
			Account: string(secret.Data[registration.CredentialLease]), token: string(secret.Data[registration.CredentialToken]),
		}
		return agent.token != "", nil
	})
	return agent, err
}

// deploy pretends to deploy the agent's own Bundle.
func (a *Agents) deploy(ctx context.Context, agent Agent) error {
	client, err := fleetclient.NewForConfig(a.api.as(agent.token))
	if err != nil {
		return err
	}
	deployments := client.BundleDeployments(registration.ClusterNamespace(a.api.Workspace, agent.Cluster))
	assigned := make(chan *fleet.BundleDeployment, 1)
	err = follow(ctx, &fleet.BundleDeployment{}, deployments, func(bd *fleet.BundleDeployment) {
		if bd.Spec.DeploymentID == "" {
			return
		}
		select {
		case assigned <- bd:
		default:
		}
	})
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeoutCause(ctx, Patience, fmt.Errorf("Cluster %s got no BundleDeployment within %s", agent.Cluster, Patience))
	defer cancel()
	select {
	case <-waiting.Done():
		return context.Cause(waiting)
	case bd := <-assigned:
		content, _, _ := strings.Cut(bd.Spec.DeploymentID, ":")
		// An API server that has stored a ClusterRole applies it a moment later.
		err := Await(ctx, "the right to read Content "+content, func(ctx context.Context) (bool, error) {
			_, err := client.Contents().Get(ctx, content, metav1.GetOptions{})
			if apierrors.IsForbidden(err) {
				return false, nil
			}
			return err == nil, err
		})
		if err != nil {
			return fmt.Errorf("BundleDeployment %s/%s: %w", bd.Namespace, bd.Name, err)
		}
		_, err = deployments.Patch(ctx, bd.Name, types.MergePatchType, deployed(bd), metav1.PatchOptions{}, "status")
		return err
	}
}

// deployed is the patch with which an agent reports that a BundleDeployment is deployed and ready.
func deployed(bd *fleet.BundleDeployment) []byte {
	var conditions []map[string]string
	for _, kind := range []string{fleet.ConditionInstalled, fleet.ConditionDeployed, fleet.ConditionMonitored, fleet.ConditionReady} {
		conditions = append(conditions, map[string]string{"type": kind, "status": "True", "lastUpdateTime": time.Now().UTC().Format(time.RFC3339)})
	}
	return mustJSON(map[string]any{"status": map[string]any{
		"appliedDeploymentID": bd.Spec.DeploymentID, "release": registration.DefaultSystemNamespace + "/" + bd.Name + ":1",
		"ready": true, "nonModified": true, "conditions": conditions,
	}})
}

// Beats are options of heartbeats.
type Beats struct {
	// Checkin is the interval that agents report; 0 means that they report none, as unchanged agents of Fleet.
	Checkin time.Duration
	// Over is the time over which the heartbeats are spread, with 10 % jitter; 0 means that all are sent at once.
	Over time.Duration
	// Limit is the number of concurrent requests; 0 means no limit.
	Limit int
	// Reconnect opens a new connection for each heartbeat, as after an outage.
	Reconnect bool
	// Report is the version of the agent that it reports in its Lease, with a description of its cluster; empty means that the report has not
	// changed. Agents without Leases ignore it.
	Report string
}

// Beat sends one heartbeat for each of the agents with these numbers. A heartbeat that fails is repeated every second up to 30
// times. Beat returns how many attempts failed.
func (a *Agents) Beat(ctx context.Context, numbers []int, b Beats) (failures int, err error) {
	if b.Limit == 0 {
		b.Limit = len(numbers)
	}
	var failed atomic.Int64
	began := time.Now()
	err = InParallel(len(numbers), b.Limit, func(n int) error {
		if err := Pause(ctx, time.Until(began.Add(b.delay(n, len(numbers))))); err != nil {
			return err
		}
		return a.beat(ctx, a.Registered[numbers[n]], b, &failed)
	})
	return int(failed.Load()), err
}

// oneReportIn is one of how many heartbeats of Steady has a report that has changed. With the default intervals, the hub writes the time of each
// fifteenth heartbeat to the Cluster, which costs as much as a changed report.
const oneReportIn = 15

// Steady sends count heartbeats of the agents with these numbers in turn, with equal distances over b.Over. It repeats none that fails, and sends none
// after that time: if the API server answers more slowly, with b.Limit requests at the same time, it sends fewer. Agents with Leases report b.Report
// with a number in one of oneReportIn heartbeats.
func (a *Agents) Steady(ctx context.Context, numbers []int, count int, b Beats) (sent, failed int, err error) {
	report, senders := b.Report, make([]func(context.Context) error, len(numbers))
	b.Report, b.Reconnect = "", false
	for n, number := range numbers {
		if senders[n], _, err = a.sender(a.Registered[number], b); err != nil {
			return 0, 0, err
		}
	}
	return steadily(ctx, count, b.Limit, b.Over, func(n int) error {
		turn := n % len(numbers)
		if n%oneReportIn != 0 {
			return senders[turn](ctx)
		}
		changed := b
		changed.Report = fmt.Sprintf("%s-%d", report, n)
		send, _, err := a.sender(a.Registered[numbers[turn]], changed)
		if err != nil {
			return err
		}
		return send(ctx)
	})
}

// delay is when the n-th of count heartbeats is sent. The jitter is the same in every run.
func (b Beats) delay(n, count int) time.Duration {
	if b.Over == 0 {
		return 0
	}
	jitter := rand.New(rand.NewPCG(uint64(n), uint64(count))).Float64() / 10 //nolint:gosec // not a secret
	return time.Duration(float64(b.Over) * (.9*float64(n)/float64(count) + jitter))
}

func (a *Agents) beat(ctx context.Context, agent Agent, b Beats, failed *atomic.Int64) error {
	send, done, err := a.sender(agent, b)
	if err != nil {
		return err
	}
	defer done()
	const tries = 30
	for range tries {
		if err = send(ctx); err == nil {
			return nil
		}
		failed.Add(1)
		if err := Pause(ctx, time.Second); err != nil {
			return err
		}
	}
	return fmt.Errorf("the heartbeat of Cluster %s: %w", agent.Cluster, err)
}

// sender returns a function that sends one heartbeat of an agent.
func (a *Agents) sender(agent Agent, b Beats) (send func(context.Context) error, done func(), err error) {
	if a.Leases {
		client, err := coordinationclient.NewForConfig(a.api.as(agent.token))
		return func(ctx context.Context) error {
			leases := client.Leases(registration.ClusterNamespace(a.api.Workspace, agent.Cluster))
			_, err := leases.Patch(ctx, agent.Account, types.MergePatchType, a.renewal(agent, b), metav1.PatchOptions{})
			return err
		}, func() {}, err
	}
	client, done, err := a.clientOf(agent, b.Reconnect)
	return func(ctx context.Context) error {
		_, err := client.Clusters(a.api.Workspace).Patch(ctx, agent.Cluster, types.JSONPatchType, a.heartbeat(b.Checkin), metav1.PatchOptions{}, "status")
		return err
	}, done, err
}

// renewal is the patch with which an agent renews its Lease. The report is as long as the report for a cluster with some nodes.
func (a *Agents) renewal(agent Agent, b Beats) []byte {
	instance := "instance" + strings.TrimPrefix(agent.Account, agent.Request) // has the UID of the request
	patch := map[string]any{"spec": map[string]any{
		"holderIdentity": instance, "leaseDurationSeconds": int(b.Checkin.Seconds()), "renewTime": metav1.NewMicroTime(time.Now()),
	}}
	if b.Report != "" {
		resources := corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("24"), corev1.ResourceMemory: resource.MustParse("98304Mi"), corev1.ResourcePods: resource.MustParse("330"),
		}
		report := mustJSON(fleet.AgentStatus{
			Namespace: a.api.SystemNamespace, CheckinInterval: &metav1.Duration{Duration: b.Checkin}, Version: b.Report, Generation: "managed/0",
			KubernetesVersion: "v1.36.3", Nodes: &fleet.AgentNodes{Count: 3, Ready: 3}, Capacity: resources, Allocatable: resources,
			APIServer: &fleet.AgentAPIServer{Ready: true}, Instance: instance, Registration: agent.Request,
			Hub: &fleet.AgentHub{APIServerURL: a.values.APIServerURL, APIServerCAHash: registration.CAHash([]byte(a.values.APIServerCA))},
		})
		annotations := map[string]string{registration.LeaseReport: string(report)}
		if claims, _ := credential.Inspect(credential.Token(agent.token)); claims.CredentialID != "" {
			annotations[registration.LeaseCredential] = claims.CredentialID
		}
		patch["metadata"] = map[string]any{"annotations": annotations, "managedFields": []any{struct{}{}}}
	}
	return mustJSON(patch)
}

func (a *Agents) heartbeat(checkin time.Duration) []byte {
	status := map[string]string{"lastSeen": time.Now().UTC().Format(time.RFC3339), "namespace": a.api.SystemNamespace}
	if checkin > 0 {
		status["checkinInterval"] = checkin.String()
	}
	return mustJSON([]map[string]any{{"op": "add", "path": "/status/agent", "value": status}})
}

func mustJSON(value any) []byte {
	data, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("maps of strings cannot be encoded: %v", err))
	}
	return data
}

// clientOf returns a client with the credential of an agent. It uses the connections of all agents, or a new one.
func (a *Agents) clientOf(agent Agent, reconnect bool) (client *fleetclient.FleetV1alpha1Client, done func(), err error) {
	config := a.api.as(agent.token)
	if !reconnect {
		client, err = fleetclient.NewForConfig(config)
		return client, func() {}, err
	}
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, nil, err
	}
	connection := &http.Transport{TLSClientConfig: tls, ForceAttemptHTTP2: true}
	transport, err := rest.HTTPWrappersForConfig(config, connection)
	if err != nil {
		return nil, nil, err
	}
	client, err = fleetclient.NewForConfigAndClient(config, &http.Client{Transport: transport})
	return client, connection.CloseIdleConnections, err
}

// Numbers are count numbers, starting with first.
func Numbers(first, count int) []int {
	all := make([]int, count)
	for n := range all {
		all[n] = first + n
	}
	return all
}
