package agent

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// newRequest is the ClusterRegistration to send. It names the token it registers with: the hub needs the name to let that
// token read the answer. It promises to renew the credential, so that the hub may give one that runs out.
func newRequest(p pending, b *bootstrap, clientID string, labels map[string]string, pod string) *fleet.ClusterRegistration {
	return &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: b.clusterNamespace,
			// The name is ours, so that sending the request twice makes one object; the prefix is that of all agents.
			Name:         p.name,
			GenerateName: requestPrefix,
			Labels:       tokenLabel(b.tokenName),
			Annotations:  map[string]string{registration.RenewalAnnotation: "true"},
		},
		Spec: fleet.ClusterRegistrationSpec{
			ClientID:      clientID,
			ClientRandom:  p.clientRandom,
			ClusterLabels: requestLabels(labels, pod),
		},
	}
}

// tokenLabel shortens a name that is longer than a label's value may be, as the hub does; unshortened it would cost the
// whole request.
func tokenLabel(token string) map[string]string {
	value := registration.LabelValue(token)
	if token == "" || !validLabelValue(value) {
		return nil
	}
	return map[string]string{fleet.RegistrationTokenLabel: value}
}

func requestLabels(configured map[string]string, pod string) map[string]string {
	labels := map[string]string{}
	maps.Copy(labels, configured)
	if pod != "" && validLabelValue(pod) {
		labels[fleet.CreatedByAgentPodLabel] = pod
	}
	return labels
}

func validLabelValue(value string) bool { return len(validation.IsValidLabelValue(value)) == 0 }
