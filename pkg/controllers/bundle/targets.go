package bundle

import (
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// member is what targets ask about a Cluster.
type member struct {
	name, displayName string
	labels            labels.Set
	// groups are the ClusterGroups that select it; they are looked up only when a target asks for them.
	groups func() []*fleet.ClusterGroup
}

// criteria choose Clusters. All that are given must hold; where none is given, nothing is chosen: a target that was left
// empty by mistake must not deploy everywhere. An empty selector, which is given, matches all.
type criteria struct {
	clusterName string
	cluster     labels.Selector
	group       string
	groups      labels.Selector
}

func parseCriteria(clusterName string, cluster *metav1.LabelSelector, group string, groups *metav1.LabelSelector) (criteria, error) {
	c := criteria{clusterName: clusterName, group: group}
	var errCluster, errGroups error
	c.cluster, errCluster = parseSelector("clusterSelector", cluster)
	c.groups, errGroups = parseSelector("clusterGroupSelector", groups)
	return c, errors.Join(errCluster, errGroups)
}

// parseSelector returns nil for a selector that is not given.
func parseSelector(field string, given *metav1.LabelSelector) (labels.Selector, error) {
	if given == nil {
		return nil, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(given)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return selector, nil
}

func (c criteria) none() bool {
	return c.clusterName == "" && c.cluster == nil && c.group == "" && c.groups == nil
}

func (c criteria) match(m member) bool {
	switch {
	case c.none():
		return false
	case c.clusterName != "" && c.clusterName != m.name && c.clusterName != m.displayName:
		return false
	case c.cluster != nil && !c.cluster.Matches(m.labels):
		return false
	}
	return c.matchGroup(m)
}

// matchGroup wants one group that has both the name and the labels, where both are asked for.
func (c criteria) matchGroup(m member) bool {
	if c.group == "" && c.groups == nil {
		return true
	}
	for _, group := range m.groups() {
		if (c.group == "" || c.group == group.Name) && (c.groups == nil || c.groups.Matches(labels.Set(group.Labels))) {
			return true
		}
	}
	return false
}

// selects says whether a group has the Cluster. A group without a selector has none.
func selects(group *fleet.ClusterGroup, cluster labels.Set) bool {
	selector, err := parseSelector("selector", group.Spec.Selector)
	return err == nil && selector != nil && selector.Matches(cluster)
}
