package charts_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/charts"
)

// wellFormed are values that people and management servers set.
var wellFormed = map[string][]string{
	charts.CRD: {
		"{}", "unknown: [1, {a: b}]", "global: null",
	},
	charts.Hub: {
		"{}", "unknown: {nested: [1]}", "metrics: {enabled: false, serviceMonitor: {enabled: true}}",
		"global: {cattle: {imagePullSecrets: null, systemDefaultRegistry: null, url: x}}", "global: {cattle: {imagePullSecrets: [{name: a}]}}",
		"apiServerCA: ''", "agentTLSMode: strict", "agentTLSMode: null", "agentCheckinInterval: 0", "agentMissedCheckins: 2",
		"image: {tag: 1.5}", "image: {imagePullPolicy: null}", "image: {imagePullPolicy: ''}",
		"resources: {limits: {memory: 1Gi}}", "resources: {fleetController: {requests: {cpu: 1}}, gitjob: {limits: {cpu: 2}}}",
		"tolerations: null", "affinity: {nodeAffinity: {}}", "topologySpreadConstraints: []",
		"extraLabels: {a: b, num: 1, flag: true, gitjob: {c: d}}", "extraAnnotations: {fleetController: {a: b}}", "extraLabels: null",
		"metrics: {prometheusRule: {disabled: [A], labels: null}, dashboard: null}", "probes: {enabled: false}", "probes: {liveness: null}", "probes: {readiness: {initialDelaySeconds: 0}}",
		"controller: {replicas: 0}", "controller: {podDisruptionBudget: {maxUnavailable: 50%}}",
		"controller: {podDisruptionBudget: {minAvailable: 1, maxUnavailable: null}}", "controller: {podDisruptionBudget: null}",
		"agent: {reconciler: {workers: {drift: 5}}}", "agent: {reconciler: {workers: {drift: '', bundledeployment: '10'}}}", "agent: {probes: {enabled: false}}", "agent: {reconciler: null}",
		"shards: [{id: a}]", "gitops: {enabled: false}", "proxyCACert: anything", "disableBundles: true",
	},
	charts.Agent: {
		"{}", "unknown: {nested: [1]}", "labels: {num: 1, flag: false, none: null, text: x}", "labels: null", "fleetAgent: null",
		"fleetAgent: {affinity: {}, tolerations: [], nodeSelector: null}", "fleetAgent: {extraLabels: {a: 1}, extraAnnotations: null}",
		"fleetAgent: {topologySpreadConstraints: null}", "fleetAgent: {probes: {enabled: false, liveness: {timeoutSeconds: 9}}}",
		"agent: {podDisruptionBudget: {maxUnavailable: 10%, minAvailable: null}}", "internal: {somethingNew: 1}", "kubectl: {tag: v1}", "image: {tag: 7}",
	},
}

func TestSchemaAcceptsValues(t *testing.T) {
	for chart, documents := range wellFormed {
		for _, document := range documents {
			_, err := charts.Render(chart, release(chart), withNeeds(t, chart, document))
			assert.NoError(t, err, "%s: %s", chart, document)
		}
	}
}

type refusal struct{ document, names string }

