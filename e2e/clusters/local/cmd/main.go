// Cmd creates clusters with real pods for experiments: it prints their kubeconfigs, loads the given image archives, and removes everything on
// Ctrl-C.
//
// usage: go run ./e2e/clusters/local/cmd up [--image ARCHIVE]... NAME...
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/muster-fleet/muster/e2e/clusters"
	"github.com/muster-fleet/muster/e2e/clusters/local"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	if len(args) == 0 || args[0] != "up" {
		return errors.New("usage: up [--image ARCHIVE] NAME; both can be repeated")
	}
	flags := flag.NewFlagSet("up", flag.ContinueOnError)
	var images []string
	flags.Func("image", "an image archive to load", func(path string) error {
		images = append(images, path)
		return nil
	})
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	binaries, err := binaries(ctx)
	if err != nil {
		return err
	}
	provider, err := local.New(local.Options{Binaries: binaries, Log: os.Stderr})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, provider.Close()) }()
	for _, name := range flags.Args() {
		if err := up(ctx, provider, name, images); err != nil {
			return err
		}
	}
	fmt.Fprintln(os.Stderr, "Ctrl-C removes everything")
	<-ctx.Done()
	return nil
}

func up(ctx context.Context, provider clusters.Provider, name string, images []string) error {
	cluster, err := provider.Create(ctx, name)
	if err != nil {
		return err
	}
	for _, image := range images {
		if err := cluster.Load(ctx, image); err != nil {
			return err
		}
	}
	fmt.Printf("export KUBECONFIG=%s\n", cluster.Kubeconfig())
	return nil
}

// binaries builds the programs of Kubernetes if they are missing.
func binaries(ctx context.Context) (string, error) {
	command := exec.CommandContext(ctx, "scripts/kube", "pods")
	command.Stderr = os.Stderr
	output, err := command.Output()
	return strings.TrimSpace(string(output)), err
}
