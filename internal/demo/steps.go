package demo

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/charts"
	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/await"
	"github.com/muster-fleet/muster/internal/inventory"
	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/version"
)

const (
	systemNamespace = registration.DefaultSystemNamespace
	localNamespace  = "fleet-local"
	workspace       = "fleet-default"
	tokenName       = "west-token"
	// checkin is the interval of the heartbeats. It is short, so that a user can see them.
	checkin = 2 * time.Second

	helmInstall = "helm -n " + systemNamespace + " install --create-namespace "
)

// steps are all steps in order.
func steps() []step {
	return []step{
		{"start three control planes: etcd, API server, controller manager", "", startClusters},
		{"install chart fleet-crd on the hub", helmInstall + "fleet-crd charts/fleet-crd", installCRDs},
		{"install chart fleet on the hub", helmInstall + "fleet charts/fleet --set apiServerURL=https://HUB,agentCheckinInterval=2s --set-file apiServerCA=ca.pem", installHub},
		{"open the page of the hub", "muster ui", openPage},
		{"local: the hub registers its own cluster", "", registerLocal},
		{"east: the hub is given a kubeconfig and installs the agent", "muster -n " + workspace + " import east --member-kubeconfig east.kubeconfig --wait", registerEast},
		{"west: create a registration token", "muster -n " + workspace + " token create " + tokenName + " --ttl 1h --allow-label env -o values > values.yaml", createToken},
		{"west: install the agent with it", helmInstall + "fleet-agent charts/fleet-agent --values values.yaml --set labels.env=demo", registerWest},
		{"a workload for every cluster with env=demo", "kubectl -n " + workspace + " apply -f hello-bundle.yaml", deployWorkload},
		{"each agent adopts its own Deployment", "", adoptAgents},
		{"check credentials and heartbeats", "", check},
		{"delete the Cluster of west, and check that none of its objects remains", "kubectl -n " + workspace + " delete clusters.fleet.cattle.io WEST", deleteWest},
	}
}

func installCRDs(ctx context.Context, d *demo) (string, error) {
	return "", d.hub.install(ctx, charts.CRD, nil)
}

func installHub(ctx context.Context, d *demo) (string, error) {
	err := d.hub.install(ctx, charts.Hub, map[string]any{
		"apiServerURL":         d.hub.plane.URL(),
		"apiServerCA":          string(d.hub.plane.CA()),
		"agentCheckinInterval": checkin.String(),
		"image":                map[string]any{"tag": version.Version},
		"agentImage":           map[string]any{"tag": version.Version},
		"bootstrap":            map[string]any{"enabled": true, "namespace": localNamespace},
		"members":              map[string]any{"allowedCIDRs": []any{"127.0.0.0/8"}}, // the control planes of the demo
	})
	if err != nil {
		return "", err
	}
	return "", d.hub.awaitDeployment(ctx, registration.HubConfigMap)
}

func registerLocal(ctx context.Context, d *demo) (string, error) {
	return d.follow(ctx, registeredCluster{namespace: localNamespace, name: "local", member: d.hub}, time.Now())
}

func registerEast(ctx context.Context, d *demo) (string, error) {
	begun := time.Now()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: workspace}}
	if _, err := d.hub.admin.Kubernetes.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		return "", err
	}
	err := d.hub.admin.Import(ctx, admin.Import{
		Namespace: workspace, Name: "east", Kubeconfig: d.east.plane.Kubeconfig(), Labels: map[string]string{"env": "demo"},
	})
	if err != nil {
		return "", err
	}
	return d.follow(ctx, registeredCluster{namespace: workspace, name: "east", member: d.east}, begun)
}

func createToken(ctx context.Context, d *demo) (string, error) {
	if err := d.hub.admin.CreateToken(ctx, workspace, tokenName, fleet.ClusterRegistrationTokenSpec{
		TTL: admin.TTL(time.Hour), AllowedLabelKeys: &[]string{"env"},
	}); err != nil {
		return "", err
	}
	token, err := d.hub.admin.AwaitToken(ctx, workspace, tokenName)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("Secret %s/%s, valid until %s", token.Namespace, token.Status.SecretName, token.Status.Expires.Format(time.TimeOnly)), nil
}

func registerWest(ctx context.Context, d *demo) (string, error) {
	begun := time.Now()
	values, err := d.westValues(ctx)
	if err != nil {
		return "", err
	}
	if d.before, err = inventory.Take(ctx, d.west.plane.RESTConfig()); err != nil {
		return "", err
	}
	if err := d.west.install(ctx, charts.Agent, values); err != nil {
		return "", err
	}
	name, err := d.west.registeredName(ctx)
	if err != nil {
		return "", err
	}
	return d.follow(ctx, registeredCluster{namespace: workspace, name: name, member: d.west}, begun)
}

