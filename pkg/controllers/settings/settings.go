// Package settings loads the hub's configuration from its ConfigMap and applies each change of it.
package settings

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/policy"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Reasons of the events on the ConfigMap.
const (
	reasonInvalid      = "ConfigInvalid"
	reasonOtherVersion = "ConfigOfOtherRelease"
)

// helmReleaseAnnotation is set by Helm on the objects of a release.
const helmReleaseAnnotation = "meta.helm.sh/release-name"

// Load reads the configuration before the controllers start. Without a ConfigMap, as before the installation of the chart, the defaults
// apply. If it does not exist any more (a chart installed this hub, or an agent was installed with it, see isConfigured), or if its document is invalid,
// the hub starts with fallback: it changes no agent, and a setting whose value is not known gets its default, or the value that permits least
// if the default could permit what the document forbids. It changes no agent either if the ConfigMap is of another version of the chart: a hub that
// is restarted during an upgrade must not install the agents of the new version, which a rollback would not undo.
func Load(ctx context.Context, c *app.Context) (*Watcher, error) {
	w := &Watcher{Context: c, version: c.ConfigVersion}
	configMap, err := c.Kubernetes.CoreV1().ConfigMaps(c.SystemNamespace).Get(ctx, registration.HubConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		clusters, err := c.Fleet.Cluster().Cache().List(metav1.NamespaceAll, labels.Everything())
		if err != nil {
			return nil, err
		}
		if c.ConfigVersion != "" || slices.ContainsFunc(clusters, isConfigured) {
			problem := fmt.Sprintf("the hub changes no agent until ConfigMap %s/%s exists again", c.SystemNamespace, registration.HubConfigMap)
			logrus.Warn("Starting without a configuration: " + problem)
			c.Config.SetFallback(fallback(""), problem)
		} else {
			logrus.Warnf("There is no ConfigMap %s/%s: the defaults apply", c.SystemNamespace, registration.HubConfigMap)
		}
		return w, nil
	} else if err != nil {
		return nil, fmt.Errorf("reading the hub's configuration: %w", err)
	}
	document := configMap.Data[registration.ConfigKey]
	hub, _, err := parse(config.Hub{}, document)
	if err != nil { // it is reported when the ConfigMap is watched
		w.Config.SetFallback(fallback(document), fmt.Sprintf("the hub changes no agent until ConfigMap %s/%s is corrected: %s",
			configMap.Namespace, configMap.Name, err))
		return w, nil
	}
	if problem := w.otherVersion(configMap); problem != "" {
		w.Config.SetFallback(hub, "the hub changes no agent: "+problem)
		return w, nil
	}
	w.Config.Set(hub)
	return w, nil
}

// isConfigured reports whether the agent of a Cluster got the address of the hub from the ConfigMap: then the ConfigMap existed.
func isConfigured(cluster *fleet.Cluster) bool {
	status := cluster.Status
	return status.APIServerURL != "" && status.Import != nil && !status.Import.APIServerURLFromSecret
}

// fallback returns the configuration of a hub that starts with an invalid document. Each key that is valid applies. The others have their
// defaults, except those whose defaults permit something that the document may forbid. Nothing is known of an empty document, or of one that is
// not a map.
func fallback(document string) config.Hub {
	var given map[string]any
	if err := yaml.Unmarshal([]byte(document), &given); err != nil || given == nil {
		var hub config.Hub
		for _, protect := range protections {
			protect(&hub)
		}
		return hub
	}
	valid, invalid := map[string]any{}, []string(nil)
	for key, value := range given {
		if _, err := parseKeys(map[string]any{key: value}); err != nil {
			invalid = append(invalid, key)
		} else {
			valid[key] = value
		}
	}
	hub, err := parseKeys(valid)
	if err != nil { // two keys differ only in case
		return fallback("")
	}
	for _, key := range invalid {
		if protect := protections[strings.ToLower(key)]; protect != nil { // encoding/json ignores the case of keys
			protect(&hub)
		}
	}
	return hub
}

func parseKeys(keys map[string]any) (config.Hub, error) {
	document, err := json.Marshal(keys)
	if err != nil {
		return config.Hub{}, err
	}
	hub, _, err := parse(config.Hub{}, string(document))
	return hub, err
}

