// Package machine makes a process tree look like a machine of its own: with its own first process, mounts, host name and
// network card, and with programs that are started again when they end. It runs as the first process of fresh Linux
// namespaces.
package machine

import (
	"encoding/json"
	"os"
)

// Spec is what a machine consists of.
type Spec struct {
	// Hostname is its name.
	Hostname string `json:"hostname"`
	// Hidden are the folders that are empty at each start and never written to on the real disk.
	Hidden []string `json:"hidden,omitempty"`
	// Binds are folders of the real machine that appear somewhere else; they are made when missing.
	Binds []Bind `json:"binds,omitempty"`
	// Sysctls are kernel settings of its network, by their path below /proc/sys. Those the kernel lacks are left out.
	Sysctls map[string]string `json:"sysctls,omitempty"`
	// Link is the network card to wait for; somebody outside plugs it in.
	Link string `json:"link,omitempty"`
	// Setup are commands to run, one after another, before the programs.
	Setup [][]string `json:"setup,omitempty"`
	// Environment is all that commands and programs get, as KEY=value.
	Environment []string `json:"environment,omitempty"`
	// Programs are started all at once, except for those that wait for a file.
	Programs []Program `json:"programs,omitempty"`
}

// Bind has the folder From appear as To.
type Bind struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// Program runs for as long as the machine does.
type Program struct {
	// Args is the command line, the program's path first.
	Args []string `json:"args"`
	// Dir is its working folder.
	Dir string `json:"dir"`
	// Log is the file its output is appended to.
	Log string `json:"log"`
	// After is a file, such as the socket of another program, that has to be there before it starts. Empty means none.
	After string `json:"after,omitempty"`
}

// Read reads a Spec that Write wrote.
func Read(path string) (Spec, error) {
	var s Spec
	data, err := os.ReadFile(path)
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(data, &s)
}

// Write keeps the Spec in a file.
func (s Spec) Write(path string) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}
