package demo

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/pkg/registration"
)

// ways is how many clusters there must be.
const ways = 3

// check looks from outside, on hub and members, whether every registration has come to its end.
func check(ctx context.Context, d *demo) (string, error) {
	if len(d.arrived) != ways {
		return "", fmt.Errorf("%d clusters have registered, not %d", len(d.arrived), ways)
	}
	for i := range d.arrived {
		if err := poll(ctx, func(ctx context.Context) (bool, error) { return true, d.checkOne(ctx, &d.arrived[i]) }); err != nil {
			return "", err
		}
	}
	return "each agent has stored its own credential, deleted its bootstrap Secret, and reports", nil
}

func (d *demo) checkOne(ctx context.Context, a *arrival) error {
	cluster, err := d.hub.admin.Fleet.Clusters(a.namespace).Get(ctx, a.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	a.view = view.OfCluster(cluster)
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
		return fmt.Errorf("Cluster %s/%s: no heartbeat of its agent has arrived", v.Namespace, v.Name)
	}
	return nil
}

func (c *cluster) checkSecrets(ctx context.Context) error {
	secrets := c.admin.Kubernetes.CoreV1().Secrets(systemNamespace)
	credential, err := secrets.Get(ctx, registration.CredentialSecret, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("the agent on %s has stored no credential: %w", c.name, err)
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
	return fmt.Errorf("Secret %s/%s is still there on %s: its agent has not deleted it", systemNamespace, registration.BootstrapSecret, c.name)
}
