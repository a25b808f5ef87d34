package rancherlike

import (
	"testing"

	muster "github.com/muster-fleet/muster/pkg/hub"
)

// Settings are settings of the server, by their names there.
type Settings struct {
	ServerURL    string
	CACerts      []byte
	AgentTLSMode string
}

// values are all that the server sets, and one it does not know of, from the ConfigMap of its administrators.
func (s *Server) values() map[string]any {
	return map[string]any{
		"apiServerURL": s.Settings.ServerURL,
		"apiServerCA":  string(s.Settings.CACerts),
		"agentTLSMode": s.Settings.AgentTLSMode,
		"global": map[string]any{"cattle": map[string]any{
			"systemDefaultRegistry": "",
			"imagePullSecrets":      nil,
		}},
		"bootstrap":                map[string]any{"enabled": false, "agentNamespace": LocalAgentNamespace},
		"gitops":                   map[string]any{"enabled": true},
		"proxy":                    "http://proxy.example:3128",
		"noProxy":                  "127.0.0.0/8,.svc",
		"priorityClassName":        "rancher-critical",
		"tolerations":              []any{map[string]any{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"}},
		"automaticCPTolerations":   true,
		"somethingOfRancherConfig": map[string]any{"of": "a later release"},
	}
}

// Upgrade installs the chart fleet with the settings as they are now, or upgrades it, all but the Deployment. It returns
// the hub as that Deployment would run it: with the rights of the chart's ServiceAccount, and its flags.
func (s *Server) Upgrade(t testing.TB) func(*muster.Options) {
	t.Helper()
	return s.Hub.InstallChart(t, s.values())
}
