// Package fleetstatus is what hub and agent share about the status of an object: conditions, the state of a
// BundleDeployment, and patches that change only what differs.
package fleetstatus

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// SkewTolerance is the change of an agent's clock skew below which the earlier one stays in a report. The skew is measured at each heartbeat, and its
// last digits differ.
const SkewTolerance = 10 * time.Second

// Conditions is the list of conditions that every status has.
type Conditions = []genericcondition.GenericCondition

// Condition returns the condition of the given type. If it is absent, the result has that type and nothing else.
func Condition(conditions Conditions, conditionType string) genericcondition.GenericCondition {
	for _, c := range conditions {
		if c.Type == conditionType {
			return c
		}
	}
	return genericcondition.GenericCondition{Type: conditionType}
}

// IsFalse reports whether the condition is False; a condition that is absent or Unknown is not.
func IsFalse(conditions Conditions, conditionType string) bool {
	return Condition(conditions, conditionType).Status == corev1.ConditionFalse
}

// SetCondition writes a condition's status, reason (a constant of the API package) and message, and reports whether one
// of them changed. The times in c are ignored: LastUpdateTime changes with any of the three, LastTransitionTime with the
// status, so that setting the same condition again changes nothing. The list is replaced, not modified: it may belong to
// an object in a cache.
func SetCondition(conditions *Conditions, c genericcondition.GenericCondition, now time.Time) bool {
	before := Condition(*conditions, c.Type)
	c.LastUpdateTime, c.LastTransitionTime = before.LastUpdateTime, before.LastTransitionTime
	if c == before {
		return false
	}
	c.LastUpdateTime = now.UTC().Format(time.RFC3339)
	if c.Status != before.Status {
		c.LastTransitionTime = c.LastUpdateTime
	}
	list := slices.Clone(*conditions)
	at := slices.IndexFunc(list, func(other genericcondition.GenericCondition) bool { return other.Type == c.Type })
	if at < 0 {
		list = append(list, c)
	} else {
		list[at] = c
	}
	*conditions = list
	return true
}

// OrderConditions puts the conditions of the given types first, in that order. kubectl shows the reason of the first condition that is not
// True, so the most important types come first. The list is replaced, not modified.
func OrderConditions(conditions *Conditions, types ...string) {
	rank := func(c genericcondition.GenericCondition) int {
		if i := slices.Index(types, c.Type); i >= 0 {
			return i
		}
		return len(types)
	}
	*conditions = slices.SortedStableFunc(slices.Values(*conditions), func(a, b genericcondition.GenericCondition) int { return rank(a) - rank(b) })
}

// KeepsResources reports whether a BundleDeployment says that its resources stay when it is removed. It need not have deployed its keepResources, or may
// have staged it: people set it shortly before they delete a Bundle or a Cluster.
func KeepsResources(spec fleet.BundleDeploymentSpec) bool {
	return spec.Options.KeepResources || spec.StagedOptions.KeepResources
}

// KeepsWorkloads reports whether a Cluster, or the BundleDeployment of its agent, says that the objects of all releases stay on the member.
func KeepsWorkloads(o metav1.Object) bool {
	return o.GetAnnotations()[fleet.KeepWorkloadsAnnotation] == fleet.KeepWorkloadsValue
}

// BundleState is the state of a BundleDeployment: the rule of Fleet's own hub. Hub and agent use this one function, because a
// BundleDeployment may have two writers of status.display, who must not disagree. The state is never Pending, which is the state
// of a target without a BundleDeployment.
func BundleState(spec fleet.BundleDeploymentSpec, status fleet.BundleDeploymentStatus) fleet.BundleState {
	switch {
	case spec.DeploymentID != status.AppliedDeploymentID:
		if IsFalse(status.Conditions, fleet.ConditionDeployed) {
			return fleet.ErrApplied
		}
		return fleet.WaitApplied
	case !status.Ready:
		return fleet.NotReady
	case spec.DeploymentID != spec.StagedDeploymentID:
		return fleet.OutOfSync
	case !status.NonModified:
		return fleet.Modified
	}
	return fleet.Ready
}

// displayedError precedes the message of a condition in status.display.
const displayedError = "Error: "

// Display is the status.display of a BundleDeployment by the rule of Fleet's own hub, which writes it beside an agent of this
// project. Any other text would be a fight: each write of one side is an event for the other.
func Display(spec fleet.BundleDeploymentSpec, status fleet.BundleDeploymentStatus) fleet.BundleDeploymentDisplay {
	shown := func(conditionType string) string {
		c := Condition(status.Conditions, conditionType)
		if c.Reason == fleet.ReasonError {
			return displayedError + c.Message
		}
		return string(c.Status)
	}
	return fleet.BundleDeploymentDisplay{
		Deployed: shown(fleet.ConditionDeployed), Monitored: shown(fleet.ConditionMonitored), State: string(BundleState(spec, status)),
	}
}

// MergePatch returns the JSON merge patch that turns one status into the other, or nil if they are equal.
func MergePatch(before, after any) (json.RawMessage, error) {
	if reflect.DeepEqual(before, after) {
		return nil, nil // most passes change nothing, and this costs far less than encoding both
	}
	old, err := json.Marshal(before)
	if err != nil {
		return nil, err
	}
	changed, err := json.Marshal(after)
	if err != nil {
		return nil, err
	}
	patch, err := jsonpatch.CreateMergePatch(old, changed)
	if err != nil || string(patch) == "{}" {
		return nil, err
	}
	return patch, nil
}

// DecodeAgent decodes a status.agent that is the text of an annotation. The API server validates no annotation, so the function itself checks
// the quantities before it decodes them. Its errors do not contain the text.
func DecodeAgent(text []byte) (fleet.AgentStatus, error) {
	var read undecodedAgent
	if !strings.HasPrefix(string(text), "{") || json.Unmarshal(text, &read) != nil {
		return fleet.AgentStatus{}, errors.New("it is not the JSON of status.agent")
	}
	agent := read.AgentStatus
	agent.DeploymentsStalled = Cut(agent.DeploymentsStalled, MaxStalled)
	if agent.KeptReleases != nil {
		agent.KeptReleases.Names = Cut(agent.KeptReleases.Names, MaxKeptNames)
	}
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
	// MaxKeptNames is the number of bytes of keptReleases.names. The CustomResourceDefinition of Clusters admits as many characters.
	MaxKeptNames = 2048
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
