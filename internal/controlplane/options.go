package controlplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Options says which control plane to start. The zero value plus a Name is valid.
type Options struct {
	// Name identifies the control plane in errors, temporary folders, certificates and as the context of its kubeconfig.
	// Required; it must be usable as a file name.
	Name string
	// Dir keeps certificates, data and one log file per process. Empty means a temporary folder that Stop removes; a
	// given folder is created when missing, must not have been used by another control plane, and is kept by Stop,
	// logs included.
	Dir string
	// Binaries is the folder with etcd, kube-apiserver and kube-controller-manager. Empty means what the function
	// Binaries finds or builds, with its progress on standard error.
	Binaries string
	// APIServerArgs are appended to the flags of kube-apiserver. Where a flag is given twice the later one wins, so
	// they override the defaults.
	APIServerArgs []string
	// ControllerManager runs kube-controller-manager too. Without it nothing fills in default ServiceAccounts, no
	// Namespace ever finishes its deletion, no Deployment gets Pods, and no owner reference is collected.
	ControllerManager bool
	// ControllerManagerArgs are appended to the flags of kube-controller-manager, like APIServerArgs.
	ControllerManagerArgs []string
}

func (o Options) validate() error {
	if o.Name == "" {
		return errors.New("control plane: Options.Name is empty: give it a name such as \"hub\"")
	}
	if strings.ContainsAny(o.Name, `/\:`) {
		return fmt.Errorf("control plane %q: the name must be usable as a file name: remove slashes and colons", o.Name)
	}
	return nil
}

// workDir makes the folder of the control plane. The second result says whether it is ours to remove.
func (o Options) workDir() (dir string, temporary bool, err error) {
	if o.Dir == "" {
		dir, err = os.MkdirTemp("", "muster-"+o.Name+"-")
		return dir, true, err
	}
	dir, err = filepath.Abs(o.Dir)
	if err != nil {
		return "", false, err
	}
	// With the data of an earlier run come certificates and tokens that the new authority does not know.
	if _, err := os.Stat(filepath.Join(dir, etcdDataDir)); err == nil {
		return "", false, fmt.Errorf("%s has the data of another control plane: remove it or choose another folder", dir)
	}
	// The private keys of a cluster administrator land in here.
	return dir, false, os.MkdirAll(dir, 0o700)
}
