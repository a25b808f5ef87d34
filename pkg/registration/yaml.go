package registration

import (
	"bytes"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// RefuseAliases returns an error for YAML with aliases, or that cannot be parsed: decoded, a document with aliases can take thousands of
// times the memory of its text. The error does not contain the text.
func RefuseAliases(document []byte) error {
	if !bytes.ContainsRune(document, '&') { // an alias refers to an anchor
		return nil
	}
	var root yaml.Node
	if err := yaml.Unmarshal(document, &root); err != nil {
		return fmt.Errorf("it is not valid YAML")
	}
	nodes := []*yaml.Node{&root}
	for len(nodes) > 0 {
		node := nodes[len(nodes)-1]
		nodes = append(nodes[:len(nodes)-1], node.Content...)
		if node.Kind == yaml.AliasNode {
			return fmt.Errorf("line %d has a YAML alias, which is not allowed; repeat the value there", node.Line)
		}
	}
	return nil
}
