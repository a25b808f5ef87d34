package release

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	helm "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Uninstall removes a release and what it consists of, but not what another release has taken over, nor a release
// whose last revision is of another BundleDeployment or agent: only the history from before goes then. A ServiceAccount that
// may no longer do what it once did, because its rights went before the release did, keeps nothing on the cluster: the
// client removes with its own rights then. A release that is not
// there is a success.
func (c *Client) Uninstall(ctx context.Context, namespace, name string, options Options) error {
	op, err := c.operation(ctx, namespace, identity{options.ServiceAccountNamespace, options.ServiceAccount})
	if err != nil {
		return err
	}
	revisions, err := op.revisions(name)
	if err != nil {
		return err
	}
	own := options.own(revisions)
	if options.KeepResources || len(revisions) > 0 && last(own) != last(revisions) {
		return op.forget(own)
	}
	if len(revisions) > 0 {
		err = op.uninstall(ctx, name, last(revisions), options)
	}
	if options.ServiceAccount != "" && refused(err) {
		options.ServiceAccount = ""
		return c.Uninstall(ctx, namespace, name, options)
	}
	if err == nil && options.DeleteNamespace {
		err = c.deleteNamespace(ctx, namespace, name, options.ServiceAccountNamespace)
	}
	if err != nil {
		return fmt.Errorf("removing Helm release %s/%s: %w", namespace, name, err)
	}
	return nil
}

// refused goes by the text too: Helm passes on no more of what failed on several objects.
func refused(err error) bool {
	return err != nil && (apierrors.IsForbidden(err) || strings.Contains(err.Error(), " is forbidden: "))
}

// own are the revisions that are not somebody else's.
func (o Options) own(revisions []*helm.Release) (own []*helm.Release) {
	for _, r := range revisions {
		if o.Agent == "" && o.Deployment == "" || r.Labels[AgentLabel] == o.Agent && r.Labels[DeploymentLabel] == o.Deployment {
			own = append(own, r)
		}
	}
	return own
}

func (o *operation) uninstall(ctx context.Context, name string, latest *helm.Release, options Options) error {
	uninstall := action.NewUninstall(o.config)
	uninstall.IgnoreNotFound = true
	uninstall.WaitStrategy = kube.HookOnlyStrategy
	uninstall.WaitOptions = []kube.WaitOption{kube.WithWaitContext(ctx)}
	uninstall.Timeout = hookTimeout
	o.cluster.release = name
	_, err := uninstall.Run(name)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return errors.Join(err, o.cluster.deleteError)
	}
	if options.DeleteCRDs {
		return o.deleteCRDs(latest)
	}
	return nil
}

// deleteCRDs removes what came in the folder crds of the chart, which Helm never removes: all objects of those kinds go
// with them, whoever made them.
func (o *operation) deleteCRDs(r *helm.Release) error {
	if r.Chart == nil {
		return nil
	}
	var errs []error
	for _, crd := range r.Chart.CRDObjects() {
		infos, err := o.cluster.Build(bytes.NewReader(crd.File.Data), false)
		if err == nil && len(infos) > 0 {
			_, more := o.cluster.Client.Delete(infos, metav1.DeletePropagationBackground)
			errs = append(errs, more...)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Forget removes the history of a release; what it deployed stays.
func (c *Client) Forget(ctx context.Context, namespace, name string) error {
	op, err := c.operation(ctx, namespace, identity{})
	if err != nil {
		return err
	}
	revisions, err := op.revisions(name)
	if err != nil {
		return err
	}
	return op.forget(revisions)
}

func (o *operation) forget(revisions []*helm.Release) error {
	for _, r := range revisions {
		if _, err := o.config.Releases.Delete(r.Name, r.Version); err != nil && !errors.Is(err, driver.ErrReleaseNotFound) {
			return fmt.Errorf("removing the history of Helm release %s/%s: %w", o.namespace, r.Name, err)
		}
	}
	return nil
}
