package manageagent

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/lru"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/pkg/agentmanifest"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/content"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/registration"
)

// manifestsKept is how many manifests are kept in memory, if their options are small. Most hubs have few different ones; this is for hubs
// whose Clusters have settings of their own.
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

// agentManifest is the YAML of all objects, and the digest of the resources of a Bundle with it.
type agentManifest struct{ text, digest string }

// resources are the resources of a Bundle with the manifest.
func (m agentManifest) resources() []fleet.BundleResource {
	return []fleet.BundleResource{{Name: "agent.yaml", Content: m.text}}
}

// render returns the manifest for these inputs.
func (m *manifests) render(in manifestInputs) (made agentManifest, err error) {
	key, err := registration.StatusHash(in)
	if err != nil {
		return made, err
	}
	if known, found := m.cache.Get(key); found {
		return known.(agentManifest), nil
	}
	objects, err := agentmanifest.Render(in.Agent)
	if err != nil {
		return made, err
	}
	if in.Hub != nil && in.Hub.APIServerURL != "" {
		hub, err := agentspec.AgentHubConfigMap(*in.Hub, in.Agent.Namespace)
		if err != nil {
			return made, err
		}
		objects = append(objects, hub)
	}
	var text strings.Builder
	for i, object := range objects {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return made, err
		}
		unstructured.RemoveNestedField(fields, "status")
		data, err := yaml.Marshal(fields)
		if err != nil {
			return made, fmt.Errorf("encoding the agent's manifest: %w", err)
		}
		if i > 0 {
			text.WriteString("---\n")
		}
		text.Write(data)
	}
	made.text = text.String()
	if _, made.digest, err = content.Digest(made.resources()); err != nil {
		return made, err
	}
	if in.Agent.IsSmall() {
		m.cache.Add(key, made)
	}
	return made, nil
}
