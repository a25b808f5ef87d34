package local

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Options are the directories and the log of a provider.
type Options struct {
	// Binaries is the directory with etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kube-proxy and kubelet, as
	// "scripts/kube pods" prints it. Required.
	Binaries string
	// Dir is the directory for the data of the clusters, including images, in one subdirectory for each, which Close removes. It is
	// created if it is missing. Empty means a temporary directory. It cannot be inside /run, /var/lib or /var/log, because nodes have
	// their own.
	Dir string
	// Log receives one line per step; nil means that there is no log.
	Log io.Writer
}

// programs are the programs of Kubernetes that a node runs.
func programs() []string {
	return []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"}
}

// tools are the programs of the system that are needed here or on a node.
func tools() []string { return []string{"containerd", "ctr", "runc", "iptables", "ip", "nsenter"} }

// complete checks everything that can be checked before anything is started, and fills in the defaults.
func (o Options) complete() (Options, error) {
	if os.Getuid() != 0 {
		return o, errors.New("clusters with real pods need root: namespaces, mounts and cgroups are made")
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	var err error
	if o.Binaries, err = filepath.Abs(o.Binaries); err != nil {
		return o, err
	}
	if err := errors.Join(present(o.Binaries, programs()), installed(tools())); err != nil {
		return o, err
	}
	return o, o.checkFolders()
}

func (o Options) checkFolders() error {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return err
	}
	for _, folder := range []string{o.Binaries, dir} {
		for _, hidden := range hiddenFolders() {
			if folder == hidden || strings.HasPrefix(folder, hidden+"/") {
				return fmt.Errorf("%s is inside %s, which each node replaces with its own: choose another directory", folder, hidden)
			}
		}
	}
	return nil
}

func present(dir string, names []string) error {
	var missing []string
	for _, name := range names {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s has no %s: build them with scripts/kube pods", dir, strings.Join(missing, ", "))
	}
	return nil
}

func installed(names []string) error {
	var missing []string
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("not found on PATH: %s: run scripts/e2e-deps", strings.Join(missing, ", "))
	}
	return nil
}

// cniFolder returns the first candidate with the CNI plugins. Debian's package installs them elsewhere than others.
func cniFolder(candidates ...string) (string, error) {
	for _, dir := range candidates {
		if present(dir, []string{"bridge", "host-local", "loopback", "portmap"}) == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("no CNI plugins in %s: run scripts/e2e-deps", strings.Join(candidates, " or "))
}
