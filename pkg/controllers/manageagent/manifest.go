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

// manifestsKept is how many manifests are kept in memory. Most hubs have few different ones; this is for hubs whose Clusters
// have settings of their own.
const manifestsKept = 512

// manifests renders agents' manifests and keeps them by the digest of their inputs: all Clusters with the same settings share
// one, and a pass over an unchanged Cluster renders none.
type manifests struct{ cache *lru.Cache }

func newManifests() *manifests { return &manifests{cache: lru.New(manifestsKept)} }

// manifestInputs determine a manifest.
type manifestInputs struct {
	Agent agentmanifest.Options
	// Hub, if not nil, is the configuration that tells the agent where the hub is.
	Hub *config.Hub
}

// render returns the YAML of all objects.
func (m *manifests) render(in manifestInputs) (string, error) {
	key, err := registration.StatusHash(in)
	if err != nil {
		return "", err
	}
	if known, found := m.cache.Get(key); found {
		return known.(string), nil
	}
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
	var text strings.Builder
	for i, object := range objects {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return "", err
		}
		unstructured.RemoveNestedField(content, "status")
		data, err := yaml.Marshal(content)
		if err != nil {
			return "", fmt.Errorf("encoding the agent's manifest: %w", err)
		}
		if i > 0 {
			text.WriteString("---\n")
		}
		text.Write(data)
	}
	m.cache.Add(key, text.String())
	return text.String(), nil
}
