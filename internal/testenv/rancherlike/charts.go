package rancherlike

import (
	"testing"

	"github.com/muster-fleet/muster/internal/testenv"
	muster "github.com/muster-fleet/muster/pkg/hub"
)

// RancherSettings are settings of the server.
type RancherSettings struct {
	ServerURL    string
	CACerts      []byte
	AgentTLSMode string
}

// values are the values that the server sets, and an unknown one from a ConfigMap of its administrators.
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
		"members":                  testenv.MembersOnLoopback(),
		"gitops":                   map[string]any{"enabled": true},
		"proxy":                    "http://proxy.example:3128",
		"noProxy":                  "127.0.0.0/8,.svc",
		"priorityClassName":        "rancher-critical",
		"tolerations":              []any{map[string]any{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"}},
		"automaticCPTolerations":   true,
		"somethingOfRancherConfig": map[string]any{"of": "a later version"},
	}
}

// Upgrade installs or upgrades the chart fleet with the current settings, as testenv.Cluster.InstallChart does.
func (s *Server) Upgrade(t testing.TB) func(*muster.Options) {
	t.Helper()
	return s.Hub.InstallChart(t, s.values())
}
