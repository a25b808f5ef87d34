// Package bootstrap registers the hub's own cluster: it makes the Cluster "local" and a kubeconfig for it. From there on
// it is a manager-initiated Cluster like any other.
package bootstrap

import (
	"context"
	"errors"
	"fmt"

	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	setID = "fleet-bootstrap"
	// clusterName is the hub's own cluster, and clusterGroup the group it is in; the label name=local selects it.
	clusterName  = registration.LocalCluster
	clusterGroup = "default"
	// secretName is the kubeconfig Secret of Cluster local.
	secretName = registration.LocalSecret

	reasonFailed = "BootstrapFailed"
)

type handler struct {
	*app.Context
	sets    desiredset.Sets
	secrets corecontrollers.SecretCache
}

// New sets up the controller. What it returns is to be called when the hub's configuration was read; a kubeconfig Secret of
// its making that is changed or deleted brings the ConfigMap of the configuration back.
func New(c *app.Context) func(*corev1.ConfigMap) error {
	h := &handler{
		Context: c,
		sets:    desiredset.New(c.Apply, c.Kubernetes, c.Fleet.Cluster(), c.Fleet.ClusterGroup()),
		secrets: c.Core.Secret().Cache(),
	}
	configMaps := c.Core.ConfigMap()
	enqueue.OnDamage(c.Core.Secret(), configMaps, func(secret *corev1.Secret) []types.NamespacedName {
		if secret.Name != secretName || secret.Namespace != c.Config.Get().Bootstrap.Namespace {
			return nil
		}
		return []types.NamespacedName{{Namespace: c.SystemNamespace, Name: registration.HubConfigMap}}
	})
	return h.onSettings
}

func (h *handler) onSettings(configMap *corev1.ConfigMap) error {
	bootstrap := h.Config.Get().Bootstrap
	if !bootstrap.Enabled() {
		return nil
	}
	ctx, cancel := h.Passes.Context()
	defer cancel()
	return h.report(configMap, h.reconcile(ctx, bootstrap))
}

// report retries what may pass, and tells a person about what will not.
func (h *handler) report(configMap *corev1.ConfigMap, err error) error {
	var foreign *desiredset.ForeignError
	switch {
	case errors.As(err, &foreign):
		logrus.Warnf("Not registering the hub's own cluster: %s", err)
		h.Events.Event(configMap, corev1.EventTypeWarning, reasonFailed, "the hub's own cluster is not registered: "+err.Error())
		h.Core.ConfigMap().EnqueueAfter(configMap.Namespace, configMap.Name, h.RecheckDelay())
		return nil
	}
	return err
}

func (h *handler) reconcile(ctx context.Context, b config.Bootstrap) error {
	if err := writes.EnsureNamespace(ctx, h.Kubernetes, b.Namespace); err != nil {
		return err
	}
	if err := h.ensureSecret(ctx, b.Namespace); err != nil {
		return err
	}
	if err := h.removeMoved(ctx, b.Namespace); err != nil {
		return err
	}
	cluster, err := h.cluster(ctx, b)
	if err != nil {
		return err
	}
	if err := h.sets.Ensure(ctx, setID, nil, cluster, group(b)); err != nil {
		return err
	}
	return h.ensureRepo(ctx, b)
}

func (h *handler) cluster(ctx context.Context, b config.Bootstrap) (runtime.Object, error) {
	tolerations, err := h.ownTolerations(ctx)
	if err != nil {
		return nil, err
	}
	labels := map[string]string{}
	for key, value := range b.ClusterLabels {
		labels[key] = value
	}
	labels["name"] = clusterName
	return &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: b.Namespace, Name: clusterName, Labels: labels},
		Spec: fleet.ClusterSpec{
			KubeConfigSecret: secretName,
			AgentNamespace:   b.AgentNamespace,
			AgentTolerations: tolerations,
		},
	}, nil
}

// ownTolerations are those of the hub: where it may run, the local agent may.
func (h *handler) ownTolerations(ctx context.Context) ([]corev1.Toleration, error) {
	own, err := h.Kubernetes.AppsV1().Deployments(h.SystemNamespace).Get(ctx, "fleet-controller", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("reading the hub's own Deployment: %w", err)
	}
	return own.Spec.Template.Spec.Tolerations, nil
}

func group(b config.Bootstrap) runtime.Object {
	return &fleet.ClusterGroup{
		ObjectMeta: metav1.ObjectMeta{Namespace: b.Namespace, Name: clusterGroup},
		Spec: fleet.ClusterGroupSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": clusterName}},
		},
	}
}
