package attacks

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/content"
	"github.com/muster-fleet/muster/pkg/registration"
)

const password = "hunter2"

// The thief of a shared token registers a cluster with the label that a Bundle selects, to read the Secret in the Bundle.
func TestLabelsOfAStolenToken(t *testing.T) {
	s := testenv.NewStage(t)
	for name, label := range map[string]string{"app": "env", "public": "zone"} {
		_, err := s.Hub.Fleet.Bundles(s.Namespace).Create(t.Context(), &fleet.Bundle{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: fleet.BundleSpec{
				Resources: []fleet.BundleResource{{Name: "secret.yaml", Content: "apiVersion: v1\nkind: Secret\nmetadata: {name: " + name + "}\nstringData: {password: " + password + label + "}\n"}},
				Targets:   []fleet.BundleTarget{{ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{label: "a"}}}},
			},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	labels := map[string]string{"env": "a", "zone": "a"}
	s.Token(t, "open")
	configured := func(agentLabels, limited string) {
		settings := s.Hub.Reachable()
		settings["registration"] = map[string]any{"agentLabels": agentLabels}
		s.Hub.Configure(t, settings)
		s.Hub.WaitCondition(t, testenv.KindToken, s.Namespace, "open", fleet.ConditionLabelsLimited, limited)
	}

	for _, row := range []struct {
		name, agentLabels string
		allowed           *[]string
		own               map[string]string
		limited           string // condition LabelsLimited of the token
		obtains           []string
		dropped           string
	}{
		{"an open token of a hub that accepts labels", "Accept", nil, nil, "False AgentLabelsAccepted", []string{"app", "public"}, ""},
		{"a token that allows one key", "Accept", &[]string{"zone"}, nil, "absent", []string{"public"}, "allows them: env"},
		{"a token that allows no key", "Accept", &[]string{}, map[string]string{"zone": "a"}, "absent", []string{"public"}, "allows them: env, zone"},
		{"an open token of a hub that accepts only allowed labels", "Allowed", nil, map[string]string{"zone": "a"}, "absent", []string{"public"}, "allows them: env, zone"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if row.agentLabels == "Allowed" {
				configured(row.agentLabels, "True LabelsLimited")
			} else {
				configured(row.agentLabels, "False AgentLabelsAccepted")
			}
			token := "thief-" + registration.KeyHash(row.name)
			values := s.Hub.Token(t, s.Namespace, token, fleet.ClusterRegistrationTokenSpec{AllowedLabelKeys: row.allowed, Labels: row.own})
			request := s.Hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: token, ClientRandom: token + s.Namespace, ClusterLabels: labels})
			granted, secret := s.Hub.Granted(t, values, request)
			thief := testenv.Registered{Values: values, Request: granted, Secret: secret}

			message := testenv.Condition(granted.Status.Conditions, fleet.ConditionGranted)
			assert.Contains(t, message, row.dropped)
			assert.Equal(t, row.dropped == "", message == "True Granted: ", message)
			assert.Regexp(t, "^"+row.limited, testenv.Condition(s.ReadyToken(t, token).Status.Conditions, fleet.ConditionLabelsLimited))

			client, obtained := s.Hub.ClientFor(t, thief.Bearer()), []string{}
			testenv.Eventually(t, func() (bool, string) {
				deployments, err := client.Fleet.BundleDeployments(thief.ClusterNamespace()).List(t.Context(), metav1.ListOptions{})
				if err != nil {
					return false, err.Error()
				}
				obtained = obtained[:0]
				for _, d := range deployments.Items {
					c, err := client.Fleet.Contents().Get(t.Context(), d.Labels[fleet.ContentNameLabel], metav1.GetOptions{})
					if err != nil {
						return false, err.Error()
					}
					resources, err := content.Decode(c)
					require.NoError(t, err)
					require.Contains(t, resources[0].Content, password)
					obtained = append(obtained, d.Name)
				}
				return len(obtained) >= len(row.obtains), "waiting for the Bundles of the Cluster"
			})
			assert.ElementsMatch(t, row.obtains, obtained)
		})
	}
}
