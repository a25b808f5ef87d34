package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"
)

// ClusternetAgents configures the registration of Clusternet agents, on a hub that serves them.
type ClusternetAgents struct {
	// BootstrapTokens let the holders of bootstrap tokens of Kubernetes register. Each entry names the ClusterRegistrationToken that applies.
	BootstrapTokens []BootstrapTokenUse `json:"bootstrapTokens,omitempty"`
	// ReentryNamespaces are the namespaces in which a disconnected agent may register again with its earlier token, without its credential and
	// without the approval of a person.
	ReentryNamespaces []string `json:"reentryNamespaces,omitempty"`
}

// BootstrapTokenUse lets the holder of one bootstrap token of Kubernetes, a Secret of type bootstrap.kubernetes.io/token, register like a
// holder of a ClusterRegistrationToken.
type BootstrapTokenUse struct {
	// ID is the part of the bootstrap token before the dot.
	ID string `json:"id"`
	// Namespace and Token name the ClusterRegistrationToken.
	Namespace string `json:"namespace"`
	Token     string `json:"token"`
}

// User is the user name that the API server gives to the holder of the bootstrap token.
func (b BootstrapTokenUse) User() string { return bootstrapUserPrefix + b.ID }

const bootstrapUserPrefix = "system:bootstrap:"

// UsersOf returns the users of the bootstrap tokens that stand for a ClusterRegistrationToken.
func (c ClusternetAgents) UsersOf(namespace, token string) (users []string) {
	for _, b := range c.BootstrapTokens {
		if b.Namespace == namespace && b.Token == token {
			users = append(users, b.User())
		}
	}
	return users
}

// ForUser returns the ClusterRegistrationToken that a user of a bootstrap token stands for.
func (c ClusternetAgents) ForUser(user string) (use BootstrapTokenUse, found bool) {
	i := slices.IndexFunc(c.BootstrapTokens, func(b BootstrapTokenUse) bool { return b.User() == user })
	if i < 0 {
		return BootstrapTokenUse{}, false
	}
	return c.BootstrapTokens[i], true
}

var bootstrapTokenID = regexp.MustCompile(`^[a-z0-9]{6}$`)

func (c ClusternetAgents) validate() error {
	var problems []error
	seen := map[string]bool{}
	for i, b := range c.BootstrapTokens {
		field := fmt.Sprintf("clusternet.bootstrapTokens[%d]", i)
		switch {
		case !bootstrapTokenID.MatchString(b.ID):
			problems = append(problems, fmt.Errorf("%s.id is not the first part of a bootstrap token: it must be 6 lower-case letters and digits, without the secret part", field))
		case seen[b.ID]:
			problems = append(problems, fmt.Errorf("%s.id is %q, which an earlier entry has: a bootstrap token stands for one ClusterRegistrationToken", field, b.ID))
		}
		seen[b.ID] = true
		if len(validation.IsDNS1123Label(b.Namespace)) > 0 {
			problems = append(problems, fmt.Errorf("%s.namespace is %q: it must be the namespace of a ClusterRegistrationToken", field, b.Namespace))
		}
		if len(validation.IsDNS1123Subdomain(b.Token)) > 0 {
			problems = append(problems, fmt.Errorf("%s.token is %q: it must be the name of a ClusterRegistrationToken", field, b.Token))
		}
	}
	return errors.Join(problems...)
}