// malformed are values of a wrong type or range, with the path that the error must name.
var malformed = map[string][]refusal{
	charts.Hub: {
		{"image: null", "'image'"},
		{"image: {repository: 7}", "/image/repository"},
		{"image: {tag: [a]}", "/image/tag"},
		{"agentImage: {imagePullPolicy: Often}", "/agentImage/imagePullPolicy"},
		{"apiServerURL: [a]", "/apiServerURL"},
		{"metrics: {serviceMonitor: {interval: often}}", "/metrics/serviceMonitor/interval"},
		{"metrics: {prometheusRule: {disabled: A}}", "/metrics/prometheusRule/disabled"},
		{"metrics: {dashboard: {labels: {a: 1}}}", "/metrics/dashboard/labels/a"},
		{"apiServerCA: {a: b}", "/apiServerCA"},
		{"agentTLSMode: true", "/agentTLSMode"},
		{"bootstrap: false", "/bootstrap"},
		{"image: {repository: ''}", "/image/repository"},
		{"controller: {registrationTokenTTL: {required: 'no'}}", "/controller/registrationTokenTTL/required"},
		{"agentCheckinInterval: {a: b}", "/agentCheckinInterval"},
		{"agentMissedCheckins: 1", "/agentMissedCheckins"},
		{"agentMissedCheckins: '3'", "/agentMissedCheckins"},
		{"ignoreClusterRegistrationLabels: 'no'", "/ignoreClusterRegistrationLabels"},
		{"registration: {approval: Maybe}", "/registration/approval"},
		{"registration: {approve: Manual}", "/registration"},
		{"registration: {credentialLifetime: 1d}", "/registration/credentialLifetime"},
		{"registration: {policy: [{name: a, expression: 'true', action: Explode}]}", "/registration/policy/0/action"},
		{"registration: {policy: [{name: a, action: Deny}]}", "/registration/policy/0"},
		{"clusternet: {bootstrapTokens: [{id: abcdef.0123456789abcdef, namespace: a, token: b}]}", "/clusternet/bootstrapTokens/0/id"},
		{"clusternet: {bootstrapTokens: [{id: abcdef, token: b}]}", "/clusternet/bootstrapTokens/0"},
		{"clusternet: {reentry: [a]}", "/clusternet"},
		{"proxy: 8080", "/proxy"},
		{"bootstrap: {enabled: 'false'}", "/bootstrap/enabled"},
		{"bootstrap: {clusterLabels: [a]}", "/bootstrap/clusterLabels"},
		{"global: cattle", "/global"},
		{"global: {cattle: {imagePullSecrets: [{secret: a}]}}", "/global/cattle/imagePullSecrets/0"},
		{"nodeSelector: linux", "/nodeSelector"},
		{"tolerations: {key: a}", "/tolerations"},
		{"tolerations: [all]", "/tolerations/0"},
		{"affinity: []", "/affinity"},
		{"topologySpreadConstraints: {}", "/topologySpreadConstraints"},
		{"resources: {limits: 1Gi}", "/resources/limits"},
		{"priorityClassName: {a: b}", "/priorityClassName"},
		{"extraLabels: [a]", "/extraLabels"},
		{"extraLabels: {a: [b]}", "/extraLabels/a"},
		{"extraAnnotations: {fleetController: {a: {b: c}}}", "/extraAnnotations/fleetController/a"},
		{"metrics: true", "/metrics"},
		{"metrics: {enabled: 'yes'}", "/metrics/enabled"},
		{"probes: {liveness: {periodSeconds: 0}}", "/probes/liveness/periodSeconds"},
		{"probes: {readiness: {failureThreshold: three}}", "/probes/readiness/failureThreshold"},
		{"debug: 1", "/debug"},
		{"logFormat: xml", "/logFormat"},
		{"debugLevel: -1", "/debugLevel"},
		{"leaderElection: {leaseDuration: 30}", "/leaderElection/leaseDuration"},
		{"disableBundles: 'true'", "/disableBundles"},
		{"controller: {replicas: two}", "/controller/replicas"},
		{"controller: {replicas: 1.5}", "/controller/replicas"},
		{"controller: {podDisruptionBudget: {maxUnavailable: half}}", "/controller/podDisruptionBudget/maxUnavailable"},
		{"controller: {podDisruptionBudget: {minAvailable: -1}}", "/controller/podDisruptionBudget/minAvailable"},
		{"agent: {probes: false}", "/agent/probes"},
		{"agent: {replicas: -1}", "/agent/replicas"},
		{"agent: {reconciler: {workers: {drift: '0'}}}", "/agent/reconciler/workers/drift"},
		{"agent: {reconciler: {workers: {bundledeployment: 0}}}", "/agent/reconciler/workers/bundledeployment"},
		{"extraEnv: {A: b}", "/extraEnv"},
		{"extraEnv: [{value: b}]", "/extraEnv/0"},
		{"extraVolumes: [{emptyDir: {}}]", "/extraVolumes/0"},
		{"extraVolumeMounts: [{name: a}]", "/extraVolumeMounts/0"},
	},
	charts.Agent: {
		{"apiServerURL: 7", "/apiServerURL"},
		{"token: {a: b}", "/token"},
		{"tokenName: 7", "/tokenName"},
		{"labels: {a: [b]}", "/labels/a"},
		{"labels: [a]", "/labels"},
		{"agent: {replicas: -1}", "/agent/replicas"},
		{"global: {cattle: {imagePullSecrets: [pull]}}", "/global/cattle/imagePullSecrets/0"},
		{"clientID: 7", "/clientID"},
		{"clusterNamespace: [a]", "/clusterNamespace"},
		{"internal: {managed: 'no'}", "/internal/managed"},
		{"fleetAgent: {hostNetwork: 'yes'}", "/fleetAgent/hostNetwork"},
		{"fleetAgent: {tolerations: {a: b}}", "/fleetAgent/tolerations"},
		{"fleetAgent: {extraLabels: {a: {b: c}}}", "/fleetAgent/extraLabels/a"},
		{"fleetAgent: {extraVolumes: [{emptyDir: {}}]}", "/fleetAgent/extraVolumes/0"},
		{"fleetAgent: {extraVolumeMounts: [{name: a}]}", "/fleetAgent/extraVolumeMounts/0"},
		{"fleetAgent: {probes: {liveness: []}}", "/fleetAgent/probes/liveness"},
		{"fleetAgent: {topologySpreadConstraints: hostname}", "/fleetAgent/topologySpreadConstraints"},
		{"agent: {podDisruptionBudget: {maxUnavailable: most}}", "/agent/podDisruptionBudget/maxUnavailable"},
		{"agent: []", "/agent"},
		{"agent: {reconciler: {workers: {drift: '00'}}}", "/agent/reconciler/workers/drift"},
		{"agent: {reconciler: {workers: {bundledeployment: 0}}}", "/agent/reconciler/workers/bundledeployment"},
		{"global: {cattle: []}", "/global/cattle"},
		{"disableSecurityContext: 1", "/disableSecurityContext"},
	},
}

func TestSchemaNamesTheWrongValue(t *testing.T) {
	for chart, refusals := range malformed {
		for _, r := range refusals {
			_, err := charts.Render(chart, release(chart), withNeeds(t, chart, r.document))
			require.Error(t, err, "%s: %s", chart, r.document)
			assert.ErrorContains(t, err, r.names, "%s: %s", chart, r.document)
			assert.NotContains(t, err.Error(), "executing", "%s: %s is refused by a template, in words about the template", chart, r.document)
		}
	}
}

// withNeeds adds the values that the chart requires.
func withNeeds(t *testing.T, chart, document string) map[string]any {
	t.Helper()
	if chart == charts.Agent {
		return agentValues(t, document)
	}
	return parseValues(t, document)
}
