// Package clusternetagent simulates an unchanged agent of Clusternet, for tests and the bench: its requests to the hub, their order, and its
// reactions to what the hub answers. It simulates no leader election, and does not deploy Descriptions or HelmReleases.
package clusternetagent

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// The kinds of the hub that the agent uses.
var (
	Requests        = schema.GroupVersionResource{Group: "clusters.clusternet.io", Version: "v1beta1", Resource: "clusterregistrationrequests"}
	ManagedClusters = schema.GroupVersionResource{Group: "clusters.clusternet.io", Version: "v1beta1", Resource: "managedclusters"}
	HelmReleases    = schema.GroupVersionResource{Group: "apps.clusternet.io", Version: "v1alpha1", Resource: "helmreleases"}
	Descriptions    = schema.GroupVersionResource{Group: "apps.clusternet.io", Version: "v1alpha1", Resource: "descriptions"}
	HelmCharts      = schema.GroupVersionResource{Group: "apps.clusternet.io", Version: "v1alpha1", Resource: "helmcharts"}
	secrets         = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
)

// Names and labels that the agent writes.
const (
	IDLabel           = "clusters.clusternet.io/cluster-id"
	NameLabel         = "clusters.clusternet.io/cluster-name"
	RegisteredByLabel = "clusters.clusternet.io/registered-by"
	CreatedByLabel    = "clusternet.io/created-by"
	AgentName         = "clusternet-agent"
	DeployerSecret    = "child-cluster-deployer"
	Finalizer         = "apps.clusternet.io/finalizer"

	bootstrappingLabel   = "clusters.clusternet.io/bootstrapping"
	autoUpdateAnnotation = "clusternet.io/autoupdate"
	approved             = "Approved"
)

// RequestName is the name of the ClusterRegistrationRequest of a cluster.
func RequestName(id string) string { return "clusternet-" + id }

// Options are the arguments of the agent. HubURL and Token are required.
type Options struct {
	HubURL string // --cluster-reg-parent-url
	Token  string // --cluster-reg-token
	// ClusterName is --cluster-reg-name. Empty: a name is generated at each start.
	ClusterName string
	// ClusterNamespace is --cluster-reg-namespace, which the hub may ignore.
	ClusterNamespace string
	// SyncMode is --cluster-sync-mode. Empty: Pull.
	SyncMode string
	// ClusterLabels is --cluster-labels.
	ClusterLabels map[string]string
	// Socket is the feature gate SocketConnection.
	Socket bool

	// Periods are the pauses of the agent. Zero: DefaultPeriods.
	Periods Periods
	// NothingCollected: the agent has collected no status when its first heartbeat is due.
	NothingCollected bool
	// HeartbeatNow, if given, may be shared by several agents. Each value that is sent ends the pause before the next heartbeat of one of them.
	HeartbeatNow <-chan struct{}
	// Forge changes the status of each heartbeat before it is sent, as a malicious agent would.
	Forge func(status map[string]any)
	// Through changes the configuration of each client, such as for a recorder.
	Through func(*rest.Config) *rest.Config
	// Sent, if given, records the requests.
	Sent *SentRequests
	// Log gets what the agent logs. It never contains a token.
	Log logrus.FieldLogger
}

// Periods are the pauses of the agent.
type Periods struct {
	Retry      time.Duration // between two tries to create the request, plus up to 30 %
	Poll       time.Duration // between two looks at the request, and between two tries to write a Secret, plus up to 40 %
	Heartbeat  time.Duration // --cluster-status-update-frequency
	Collection time.Duration // --cluster-status-collect-frequency
	Socket     time.Duration // between two handshakes of the tunnel, plus up to 30 %
	Relist     time.Duration // before the first repetition of a refused list; it doubles up to 30 s
}

// DefaultPeriods are the periods of an agent without flags.
func DefaultPeriods() Periods {
	return Periods{
		Retry: 5 * time.Second, Poll: 5 * time.Second, Heartbeat: 3 * time.Minute, Collection: 20 * time.Second,
		Socket: 5 * time.Second, Relist: 800 * time.Millisecond,
	}
}

// QuickPeriods are for tests.
func QuickPeriods() Periods {
	return Periods{
		Retry: 50 * time.Millisecond, Poll: 50 * time.Millisecond, Heartbeat: 250 * time.Millisecond, Collection: 20 * time.Millisecond,
		Socket: 50 * time.Millisecond, Relist: 50 * time.Millisecond,
	}
}

// The agent accepts a bootstrap token that contains one of these. They are not anchored.
var bootstrapToken = regexp.MustCompile(`[a-z0-9]{6}\.[a-z0-9]{16}|[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*`)

// Run is one process of the agent, or one term of its leader, on a member. It returns nil when ctx ends, and an error where the process of
// the agent would end.
func Run(ctx context.Context, m *MemberState, o Options) error {
	if o.Periods == (Periods{}) {
		o.Periods = DefaultPeriods()
	}
	if o.Log == nil {
		o.Log = logrus.StandardLogger()
	}
	if !bootstrapToken.MatchString(o.Token) {
		return errors.New("the bootstrap token has neither the form of a token of kubeadm nor that of a JWT")
	}
	a := &agent{Options: o, member: m, id: m.ID()}

	request, err := a.register(ctx)
	if err != nil || request == nil {
		return err
	}
	answer, err := credentialOf(request, o.HubURL)
	if err != nil {
		return err
	}
	m.store(answer)
	hub, err := a.connect(dedicated, answer.Token, answer.CA)
	if err != nil {
		return fmt.Errorf("the credential is stored, and the process ends with a panic: %w", err)
	}

	parts, ctx := errgroup.WithContext(ctx)
	parts.Go(func() error { a.sendHeartbeats(ctx, hub, answer.Namespace); return nil })
	parts.Go(func() error {
		a.writeDeployerSecret(ctx, hub, answer.Namespace)
		for _, kind := range []schema.GroupVersionResource{HelmReleases, Descriptions, HelmCharts} {
			parts.Go(func() error { a.follow(ctx, hub, kind, answer.Namespace); return nil })
		}
		return nil
	})
	if o.Socket {
		parts.Go(func() error { return a.keepTunnel(ctx, answer.Token) })
	}
	return parts.Wait()
}

