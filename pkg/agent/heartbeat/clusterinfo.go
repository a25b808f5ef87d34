package heartbeat

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/tools/pager"

	"github.com/muster-fleet/muster/pkg/agent/member"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// clusterInfo is what a heartbeat reports about the member.
type clusterInfo struct {
	version   string // empty if it cannot be read
	nodes     nodeTotals
	apiServer *apiServerReport
}

// nodeTotals are the totals of all nodes; all fields are nil if the nodes cannot be listed.
type nodeTotals struct {
	Nodes       *fleet.AgentNodes   `json:"nodes"`
	Capacity    corev1.ResourceList `json:"capacity"`
	Allocatable corev1.ResourceList `json:"allocatable"`
}

// apiServerReport is fleet.AgentAPIServer as a patch.
type apiServerReport struct {
	Ready   bool    `json:"ready"`
	Message *string `json:"message"`
}

// readClusterInfo reads the values that can be read within the limit: a heartbeat must not wait for an API server that does not answer.
func readClusterInfo(ctx context.Context, m *member.Member, limit time.Duration) clusterInfo {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	nodes, err := sumNodes(ctx, m)
	if err != nil {
		nodes = nodeTotals{}
	}
	return clusterInfo{version: readVersion(ctx, m), nodes: nodes, apiServer: readReadiness(ctx, m)}
}

// summed are the resources that are reported; a node may have more.
var summed = [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods}

// sumNodes reads the nodes from the API server's cache instead of etcd: the sums may be some seconds old.
func sumNodes(ctx context.Context, m *member.Member) (nodeTotals, error) {
	list := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return m.Core.CoreV1().Nodes().List(ctx, options)
	})
	totals := nodeTotals{Nodes: &fleet.AgentNodes{}, Capacity: corev1.ResourceList{}, Allocatable: corev1.ResourceList{}}
	for _, name := range summed { // a key that is left out of the patch would keep its earlier value
		totals.Capacity[name] = *resource.NewQuantity(0, resource.DecimalSI)
		totals.Allocatable[name] = *resource.NewQuantity(0, resource.DecimalSI)
	}
	err := list.EachListItem(ctx, metav1.ListOptions{ResourceVersion: "0"}, func(object runtime.Object) error {
		node := object.(*corev1.Node)
		totals.Nodes.Count++
		if isReady(node) {
			totals.Nodes.Ready++
		}
		for _, name := range summed {
			add(totals.Capacity, node.Status.Capacity, name)
			add(totals.Allocatable, node.Status.Allocatable, name)
		}
		return nil
	})
	return totals, err
}

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func add(totals, one corev1.ResourceList, name corev1.ResourceName) {
	total, amount := totals[name], one[name]
	total.Add(amount)
	totals[name] = total
}

func readVersion(ctx context.Context, m *member.Member) string {
	body, err := readPath(ctx, m, "/version")
	var info apiversion.Info
	if err != nil || json.Unmarshal(body, &info) != nil {
		return ""
	}
	return info.GitVersion
}

// readReadiness returns nil if the readiness of the API server is unknown: it may forbid the request, or not serve the path.
func readReadiness(ctx context.Context, m *member.Member) *apiServerReport {
	body, err := readPath(ctx, m, "/readyz")
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return &apiServerReport{Ready: true}
	case errors.Is(err, errNoRESTClient) || errors.As(err, &status) && status.Status().Code < http.StatusInternalServerError:
		return nil
	}
	var failed []string // checks that failed begin with [-]
	for line := range strings.Lines(string(body)) {
		if check, isFailed := strings.CutPrefix(line, "[-]"); isFailed {
			failed = append(failed, strings.TrimSpace(check))
		}
	}
	message := strings.Join(failed, "; ")
	if len(failed) == 0 {
		message = err.Error()
	}
	return &apiServerReport{Message: textOrNull(member.Brief(message))}
}

var errNoRESTClient = errors.New("this client cannot read non-resource paths")

// readPath returns the body of a response, also of an error response.
func readPath(ctx context.Context, m *member.Member, path string) ([]byte, error) {
	if m.REST == nil {
		return nil, errNoRESTClient
	}
	return m.REST.Get().AbsPath(path).DoRaw(ctx)
}

func textOrNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}