// westValues returns the values from the token's Secret, with labels and a shorter heartbeat interval.
func (d *demo) westValues(ctx context.Context) (map[string]any, error) {
	token, err := d.hub.admin.AwaitToken(ctx, workspace, tokenName)
	if err != nil {
		return nil, err
	}
	document, err := d.hub.admin.Values(ctx, token)
	if err != nil {
		return nil, err
	}
	values := map[string]any{}
	if err := yaml.Unmarshal(document, &values); err != nil {
		return nil, fmt.Errorf("the values of token %s/%s are not YAML", workspace, tokenName)
	}
	values["labels"] = map[string]any{"env": "demo"}
	// The default of 15 minutes is too long for the demo.
	values["fleetAgent"] = map[string]any{"extraEnv": []any{map[string]any{"name": "CHECKIN_INTERVAL", "value": checkin.String()}}}
	return values, nil
}

// registeredCluster is a Cluster whose agent has registered.
type registeredCluster struct {
	namespace, name string
	member          *cluster
	took            time.Duration
	view            view.Cluster
	names           []string // names that only the objects of this Cluster contain
}

// follow waits until the Cluster is registered, and returns a note with the states of the Cluster until then.
func (d *demo) follow(ctx context.Context, a registeredCluster, begun time.Time) (string, error) {
	var states []string
	cluster, err := d.hub.admin.AwaitRegistered(ctx, a.namespace, a.name, func(v view.Cluster) {
		if len(states) == 0 || states[len(states)-1] != v.State {
			states = append(states, v.State)
		}
		d.screen.progress(a.namespace + "/" + a.name + ": " + v.State)
	})
	if err != nil {
		return "", err
	}
	a.took, a.view = time.Since(begun), view.OfCluster(cluster)
	d.registered = append(d.registered, a)
	return fmt.Sprintf("Cluster %s/%s: %s", a.namespace, a.name, strings.Join(states, " > ")), nil
}

// poll repeats a check until it succeeds, or until ctx ends.
func poll(ctx context.Context, check func(context.Context) error) error {
	const every = 50 * time.Millisecond
	return await.Pace{First: every, Most: every}.Until(ctx, func(ctx context.Context) (bool, string) {
		err := check(ctx)
		return err == nil, fmt.Sprint(err)
	})
}

// check checks on the hub and the members that every registration is complete.
func check(ctx context.Context, d *demo) (string, error) {
	const want = 3
	if len(d.registered) != want {
		return "", fmt.Errorf("%d clusters have registered, not %d", len(d.registered), want)
	}
	for i := range d.registered {
		if err := poll(ctx, func(ctx context.Context) error { return d.checkOne(ctx, &d.registered[i]) }); err != nil {
			return "", err
		}
	}
	return "each agent has its own credential and sends heartbeats; bootstrap Secrets are deleted (Helm's after 15 s)", nil
}

func (d *demo) checkOne(ctx context.Context, a *registeredCluster) error {
	cluster, err := d.hub.admin.Fleet.Clusters(a.namespace).Get(ctx, a.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	a.view = view.OfCluster(cluster)
	if err := d.hub.admin.AddHeartbeats(ctx, &a.view); err != nil {
		return err
	}
	if err := checkView(a.view); err != nil {
		return err
	}
	return a.member.checkSecrets(ctx)
}

func checkView(v view.Cluster) error {
	switch {
	case v.State != view.StateRegistered:
		return fmt.Errorf("Cluster %s/%s is %s, not %s: %s: %s", v.Namespace, v.Name, v.State, view.StateRegistered, v.Reason, v.Message)
	case v.Reason != "":
		return fmt.Errorf("Cluster %s/%s is registered, but: %s: %s", v.Namespace, v.Name, v.Reason, v.Message)
	case v.LastSeen == nil:
		return fmt.Errorf("Cluster %s/%s: the hub has received no heartbeat of its agent", v.Namespace, v.Name)
	}
	return nil
}

func (c *cluster) checkSecrets(ctx context.Context) error {
	secrets := c.admin.Kubernetes.CoreV1().Secrets(systemNamespace)
	credential, err := secrets.Get(ctx, registration.CredentialSecret, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("the agent on %s has not stored its credential: %w", c.name, err)
	}
	if len(credential.Data[registration.CredentialKubeconfig]) == 0 {
		return fmt.Errorf("the credential Secret %s/%s on %s has no kubeconfig", systemNamespace, registration.CredentialSecret, c.name)
	}
	_, err = secrets.Get(ctx, registration.BootstrapSecret, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("Secret %s/%s still exists on %s: its agent has not deleted it", systemNamespace, registration.BootstrapSecret, c.name)
}
