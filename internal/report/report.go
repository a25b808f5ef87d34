// Package report writes a support bundle, a zip file with objects, events, logs, metrics and checks. It contains no value of a Secret. If a part
// cannot be collected, the file report.json contains the error, and the other parts are collected nevertheless.
package report

import (
	"archive/zip"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sort"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/check"
	"github.com/muster-fleet/muster/internal/describe"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/transport"
)

// Overview is the file report.json.
type Overview struct {
	Time    time.Time `json:"time"`
	Version string    `json:"version"`
	// Failed are the parts that could not be collected.
	Failed []FailedPart `json:"failed"`
	// Redacted are the values that were removed.
	Redacted []Redaction `json:"redacted"`
}

// FailedPart is a part that could not be collected.
type FailedPart struct {
	Part  string `json:"part"`
	Error string `json:"error"`
}

const (
	partTimeout = 30 * time.Second // of a request for objects, logs or metrics
	logLimit    = 5 << 20          // bytes of the log of a container
	memberLimit = 16 << 20         // bytes of a response of the member
	objectLimit = 10_000           // of one kind in one namespace
)

// Write collects all parts, and then writes the zip file, with one folder. It fails only if the file cannot be written, or if the hub knows
// nothing about the Cluster and no member was given.
func Write(ctx context.Context, file io.Writer, folder string, in check.Inputs) (Overview, error) {
	in.SystemNamespace = cmp.Or(in.SystemNamespace, registration.DefaultSystemNamespace)
	c := &collection{
		files: map[string][]byte{}, secrets: map[string]string{},
		Overview: Overview{Time: in.Now().UTC(), Version: in.Version, Failed: []FailedPart{}, Redacted: []Redaction{}},
	}
	c.objects(ctx, "hub", in.Hub, []kindIn{
		{fleet.SchemeGroupVersion.WithResource("clusters"), in.Namespace},
		{fleet.SchemeGroupVersion.WithResource("clusterregistrations"), in.Namespace},
		{fleet.SchemeGroupVersion.WithResource("clusterregistrationtokens"), in.Namespace},
		{fleet.SchemeGroupVersion.WithResource("clustergroups"), in.Namespace},
		{fleet.SchemeGroupVersion.WithResource("bundles"), in.Namespace},
		{corev1.SchemeGroupVersion.WithResource("secrets"), in.Namespace},
		{corev1.SchemeGroupVersion.WithResource("events"), in.Namespace},
		{corev1.SchemeGroupVersion.WithResource("secrets"), registration.SystemRegistrationNamespace(in.SystemNamespace)},
	})
	c.installation(ctx, "hub", in.Hub, in.SystemNamespace)
	if in.Cluster != "" {
		if err := c.description(ctx, &in); err != nil {
			return c.Overview, err
		}
		own := registration.ClusterNamespace(in.Namespace, in.Cluster)
		c.objects(ctx, "hub", in.Hub, []kindIn{
			{fleet.SchemeGroupVersion.WithResource("bundledeployments"), own},
			{corev1.SchemeGroupVersion.WithResource("serviceaccounts"), own},
			{rbacv1.SchemeGroupVersion.WithResource("roles"), own},
			{rbacv1.SchemeGroupVersion.WithResource("rolebindings"), own},
			{corev1.SchemeGroupVersion.WithResource("secrets"), own},
			{corev1.SchemeGroupVersion.WithResource("events"), own},
			{coordinationv1.SchemeGroupVersion.WithResource("leases"), own},
		})
	}
	if in.Member != nil {
		// A member is in the hands of other people than the person who reads the report.
		in.Member = rest.CopyConfig(in.Member)
		in.Member.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return transport.Limited{Next: next, Body: transport.ResponseLimits{Bytes: memberLimit}}
		})
		c.installation(ctx, "member", in.Member, cmp.Or(in.AgentNamespace, registration.DefaultSystemNamespace))
	}
	var text, structured bytes.Buffer
	diagnosis := check.Run(ctx, in)
	diagnosis.Print(&text, false)
	if err := diagnosis.PrintJSON(&structured); err != nil {
		return c.Overview, err
	}
	c.files["checks.txt"], c.files["checks.json"] = text.Bytes(), structured.Bytes()

	for i, f := range c.Failed { // an error can quote a credential
		c.Failed[i].Error = credentials.ReplaceAllString(f.Error, redacted)
	}
	for name, text := range c.files {
		c.files[name] = c.redactText(name, text)
	}
	c.Redacted = slices.SortedFunc(slices.Values(c.Redacted), func(a, b Redaction) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.What, b.What))
	})
	overview, err := json.MarshalIndent(c.Overview, "", "  ")
	if err != nil {
		return c.Overview, err
	}
	c.files["report.json"] = c.redactText("report.json", overview)

	archive := zip.NewWriter(file)
	for _, name := range slices.Sorted(maps.Keys(c.files)) {
		entry, err := archive.CreateHeader(&zip.FileHeader{Name: folder + "/" + name, Method: zip.Deflate, Modified: c.Time})
		if err != nil {
			return c.Overview, err
		}
		if _, err := entry.Write(c.files[name]); err != nil {
			return c.Overview, err
		}
	}
	return c.Overview, archive.Close()
}

