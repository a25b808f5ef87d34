package docs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Session is the terminal of a reader: variables that one block sets exist in the next block.
type Session struct {
	Dir string    // working directory of the commands
	Env []string  // as in os.Environ
	Log io.Writer // receives the commands and their output
	// Timeout limits one block; 0 means five minutes.
	Timeout time.Duration
}

const (
	stateFile      = ".session"
	defaultTimeout = 5 * time.Minute
	// grace is how long to wait for the pipes of a killed block, which a child process may keep open.
	grace = 5 * time.Second
)

// Run runs one block. An error contains its place in the page and its output.
func (s *Session) Run(ctx context.Context, block Block) error {
	timeout := s.Timeout
	if timeout == 0 {
		timeout = defaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var out bytes.Buffer
	if err := s.bash(ctx, block.Script, &out); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w after %s", ctx.Err(), timeout)
		}
		return fmt.Errorf("%s: %w\n%s", block, err, out.String())
	}
	for _, expression := range block.Prints {
		if !expression.Match(out.Bytes()) {
			return fmt.Errorf("%s: the output must match %q, and is\n%s", block, expression, out.String())
		}
	}
	return nil
}

// bash stores the variables in a file between two blocks. A block that fails does not change the file.
func (s *Session) bash(ctx context.Context, script string, out io.Writer) error {
	state := filepath.Join(s.Dir, stateFile)
	if _, err := os.Stat(state); os.IsNotExist(err) {
		if err := os.WriteFile(state, nil, 0o600); err != nil {
			return err
		}
	}
	whole := "set -a; . " + stateFile + "\n" + script + "\nexport -p >" + stateFile + "\n"
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", whole)
	cmd.Dir, cmd.Env, cmd.WaitDelay = s.Dir, s.Env, grace
	both := io.MultiWriter(out, s.Log)
	cmd.Stdout, cmd.Stderr = both, both
	return cmd.Run()
}
