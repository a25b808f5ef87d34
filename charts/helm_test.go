package charts_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/cli/values"
	"helm.sh/helm/v4/pkg/getter"
	"helm.sh/helm/v4/pkg/kube"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/charts"
	helmreleases "github.com/muster-fleet/muster/pkg/release"
)

// helm does on a cluster what a person, or a management server, does with Helm. Every release has the name of its chart.
// Nothing waits for pods, for no node runs them here.
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

func (h helm) install(t *testing.T, chart string, given map[string]any) {
	t.Helper()
	loaded, err := charts.Load(chart)
	require.NoError(t, err)
	install := action.NewInstall(h.configuration(t))
	install.ReleaseName, install.Namespace, install.CreateNamespace = chart, systemNamespace, true
	install.WaitStrategy = kube.HookOnlyStrategy
	_, err = install.RunWithContext(t.Context(), loaded, given)
	require.NoError(t, err)
}

// serverUpgrade is how a management server installs and upgrades: it takes what is there, and lays what it wants over the
// values of the release as a merge patch.
func (h helm) serverUpgrade(t *testing.T, chart string, wanted map[string]any) {
	t.Helper()
	installed, err := action.NewGetValues(h.configuration(t)).Run(chart)
	if err != nil { // there is no release yet
		h.takeOwnership(t, chart, wanted)
		return
	}
	h.upgrade(t, chart, merged(t, installed, wanted), func(u *action.Upgrade) { u.TakeOwnership, u.MaxHistory = true, 5 })
}

func (h helm) takeOwnership(t *testing.T, chart string, given map[string]any) {
	t.Helper()
	loaded, err := charts.Load(chart)
	require.NoError(t, err)
	install := action.NewInstall(h.configuration(t))
	install.ReleaseName, install.Namespace, install.CreateNamespace = chart, systemNamespace, true
	install.WaitStrategy, install.TakeOwnership = kube.HookOnlyStrategy, true
	_, err = install.RunWithContext(t.Context(), loaded, given)
	require.NoError(t, err)
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

// merged is a JSON merge patch: maps are merged, a null takes a key away, and everything else replaces.
func merged(t *testing.T, target, patch map[string]any) map[string]any {
	t.Helper()
	result := map[string]any{}
	for key, value := range target {
		result[key] = value
	}
	for key, value := range patch {
		inner, isMap := value.(map[string]any)
		switch {
		case value == nil:
			delete(result, key)
		case isMap:
			before, _ := result[key].(map[string]any)
			result[key] = merged(t, before, inner)
		default:
			result[key] = value
		}
	}
	return result
}

// commandLine is what the flags of a helm command line make of values: --values, --set, --set-string, --set-file.
func commandLine(t *testing.T, options values.Options) map[string]any {
	t.Helper()
	given, err := options.MergeValues(getter.Providers{})
	require.NoError(t, err)
	return given
}

func file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func text(t *testing.T, object any) string {
	t.Helper()
	data, err := json.Marshal(object)
	require.NoError(t, err)
	return string(data)
}
