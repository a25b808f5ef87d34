// Package admin does what a person who runs a hub does with it: import a cluster, hand out a token, wait for a cluster to
// register. The command line and the demo both use it.
package admin

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Hub is the API server of a hub.
type Hub struct {
	Kubernetes kubernetes.Interface
	Fleet      fleetclient.FleetV1alpha1Interface
}

// Connect makes the clients. It does not call the server yet.
func Connect(config *rest.Config) (*Hub, error) {
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	clients, err := versioned.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Hub{Kubernetes: kube, Fleet: clients.FleetV1alpha1()}, nil
}

// Import says which cluster to import.
type Import struct {
	// Namespace and Name of the Cluster.
	Namespace, Name string
	// Kubeconfig of the cluster, self-contained, of a user who may install the agent.
	Kubeconfig []byte
	// Labels of the Cluster.
	Labels map[string]string
}

// SecretName is that of the kubeconfig Secret an import makes.
func (i Import) SecretName() string { return i.Name + "-kubeconfig" }

// Import makes a Cluster and the Secret with its kubeconfig; the hub does the rest. It refuses to touch a Cluster or a
// Secret that exists, because a cluster could be lost by that.
func (h *Hub) Import(ctx context.Context, i Import) error {
	_, err := h.Fleet.Clusters(i.Namespace).Get(ctx, i.Name, metav1.GetOptions{})
	switch {
	case err == nil:
		return fmt.Errorf("Cluster %s/%s exists already: choose another name, or delete it first", i.Namespace, i.Name)
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("look for Cluster %s/%s: %w", i.Namespace, i.Name, Explain(err, i.Namespace))
	}
	if err := h.createKubeconfig(ctx, i); err != nil {
		return err
	}
	_, err = h.Fleet.Clusters(i.Namespace).Create(ctx, &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: i.Namespace, Name: i.Name, Labels: i.Labels},
		Spec:       fleet.ClusterSpec{KubeConfigSecret: i.SecretName()},
	}, metav1.CreateOptions{})
	if err == nil {
		return nil
	}
	return h.undo(ctx, i, fmt.Errorf("create Cluster %s/%s: %w", i.Namespace, i.Name, Explain(err, i.Namespace)))
}

func (h *Hub) createKubeconfig(ctx context.Context, i Import) error {
	_, err := h.Kubernetes.CoreV1().Secrets(i.Namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: i.Namespace, Name: i.SecretName()},
		Data:       map[string][]byte{registration.KubeconfigValue: i.Kubeconfig},
	}, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("Secret %s/%s exists already, from an earlier import perhaps: delete it first, or choose another name", i.Namespace, i.SecretName())
	case err != nil:
		return fmt.Errorf("create Secret %s/%s: %w", i.Namespace, i.SecretName(), Explain(err, i.Namespace))
	}
	return nil
}

// Explain adds what to do to errors whose own words leave that open.
func Explain(err error, namespace string) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsNotFound(err) {
		return err
	}
	if details := status.Status().Details; details != nil && details.Kind == "namespaces" {
		return fmt.Errorf("%w: create it with `kubectl create namespace %s`, or choose another with --namespace", err, namespace)
	}
	if details := status.Status().Details; details == nil || details.Name == "" {
		return fmt.Errorf("%w: is this a hub? Its kinds come with the chart fleet-crd, or `muster crds | kubectl apply --server-side -f -`", err)
	}
	return err
}
