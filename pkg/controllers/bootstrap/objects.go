package bootstrap

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	wranglerapply "github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
	"k8s.io/client-go/dynamic"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/registration"
)

var (
	clusters      = fleet.SchemeGroupVersion.WithResource("clusters")
	clusterGroups = fleet.SchemeGroupVersion.WithResource("clustergroups")
	gitRepos      = fleet.SchemeGroupVersion.WithResource("gitrepos")
)

// setID is in an annotation of the objects that the hub creates for its own cluster. Fleet's own controllers use the same ID.
const setID = "fleet-bootstrap"

// apply creates an object, or changes it as kubectl apply does: it removes the labels and the fields of the spec that the hub set before and no
// longer sets, and leaves those of others. The last applied object is in wrangler's annotation, because Fleet's own controllers apply
// these objects with wrangler: server-side apply would not know which of their fields to remove.
func apply(ctx context.Context, client dynamic.ResourceInterface, object metav1.Object) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return err
	}
	delete(content, "status")
	unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
	wanted := &unstructured.Unstructured{Object: content}
	record, err := json.Marshal(content)
	if err != nil {
		return err
	}
	set, annotations, err := wranglerapply.GetLabelsAndAnnotations(setID, nil)
	if err != nil {
		return err
	}
	annotations[wranglerapply.LabelApplied] = string(record)
	wanted.SetLabels(labels.Merge(wanted.GetLabels(), set))
	wanted.SetAnnotations(annotations)

	existing, err := client.Get(ctx, wanted.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = client.Create(ctx, wanted, metav1.CreateOptions{})
		return err
	case err != nil:
		return err
	case existing.GetAnnotations()[wranglerapply.LabelID] != setID:
		return &desiredset.ForeignError{Kind: wanted.GetKind(), Namespace: wanted.GetNamespace(), Name: wanted.GetName()}
	}
	current, err := existing.MarshalJSON()
	if err != nil {
		return err
	}
	modified, err := wanted.MarshalJSON()
	if err != nil {
		return err
	}
	patch, err := jsonmergepatch.CreateThreeWayJSONMergePatch(lastApplied(existing), modified, current)
	if err != nil || string(patch) == "{}" {
		return err
	}
	_, err = client.Patch(ctx, wanted.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// maxRecord is more than a record has. A user who may write the object may write the annotation, and 256 KiB unpack to 200 MB.
const maxRecord = 1 << 20

// lastApplied returns the labels and the spec in the annotation of an earlier apply, which wrangler compresses. An annotation that cannot be
// read counts as empty: then nothing is removed.
func lastApplied(object metav1.Object) []byte {
	record := []byte(object.GetAnnotations()[wranglerapply.LabelApplied])
	if packed, err := base64.RawStdEncoding.DecodeString(string(record)); err == nil {
		if r, err := gzip.NewReader(bytes.NewReader(packed)); err == nil {
			record, _ = io.ReadAll(io.LimitReader(r, maxRecord)) // a truncated record is not JSON
		}
	}
	var fields struct {
		Metadata struct {
			Labels map[string]string `json:"labels,omitempty"`
		} `json:"metadata"`
		Spec map[string]any `json:"spec,omitempty"`
	}
	_ = json.Unmarshal(record, &fields)
	known, _ := json.Marshal(fields) //nolint:errchkjson // what was decoded from JSON can be encoded
	return known
}

// deleteMoved deletes the Cluster and the ClusterGroup in a namespace that the configuration named before. It deletes objects of no other name: a user
// who may patch Clusters, and not delete them, may give each of them the labels and annotations of the set.
func (h *handler) deleteMoved(ctx context.Context, client dynamic.Interface, current string) error {
	set, _, err := wranglerapply.GetLabelsAndAnnotations(setID, nil)
	if err != nil {
		return err
	}
	names := map[schema.GroupVersionResource]string{clusters: clusterName, clusterGroups: clusterGroup}
	for resource, cached := range h.cached {
		for _, object := range cached.List() {
			m, err := meta.Accessor(object)
			isInSet := err == nil && m.GetLabels()[wranglerapply.LabelHash] == set[wranglerapply.LabelHash] && m.GetAnnotations()[wranglerapply.LabelID] == setID
			if !isInSet || m.GetNamespace() == current || m.GetName() != names[resource] {
				continue
			}
			uid := m.GetUID()
			err = client.Resource(resource).Namespace(m.GetNamespace()).Delete(ctx, m.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("deleting the %s of the hub's own cluster in its earlier namespace: %w", resource.Resource, err)
			}
		}
	}
	return nil
}

// ensureRepo creates the GitRepo that the configuration asks for. GitRepos belong to another component of Fleet; if it is not installed,
// the hub logs that and continues.
func ensureRepo(ctx context.Context, client dynamic.Interface, b config.Bootstrap) error {
	if b.Repo == "" {
		return nil
	}
	spec := map[string]any{"repo": b.Repo}
	if b.Branch != "" {
		spec["branch"] = b.Branch
	}
	if b.Secret != "" {
		spec["clientSecretName"] = b.Secret
	}
	var paths []any
	for path := range strings.SplitSeq(b.Paths, ",") {
		if path = strings.TrimSpace(path); path != "" {
			paths = append(paths, path)
		}
	}
	if len(paths) > 0 {
		spec["paths"] = paths
	}
	repo := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": fleet.SchemeGroupVersion.String(),
		"kind":       "GitRepo",
		"metadata":   map[string]any{"namespace": b.Namespace, "name": "bootstrap"},
		"spec":       spec,
	}}
	_, err := client.Resource(gitRepos).Namespace(b.Namespace).Apply(ctx, repo.GetName(), repo, metav1.ApplyOptions{FieldManager: registration.FieldManager, Force: true})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || meta.IsNoMatchError(err) {
		logrus.Warnf("bootstrap.repo is set, but this hub cannot create GitRepos (%s); install Fleet's gitops components", err)
		return nil
	}
	return err
}
