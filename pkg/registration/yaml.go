package registration

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// RefuseAliases returns an error for YAML with aliases: decoded, such a document can take thousands of times the memory of its text. A
// document with the character & that cannot be parsed is an error too; without that character, the syntax is not checked. The error does
// not contain the text of the document.
func RefuseAliases(document []byte) error {
	if !bytes.ContainsRune(document, '&') { // there is no anchor, which an alias would refer to
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

// MostNodes counts the characters with which a node of YAML can begin, even in strings and comments. A parser makes at most three nodes for each of
// them, and allocates some 250 bytes for a node, so a text is counted before it is parsed.
func MostNodes(text []byte) (nodes int) {
	for i, character := range text {
		switch character {
		case ',', '[', '{', ':', '?':
			nodes++
		case '-': // only before a space, a line break or the end: others are in names and numbers
			if i+1 == len(text) || text[i+1] <= ' ' || text[i+1] >= utf8.RuneSelf {
				nodes++
			}
		}
	}
	return nodes
}
