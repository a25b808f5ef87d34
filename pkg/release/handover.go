package release

import (
	"bytes"
	"fmt"
	"slices"

	"helm.sh/helm/v4/pkg/postrenderer"
	helm "helm.sh/helm/v4/pkg/release/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/cli-runtime/pkg/resource"
)

// adopts says whether Helm is to take what exists already.
func (r Request) adopts() bool { return r.helm().TakeOwnership || len(r.HandOver) > 0 }

// postRenderer sees all that was rendered before Helm has written anything; nil when nothing has to.
func (o *operation) postRenderer(r Request) postrenderer.PostRenderer {
	var chain chained
	if r.Options.TargetNamespace != "" {
		chain = append(chain, targeted{r.Options.TargetNamespace, o.client.schema.mapper})
	}
	if len(r.HandOver) > 0 && !r.helm().TakeOwnership {
		chain = append(chain, handover{r, o.cluster})
	}
	if len(chain) == 0 {
		return nil
	}
	return chain
}

type chained []postrenderer.PostRenderer

// Run passes what was rendered through all of them.
func (c chained) Run(rendered *bytes.Buffer) (*bytes.Buffer, error) {
	for _, next := range c {
		var err error
		if rendered, err = next.Run(rendered); err != nil {
			return nil, err
		}
	}
	return rendered, nil
}

// handover refuses objects that exist and are neither of the release nor of those that hand over to it: Helm itself adopts
// either all that exists or nothing.
type handover struct {
	request Request
	cluster *cluster
}

// Run changes nothing of what was rendered.
func (h handover) Run(rendered *bytes.Buffer) (*bytes.Buffer, error) {
	infos, err := h.cluster.Build(bytes.NewReader(rendered.Bytes()), false)
	if err != nil {
		return nil, err
	}
	return rendered, infos.Visit(func(info *resource.Info, err error) error {
		if err != nil || h.isHook(info) {
			return err
		}
		return h.check(info)
	})
}

// isHook: Helm puts no marks on hooks, and replaces them as their own annotations say.
func (h handover) isHook(info *resource.Info) bool {
	accessor, err := meta.Accessor(info.Object)
	return err == nil && accessor.GetAnnotations()[helm.HookAnnotation] != ""
}

func (h handover) check(info *resource.Info) error {
	if err := info.Get(); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	accessor, err := meta.Accessor(info.Object)
	if err != nil {
		return err
	}
	marks := accessor.GetAnnotations()
	if h.request.mayTake(marks[NamespaceAnnotation], marks[NameAnnotation]) {
		return nil
	}
	return fmt.Errorf("%s exists and cannot be imported into the current release: it is not of an older release of the same "+
		"BundleDeployment; set helm.takeOwnership to take it over", info.ObjectName())
}

// mayTake says whether objects of a release are there to be taken.
func (r Request) mayTake(namespace, name string) bool {
	return namespace == r.Namespace && name == r.Name ||
		slices.ContainsFunc(r.HandOver, func(f Found) bool { return f.Namespace == namespace && f.Name == name })
}
