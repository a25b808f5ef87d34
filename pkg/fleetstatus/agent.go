package fleetstatus

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// DecodeAgent decodes a status.agent that is the text of an annotation. The API server validates no annotation, so the function itself checks
// the quantities before it decodes them. Its errors do not contain the text.
func DecodeAgent(text []byte) (fleet.AgentStatus, error) {
	var read undecodedAgent
	if !strings.HasPrefix(string(text), "{") || json.Unmarshal(text, &read) != nil {
		return fleet.AgentStatus{}, errors.New("it is not the JSON of status.agent")
	}
	agent := read.AgentStatus
	agent.DeploymentsStalled = Cut(agent.DeploymentsStalled, MaxStalled)
	var err error
	if agent.Capacity, err = quantities(read.Capacity); err != nil {
		return fleet.AgentStatus{}, fmt.Errorf("capacity: %w", err)
	}
	if agent.Allocatable, err = quantities(read.Allocatable); err != nil {
		return fleet.AgentStatus{}, fmt.Errorf("allocatable: %w", err)
	}
	return agent, nil
}

// undecodedAgent is a status.agent before its quantities are decoded.
type undecodedAgent struct {
	fleet.AgentStatus
	Capacity    map[corev1.ResourceName]json.RawMessage `json:"capacity"`
	Allocatable map[corev1.ResourceName]json.RawMessage `json:"allocatable"`
}

const (
	// MaxQuantity is the number of characters of a quantity, as Kubernetes writes it, that the CustomResourceDefinition of Clusters admits.
	MaxQuantity = 20
	// MaxQuantities is the number of quantities that the admission policy fleet-agent-status admits in each list.
	MaxQuantities = 64
	// MaxStalled is the number of bytes of deploymentsStalled. The CustomResourceDefinition of Clusters admits as many characters.
	MaxStalled = 1024
)

// boundedQuantity is a quantity that is cheap to decode and to compare. An exponent of nine digits would take minutes and gigabytes.
var boundedQuantity = regexp.MustCompile(`^[+-]?[0-9.]{1,40}([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$`)

func quantities(texts map[corev1.ResourceName]json.RawMessage) (corev1.ResourceList, error) {
	if len(texts) > MaxQuantities {
		return nil, fmt.Errorf("it has more than %d resources", MaxQuantities)
	}
	if len(texts) == 0 {
		return nil, nil
	}
	list := make(corev1.ResourceList, len(texts))
	for name, text := range texts {
		value := strings.Trim(string(text), `"`)
		if !boundedQuantity.MatchString(value) {
			return nil, errors.New("a quantity is not a number with at most two digits of exponent")
		}
		quantity, err := resource.ParseQuantity(value)
		if err != nil {
			return nil, fmt.Errorf("a quantity is invalid: %w", err)
		}
		if len(quantity.String()) > MaxQuantity {
			return nil, fmt.Errorf("a quantity has more than %d characters", MaxQuantity)
		}
		list[name] = quantity
	}
	return list, nil
}
