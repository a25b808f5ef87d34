package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/tools/pager"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// stock is what the agent can tell of its cluster.
type stock struct {
	version   string
	nodes     *nodeSums
	apiServer *apiServerReport
}

// nodeSums are the parts of a report that come from the list of nodes.
type nodeSums struct {
	Nodes       *fleet.AgentNodes   `json:"nodes"`
	Capacity    corev1.ResourceList `json:"capacity"`
	Allocatable corev1.ResourceList `json:"allocatable"`
}

// summed are the resources that are reported; a node may have many more.
var summed = [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods}

// takeStock reads what it can within the time; the heartbeat must not wait for a cluster in trouble.
func (m *member) takeStock(ctx context.Context, within time.Duration) stock {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	nodes, err := m.sumNodes(ctx)
	if err != nil {
		nodes = &nodeSums{}
	}
	return stock{version: m.version(ctx), nodes: nodes, apiServer: m.readiness(ctx)}
}

// sumNodes reads the nodes from the API server's memory rather than from etcd: a sum that is some seconds old will do.
func (m *member) sumNodes(ctx context.Context) (*nodeSums, error) {
	list := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return m.core.CoreV1().Nodes().List(ctx, options)
	})
	sums := &nodeSums{Nodes: &fleet.AgentNodes{}, Capacity: nothing(), Allocatable: nothing()}
	err := list.EachListItem(ctx, metav1.ListOptions{ResourceVersion: "0"}, func(object runtime.Object) error {
		sums.add(object.(*corev1.Node))
		return nil
	})
	return sums, err
}

// nothing has a zero for what no node has: a key that is left out would stay in the status as it was.
func nothing() corev1.ResourceList {
	zeros := corev1.ResourceList{}
	for _, name := range summed {
		zeros[name] = *resource.NewQuantity(0, resource.DecimalSI)
	}
	return zeros
}

func (s *nodeSums) add(node *corev1.Node) {
	s.Nodes.Count++
	if ready(node) {
		s.Nodes.Ready++
	}
	for _, name := range summed {
		addTo(s.Capacity, node.Status.Capacity, name)
		addTo(s.Allocatable, node.Status.Allocatable, name)
	}
}

func ready(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

func addTo(sum, one corev1.ResourceList, name corev1.ResourceName) {
	total, amount := sum[name], one[name]
	total.Add(amount)
	sum[name] = total
}

// version is "" when it cannot be read.
func (m *member) version(ctx context.Context) string {
	body, err := m.raw(ctx, "/version")
	var info apiversion.Info
	if err != nil || json.Unmarshal(body, &info) != nil {
		return ""
	}
	return info.GitVersion
}

// readiness is nil when the API server does not say: it may forbid the question, or not know it.
func (m *member) readiness(ctx context.Context) *apiServerReport {
	body, err := m.raw(ctx, "/readyz")
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return &apiServerReport{Ready: true}
	case errors.Is(err, errNoRaw) || errors.As(err, &status) && status.Status().Code < http.StatusInternalServerError:
		return nil
	}
	return &apiServerReport{Message: textOrNull(brief(failedChecks(string(body), err)))}
}

// failedChecks are the lines of an answer of /readyz that begin with [-].
func failedChecks(body string, err error) string {
	var failed []string
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "[-]") {
			failed = append(failed, strings.TrimSpace(strings.TrimPrefix(line, "[-]")))
		}
	}
	if len(failed) == 0 {
		return err.Error()
	}
	return strings.Join(failed, "; ")
}

var errNoRaw = errors.New("this client asks for objects only")

// raw gets a path that is no object. The body comes with an error as well.
func (m *member) raw(ctx context.Context, path string) ([]byte, error) {
	if m.rest == nil {
		return nil, errNoRaw
	}
	return m.rest.Get().AbsPath(path).DoRaw(ctx)
}
