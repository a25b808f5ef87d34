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

// Session is the reader's terminal: variables that a block sets are there in the next one.
type Session struct {
	Dir string    // in which the commands are run
	Env []string  // as of os.Environ
	Log io.Writer // what is run and what it prints
	// Patience is how long one block may take; 0 means five minutes.
	Patience time.Duration
}

const (
	stateFile       = ".session"
	defaultPatience = 5 * time.Minute
	// grace is for the pipes of a killed block, which a child of it may hold.
	grace = 5 * time.Second
)

// Run runs one block. The error has its place in the page and, for whoever reads no log, all that it printed.
func (s *Session) Run(ctx context.Context, block Block) error {
	patience := s.Patience
	if patience == 0 {
		patience = defaultPatience
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var out bytes.Buffer
	if err := s.bash(ctx, block.Script, &out); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w after %s", ctx.Err(), patience)
		}
		return fmt.Errorf("%s: %w\n%s", block, err, out.String())
	}
	for _, expression := range block.Prints {
		if !expression.Match(out.Bytes()) {
			return fmt.Errorf("%s: should print %q, and printed\n%s", block, expression, out.String())
		}
	}
	return nil
}

// bash keeps the variables in a file between two blocks. A block that fails leaves that of the one before it.
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
