// Package alerts tests the alerts and the dashboard in charts/fleet/files with Prometheus' own parser and engine.
package alerts

import (
	"encoding/json"
	"log/slog"
	"os"
	"regexp"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const files = "../../charts/fleet/files/"

var promQL = parser.NewParser(parser.Options{})

// rules returns the alerts of the file. The recording rules in their expressions are replaced by the expressions of these rules.
func rules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	content, err := os.ReadFile(files + "rules.yaml")
	require.NoError(t, err)
	groups, problems := rulefmt.Parse(content, false, model.LegacyValidation, promQL, slog.Default())
	require.Empty(t, problems)
	recorded := map[string]string{}
	var alerts []rulefmt.Rule
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			if rule.Record != "" {
				recorded[rule.Record] = "(" + rule.Expr + ")"
				continue
			}
			for name, expr := range recorded {
				rule.Expr = regexp.MustCompile(name+`\b`).ReplaceAllLiteralString(rule.Expr, expr)
			}
			alerts = append(alerts, rule)
		}
	}
	return alerts
}

const (
	count = `muster_registration_first_heartbeat_seconds_count{way="agent",approval="auto"} `
	fast  = `muster_registration_first_heartbeat_seconds_bucket{way="agent",approval="auto",le="5"} `
	fast3 = `muster_registration_first_heartbeat_seconds_bucket{way="agent",approval="auto",le="5.0"} `
)

// A tenth of the registrations in slow is fast, and 97 % of those in fine. few has too few registrations for an alert.
var (
	slow   = []string{count + "0+1x5000", fast + "0+0.1x5000"}
	slow3  = []string{count + "0+1x5000", fast3 + "0+0.1x5000"} // the format of the bound in Prometheus 3
	fine   = []string{count + "0+1x5000", fast + "0+0.97x5000"}
	few    = []string{count + "0+0.001x5000", fast + "0+0x5000"}
	passed = []string{count + "0+1x1000 1000x4000", fast + "0+0.1x1000 100x4000"} // slow, and none after 1000 minutes
	person = []string{strings.ReplaceAll(count, "auto", "manual") + "0+1x5000", strings.ReplaceAll(fast, "auto", "manual") + "0+0x5000"}
)

