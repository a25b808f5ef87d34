package release

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"helm.sh/helm/v4/pkg/kube"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

// Marks by which Helm knows whose an object is.
const (
	// ManagedByLabel, with ManagedByHelm, is on all objects of all releases.
	ManagedByLabel = "app.kubernetes.io/managed-by"
	// ManagedByHelm is the value of ManagedByLabel.
	ManagedByHelm = "Helm"
	// NameAnnotation and NamespaceAnnotation name the release an object is of.
	NameAnnotation      = "meta.helm.sh/release-name"
	NamespaceAnnotation = "meta.helm.sh/release-namespace"
)

// cluster is Helm's client of the cluster, changed where an agent is not a person at a terminal.
type cluster struct {
	*kube.Client
	mapper meta.ResettableRESTMapper
	// release is whose objects are removed; "" while nothing is.
	release string
	// replace removes what cannot be patched, so that it is made anew.
	replace bool
	// deleteError is what Helm's own uninstallation keeps to itself: which object could not be deleted, and why.
	deleteError error
}

// IsReachable does not ask: whether the cluster is there shows with the first request that matters.
func (c *cluster) IsReachable() error { return nil }

// Build asks the cluster for its kinds anew when it does not know one, because another release may just have brought it. It
// passes over kinds that are gone when it is about a removal: with their definition all objects of them went, and what is
// left of the release is not to wait for them.
func (c *cluster) Build(reader io.Reader, validate bool) (kube.ResourceList, error) {
	manifest, err := io.ReadAll(reader)
	if err != nil {
		return nil, err
	}
	infos, err := c.Client.Build(bytes.NewReader(manifest), validate)
	if unknownKind(err) {
		c.mapper.Reset()
		infos, err = c.Client.Build(bytes.NewReader(manifest), validate)
	}
	if c.release != "" && utilerrors.FilterOut(err, unknownKind) == nil {
		return infos, nil
	}
	return infos, err
}

// unknownKind goes by the text too: the library that reads manifests keeps nothing else of the cause.
func unknownKind(err error) bool {
	var unknown *meta.NoKindMatchError
	return errors.As(err, &unknown) || err != nil && strings.Contains(err.Error(), "no matches for kind ")
}

// Delete leaves alone what another release has taken over: Helm goes by the manifest it stored, whatever became of the
// objects since.
func (c *cluster) Delete(resources kube.ResourceList, policy metav1.DeletionPropagation) (*kube.Result, []error) {
	var ours kube.ResourceList
	for _, info := range resources {
		if err := info.Get(); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			c.deleteError = err
			return nil, []error{err}
		}
		if c.ours(info.Object) {
			ours = append(ours, info)
		}
	}
	if len(ours) == 0 {
		return &kube.Result{}, nil
	}
	result, errs := c.Client.Delete(ours, policy)
	c.deleteError = errors.Join(errs...)
	return result, errs
}

// ours: objects without marks of an owner were made by the manifest, or they would not be in it.
func (c *cluster) ours(object any) bool {
	accessor, err := meta.Accessor(object)
	if err != nil || c.release == "" {
		return true
	}
	marks := accessor.GetAnnotations()
	name, named := marks[NameAnnotation]
	return !named || name == c.release && marks[NamespaceAnnotation] == c.Namespace
}

// Update replaces what cannot be patched when it was asked to. It never moves the fields that a client-side update owns to
// server-side apply: Helm would look for those of the field manager named by its package variable, see fieldManager.
func (c *cluster) Update(original, target kube.ResourceList, options ...kube.ClientUpdateOption) (*kube.Result, error) {
	if c.replace {
		if err := c.clear(target); err != nil {
			return &kube.Result{}, err
		}
	}
	return c.Client.Update(original, target, append(options, kube.ClientUpdateOptionUpgradeClientSideFieldManager(false))...)
}
