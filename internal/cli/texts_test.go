package cli

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/describe"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Agents, members and users of a workspace write these texts.
func TestTextsOfOthers(t *testing.T) {
	const evil = "evil\x1b[2J;curl"
	cluster := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "east"}}
	ofFleet := cluster.DeepCopy()
	cluster.Status.Agent.Registration = evil
	secret := &describe.Related{Kind: "Secret", Namespace: "clusters", Name: evil}
	assert.Equal(t, "The agent of Cluster clusters/east uses the credential of request evil [2J;curl instead of evil [2J;curl.", rotatedMessage(cluster, evil))
	assert.Equal(t, "The agent of Cluster clusters/east uses the credential of request evil [2J;curl.", rotatedMessage(ofFleet, evil))
	assert.Equal(t, "The agent of Cluster clusters/east was installed again. It does not report the request of its credential.", rotatedMessage(ofFleet, ""))
	assert.Contains(t, consequences(cluster, &describe.Description{Objects: []*describe.Related{secret}}, false),
		"\nThese stay: Secret clusters/evil [2J;curl, the namespaces on the member.")
	assert.Equal(t, "This member is registered as Cluster clusters/evil [2J;curl.\nTo see it on the hub: muster -n clusters check 'evil [2J;curl'\n",
		joinedMessage("clusters/"+evil))
}