func TestAlerts(t *testing.T) {
	type row struct {
		name   string
		alert  string
		number int // index among the rules with this name
		series []string
		at     time.Duration
		fires  bool
	}
	rows := []row{
		{"requests wait", "MusterRegistrationWaiting", 0, []string{`muster_oldest_waiting_registration_seconds{waits_for="other"} 0+60x60`}, 30 * time.Minute, true},
		{"requests wait for a person", "MusterRegistrationWaiting", 0, []string{`muster_oldest_waiting_registration_seconds{waits_for="approval"} 0+60x60`}, 30 * time.Minute, false},
		{"a request waits for ten minutes", "MusterRegistrationWaiting", 0, []string{`muster_oldest_waiting_registration_seconds{waits_for="other"} 0+60x60`}, 10 * time.Minute, false},
		{"one in ten is offline", "MusterClustersOffline", 0, []string{`muster_clusters{condition="Connected",status="True"} 90x60`, `muster_clusters{condition="Connected",status="False"} 10x60`}, time.Hour, true},
		{"one in a hundred is offline", "MusterClustersOffline", 0, []string{`muster_clusters{condition="Connected",status="True"} 99x60`, `muster_clusters{condition="Connected",status="False"} 1x60`}, time.Hour, false},
		{"no clusters", "MusterClustersOffline", 0, []string{`muster_clusters{condition="Connected",status="True"} 0x60`, `muster_clusters{condition="Connected",status="False"} 0x60`}, time.Hour, false},
		{"the network failed for five minutes", "MusterClustersOffline", 0, []string{`muster_clusters{condition="Connected",status="False"} 0x50 9x5 0x5`, `muster_clusters{condition="Connected",status="True"} 9x50 0x5 9x5`}, 55 * time.Minute, false},
		{"a Bundle fails on three clusters", "MusterBundlesNotReady", 0, []string{`muster_clusters{condition="Ready",status="True"} 497x60`, `muster_clusters{condition="Ready",status="False"} 3x60`}, time.Hour, true},
		{"a rollout of ten minutes", "MusterBundlesNotReady", 0, []string{`muster_clusters{condition="Ready",status="False"} 0x50 9x10 0x5`}, time.Hour, false},
		{"a renewal is overdue", "MusterCredentialExpiring", 0, []string{`muster_credential_renewals_overdue 1x60`}, time.Hour, true},
		{"all are renewed", "MusterCredentialExpiring", 0, []string{`muster_credential_renewals_overdue 0x60`}, time.Hour, false},
		{"two standbys", "MusterNoLeader", 0, []string{`muster_leader{instance="a"} 0x60`, `muster_leader{instance="b"} 0x60`}, time.Hour, true},
		{"nothing is scraped", "MusterNoLeader", 0, []string{`up 0x60`}, time.Hour, true},
		{"a leader and a standby", "MusterNoLeader", 0, []string{`muster_leader{instance="a"} 0x60`, `muster_leader{instance="b"} 1x60`}, time.Hour, false},
		{"a takeover", "MusterNoLeader", 0, []string{`muster_leader{instance="a"} 1x29 0x31`, `muster_leader{instance="b"} 0x30 1x30`}, 31 * time.Minute, false},
		{"a policy is missing", "MusterPoliciesMissing", 0, []string{`muster_admission_policy_in_force{kind="a",policy="p"} 0x60`, `muster_admission_policy_in_force{kind="b",policy="q"} 1x60`}, time.Hour, true},
		{"all are in force", "MusterPoliciesMissing", 0, []string{`muster_admission_policy_in_force{kind="a",policy="p"} 1x60`}, time.Hour, false},
		{"releases are kept", "MusterReleasesKept", 0, []string{`muster_clusters{condition="ReleasesManaged",status="False"} 1x60`}, time.Hour, true},
		{"no releases are kept", "MusterReleasesKept", 0, []string{`muster_clusters{condition="ReleasesManaged",status="False"} 0x60`, `muster_clusters{condition="Ready",status="False"} 1x60`}, time.Hour, false},
		{"a panic", "MusterPanics", 0, []string{`muster_panics_total{part="pass"} 0x50 1x10`}, time.Hour, true},
		{"a panic two hours ago", "MusterPanics", 0, []string{`muster_panics_total{part="pass"} 0x30 1x150`}, 3 * time.Hour, false},
		{"many are refused", "MusterRegistrationsRefused", 0, []string{`muster_registrations_refused_total{reason="ClientIDInUse"} 0+1x60`}, time.Hour, true},
		{"two were refused", "MusterRegistrationsRefused", 0, []string{`muster_registrations_refused_total{reason="ClientIDInUse"} 0x50 2x10`}, time.Hour, false},
		{"agents registered again", "MusterRegistrationsRefused", 0, []string{`muster_registrations_refused_total{reason="Superseded"} 0+1x60`}, time.Hour, false},
	}
	for number, at := range []time.Duration{2 * time.Hour, 7 * time.Hour, 26 * time.Hour, 76 * time.Hour} {
		rows = append(rows,
			row{"registrations are slow", "MusterRegistrationsSlow", number, slow, at, true},
			row{"registrations are slow, bounds as of Prometheus 3", "MusterRegistrationsSlow", number, slow3, at, true},
			row{"registrations are within the objective", "MusterRegistrationsSlow", number, fine, at, false},
			row{"too few to judge", "MusterRegistrationsSlow", number, few, at, false},
			row{"a person was slow", "MusterRegistrationsSlow", number, person, at, false},
		)
	}
	rows = append(rows, row{"they were slow, and are not any more", "MusterRegistrationsSlow", 2, passed, 20 * time.Hour, false})

	alerts, seen := map[string][]rulefmt.Rule{}, map[string]map[bool]bool{}
	for _, rule := range rules(t) {
		alerts[rule.Alert] = append(alerts[rule.Alert], rule)
	}
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, 50_000_000)
	for _, row := range rows {
		t.Run(row.alert+"/"+row.name, func(t *testing.T) {
			require.Greater(t, len(alerts[row.alert]), row.number)
			rule := alerts[row.alert][row.number]
			key := row.alert + rule.Labels["severity"] + rule.Expr
			if seen[key] == nil {
				seen[key] = map[bool]bool{}
			}
			seen[key][row.fires] = true
			loaded := promqltest.LoadedStorage(t, "load 1m\n  "+strings.Join(row.series, "\n  "))
			assert.Equal(t, row.fires, fires(t, engine, loaded, rule, row.at))
		})
	}
	for name, all := range alerts {
		for _, rule := range all {
			assert.Len(t, seen[name+rule.Labels["severity"]+rule.Expr], 2, "%s needs a case in which it fires, and one in which it does not: %s", name, rule.Expr)
		}
	}
}