// protections set the keys whose defaults permit something, by their names in lower case, to the values that permit least.
var protections = map[string]func(*config.Hub){
	"registration": func(hub *config.Hub) {
		hub.Registration = config.Registration{
			// The lifetime of credentials for agents whose requests were granted before and that have not fetched their credential yet.
			CredentialLifetime: metav1.Duration{Duration: config.MinCredentialLifetime},
			Unknown:            true,
		}
	},
	"members": func(hub *config.Hub) { hub.Members = config.Members{Unknown: true} },
	// 1 is the smallest limit, because 0 means the default: stored objects stay, and the hub stores nothing beyond the limit.
	"bundles":                         func(hub *config.Hub) { hub.Bundles = config.Bundles{WorkspaceLimitMiB: 1} },
	"agenttlsmode":                    func(hub *config.Hub) { hub.AgentTLSMode = config.TLSModeStrict },
	"ignoreclusterregistrationlabels": func(hub *config.Hub) { hub.IgnoreClusterRegistrationLabels = true },
}

// Watcher applies each change of the ConfigMap.
type Watcher struct {
	*app.Context
	version string // of the chart: app.Context.ConfigVersion, otherwise that of the first ConfigMap with annotation fleet.VersionAnnotation
}

const name = "hub-settings"

// Next is called with the ConfigMap after each reconcile, also if its configuration was not applied.
type Next func(configMap *corev1.ConfigMap) error

// Register watches the ConfigMap. The same handler then calls next, which may be nil: lasso removes handlers from its list while others of
// the same kind may still run, so a hub that is stopping could skip or repeat one of two handlers.
func (w *Watcher) Register(ctx context.Context, next Next) {
	handle := func(key string, configMap *corev1.ConfigMap) (*corev1.ConfigMap, error) {
		if own := w.SystemNamespace + "/" + registration.HubConfigMap; configMap == nil && key == own {
			logrus.Warnf("ConfigMap %s was deleted: the previous configuration stays in effect until the hub is restarted; create it again, for example with helm upgrade", own)
		}
		if configMap == nil || configMap.Namespace != w.SystemNamespace || configMap.Name != registration.HubConfigMap {
			return configMap, nil
		}
		w.apply(configMap)
		if next == nil {
			return configMap, nil
		}
		return configMap, next(configMap)
	}
	w.Core.ConfigMap().OnChange(ctx, name, app.Handler(w.Passes, name, handle))
}

// apply applies the ConfigMap. An invalid document changes nothing, nor does the deletion of the ConfigMap: a mistake while editing must
// not direct every agent to another address.
func (w *Watcher) apply(configMap *corev1.ConfigMap) {
	if problem := w.otherVersion(configMap); problem != "" {
		w.warn(configMap, reasonOtherVersion, problem)
		return
	}
	hub, warnings, err := parse(w.Config.Get(), configMap.Data[registration.ConfigKey])
	if err != nil {
		effect := "the previous configuration stays in effect"
		if w.Config.Problem() != "" {
			effect = "the hub changes no agent until it is corrected"
		}
		w.warn(configMap, reasonInvalid, err.Error()+"; "+effect)
		return
	}
	for _, warning := range warnings {
		w.warn(configMap, reasonInvalid, warning)
	}
	if w.Config.Set(hub) {
		logrus.Infof("Applied the configuration in ConfigMap %s/%s", configMap.Namespace, configMap.Name)
	}
}

// otherVersion returns why the hub does not apply a ConfigMap of another version of the chart, or "". A ConfigMap without a version, which a
// person has made, applies to each hub. That of a release of another chart, such as Fleet's after a rollback, does not.
func (w *Watcher) otherVersion(configMap *corev1.ConfigMap) string {
	version := configMap.Annotations[fleet.VersionAnnotation]
	w.version = cmp.Or(w.version, version)
	if version == w.version || version == "" && configMap.Annotations[helmReleaseAnnotation] == "" {
		return ""
	}
	return fmt.Sprintf("ConfigMap %s/%s has the configuration of version %[3]q, and this hub is of version %[4]q: a hub of version %[3]q will apply it",
		configMap.Namespace, configMap.Name, version, w.version)
}

// parse reads a document that replaces a configuration. It also compiles the rules of the policy. Package config does not, because agents use it too.
func parse(previous config.Hub, document string) (config.Hub, []string, error) {
	hub, warnings, err := previous.ParseChange(document)
	if err != nil {
		return hub, nil, err
	}
	if _, err := policy.Compile(hub.Registration.Policy); err != nil {
		return config.Hub{}, nil, fmt.Errorf("the hub's configuration: %w", err)
	}
	return hub, warnings, nil
}

func (w *Watcher) warn(configMap *corev1.ConfigMap, reason, message string) {
	logrus.Warnf("ConfigMap %s/%s: %s", configMap.Namespace, configMap.Name, message)
	w.Events.Event(configMap, corev1.EventTypeWarning, reason, message)
}
