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

// Options says where clusters come from and go to.
type Options struct {
	// Binaries is the folder with etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kube-proxy and kubelet, as
	// "scripts/kube pods" prints it. Required.
	Binaries string
	// Dir is the folder for everything the clusters keep, images included, in one folder for each; Close removes those. It is made when
	// missing. Empty means a temporary one. It cannot be inside /run, /var/lib or /var/log: nodes have their own of these.
	Dir string
	// Log gets one line per step. Nil means nobody wants to know.
	Log io.Writer
}

// programs are those of Kubernetes that a node runs.
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
				return fmt.Errorf("%s is inside %s, of which each node has its own: choose another folder", folder, hidden)
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

// cniFolder is where the CNI plugins are: in Debian's package, and everywhere else.
func cniFolder(candidates ...string) (string, error) {
	for _, dir := range candidates {
		if present(dir, []string{"bridge", "host-local", "loopback", "portmap"}) == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("no CNI plugins in %s: run scripts/e2e-deps", strings.Join(candidates, " or "))
}
