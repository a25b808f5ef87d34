package charts_test

import (
	"encoding/json"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/charts"
	helmreleases "github.com/muster-fleet/muster/pkg/release"
)

// helm runs Helm's actions like a person or a management server. Every release has the name of its chart. No action waits for pods, because
// there is no node to run them.
type helm struct {
	config *rest.Config
}

func helmOn(config *rest.Config) helm {
	quiet := rest.CopyConfig(config)
	quiet.WarningHandler = rest.NoWarnings{}
	return helm{quiet}
}

func (h helm) configuration(t *testing.T) *action.Configuration {
	t.Helper()
	configuration, err := helmreleases.Configuration(h.config, systemNamespace)
	require.NoError(t, err)
	return configuration
}

func (h helm) install(t *testing.T, chart string, given map[string]any, change ...func(*action.Install)) {
	t.Helper()
	loaded, err := charts.Load(chart)
	require.NoError(t, err)
	install := action.NewInstall(h.configuration(t))
	install.ReleaseName, install.Namespace, install.CreateNamespace = chart, systemNamespace, true
	install.WaitStrategy = kube.HookOnlyStrategy
	for _, f := range change {
		f(install)
	}
	_, err = install.RunWithContext(t.Context(), loaded, given)
	require.NoError(t, err)
}

func takeOwnership(i *action.Install) { i.TakeOwnership = true }

// serverUpgrade installs or upgrades like a management server: it takes over existing objects, and applies its values as a merge patch to the
// values of the release.
func (h helm) serverUpgrade(t *testing.T, chart string, wanted map[string]any) {
	t.Helper()
	installed, err := action.NewGetValues(h.configuration(t)).Run(chart)
	if err != nil { // there is no release yet
		h.install(t, chart, wanted, takeOwnership)
		return
	}
	h.upgrade(t, chart, merged(t, installed, wanted), func(u *action.Upgrade) { u.TakeOwnership, u.MaxHistory = true, 5 })
}

func (h helm) upgrade(t *testing.T, chart string, given map[string]any, change ...func(*action.Upgrade)) {
	t.Helper()
	loaded, err := charts.Load(chart)
	require.NoError(t, err)
	upgrade := action.NewUpgrade(h.configuration(t))
	upgrade.Namespace, upgrade.ResetValues, upgrade.WaitStrategy = systemNamespace, true, kube.HookOnlyStrategy
	upgrade.ServerSideApply = "auto"
	for _, f := range change {
		f(upgrade)
	}
	_, err = upgrade.RunWithContext(t.Context(), chart, loaded, given)
	require.NoError(t, err)
}

func (h helm) rollback(t *testing.T, chart string, revision int) {
	t.Helper()
	rollback := action.NewRollback(h.configuration(t))
	rollback.Version, rollback.WaitStrategy, rollback.ServerSideApply = revision, kube.HookOnlyStrategy, "auto"
	require.NoError(t, rollback.Run(chart))
}

func (h helm) uninstall(t *testing.T, chart string) {
	t.Helper()
	uninstall := action.NewUninstall(h.configuration(t))
	uninstall.WaitStrategy, uninstall.Timeout = kube.HookOnlyStrategy, time.Minute
	uninstall.DeletionPropagation = "background"
	_, err := uninstall.Run(chart)
	require.NoError(t, err)
}

// merged applies a JSON merge patch.
func merged(t *testing.T, target, patch map[string]any) (result map[string]any) {
	t.Helper()
	if patch == nil {
		return target
	}
	if target == nil {
		target = map[string]any{}
	}
	data, err := jsonpatch.MergePatch([]byte(text(t, target)), []byte(text(t, patch)))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &result))
	return result
}

func text(t *testing.T, object any) string {
	t.Helper()
	data, err := json.Marshal(object)
	require.NoError(t, err)
	return string(data)
}
