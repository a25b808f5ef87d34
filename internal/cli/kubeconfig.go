package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"
)

// selfContained is one context of a kubeconfig, as it makes sense on another machine: no files, no programs.
func selfContained(file, context string) ([]byte, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of the cluster to import: %w", err)
	}
	config, err := clientcmd.LoadFromFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s is not a kubeconfig: %s. Pass the kubeconfig of the cluster to import; "+
			"`kubectl config view --raw --minify --flatten` prints that of the current context", file, notKubeconfig(data))
	}
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	if context != "" {
		config.CurrentContext = context
	}
	if err := checkContext(file, config); err != nil {
		return nil, err
	}
	if err := clientcmdapi.MinifyConfig(config); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	if err := clientcmdapi.FlattenConfig(config); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: a file it refers to: %w", file, err)
	}
	if err := embedToken(config); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	return clientcmd.Write(*config)
}

// notKubeconfig says why clientcmd cannot read a file. The error of clientcmd describes Go types, and may quote the file, which
// can contain credentials.
func notKubeconfig(data []byte) string {
	var object map[string]any
	if yaml.Unmarshal(data, &object) != nil {
		return "it contains no YAML or JSON object"
	}
	if kind, found := object["kind"]; found && kind != "Config" {
		return fmt.Sprintf("its kind is %q, not \"Config\"", fmt.Sprint(kind))
	}
	return "its fields are not those of a kubeconfig"
}

func checkContext(file string, config *clientcmdapi.Config) error {
	current := config.Contexts[config.CurrentContext]
	switch {
	case config.CurrentContext == "":
		return fmt.Errorf("kubeconfig %s has no current context: name one with --%s (%s)", file, flagMemberContext, contextNames(config))
	case current == nil:
		return fmt.Errorf("kubeconfig %s has no context %q, but %s", file, config.CurrentContext, contextNames(config))
	case config.Clusters[current.Cluster] == nil:
		return fmt.Errorf("kubeconfig %s: context %q names cluster %q, which is not in it", file, config.CurrentContext, current.Cluster)
	}
	user := config.AuthInfos[current.AuthInfo]
	switch {
	case user == nil:
		return fmt.Errorf("kubeconfig %s: context %q names user %q, who is not in it", file, config.CurrentContext, current.AuthInfo)
	case user.Exec != nil || user.AuthProvider != nil:
		return fmt.Errorf("kubeconfig %s: user %q logs in by a program or plugin, which the hub does not have: "+
			"make a kubeconfig with the token of a ServiceAccount", file, current.AuthInfo)
	}
	return nil
}

func contextNames(config *clientcmdapi.Config) string {
	if len(config.Contexts) == 0 {
		return "none at all"
	}
	var names []string
	for name := range config.Contexts {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// embedToken puts the content of a token file in its place; flattening leaves that reference alone.
func embedToken(config *clientcmdapi.Config) error {
	for _, user := range config.AuthInfos {
		if user.TokenFile == "" {
			continue
		}
		token, err := os.ReadFile(user.TokenFile)
		if err != nil {
			return fmt.Errorf("its token file: %w", err)
		}
		user.Token, user.TokenFile = strings.TrimSpace(string(token)), ""
	}
	return nil
}
