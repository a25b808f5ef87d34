package localpods

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/muster-fleet/muster/internal/process"
)

// Files in the private directory of a process.
const (
	tmpDir         = "tmp"
	kubeconfigFile = "kubeconfig"
)

// commandFor returns the command line and the environment of a pod's process.
func commandFor(pod *corev1.Pod, binaries, home string) (process.Command, error) {
	if len(pod.Spec.Containers) != 1 || len(pod.Spec.InitContainers) > 0 {
		return process.Command{}, errors.New("only pods with exactly one container, and no init container, run as a process")
	}
	c := pod.Spec.Containers[0]
	if len(c.Command) == 0 {
		return process.Command{}, fmt.Errorf("container %s has no command, and the entry point of its image is not known: set command", c.Name)
	}
	// The image does not contain the programs of this machine, so PATH is not searched.
	program, err := exec.LookPath(filepath.Join(binaries, path.Base(c.Command[0])))
	if err != nil {
		return process.Command{}, fmt.Errorf("the command of container %s is %q: build it into %s: %w", c.Name, c.Command[0], binaries, err)
	}
	if program, err = filepath.Abs(program); err != nil {
		return process.Command{}, err
	}
	env, err := environment(pod, c, binaries, home)
	if err != nil {
		return process.Command{}, err
	}
	return process.Command{
		Path: program,
		Args: slices.Concat(c.Command[1:], c.Args),
		Env:  env,
		Dir:  home,
	}, nil
}

func environment(pod *corev1.Pod, c corev1.Container, binaries, home string) ([]string, error) {
	env := []string{
		"PATH=" + binaries + string(os.PathListSeparator) + os.Getenv("PATH"),
		"HOME=" + home,
		"TMPDIR=" + filepath.Join(home, tmpDir),
		"HOSTNAME=" + pod.Name,
	}
	if mountsToken(pod) {
		env = append(env, "KUBECONFIG="+filepath.Join(home, kubeconfigFile))
	}
	if len(c.EnvFrom) > 0 {
		return nil, fmt.Errorf("container %s uses envFrom, which is not supported for processes", c.Name)
	}
	for _, variable := range c.Env {
		value, err := valueOf(pod, variable)
		if err != nil {
			return nil, err
		}
		env = append(env, variable.Name+"="+value)
	}
	return env, nil
}

func valueOf(pod *corev1.Pod, variable corev1.EnvVar) (string, error) {
	if strings.HasSuffix(variable.Name, "_BIND_ADDRESS") && variable.Value != "" {
		// All processes share one network, in which only one of them could listen on the given port.
		return "127.0.0.1:0", nil
	}
	if variable.ValueFrom == nil {
		return variable.Value, nil
	}
	if variable.ValueFrom.FieldRef == nil {
		return "", fmt.Errorf("environment variable %s has neither a value nor a fieldRef; processes support no other source", variable.Name)
	}
	value, known := map[string]string{
		"metadata.name":           pod.Name,
		"metadata.namespace":      pod.Namespace,
		"metadata.uid":            string(pod.UID),
		"spec.nodeName":           pod.Spec.NodeName,
		"spec.serviceAccountName": pod.Spec.ServiceAccountName,
		"status.hostIP":           "127.0.0.1",
		"status.podIP":            "127.0.0.1",
	}[variable.ValueFrom.FieldRef.FieldPath]
	if !known {
		return "", fmt.Errorf("environment variable %s refers to field %q, which processes do not have", variable.Name, variable.ValueFrom.FieldRef.FieldPath)
	}
	return value, nil
}
