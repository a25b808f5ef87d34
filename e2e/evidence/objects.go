package evidence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// kinds returns the kinds whose objects are written, one file for each kind.
func kinds() []schema.GroupVersionResource {
	of := func(group, version string, resources ...string) (kinds []schema.GroupVersionResource) {
		for _, resource := range resources {
			kinds = append(kinds, schema.GroupVersionResource{Group: group, Version: version, Resource: resource})
		}
		return kinds
	}
	return slices.Concat(
		of("", "v1", "nodes", "namespaces", "pods", "serviceaccounts", "configmaps"),
		of("apps", "v1", "deployments", "replicasets"),
		of("coordination.k8s.io", "v1", "leases"),
		of("fleet.cattle.io", "v1alpha1", "clusters", "clustergroups", "clusterregistrations", "clusterregistrationtokens",
			"bundles", "bundledeployments"),
	)
}

func (c collector) manifests(ctx context.Context) error {
	var errs []error
	for _, kind := range kinds() {
		list, err := c.objects.Resource(kind).List(ctx, metav1.ListOptions{})
		switch {
		case apierrors.IsNotFound(err): // a member does not serve the kinds of Fleet
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", kind.Resource, err))
		default:
			errs = append(errs, c.manifest(kind.Resource, list.Items))
		}
	}
	return errors.Join(errs...)
}

func (c collector) manifest(resource string, objects []unstructured.Unstructured) error {
	var text bytes.Buffer
	for _, o := range objects {
		o.SetManagedFields(nil)
		data, err := yaml.Marshal(redact(o.Object))
		if err != nil {
			return err
		}
		text.WriteString("---\n")
		text.Write(data)
	}
	return c.write(resource+".yaml", text.Bytes())
}

// secrets writes the names and keys of all Secrets, without values.
func (c collector) secrets(ctx context.Context) error {
	list, err := c.core.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var text bytes.Buffer
	for _, s := range list.Items {
		keys := slices.Sorted(maps.Keys(s.Data))
		fmt.Fprintf(&text, "%s  %s/%s  %s  [%s]\n", s.CreationTimestamp.UTC().Format("15:04:05"), s.Namespace, s.Name, s.Type, strings.Join(keys, " "))
	}
	return c.write("secrets.txt", text.Bytes())
}

// events writes all events in the order of their last occurrence.
func (c collector) events(ctx context.Context) error {
	list, err := c.core.CoreV1().Events("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	slices.SortStableFunc(list.Items, func(a, b corev1.Event) int { return last(a).Compare(last(b).Time) })
	var text bytes.Buffer
	for _, e := range list.Items {
		fmt.Fprintf(&text, "%s  %s  %s %s/%s  %s (%dx)  %s\n", last(e).UTC().Format("15:04:05"), e.Type,
			e.InvolvedObject.Kind, e.InvolvedObject.Namespace, e.InvolvedObject.Name, e.Reason, max(e.Count, 1), e.Message)
	}
	return c.write("events.txt", text.Bytes())
}

// last returns the time of the last occurrence. Clients of events.k8s.io set EventTime instead of LastTimestamp.
func last(e corev1.Event) metav1.Time {
	if e.LastTimestamp.IsZero() {
		return metav1.Time(e.EventTime)
	}
	return e.LastTimestamp
}
