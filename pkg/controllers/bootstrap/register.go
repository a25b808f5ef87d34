// Package bootstrap registers the cluster that the hub runs in: it creates the Cluster "local" and a kubeconfig Secret for it. From then
// on the Cluster is imported like any other.
package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	// clusterName is the Cluster of the hub's own cluster, and clusterGroup the ClusterGroup that selects it by the label name=local.
	clusterName  = registration.LocalCluster
	clusterGroup = "default"
	// secretName is the kubeconfig Secret of Cluster local.
	secretName = registration.LocalSecret

	reasonFailed = "BootstrapFailed"
)

type handler struct {
	*app.Context
	secrets corecontrollers.SecretCache
	cached  map[schema.GroupVersionResource]cache.Store // Clusters and ClusterGroups
}

// New sets up the controller. It returns a function to call whenever the hub's configuration was read. A change or deletion of the
// kubeconfig Secret enqueues the ConfigMap of the configuration.
func New(c *app.Context) func(*corev1.ConfigMap) error {
	h := &handler{Context: c, secrets: c.Core.Secret().Cache(), cached: map[schema.GroupVersionResource]cache.Store{
		clusters: c.Fleet.Cluster().Informer().GetStore(), clusterGroups: c.Fleet.ClusterGroup().Informer().GetStore(),
	}}
	enqueue.OnDamage(c.Core.Secret(), c.Core.ConfigMap(), c.RepairDelay(), func(secret *corev1.Secret) []types.NamespacedName {
		if secret.Name != secretName || secret.Namespace != c.Config.Get().Bootstrap.Namespace {
			return nil
		}
		return []types.NamespacedName{{Namespace: c.SystemNamespace, Name: registration.HubConfigMap}}
	})
	return h.onSettings
}

// onSettings retries errors, except a ForeignError: an object of another owner has a name that the hub needs, and a person must act.
func (h *handler) onSettings(configMap *corev1.ConfigMap) error {
	bootstrap := h.Config.Get().Bootstrap
	if !bootstrap.Enabled() {
		return nil
	}
	ctx, cancel := h.Passes.Context()
	defer cancel()
	err := h.reconcile(ctx, bootstrap)
	if foreign := new(desiredset.ForeignError); !errors.As(err, &foreign) {
		return err
	}
	logrus.Warnf("Not registering the hub's own cluster: %s", err)
	h.Events.Event(configMap, corev1.EventTypeWarning, reasonFailed, "the hub's own cluster is not registered: "+err.Error())
	h.Core.ConfigMap().EnqueueAfter(configMap.Namespace, configMap.Name, h.RecheckDelay())
	return nil
}

func (h *handler) reconcile(ctx context.Context, b config.Bootstrap) error {
	if err := writes.EnsureNamespace(ctx, h.Kubernetes, b.Namespace); err != nil {
		return err
	}
	if err := h.ensureSecret(ctx, b.Namespace); err != nil {
		return err
	}
	if err := h.deleteMovedSecrets(ctx, b.Namespace); err != nil {
		return err
	}
	cluster, err := h.cluster(ctx, b)
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(h.RESTConfig)
	if err != nil {
		return err
	}
	if err := apply(ctx, client.Resource(clusters).Namespace(b.Namespace), cluster); err != nil {
		return err
	}
	if err := apply(ctx, client.Resource(clusterGroups).Namespace(b.Namespace), group(b)); err != nil {
		return err
	}
	if err := h.deleteMoved(ctx, client, b.Namespace); err != nil {
		return err
	}
	return ensureRepo(ctx, client, b)
}

func (h *handler) cluster(ctx context.Context, b config.Bootstrap) (*fleet.Cluster, error) {
	cluster := &fleet.Cluster{
		TypeMeta:   metav1.TypeMeta{APIVersion: fleet.SchemeGroupVersion.String(), Kind: "Cluster"},
		ObjectMeta: metav1.ObjectMeta{Namespace: b.Namespace, Name: clusterName, Labels: map[string]string{}},
		Spec:       fleet.ClusterSpec{KubeConfigSecret: secretName, AgentNamespace: b.AgentNamespace},
	}
	maps.Copy(cluster.Labels, b.ClusterLabels)
	cluster.Labels["name"] = clusterName

	// The agent of the hub's own cluster gets the tolerations of the hub, so that it can run on the same nodes.
	own, err := h.Kubernetes.AppsV1().Deployments(h.SystemNamespace).Get(ctx, registration.HubName, metav1.GetOptions{})
	if err == nil {
		cluster.Spec.AgentTolerations = own.Spec.Template.Spec.Tolerations
	} else if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("reading the hub's own Deployment: %w", err)
	}
	return cluster, nil
}

func group(b config.Bootstrap) *fleet.ClusterGroup {
	return &fleet.ClusterGroup{
		TypeMeta:   metav1.TypeMeta{APIVersion: fleet.SchemeGroupVersion.String(), Kind: "ClusterGroup"},
		ObjectMeta: metav1.ObjectMeta{Namespace: b.Namespace, Name: clusterGroup},
		Spec:       fleet.ClusterGroupSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": clusterName}}},
	}
}
