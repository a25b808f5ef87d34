// Package evidence stores the logs, events and objects of a cluster when a test has failed. It omits credentials, because the files are
// kept and sent to people who may not have these credentials.
package evidence

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Collect writes the objects, events and logs of the cluster into dir. It continues after an error, because the cluster may be broken, and
// returns all errors.
func Collect(ctx context.Context, config *rest.Config, dir string) error {
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	return collect(ctx, core, objects, dir)
}

func collect(ctx context.Context, core kubernetes.Interface, objects dynamic.Interface, dir string) error {
	c := collector{core: core, objects: objects, dir: dir}
	return errors.Join(c.logs(ctx), c.events(ctx), c.secrets(ctx), c.manifests(ctx))
}

type collector struct {
	core    kubernetes.Interface
	objects dynamic.Interface
	dir     string
}

func (c collector) write(name string, data []byte) error {
	file := filepath.Join(c.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // for people to read
		return err
	}
	return os.WriteFile(file, []byte(redactText(string(data))), 0o644) //nolint:gosec // for people to read
}

// logs writes the logs of all containers, including init and ephemeral ones, and of their previous instances.
func (c collector) logs(ctx context.Context) error {
	pods, err := c.core.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for i := range pods.Items {
		errs = append(errs, c.podLogs(ctx, &pods.Items[i]))
	}
	return errors.Join(errs...)
}

func (c collector) podLogs(ctx context.Context, pod *corev1.Pod) error {
	var errs []error
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses) {
		errs = append(errs, c.containerLog(ctx, pod, status.Name, false))
		if status.RestartCount > 0 {
			errs = append(errs, c.containerLog(ctx, pod, status.Name, true))
		}
	}
	return errors.Join(errs...)
}

func (c collector) containerLog(ctx context.Context, pod *corev1.Pod, container string, previous bool) error {
	options := &corev1.PodLogOptions{Container: container, Previous: previous, Timestamps: true}
	text, err := c.core.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, options).DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("the log of container %s of pod %s/%s: %w", container, pod.Namespace, pod.Name, err)
	}
	suffix := ".log"
	if previous {
		suffix = ".previous.log"
	}
	return c.write("logs/"+pod.Namespace+"/"+pod.Name+"."+container+suffix, text)
}

// secretFields are fields that are credentials or help to get one: with a clientID, a client can request the identity of a cluster, and with
// the clientRandom it knows the name of the answer Secret. content is omitted because it is long.
var secretFields = map[string]bool{"clientID": true, "clientRandom": true, "token": true, "content": true}

// shown is the number of characters of a secret field that are kept, to distinguish two values.
const shown = 4

// redact returns a copy in which the texts of secret fields are cut to their first characters, at any depth.
func redact(value any) any {
	switch v := value.(type) {
	case map[string]any:
		copied := make(map[string]any, len(v))
		for key, item := range v {
			text, isText := item.(string)
			if secretFields[key] && isText {
				copied[key] = masked(text)
				continue
			}
			copied[key] = redact(item)
		}
		return copied
	case []any:
		copied := make([]any, len(v))
		for i, item := range v {
			copied[i] = redact(item)
		}
		return copied
	}
	return value
}

func masked(text string) string {
	if len(text) <= 2*shown {
		return "(redacted)"
	}
	return text[:shown] + "... (redacted)"
}

// bearer matches JSON web tokens, such as the tokens of ServiceAccounts.
var bearer = regexp.MustCompile(`eyJ[\w-]+\.[\w-]+\.[\w-]+`)

// redactText removes tokens from text without fields. Logs and events should not contain any.
func redactText(text string) string { return bearer.ReplaceAllString(text, "(redacted token)") }
