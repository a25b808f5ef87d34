package rancherlike

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/charts"
	"github.com/muster-fleet/muster/pkg/controllers"
)

// Settings are settings of the server, by their names there.
type Settings struct {
	ServerURL    string
	CACerts      []byte
	AgentTLSMode string
}

// values are all that the server sets, and one it does not know of, from the ConfigMap of its administrators.
func (s *Server) values() map[string]any {
	return map[string]any{
		"apiServerURL": s.Settings.ServerURL,
		"apiServerCA":  string(s.Settings.CACerts),
		"agentTLSMode": s.Settings.AgentTLSMode,
		"global": map[string]any{"cattle": map[string]any{
			"systemDefaultRegistry": "",
			"imagePullSecrets":      nil,
		}},
		"bootstrap":                map[string]any{"enabled": false, "agentNamespace": LocalAgentNamespace},
		"gitops":                   map[string]any{"enabled": true},
		"proxy":                    "http://proxy.example:3128",
		"noProxy":                  "127.0.0.0/8,.svc",
		"priorityClassName":        "rancher-critical",
		"tolerations":              []any{map[string]any{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"}},
		"automaticCPTolerations":   true,
		"somethingOfRancherConfig": map[string]any{"of": "a later release"},
	}
}

// Upgrade installs the chart fleet with the settings as they are now, or upgrades it, all but the Deployment. It returns
// the hub as that Deployment would run it: with the rights of the chart's ServiceAccount, and its flags.
func (s *Server) Upgrade(t testing.TB) func(*controllers.Options) {
	t.Helper()
	manifests, err := charts.Render(charts.Hub, charts.Release{Name: charts.Hub, Namespace: systemNamespace}, s.values())
	require.NoError(t, err)
	s.Workspace(t, systemNamespace)
	var command []string
	for _, object := range decode(t, manifests) {
		if object.GetKind() == "Deployment" {
			command = commandOf(t, object)
			continue
		}
		s.install(t, object)
	}
	cfg := s.hubConfig(t)
	return func(o *controllers.Options) {
		o.RESTConfig = rest.CopyConfig(cfg)
		o.DisableBootstrap = slices.Contains(command, "--disable-bootstrap")
	}
}

func commandOf(t testing.TB, deployment *unstructured.Unstructured) []string {
	t.Helper()
	containers, _, err := unstructured.NestedSlice(deployment.Object, "spec", "template", "spec", "containers")
	require.NoError(t, err)
	command, _, err := unstructured.NestedStringSlice(containers[0].(map[string]any), "command")
	require.NoError(t, err)
	return command
}

func decode(t testing.TB, manifests map[string]string) []*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	for _, manifest := range manifests {
		for decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifest), bytes.MinRead); ; {
			object := &unstructured.Unstructured{}
			err := decoder.Decode(object)
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			if len(object.Object) > 0 {
				objects = append(objects, object)
			}
		}
	}
	return objects
}

func (s *Server) install(t testing.TB, object *unstructured.Unstructured) {
	t.Helper()
	client, err := dynamic.NewForConfig(s.config)
	require.NoError(t, err)
	resource, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
	objects := dynamic.ResourceInterface(client.Resource(resource))
	if object.GetNamespace() != "" {
		objects = client.Resource(resource).Namespace(object.GetNamespace())
	}
	_, err = objects.Apply(t.Context(), object.GetName(), object, metav1.ApplyOptions{FieldManager: "helm", Force: true})
	require.NoError(t, err)
}

// hubConfig has the rights of the chart's ServiceAccount, and no other.
func (s *Server) hubConfig(t testing.TB) *rest.Config {
	t.Helper()
	token, err := s.Hub.Kubernetes.CoreV1().ServiceAccounts(systemNamespace).CreateToken(t.Context(), "fleet-controller",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	return &rest.Config{Host: s.Hub.URL(), BearerToken: token.Status.Token, TLSClientConfig: rest.TLSClientConfig{CAData: s.Hub.CA()}}
}
