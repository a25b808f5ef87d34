package manageagent

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/lru"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/pkg/agentmanifest"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/registration"
)

// manifestsKept is for hubs whose Clusters have settings of their own; most have a few sorts of agents.
const manifestsKept = 512

// manifests renders agents' manifests and remembers them by what they are made of: all Clusters with the same settings have
// one, and a Cluster that did not change costs no rendering.
type manifests struct{ cache *lru.Cache }

func newManifests() *manifests { return &manifests{cache: lru.New(manifestsKept)} }

// ingredients are what a manifest is made of.
type ingredients struct {
	Agent agentmanifest.Options
	// Hub is where the agent is told its hub is, nil for one that learns it otherwise.
	Hub *config.Hub
}

// render gives the YAML of all objects.
func (m *manifests) render(in ingredients) (string, error) {
	key, err := registration.StatusHash(in)
	if err != nil {
		return "", err
	}
	if known, found := m.cache.Get(key); found {
		return known.(string), nil
	}
	text, err := render(in)
	if err == nil {
		m.cache.Add(key, text)
	}
	return text, err
}

func render(in ingredients) (string, error) {
	objects, err := agentmanifest.Render(in.Agent)
	if err != nil {
		return "", err
	}
	if in.Hub != nil && in.Hub.APIServerURL != "" {
		hub, err := agentspec.HubConfigMap(*in.Hub, in.Agent.Namespace)
		if err != nil {
			return "", err
		}
		objects = append(objects, hub)
	}
	return documents(objects)
}

// documents writes objects as one YAML file.
func documents(objects []runtime.Object) (string, error) {
	var text strings.Builder
	for i, object := range objects {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return "", err
		}
		unstructured.RemoveNestedField(content, "status")
		data, err := yaml.Marshal(content)
		if err != nil {
			return "", fmt.Errorf("writing the agent's manifest: %w", err)
		}
		if i > 0 {
			text.WriteString("---\n")
		}
		text.Write(data)
	}
	return text.String(), nil
}
