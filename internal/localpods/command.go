package localpods

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/muster-fleet/muster/internal/process"
)

// Files in the private folder of a process.
const (
	tmpFolder      = "tmp"
	tokenFile      = "token"
	kubeconfigFile = "kubeconfig"
)

// commandFor is the command line and environment of the pod's program.
func commandFor(pod *corev1.Pod, binaries, home string) (process.Command, error) {
	if len(pod.Spec.Containers) != 1 || len(pod.Spec.InitContainers) > 0 {
		return process.Command{}, errors.New("only pods with exactly one container, and no init container, run as a process")
	}
	c := pod.Spec.Containers[0]
	program, err := program(c, binaries)
	if err != nil {
		return process.Command{}, err
	}
	env, err := environment(pod, c, binaries, home)
	if err != nil {
		return process.Command{}, err
	}
	return process.Command{
		Path: program,
		Args: append(append([]string{}, c.Command[1:]...), c.Args...),
		Env:  env,
		Dir:  home,
	}, nil
}

// program finds the command in the folder of binaries, and nowhere else: what happens to be installed on the machine is
// not in the image either.
func program(c corev1.Container, binaries string) (string, error) {
	if len(c.Command) == 0 {
		return "", fmt.Errorf("container %s has no command, and the entry point of an image is not known here: set command", c.Name)
	}
	file := filepath.Join(binaries, path.Base(c.Command[0]))
	found, err := exec.LookPath(file)
	if err != nil {
		return "", fmt.Errorf("container %s wants to run %q: build it into %s: %w", c.Name, c.Command[0], binaries, err)
	}
	return filepath.Abs(found)
}

func environment(pod *corev1.Pod, c corev1.Container, binaries, home string) ([]string, error) {
	env := []string{
		"PATH=" + binaries + string(os.PathListSeparator) + os.Getenv("PATH"),
		"HOME=" + home,
		"TMPDIR=" + filepath.Join(home, tmpFolder),
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

// addressSuffix ends the names of variables that say where a program listens.
const addressSuffix = "_BIND_ADDRESS"

func valueOf(pod *corev1.Pod, variable corev1.EnvVar) (string, error) {
	if strings.HasSuffix(variable.Name, addressSuffix) && variable.Value != "" {
		// All processes share one network, where the port of a pod is free for the first of them only.
		return "127.0.0.1:0", nil
	}
	if variable.ValueFrom == nil {
		return variable.Value, nil
	}
	if variable.ValueFrom.FieldRef == nil {
		return "", fmt.Errorf("environment variable %s comes from something else than text or a field of the pod, which is not supported for processes", variable.Name)
	}
	value, known := field(pod, variable.ValueFrom.FieldRef.FieldPath)
	if !known {
		return "", fmt.Errorf("environment variable %s refers to field %q, which processes do not have", variable.Name, variable.ValueFrom.FieldRef.FieldPath)
	}
	return value, nil
}

func field(pod *corev1.Pod, fieldPath string) (value string, known bool) {
	if key, ok := subscript(fieldPath, "metadata.labels"); ok {
		return pod.Labels[key], true
	}
	if key, ok := subscript(fieldPath, "metadata.annotations"); ok {
		return pod.Annotations[key], true
	}
	value, known = map[string]string{
		"metadata.name":           pod.Name,
		"metadata.namespace":      pod.Namespace,
		"metadata.uid":            string(pod.UID),
		"spec.nodeName":           pod.Spec.NodeName,
		"spec.serviceAccountName": pod.Spec.ServiceAccountName,
		"status.hostIP":           "127.0.0.1",
		"status.podIP":            "127.0.0.1",
	}[fieldPath]
	return value, known
}

// subscript is the key of a field path such as metadata.labels['key'].
func subscript(fieldPath, field string) (string, bool) {
	key, isOfField := strings.CutPrefix(fieldPath, field+"['")
	key, closed := strings.CutSuffix(key, "']")
	return key, isOfField && closed
}
