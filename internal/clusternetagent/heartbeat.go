package clusternetagent

import (
	"context"
	"encoding/json"
	"maps"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// aggregatedPrefix is the default of --labels-aggregate-prefix.
const aggregatedPrefix = "node.clusternet.io/"

// sendHeartbeats finds the ManagedCluster once and writes its status in each period, until ctx ends.
func (a *agent) sendHeartbeats(ctx context.Context, hub dynamic.Interface, namespace string) {
	client, started := hub.Resource(ManagedClusters).Namespace(namespace), time.Now()
	if a.NothingCollected && !pause(ctx, a.Periods.Heartbeat, 0) {
		return
	}
	var current *unstructured.Unstructured // carried from answer to answer
	for {
		if current == nil {
			list, err := client.List(ctx, metav1.ListOptions{LabelSelector: IDLabel + "=" + a.id})
			switch {
			case err != nil:
				a.Log.Warnf("list the ManagedClusters of namespace %s: %v", namespace, err)
			case len(list.Items) == 0:
				a.Log.Warnf("namespace %s has no ManagedCluster of this cluster", namespace)
			default:
				current = &list.Items[0]
			}
		}
		if current != nil {
			current = a.beat(ctx, client, current, started)
		}
		if !pauseUntil(ctx, a.Periods.Heartbeat, 0, a.HeartbeatNow) {
			return
		}
	}
}

// beat sends one heartbeat and returns the latest ManagedCluster that the hub has answered with.
func (a *agent) beat(ctx context.Context, client dynamic.ResourceInterface, current *unstructured.Unstructured, started time.Time) *unstructured.Unstructured {
	const tries, delay = 5, 10 * time.Millisecond
	if patch := labelPatch(current.GetLabels(), a.member.labelsOfNodes()); len(patch) > 0 {
		data, _ := json.Marshal(map[string]any{"metadata": map[string]any{"labels": patch}}) // maps of strings always encode
		labelled, err := client.Patch(ctx, current.GetName(), types.MergePatchType, data, metav1.PatchOptions{})
		if err != nil {
			a.Log.Warnf("patch the labels of ManagedCluster %s: %v; the heartbeat is not sent", current.GetName(), err)
			return current
		}
		current = labelled
	}
	for range tries {
		sent := current.DeepCopy()
		sent.Object["status"] = a.status(current, started)
		answer, err := client.UpdateStatus(ctx, sent, metav1.UpdateOptions{})
		if err == nil {
			return answer
		}
		a.Log.Warnf("update the status of ManagedCluster %s: %v", current.GetName(), err)
		if !apierrors.IsConflict(err) {
			return current
		}
		latest, err := client.Get(ctx, current.GetName(), metav1.GetOptions{})
		if err != nil {
			a.Log.Warnf("get ManagedCluster %s: %v", current.GetName(), err)
			return current
		}
		if current = latest; !pause(ctx, delay, 0) {
			return current
		}
	}
	return current
}

// labelPatch returns the patch that replaces the labels with the prefix by the labels of the nodes. Nil removes a label.
func labelPatch(current, nodes map[string]string) map[string]any {
	patch := map[string]any{}
	for key := range current {
		if _, stays := nodes[key]; strings.HasPrefix(key, aggregatedPrefix) && !stays {
			patch[key] = nil
		}
	}
	for key, value := range nodes {
		if old, found := current[key]; strings.HasPrefix(key, aggregatedPrefix) && (!found || old != value) {
			patch[key] = value
		}
	}
	return patch
}

// status is the whole status that is sent: what the hub has added to it, except conditions of other types, is lost.
func (a *agent) status(current *unstructured.Unstructured, started time.Time) map[string]any {
	now, healthy := time.Now(), a.member.healthy()
	status := map[string]any{
		"lastObservedTime":          now.Add(-(now.Sub(started) % a.Periods.Collection)).UTC().Format(time.RFC3339),
		"k8sVersion":                "v1.31.4+k3s1",
		"platform":                  "linux/amd64",
		"agentVersion":              "v0.18.0",
		"apiserverURL":              "https://10.43.0.1:443",
		"healthz":                   healthy,
		"livez":                     healthy,
		"readyz":                    healthy,
		"appPusher":                 a.SyncMode == "Push" || a.SyncMode == "Dual",
		"useSocket":                 a.Socket,
		"kubeQPS":                   int64(50),
		"kubeBurst":                 int64(100),
		"clusterCIDR":               "10.42.0.0/16",
		"serviceCIDR":               "10.43.0.0/16",
		"heartbeatFrequencySeconds": int64(a.Periods.Heartbeat / time.Second),
		"allocatable":               map[string]any{"cpu": "7600m", "memory": "31Gi"},
		"capacity":                  map[string]any{"cpu": "8", "memory": "32Gi"},
		"nodeStatistics":            map[string]any{"readyNodes": int64(2), "notReadyNodes": int64(1)},
	}
	ready := map[string]any{
		"type": "Ready", "status": "True", "reason": "ManagedClusterReady", "message": "managed cluster is ready.",
		"lastTransitionTime": now.UTC().Format(time.RFC3339),
	}
	if !healthy {
		maps.Copy(ready, map[string]any{"status": "False", "reason": "ManagedClusterNotReady", "message": "managed cluster is not ready."})
	}
	conditions := []any{ready}
	kept, _, _ := unstructured.NestedSlice(current.Object, "status", "conditions")
	for _, condition := range kept {
		if c, ok := condition.(map[string]any); ok && c["type"] != "Ready" {
			conditions = append(conditions, c)
		}
	}
	status["conditions"] = conditions
	if a.Forge != nil {
		a.Forge(status)
	}
	return status
}