type agent struct {
	Options
	member *MemberState
	id     string
}

// Identities with which requests are sent, as SentRequests has them.
const (
	bootstrap = "boot"
	dedicated = "ded"
)

// connect returns a client. Without a CA it does not verify the certificate of the hub; with an empty CA it trusts the CAs of the system.
func (a *agent) connect(identity, token string, ca *[]byte) (dynamic.Interface, error) {
	return dynamic.NewForConfig(a.configuration(identity, token, ca))
}

func (a *agent) configuration(identity, token string, ca *[]byte) *rest.Config {
	config := &rest.Config{Host: a.HubURL, BearerToken: token, UserAgent: AgentName}
	if ca == nil {
		config.Insecure = true
	} else {
		config.CAData = *ca
	}
	if a.Through != nil {
		config = a.Through(config)
	}
	return a.Sent.on(config, identity)
}

// register creates the request and waits until it is approved. It returns nil when ctx ends.
func (a *agent) register(ctx context.Context) (*unstructured.Unstructured, error) {
	boot, err := a.connect(bootstrap, a.Token, nil)
	if err != nil {
		return nil, err
	}
	hub := boot
	if stored, found := a.member.Credential(); found && stored.URL == a.HubURL {
		if hub, err = a.connect(dedicated, stored.Token, stored.CA); err != nil {
			return nil, fmt.Errorf("the stored credential: %w", err)
		}
	}

	request := a.newRequest()
	for {
		_, err := hub.Resource(Requests).Create(ctx, request, metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) {
			break
		}
		a.Log.Warnf("create ClusterRegistrationRequest %s: %v", request.GetName(), err)
		hub = boot // whatever the error is: the stored credential is not used again in this run
		if !pause(ctx, a.Periods.Retry, 0.3) {
			return nil, nil
		}
	}
	for {
		current, err := hub.Resource(Requests).Get(ctx, request.GetName(), metav1.GetOptions{})
		if err != nil {
			a.Log.Warnf("get ClusterRegistrationRequest %s: %v", request.GetName(), err)
		} else if result, _, _ := unstructured.NestedString(current.Object, "status", "result"); result == approved {
			return current, nil
		}
		if !pause(ctx, a.Periods.Poll, 0.4) {
			return nil, nil
		}
	}
}

func (a *agent) newRequest() *unstructured.Unstructured {
	name := cmp.Or(a.ClusterName, "clusternet-cluster-"+rand.String(5))
	spec := map[string]any{
		"clusterId":   a.id,
		"clusterName": name,
		"clusterType": "StandardCluster",
		"syncMode":    cmp.Or(a.SyncMode, "Pull"),
	}
	if a.ClusterNamespace != "" {
		spec["clusterNamespace"] = a.ClusterNamespace
	}
	if len(a.ClusterLabels) > 0 {
		spec["clusterLabels"] = anyMap(a.ClusterLabels)
	}
	return object(Requests, "ClusterRegistrationRequest", map[string]any{
		"name":   RequestName(a.id),
		"labels": map[string]any{RegisteredByLabel: AgentName, IDLabel: a.id, NameLabel: name},
	}, map[string]any{"spec": spec})
}

// credentialOf returns the credential in an approved request, without checking it.
func credentialOf(request *unstructured.Unstructured, url string) (Credential, error) {
	status, _, err := unstructured.NestedMap(request.Object, "status")
	if err != nil {
		return Credential{}, err
	}
	c := Credential{URL: url, ID: request.GetLabels()[IDLabel]}
	c.Namespace, _ = status["dedicatedNamespace"].(string)
	encoded, _ := status["token"].(string)
	token, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return Credential{}, err
	}
	c.Token = string(token)
	if encoded, found := status["caCertificate"].(string); found {
		ca, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return Credential{}, err
		}
		c.CA = &ca
	}
	return c, nil
}

// object is a new object of a kind, with more fields than its metadata.
func object(resource schema.GroupVersionResource, kind string, metadata, fields map[string]any) *unstructured.Unstructured {
	o := map[string]any{"apiVersion": resource.GroupVersion().String(), "kind": kind, "metadata": metadata}
	maps.Copy(o, fields)
	return &unstructured.Unstructured{Object: o}
}

// pause waits for the period and up to the given part of it more. It returns false when ctx has ended.
func pause(ctx context.Context, period time.Duration, jitter float64) bool {
	return pauseUntil(ctx, period, jitter, nil)
}

// pauseUntil is a pause that a value of early ends.
func pauseUntil(ctx context.Context, period time.Duration, jitter float64, early <-chan struct{}) bool {
	if jitter > 0 {
		period = wait.Jitter(period, jitter)
	}
	timer := time.NewTimer(period)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-early:
	}
	return true
}

func anyMap(values map[string]string) map[string]any {
	result := map[string]any{}
	for key, value := range values {
		result[key] = value
	}
	return result
}
