// Package settings keeps the hub's configuration in force what its ConfigMap says.
package settings

import (
	"context"
	"fmt"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/guard"
	"github.com/muster-fleet/muster/pkg/policy"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Reasons of the events on the ConfigMap.
const (
	reasonInvalid      = "ConfigInvalid"
	reasonOtherRelease = "ConfigOfOtherRelease"
)

// Load reads the configuration once, before anything starts. There is none before the chart is installed; then the
// defaults are in force.
func Load(ctx context.Context, c *app.Context) (*Watcher, error) {
	configMap, err := c.Kubernetes.CoreV1().ConfigMaps(c.SystemNamespace).Get(ctx, registration.HubConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return &Watcher{Context: c}, nil
	} else if err != nil {
		return nil, fmt.Errorf("reading the hub's configuration: %w", err)
	}
	w := &Watcher{Context: c, started: true, release: configMap.Annotations[fleet.VersionAnnotation]}
	// A document that is wrong is reported when the ConfigMap is watched; until it is corrected, the defaults are in force.
	hub, _, err := parse(configMap.Data[registration.ConfigKey])
	if err != nil {
		hub = careful(configMap.Data[registration.ConfigKey])
	}
	w.Config.Set(hub)
	return w, nil
}

// careful are the defaults, but for a document that may have said who is to be let in: nobody is then without a person's word.
func careful(document string) config.Hub {
	var says struct {
		Registration any `json:"registration"`
	}
	if err := yaml.Unmarshal([]byte(document), &says); err == nil && says.Registration == nil {
		return config.Hub{}
	}
	return config.Hub{Registration: config.Registration{Approval: fleet.ApprovalManual}}
}

// parse compiles the rules of the policy too, which the agent, for which config is as well, has no use for.
func parse(document string) (config.Hub, []string, error) {
	hub, warnings, err := config.ParseHub(document)
	if err != nil {
		return hub, nil, err
	}
	if _, err := policy.Compile(hub.Registration.Policy); err != nil {
		return config.Hub{}, nil, fmt.Errorf("the hub's configuration: %w", err)
	}
	return hub, warnings, nil
}

// Watcher puts each change of the ConfigMap into force.
type Watcher struct {
	*app.Context
	started bool   // there was a ConfigMap at the start
	release string // its release then
}

const name = "hub-settings"

// Next is called with the ConfigMap after each look at it, when what it says is in force.
type Next func(configMap *corev1.ConfigMap) error

// Register watches the ConfigMap. next, which may be nil, follows in the same handler: lasso takes handlers out of its list
// while others of the same kind may still be running, so with two of them a hub that is stopping could skip or repeat one.
func (w *Watcher) Register(ctx context.Context, next Next) {
	handle := func(_ string, configMap *corev1.ConfigMap) (*corev1.ConfigMap, error) {
		if configMap == nil || configMap.Namespace != w.SystemNamespace || configMap.Name != registration.HubConfigMap {
			return configMap, nil
		}
		w.take(configMap)
		if next == nil {
			return configMap, nil
		}
		return configMap, next(configMap)
	}
	w.Core.ConfigMap().OnChange(ctx, name, guard.Handler(w.Passes, name, handle))
}

// take puts the ConfigMap into force. When it is wrong, as when it is deleted, the configuration before it stays: a mistake
// while editing must not send every agent somewhere else.
func (w *Watcher) take(configMap *corev1.ConfigMap) {
	release := configMap.Annotations[fleet.VersionAnnotation]
	if !w.started {
		w.started, w.release = true, release
	}
	if release != w.release {
		w.refuse(configMap, reasonOtherRelease, fmt.Sprintf(
			"the configuration is of release %q and this hub started with one of release %q; the hub of that release will apply it", release, w.release))
		return
	}
	hub, warnings, err := parse(configMap.Data[registration.ConfigKey])
	if err != nil {
		w.refuse(configMap, reasonInvalid, err.Error()+"; the configuration before it stays in force")
		return
	}
	for _, warning := range warnings {
		w.refuse(configMap, reasonInvalid, warning)
	}
	if w.Config.Set(hub) {
		logrus.Infof("The configuration in ConfigMap %s/%s is in force", configMap.Namespace, configMap.Name)
	}
}

func (w *Watcher) refuse(configMap *corev1.ConfigMap, reason, message string) {
	logrus.Warnf("ConfigMap %s/%s: %s", configMap.Namespace, configMap.Name, message)
	w.Events.Event(configMap, corev1.EventTypeWarning, reason, message)
}
