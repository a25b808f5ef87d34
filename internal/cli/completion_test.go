package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestProposals(t *testing.T) {
	t.Setenv("KUBECONFIG", writeConfig(t, nil))
	tests := map[string]string{
		"des|":                               "describe",
		"-n ns token |":                      "create list revoke",
		"token create |":                     "",
		"clusters --no|":                     "--no-headers --not-ready",
		"--context|":                         "--context",
		"--context |":                        "ctx",
		"--context = |":                      "ctx",
		"clusters --context c|":              "ctx",
		"clusters -o |":                      "json name wide yaml",
		"clusters --output=json --state Re|": "Registered Refused",
		"clusters --sort |":                  "last-seen name state",
		"completion f|":                      "fish",
		"import --member-kubeconfig |":       "", // the shell completes files
		"join |":                             "",
		"join --cont|":                       "--context",
		"join --context c|":                  "ctx",
		"check --pr|":                        "--probe",
		"hel|":                               "",
		"bogus |":                            "check clusters",
		"__com|":                             "",
	}
	for line, want := range tests {
		words := strings.Split(strings.TrimSuffix(line, "|"), " ")
		out, _, err := muster(t, append([]string{completeCommand}, words...)...)
		require.NoError(t, err, line)
		var got []string
		for proposal := range strings.Lines(out) {
			name, _, _ := strings.Cut(strings.TrimSpace(proposal), "\t")
			got = append(got, name)
		}
		if line == "bogus |" {
			got = got[:2]
		}
		assert.Equal(t, want, strings.Join(got, " "), line)
	}
}

// The script is run by bash, with the test as the program.
func TestCompletionInBash(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash on this machine")
	}
	program, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	wrapper := "#!/bin/sh\n" + actAsProgram + "=1 exec '" + program + "' \"$@\"\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "muster"), []byte(wrapper), 0o700))
	require.NoError(t, os.Symlink("muster", filepath.Join(dir, "kubectl-muster")))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("KUBECONFIG", writeConfig(t, nil))

	press := `
source <(muster completion bash)
COMP_WORDS=(muster clusters --context '=' c) COMP_CWORD=4
_muster
echo "${COMPREPLY[@]}"
COMP_WORDS=(muster tok) COMP_CWORD=1
_muster
echo "${COMPREPLY[@]}"
COMP_WORDS=(muster token '') COMP_CWORD=2
_muster
echo "${COMPREPLY[@]}"
complete -p muster
muster completion kubectl > "$1/kubectl_complete-muster"
chmod +x "$1/kubectl_complete-muster"
kubectl_complete-muster token r
`
	out, err := exec.CommandContext(t.Context(), bash, "-c", press, "press", dir).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, `ctx
token
create list revoke
complete -o default -F _muster muster
revoke	delete a registration token, so that it can no longer be used to register
`, string(out))
}