// description collects the output of muster describe, and takes the namespace of the agent from the Cluster, unless the user gave one.
func (c *collection) description(ctx context.Context, in *check.Inputs) error {
	const name = "describe.txt"
	ctx, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	hub, err := admin.Connect(in.Hub)
	if err != nil {
		c.failed(name, err)
		return nil
	}
	hub.Flags = in.HubFlags
	d, err := describe.Of(ctx, hub, in.Namespace, in.Cluster, in.Now())
	var unknown describe.NotFoundError
	switch {
	case errors.As(err, &unknown) && in.Member == nil:
		return err
	case err != nil:
		c.failed(name, err)
		return nil
	}
	in.AgentNamespace = cmp.Or(in.AgentNamespace, d.AgentNamespace)
	var text bytes.Buffer
	if err := d.Print(&text, in.Now()); err != nil {
		c.failed(name, err)
	}
	c.files[name] = text.Bytes()
	return nil
}

// kindIn selects the objects of a kind in a namespace.
type kindIn struct {
	resource  schema.GroupVersionResource
	namespace string
}

// collection contains the parts that were collected so far.
type collection struct {
	Overview
	files map[string][]byte
	// secrets maps each value to remove from all files to the Secret that contains it.
	secrets map[string]string
	finder  *finder // of the values in secrets
}

func (c *collection) failed(part string, err error) {
	c.Failed = append(c.Failed, FailedPart{part, err.Error()})
}

// installation collects the objects of a hub or an agent in its namespace, and the log and metrics of its pods.
func (c *collection) installation(ctx context.Context, side string, config *rest.Config, namespace string) {
	c.objects(ctx, side, config, []kindIn{
		{appsv1.SchemeGroupVersion.WithResource("deployments"), namespace},
		{corev1.SchemeGroupVersion.WithResource("pods"), namespace},
		{corev1.SchemeGroupVersion.WithResource("configmaps"), namespace},
		{corev1.SchemeGroupVersion.WithResource("secrets"), namespace},
		{corev1.SchemeGroupVersion.WithResource("events"), namespace},
		{coordinationv1.SchemeGroupVersion.WithResource("leases"), namespace},
	})
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		c.failed(side+" logs", err)
		return
	}
	list, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	pods, err := clients.CoreV1().Pods(namespace).List(list, metav1.ListOptions{})
	if err != nil {
		c.failed(side+" logs", err)
		return
	}
	for _, pod := range pods.Items {
		if pod.Spec.NodeName == "" {
			continue // it has no log yet
		}
		for _, container := range pod.Spec.Containers {
			if len(validation.IsDNS1123Subdomain(pod.Name))+len(validation.IsDNS1123Label(container.Name)) > 0 { // they become names of files
				c.failed(side+" logs", fmt.Errorf("container %q of Pod %q: no API server accepts these names", container.Name, pod.Name))
				continue
			}
			restarted := slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
				return s.Name == container.Name && s.RestartCount > 0
			})
			log := func(name string, previous bool) {
				c.body(ctx, side+"/logs/"+pod.Name+"-"+name+".log", clients.CoreV1().Pods(namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
					Container: container.Name, Previous: previous, Timestamps: true, LimitBytes: ptr.To[int64](logLimit),
				}))
			}
			log(container.Name, false)
			if restarted {
				log(container.Name+"-previous", true)
			}
			for _, port := range container.Ports {
				if port.Name == "metrics" {
					c.body(ctx, side+"/metrics/"+pod.Name+".txt", clients.CoreV1().RESTClient().Get().Namespace(namespace).
						Resource("pods").Name(fmt.Sprintf("%s:%d", pod.Name, port.ContainerPort)).SubResource("proxy", "metrics"))
				}
			}
		}
	}
}

