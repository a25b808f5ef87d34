package bootstrap

import (
	"context"
	"fmt"
	"strings"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
)

const repoName = "bootstrap"

// ensureRepo makes the GitRepo the configuration asks for. GitRepos are of another component; where it is not installed,
// the hub says so and goes on.
func (h *handler) ensureRepo(ctx context.Context, b config.Bootstrap) error {
	if b.Repo == "" {
		return nil
	}
	client, err := dynamic.NewForConfig(h.RESTConfig)
	if err != nil {
		return err
	}
	_, err = client.Resource(fleet.SchemeGroupVersion.WithResource("gitrepos")).Namespace(b.Namespace).
		Apply(ctx, repoName, gitRepo(b), metav1.ApplyOptions{FieldManager: "muster", Force: true})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || meta.IsNoMatchError(err) {
		logrus.Warnf("bootstrap.repo is set, but this hub cannot make GitRepos (%s); install Fleet's gitops components for it", err)
		return nil
	}
	return err
}

func gitRepo(b config.Bootstrap) *unstructured.Unstructured {
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
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": fmt.Sprint(fleet.SchemeGroupVersion),
		"kind":       "GitRepo",
		"metadata":   map[string]any{"namespace": b.Namespace, "name": repoName},
		"spec":       spec,
	}}
}
