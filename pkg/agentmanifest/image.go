package agentmanifest

import (
	"path"
	"strings"
)

// image is where the agent is pulled from. A private registry takes the place of the system's default one and goes in
// front of an image that does not already come from it.
func image(reference, systemDefaultRegistry, privateRepoURL string) string {
	private := registry(privateRepoURL)
	if private == "" {
		return reference
	}
	if _, found := cutRegistry(reference, private); found {
		return reference
	}
	rest, _ := cutRegistry(reference, registry(systemDefaultRegistry))
	return path.Join(private, rest)
}

// registry is the form that image references begin with: people also write https:// and a final slash.
func registry(url string) string {
	url = strings.TrimPrefix(url, "https://")
	url = strings.TrimPrefix(url, "http://")
	return strings.TrimSuffix(url, "/")
}

// cutRegistry removes a registry from the front of a reference. Whole path elements count: the registry "reg" is not in
// "registry.example.com/agent".
func cutRegistry(reference, registry string) (string, bool) {
	if registry == "" {
		return reference, false
	}
	return strings.CutPrefix(reference, registry+"/")
}