// body collects the body of the response to a request.
func (c *collection) body(ctx context.Context, name string, request *rest.Request) {
	ctx, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	body, err := request.DoRaw(ctx)
	if err != nil {
		c.failed(name, err)
		return
	}
	c.files[name] = body
}

// objects collects the objects of the sources.
func (c *collection) objects(ctx context.Context, side string, config *rest.Config, sources []kindIn) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		c.failed(side, err)
		return
	}
	for _, from := range sources {
		name := fmt.Sprintf("%s/%s/%s.json", side, from.namespace, from.resource.Resource)
		if err := c.list(ctx, name, client.Resource(from.resource).Namespace(from.namespace)); err != nil {
			c.failed(name, err)
		}
	}
}

func (c *collection) list(ctx context.Context, name string, from dynamic.ResourceInterface) error {
	ctx, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return from.List(ctx, o) })
	found := []map[string]any{}
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		if len(found) == objectLimit {
			return fmt.Errorf("there are more than %d objects", objectLimit)
		}
		o := object.(*unstructured.Unstructured)
		o.SetManagedFields(nil)
		c.redactObject(name, o)
		found = append(found, o.Object)
		return nil
	})
	if err != nil {
		return err
	}
	c.files[name], err = json.MarshalIndent(found, "", "  ")
	return err
}

// finder finds many values in a text, in one pass over the text.
type finder struct {
	values []string // sorted
	// shorter has, for each value, the index of the longest other one with which it begins, or -1.
	shorter    []int
	beginnings map[string]bool // the first bytes of the values, as many as the shortest has
	steps      int             // how many values were compared with a part of a text
}

// span is a part of a text that is a value.
type span struct{ from, to, value int }

// newFinder prepares a search. No value is shorter than the constant shortest.
func newFinder(values []string) *finder {
	f := &finder{values: slices.Sorted(slices.Values(values)), beginnings: make(map[string]bool, len(values))}
	f.shorter = make([]int, len(f.values))
	for i, value := range f.values {
		f.beginnings[value[:shortest]] = true
		// Values that begin with another one follow it in the order, before any that does not.
		j := i - 1
		for j >= 0 && !strings.HasPrefix(value, f.values[j]) {
			j = f.shorter[j]
		}
		f.shorter[i] = j
	}
	return f
}

// find returns, for each place of the text at which values begin, the longest of them. Those of different places may overlap.
func (f *finder) find(text string) (spans []span) {
	for from := 0; from+shortest <= len(text); from++ {
		if !f.beginnings[text[from:from+shortest]] {
			continue
		}
		rest := text[from:]
		// The last value in the order that is not behind the rest of the text begins as the rest does, if any value does: it is the longest
		// one, or begins with it.
		last := sort.Search(len(f.values), func(i int) bool {
			f.steps++
			return f.values[i] > rest
		}) - 1
		for ; last >= 0; last = f.shorter[last] {
			f.steps++
			if strings.HasPrefix(rest, f.values[last]) {
				spans = append(spans, span{from, from + len(f.values[last]), last})
				break
			}
		}
	}
	return spans
}
