package attacks

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// oddBundles are specs whose values change when they are decoded, stored or defaulted. If the hub compared the values that it wants with
// those that the API server has stored, some would differ for ever.
var oddBundles = []string{
	`{"helm":{"values":{"a":1.0,"b":1e3,"c":1e300,"d":9223372036854775807,"e":null,"f":{"g":null},"h":[null,{}],"i":-0.0,"j":1.5e-7,"k":12345678901234567890,"l":"\u0000\u2028<&>","":{"":[]}}}}`,
	`{"helm":{"values":{}}}`, `{"helm":{}}`, `{"helm":{"values":null}}`, `{"helm":null,"kustomize":null,"diff":null}`,
	`{"helm":{"valuesFrom":[],"valuesFiles":[],"timeoutSeconds":9223372036854775807,"maxHistory":-1,"waitForJobs":false}}`,
	`{"kustomize":{},"diff":{},"correctDrift":{},"ignore":{},"yaml":{"overlays":[]},"namespaceLabels":{},"namespaceAnnotations":{}}`,
	`{"diff":{"comparePatches":[{"kind":"x","operations":[{"op":"remove"}],"jsonPointers":[]},{}]},"ignore":{"conditions":[{"a":""},{}]}}`,
	`{"namespaceLabels":{"a":"","-":"x/y z"},"namespaceAnnotations":{"a":null},"serviceAccount":"","namespace":"Not A Name","defaultNamespace":"../x"}`,
	`{"dependsOn":[{"name":"odd-0"},{}],"targets":[{"clusterSelector":{}},{"clusterSelector":{},"helm":{"values":{"a":[1.0]}}}],"targetCustomizationMode":"AllMatches"}`,
	`{"rolloutStrategy":{"maxUnavailable":"0%","maxUnavailablePartitions":0,"autoPartitionSize":"1000000%","partitions":[{"name":"a"},{"name":"a","clusterSelector":{}}]}}`,
	`{"helm":{"values":{"x":"global.fleet.clusterLabels.none","y":"${ .ClusterName }"},"templateValues":{"z":"${ .ClusterLabels }"}}}`,
	`{"resources":[{},{"name":"a","content":"\u0000"},{"name":"a","content":"eA==","encoding":"base64"}],"keepResources":true,"paused":false}`,
	`{"downstreamResources":[{"kind":"Secret","name":"none"},{"kind":"ConfigMap","name":"none"}]}`,
	`{"contentsId":"s-x","valuesHash":""}`, `{"helmOpOptions":{}}`,
}

// oddClusters are such specs of Clusters.
var oddClusters = []string{
	`{"agentEnvVars":[{"name":"a"},{"name":"a","value":""},{"name":"b","valueFrom":{"resourceFieldRef":{"resource":"limits.cpu","divisor":"1000m"}}}]}`,
	`{"agentResources":{"limits":{"cpu":"1000m","memory":"1e3","x":1},"requests":{}},"agentTolerations":[],"agentAffinity":{},"agentPullSecrets":[]}`,
	`{"agentTolerations":[{},{"operator":"Exists","tolerationSeconds":-1}],"agentAffinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[]}}}}`,
	`{"agentSchedulingCustomization":{"priorityClass":{"value":2147483647,"preemptionPolicy":"Never"},"podDisruptionBudget":{"minAvailable":"1","maxUnavailable":"1"}}}`,
	`{"agentSchedulingCustomization":{"priorityClass":{},"podDisruptionBudget":{}},"hostNetwork":false,"privateRepoURL":"x y"}`,
	`{"templateValues":{"a":1.0,"b":null,"c":[null],"d":1e300},"clientID":"","redeployAgentGeneration":-1}`,
	`{"clientID":"same"}`, `{"clientID":"same"}`, `{"paused":true,"quarantined":true}`,
	`{"agentNamespace":"UPPER case"}`, `{"kubeConfigSecret":"none","kubeConfigSecretNamespace":"kube-system"}`, `{"kubeConfigSecret":"../x"}`,
}

// A user of a workspace may write such objects. The hub must come to rest.
func TestOddObjects(t *testing.T) {
	sample.Long(t)
	var sent testenv.Recorder
	s := testenv.NewStage(t, testenv.DefaultDelays, sent.Wrap)
	client, err := dynamic.NewForConfig(s.Hub.RESTConfig())
	require.NoError(t, err)
	refused := 0
	create := func(kind, name, fields string) {
		object := &unstructured.Unstructured{}
		require.NoError(t, json.Unmarshal([]byte(fmt.Sprintf(
			`{"apiVersion":"fleet.cattle.io/v1alpha1","kind":%q,"metadata":{"name":%q,"labels":{"env":"x"}},%s}`, kind, name, fields)), object), fields)
		resource := fleet.SchemeGroupVersion.WithResource(strings.ToLower(kind) + "s")
		if _, err := client.Resource(resource).Namespace(s.Namespace).Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
			t.Logf("refused: %s: %v", fields, err)
			refused++
		}
	}
	for n, spec := range oddClusters {
		create("Cluster", fmt.Sprint("odd-", n), `"spec":`+spec)
	}
	create("Cluster", "plain", `"spec":{}`)
	for n, spec := range oddBundles {
		if !strings.Contains(spec, `"targets"`) {
			spec = strings.TrimSuffix(spec, "}") + `,"targets":[{"clusterName":"plain"},{"clusterSelector":{"matchLabels":{"env":"x"}}}]}`
		}
		create("Bundle", fmt.Sprint("odd-", n), `"spec":`+spec)
	}
	create("Bundle", "fleet-agent-plain", `"spec":{"targets":[{"clusterName":"plain"}]}`)
	create("ClusterGroup", "all", `"spec":{"selector":{}}`)
	create("ClusterGroup", "bad", `"spec":{"selector":{"matchExpressions":[{"key":"-","operator":"No"}]}}`)
	for n, spec := range []string{`{"ttl":"0.5h0.5h","labels":{"-/":"x y"},"clientIDPattern":"["}`, `{"ttl":"2562047h"}`, `{"usageLimit":1,"allowedLabelKeys":["*"]}`} {
		create("ClusterRegistrationToken", fmt.Sprint("odd-", n), `"spec":`+spec)
	}
	for n, spec := range []string{`{}`, `{"clientID":"same","clientRandom":"r"}`, `{"clientID":"x","clusterLabels":{"-/":"x y","a":""}}`} {
		create("ClusterRegistration", fmt.Sprint("odd-", n), `"spec":`+spec)
	}
	assert.LessOrEqual(t, refused, 8, "the test lost its objects")

	all := sent.Settle(t)
	writes := map[string]int{}
	for _, request := range testenv.WritesIn(all) {
		isOfOne := request.Method != http.MethodPost || strings.HasSuffix(request.Path, "/token") // others create many objects
		if isOfOne {
			writes[request.Method+" "+request.Path]++
		}
	}
	for write, count := range writes {
		most := 8
		if strings.Contains(write, "/clustergroups/") { // on a slow machine, its status changes with each of the Clusters
			most = len(oddClusters)
		}
		assert.LessOrEqual(t, count, most, write)
	}
}
