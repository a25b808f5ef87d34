package clusterimport

import (
	"encoding/base64"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/muster-fleet/muster/internal/testenv/recording"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/registration"
)

// setByServer are fields of recorded objects that the API server and its controllers set, or its defaults.
var setByServer = map[string]any{
	".metadata.annotations.deployment.kubernetes.io/revision":                "1",
	".metadata.labels.kubernetes.io/metadata.name":                           "cattle-fleet-system",
	".spec.finalizers[0]":                                                    "kubernetes",
	".spec.progressDeadlineSeconds":                                          int64(600),
	".spec.revisionHistoryLimit":                                             int64(10),
	".spec.strategy.rollingUpdate.maxSurge":                                  "25%",
	".spec.strategy.rollingUpdate.maxUnavailable":                            "25%",
	".spec.strategy.type":                                                    "RollingUpdate",
	".spec.template.spec.containers[0].env[2].valueFrom.fieldRef.apiVersion": "v1",
	".spec.template.spec.containers[0].terminationMessagePath":               "/dev/termination-log",
	".spec.template.spec.containers[0].terminationMessagePolicy":             "File",
	".spec.template.spec.dnsPolicy":                                          "ClusterFirst",
	".spec.template.spec.restartPolicy":                                      "Always",
	".spec.template.spec.schedulerName":                                      "default-scheduler",
	".spec.template.spec.serviceAccount":                                     "fleet-agent",
	".spec.template.spec.terminationGracePeriodSeconds":                      int64(30),
	".type": "Opaque",
}

// added are the fields that this hub adds on purpose, by the beginning of their paths, and why.
var added = map[string]string{
	"Secret fleet-agent-bootstrap.dataDecoded.registration":                "an agent registers again when it changes; agents of Fleet ignore it",
	"NetworkPolicy default-allow-all.spec.podSelector.":                    "other Pods of the namespace keep their own policies",
	"Deployment fleet-agent.metadata.labels.app":                           "people select the Deployment with the same label as its Pods",
	"Deployment fleet-agent" + podSpec + "containers[0].env[8]":            "POD_NAME names the holder of the Lease",
	"Deployment fleet-agent" + podSpec + "containers[0].env[9]":            "CREDENTIAL_LIFETIME is for an agent that renews its credential",
	"Deployment fleet-agent" + podSpec + "containers[0].env[10]":           "FLEET_HEALTH_BIND_ADDRESS is for the probes",
	"Deployment fleet-agent" + podSpec + "containers[0].env[11]":           "GENERATION restarts an agent that has to register again",
	"Deployment fleet-agent" + podSpec + "containers[0].ports[0]":          "the probes",
	"Deployment fleet-agent" + podSpec + "containers[0].livenessProbe.":    "an agent that hangs is restarted",
	"Deployment fleet-agent" + podSpec + "containers[0].readinessProbe.":   "an update waits for the new agent",
	"Deployment fleet-agent" + podSpec + "securityContext.seccompProfile.": "the restricted Pod Security Standard requires it",
}

// omitted are the recorded fields that this hub leaves out on purpose, and why.
var omitted = map[string]string{
	"Namespace cattle-fleet-system.metadata.labels.objectset.rio.cattle.io/hash":    "others may use the Namespace, so it is not part of the set",
	"Namespace cattle-fleet-system.metadata.annotations.objectset.rio.cattle.io/id": "others may use the Namespace, so it is not part of the set",
}

const podSpec = ".spec.template.spec."

// TestWire compares what an import puts on a member, field by field, with what Fleet's hub put there in a recording.
func TestWire(t *testing.T) {
	stages := recording.Stages[struct{ Objects []unstructured.Unstructured }](t, "testdata/wire/24-registration.yaml")
	require.Len(t, stages, 1)
	recorded := map[string]map[string]any{}
	for _, object := range stages[0].Objects {
		for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "generation"} {
			unstructured.RemoveNestedField(object.Object, "metadata", field)
		}
		// Wrangler's record of what it applied last. This hub uses server-side apply.
		unstructured.RemoveNestedField(object.Object, "metadata", "annotations", "objectset.rio.cattle.io/applied")
		fields := fieldsOf(object.Object)
		maps.DeleteFunc(fields, func(path string, value any) bool { return setByServer[path] == value })
		recorded[object.GetKind()+" "+object.GetName()] = fields
	}

	_, objects := plan(t, func(in *planInput) {
		in.hub.AgentCheckinInterval = metav1.Duration{Duration: 15 * time.Minute}
		in.hub.AgentImagePullPolicy = "IfNotPresent"
		in.hub.AgentWorkers.BundleDeployment, in.hub.AgentWorkers.Drift = "50", "50"
		in.Agent = app.AgentSettings{Image: "rancher/fleet-agent:dev", Replicas: 1, LeaseDuration: 30 * time.Second, RenewDeadline: 25 * time.Second, RetryPeriod: 10 * time.Second}
		in.cluster = &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet-default", Name: "m1", Labels: map[string]string{"env": "dev", "part": "a", "roll": "yes"}}}
		in.cluster.Spec.ClientID = "ws5d6zmslw988kqfrmbg5q9bddnwhlsn7cqz8txwtpmnqjdczwhzbj"
		in.info = hubInfo{apiServerURL: "HUB-URL", apiServerCA: []byte("CA"), tlsMode: config.TLSModeStrict, gcInterval: metav1.Duration{Duration: 15 * time.Minute}}
		in.values = &registration.Values{Workspace: "fleet-default", Token: "REDACTED", TokenName: "import-token-m1", SystemRegistrationNamespace: "cattle-fleet-clusters-system"}
	})
	made := map[string]map[string]any{}
	for _, object := range objects {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		require.NoError(t, err)
		if data, found := content["data"].(map[string]any); found && content["kind"] == "Secret" {
			for key, value := range data {
				text, err := base64.StdEncoding.DecodeString(value.(string))
				require.NoError(t, err)
				data[key] = string(text)
			}
			content["dataDecoded"] = data
			delete(content, "data")
		}
		u := unstructured.Unstructured{Object: content}
		made[u.GetKind()+" "+u.GetName()] = fieldsOf(content)
	}

	used := map[string]bool{}
	for name, fields := range made {
		require.Contains(t, recorded, name)
		for path, value := range fields {
			want, isRecorded := recorded[name][path]
			if isRecorded {
				assert.Equal(t, want, value, name+path)
				continue
			}
			why := ""
			for begin := range added {
				if strings.HasPrefix(name+path, begin) {
					used[begin], why = true, added[begin]
				}
			}
			assert.NotEmpty(t, why, "%s%s is not recorded", name, path)
		}
	}
	for name, fields := range recorded {
		for path := range fields {
			if _, isMade := made[name][path]; !isMade {
				assert.NotEmpty(t, omitted[name+path], "%s%s is missing", name, path)
				used[name+path] = true
			}
		}
	}
	assert.Len(t, used, len(added)+len(omitted), "added or omitted lists a difference that does not exist")
}

// fieldsOf returns the values of an object by their paths.
func fieldsOf(object any) map[string]any {
	fields := map[string]any{}
	var add func(path string, value any)
	add = func(path string, value any) {
		switch v := value.(type) {
		case map[string]any:
			for key, inner := range v {
				add(path+"."+key, inner)
			}
		case []any:
			for i, inner := range v {
				add(fmt.Sprintf("%s[%d]", path, i), inner)
			}
		case nil:
		default:
			if path != ".apiVersion" && !strings.HasPrefix(path, ".status") {
				fields[path] = value
			}
		}
	}
	add("", object)
	return fields
}
