package command

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
)

// version is what a program says it is built from; empty where it does not say.
func version(program string) string {
	out, err := exec.Command(program, "--version").Output()
	if err != nil {
		return ""
	}
	words := strings.Fields(string(out))
	if len(words) == 0 {
		return ""
	}
	return words[len(words)-1]
}

func goVersion() string { return runtime.Version() }

// machine is its processors and memory, as far as the system tells.
func machine() string {
	text := fmt.Sprintf("%s/%s, %d CPUs", runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	if model := field("/proc/cpuinfo", "model name"); model != "" {
		text += " " + model
	}
	if kib, err := strconv.Atoi(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB")); err == nil {
		text += fmt.Sprintf(", %d GiB", kib>>20)
	}
	return text
}

// field is the first value of that name in a file of lines with colons.
func field(file, name string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if key, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