// fires returns whether the expression of the alert had a result with the same labels for the duration of the alert.
func fires(t *testing.T, engine *promql.Engine, queryable storage.Queryable, rule rulefmt.Rule, at time.Duration) bool {
	t.Helper()
	end := time.Unix(0, 0).Add(at)
	start := end.Add(-time.Duration(rule.For))
	query, err := engine.NewRangeQuery(t.Context(), queryable, nil, rule.Expr, start, end, time.Minute)
	require.NoError(t, err)
	defer query.Close()
	result := query.Exec(t.Context())
	require.NoError(t, result.Err)
	matrix, err := result.Matrix()
	require.NoError(t, err)
	steps := int(time.Duration(rule.For)/time.Minute) + 1
	for _, series := range matrix {
		if len(series.Floats) == steps {
			return true
		}
	}
	return false
}

// Each alert has a runbook.
func TestRunbooks(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	for _, rule := range rules(t) {
		heading := "\n### " + rule.Alert + "\n"
		at := strings.Index(string(page), heading)
		if !assert.GreaterOrEqual(t, at, 0, "docs/operations.md has no section %s", rule.Alert) {
			continue
		}
		section, _, _ := strings.Cut(string(page)[at+len(heading):], "\n##")
		for _, part := range []string{"Meaning", "Impact", "Diagnosis", "Mitigation"} {
			assert.Contains(t, section, "**"+part+"**", rule.Alert)
		}
		assert.Equal(t, "https://github.com/muster-fleet/muster/blob/main/docs/operations.md#"+strings.ToLower(rule.Alert), rule.Annotations["runbook_url"])
		assert.Contains(t, []string{"critical", "warning"}, rule.Labels["severity"])
		assert.NotEmpty(t, rule.Annotations["summary"])
		assert.Contains(t, rule.Annotations["description"], "Run: ", "the description names the command to run")
	}
}

type panel struct {
	Type, Title, Description string
	Datasource               struct{ UID string }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []struct{ Expr, LegendFormat string }
}

// The test applies the rules of Grafana's dashboard linter.
func TestDashboard(t *testing.T) {
	content, err := os.ReadFile(files + "dashboard.json")
	require.NoError(t, err)
	var dashboard struct {
		Editable   bool
		Panels     []panel
		Templating struct {
			List []struct {
				Name, Type string
				Refresh    int
			}
		}
	}
	require.NoError(t, json.Unmarshal(content, &dashboard))
	assert.False(t, dashboard.Editable)
	var variables []string
	for _, variable := range dashboard.Templating.List {
		variables = append(variables, variable.Name)
		if variable.Type == "query" {
			assert.Equal(t, 2, variable.Refresh, "%s is loaded again with the time range", variable.Name)
		}
	}
	sort.Strings(variables)
	assert.Equal(t, []string{"datasource", "instance", "job"}, variables)

	var rows []string
	for _, p := range dashboard.Panels {
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		assert.NotEmpty(t, p.Description, p.Title)
		assert.NotEmpty(t, p.FieldConfig.Defaults.Unit, p.Title)
		assert.Equal(t, "${datasource}", p.Datasource.UID, p.Title)
		assert.NotEmpty(t, p.Targets, p.Title)
		for _, target := range p.Targets {
			expr := strings.NewReplacer("$__rate_interval", "5m", "$job", "j", "$instance", "i").Replace(target.Expr)
			parsed, err := promQL.ParseExpr(expr)
			require.NoError(t, err, "%s: %s", p.Title, target.Expr)
			parser.Inspect(parsed, func(node parser.Node, path []parser.Node) error {
				selector, ok := node.(*parser.VectorSelector)
				if !ok {
					return nil
				}
				matchers := selector.String()
				assert.Contains(t, matchers, `job=~"j"`, target.Expr)
				assert.Contains(t, matchers, `instance=~"i"`, target.Expr)
				ranged := false
				if len(path) > 0 {
					_, ranged = path[len(path)-1].(*parser.MatrixSelector)
				}
				isCounter := strings.HasSuffix(selector.Name, "_total") || strings.HasSuffix(selector.Name, "_bucket") || strings.HasSuffix(selector.Name, "_count")
				assert.Equal(t, isCounter, ranged, "counters, and no others, stand in rate or increase: %s", target.Expr)
				return nil
			})
			assert.Equal(t, strings.Count(target.Expr, "["), strings.Count(target.Expr, "[$__rate_interval]"), target.Expr)
		}
	}
	assert.Equal(t, []string{"Fleet by state", "Registration funnel", "Heartbeats", "The hub"}, rows)
}
