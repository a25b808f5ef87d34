package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// undoTime is short: whoever has pressed Ctrl-C waits for it.
const undoTime = 10 * time.Second

// undo takes back what was made for an import whose Cluster could not be created: nobody would ever look at the Secret again,
// and the next try would stumble over it. An answer that was lost says nothing about the Cluster, though, and one that was made
// needs its Secret. So it looks, even after ctx has ended, and says what is left where that is not nothing.
func (h *Hub) undo(ctx context.Context, i Import, failed error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	cluster, err := h.Fleet.Clusters(i.Namespace).Get(ctx, i.Name, metav1.GetOptions{})
	switch {
	case err == nil && cluster.Spec.KubeConfigSecret == i.SecretName():
		return fmt.Errorf("%w; but Cluster %s/%s exists with Secret %s, and the hub imports it: delete the Cluster and the Secret if you do not want that",
			failed, i.Namespace, i.Name, i.SecretName())
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("%w; whether it was created is not known either (%w): Secret %s/%s is left; delete it if there is no such Cluster",
			failed, err, i.Namespace, i.SecretName())
	}
	err = h.Kubernetes.CoreV1().Secrets(i.Namespace).Delete(ctx, i.SecretName(), metav1.DeleteOptions{})
	return errors.Join(failed, err)
}
