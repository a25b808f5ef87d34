// Package machine makes a process tree look like a separate machine: with its own first process, mounts, host name and network
// interface, and with programs that are restarted when they end. It runs as the first process of new Linux namespaces.
package machine

import (
	"encoding/json"
	"os"
)

// Spec describes a machine.
type Spec struct {
	// Hostname is its name.
	Hostname string `json:"hostname"`
	// Hidden are the directories that are empty at each start and not written to the disk.
	Hidden []string `json:"hidden,omitempty"`
	// Binds are directories of the real machine that appear at another path. Missing ones are created.
	Binds []Bind `json:"binds,omitempty"`
	// Sysctls are kernel settings of its network by their path below /proc/sys. Settings that the kernel does not have are skipped.
	Sysctls map[string]string `json:"sysctls,omitempty"`
	// Link is the network interface to wait for, which another process adds.
	Link string `json:"link,omitempty"`
	// Setup are commands that run in sequence before the programs.
	Setup [][]string `json:"setup,omitempty"`
	// Environment is the environment of commands and programs, as KEY=value.
	Environment []string `json:"environment,omitempty"`
	// Programs are started at the same time, except those that wait for a file.
	Programs []Program `json:"programs,omitempty"`
}

// Bind makes the directory From appear as To.
type Bind struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// Program runs as long as the machine.
type Program struct {
	// Args is the command line, the program's path first.
	Args []string `json:"args"`
	// Dir is its working directory.
	Dir string `json:"dir"`
	// Log is the file its output is appended to.
	Log string `json:"log"`
	// After is a file that has to exist before it starts, such as the socket of another program. Empty means none.
	After string `json:"after,omitempty"`
}

// Read reads a Spec from a file.
func Read(path string) (Spec, error) {
	var s Spec
	data, err := os.ReadFile(path)
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(data, &s)
}

// Write writes the Spec to a file.
func (s Spec) Write(path string) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}
