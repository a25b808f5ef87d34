package release

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/release/common"
	helm "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/muster-fleet/muster/pkg/registration"
)

// UninstallOptions are the options of Uninstall.
type UninstallOptions struct {
	// KeepResources removes only the history.
	KeepResources bool
	// DeleteNamespace also deletes the namespace of the release, unless it is one of Kubernetes' own or the agent's, or
	// contains another Helm release.
	DeleteNamespace bool
	// DeleteCRDs also deletes the rendered CustomResourceDefinitions of the release. Without it they stay, and so do all objects of their kinds.
	// Those in the folder crds of a chart always stay, as with Helm: several charts may bring the same.
	DeleteCRDs bool
	// DeleteCopies also deletes the Secrets and ConfigMaps that were copied from the hub for the release.
	DeleteCopies bool
	// ServiceAccount, if set, is used for the removal in place of the client's own identity. If it lacks rights, the client removes the objects
	// that have the marks of the release.
	ServiceAccount, ServiceAccountNamespace string
	// Agent and Deployment identify the owner of the release, as in AgentLabel and DeploymentLabel. If another owner has taken the
	// release over, only the history of the former owner is removed. If both are empty, the owner is not checked.
	Agent, Deployment string
	// Scope is the scope of the agent, see Request.Scope. If it is nil, the marks in the manifest of a revision that is not signed decide which objects of
	// the release are removed, not those of the owner.
	Scope *string
	// Adjust returns the options for those of a revision; nil leaves them as they are. The options of the last signed revision with the labels of the owner
	// replace the others, which may come from a revision that a user who may write Secrets in the namespace has stored.
	Adjust func(UninstallOptions) UninstallOptions
	// ReportKept, if set, gets descriptions of objects that stay because they do not belong to the release, as in Deployed.Kept.
	ReportKept func([]string)
}

// KeepIf returns a function for Adjust: with keepsResources the resources stay; without it the option of the revision decides.
func KeepIf(keepsResources bool) func(UninstallOptions) UninstallOptions {
	return func(o UninstallOptions) UninstallOptions {
		o.KeepResources = o.KeepResources || keepsResources
		return o
	}
}

// errOtherOwner is the error of Uninstall if no revision of the owner decides, and another revision has another owner, perhaps a person or an agent with
// another key: the history is theirs. The revisions that name the owner are then deleted, and another call continues with the rest.
var errOtherOwner = errors.New("the last revision of the Helm release was not written by this agent, and names another owner than earlier ones: the Secrets of the revisions that name this owner were deleted")

// Uninstall removes a release and its objects. It keeps objects that do not have the marks of the release: another release has adopted them, or a person
// may have created them. If the last revision is of
// another owner, it removes only the revisions before. If the ServiceAccount lacks rights, because they were removed first, the client removes
// the objects that have the marks of the release with its own identity. It does not run hooks with that, nor remove CustomResourceDefinitions,
// the namespace and the objects of other BundleDeployments: the manifest may name objects that its author may not touch. The same applies to a revision that is
// not signed, see WithHistoryKey, or that does not have the labels of the owner. If the objects of one that is not signed cannot be removed, only its
// Secret is deleted, because it would prevent the removal for ever. A release that does not exist is no error.
func (c *Client) Uninstall(ctx context.Context, namespace, name string, options UninstallOptions) error {
	c, end := c.beginAction(false)
	defer end()
	err := c.uninstall(ctx, namespace, name, options)
	if err == nil || c.key == nil || ctx.Err() != nil || isTransient(err) || errors.Is(err, errOtherOwner) {
		return err
	}
	forgotten, forgetErr := c.forgetUnsigned(ctx, namespace, name, options)
	if forgetErr != nil || !forgotten {
		return errors.Join(err, forgetErr)
	}
	return c.uninstall(ctx, namespace, name, options)
}

func (c *Client) uninstall(ctx context.Context, namespace, name string, options UninstallOptions) error {
	op, revisions, err := c.open(ctx, namespace, name, options.account())
	if err != nil {
		return err
	}
	if len(revisions) == 0 && c.key != nil { // Helm ignores a Secret that it cannot decode, and the options may come from the labels of it
		_, err := c.forgetUnsigned(ctx, namespace, name, options)
		return err
	}

	// The last revision that decides has the options of the removal. Later revisions of the owner and damaged ones are removed first.
	own := options.ownOf(revisions)
	signed := c.lastSigned(own, options)
	if signed != nil {
		account := options.account()
		options = options.trustedFrom(signed)
		hasDropped, err := op.dropLater(ctx, name, options, signed, own, revisions)
		if err != nil {
			return err
		}
		if hasDropped || options.account() != account {
			if op, revisions, err = c.open(ctx, namespace, name, options.account()); err != nil {
				return err
			}
			own = options.ownOf(revisions)
		}
	}

	isRemoved := true           // whether the objects are removed, although a later step may have failed
	var earlier []*helm.Release // revisions whose objects may have to be removed too
	var unsigned *helm.Release  // the revision from which a failed upgrade started, if it does not decide
	decided := func() []*helm.Release {
		before := own[:len(own)-1]
		if worked, _ := failedAttempts(before); worked != nil && !c.decides(worked, options) && !hasWorked(last(own)) && options.Scope != nil {
			unsigned = worked
		}
		return slices.DeleteFunc(before, func(r *helm.Release) bool { return !c.decides(r, options) })
	}
	switch latest := last(revisions); {
	case options.KeepResources:
		return op.forget(own)
	case last(own) != latest:
		// A later revision that is not signed is no proof that another owner has taken the release over. Objects that it has adopted have its marks. An agent
		// of another hub may deploy the same BundleDeployment, with the same marks.
		if _, deployment := ownerOf(latest); signed != nil && !c.isSigned(latest) && deployment != options.Deployment {
			if err := c.deleteOwned(ctx, namespace, name, options, nil, signed); err != nil {
				return err
			}
		}
		return op.forget(own)
	case latest == nil:
	case !c.decides(latest, options) && len(own) < len(revisions):
		undecided := slices.DeleteFunc(own, func(r *helm.Release) bool { return c.decides(r, options) })
		return cmp.Or(op.forget(undecided), errOtherOwner)
	case !c.decides(latest, options) || c.key != nil && latest.Labels[ServiceAccountLabel] != options.ServiceAccount:
		isRemoved, err = c.uninstallMarked(ctx, namespace, name, options)
		options.DeleteNamespace = false // a revision that does not decide may name any namespace
	case latest.Info.Status == common.StatusUninstalled: // by an earlier call, see storeRemoved, or by a person who kept the history
		earlier = decided()
	default:
		earlier = decided()
		if err := op.limitToOwned(append(slices.Clone(earlier), latest)); err != nil {
			return err
		}
		isRemoved, err = op.uninstall(ctx, name, options.DeleteCRDs)
		if options.ServiceAccount != "" && isForbidden(err) {
			isRemoved, err = c.uninstallMarked(ctx, namespace, name, options)
		}
	}
	if isRemoved {
		restErr := op.removeEarlier(earlier, last(revisions), options.DeleteCRDs)
		if options.ServiceAccount != "" && isForbidden(restErr) {
			var marked *helmAction
			if marked, restErr = c.newAction(ctx, namespace, serviceAccount{}); restErr == nil {
				marked.cluster.release, marked.cluster.onlyMarked = name, true
				restErr = marked.removeEarlier(earlier, last(revisions), false)
				op.cluster.kept = append(op.cluster.kept, marked.cluster.kept...)
			}
		}
		if restErr == nil && unsigned != nil { // with the marks of the owner only
			if err := c.deleteOwned(ctx, namespace, name, options, last(revisions), unsigned); isTransient(err) {
				restErr = err
			}
		}
		if options.ReportKept != nil && len(op.cluster.kept) > 0 {
			options.ReportKept(op.cluster.kept)
		}
		if restErr == nil {
			restErr = op.removeRest(ctx, name, options, revisions)
		}
		if restErr != nil {
			err = errors.Join(err, restErr, op.storeRemoved(last(revisions)))
		}
	}
	if err != nil {
		return fmt.Errorf("removing Helm release %s/%s: %w", namespace, name, err)
	}
	return nil
}

// limitToOwned makes the removal of the last revision keep what does not belong to the release, if that revision has failed and says what it has adopted, or
// that it has written nothing. Otherwise the removal deletes all objects of that revision that have the marks of the release. Of a revision that has written
// nothing, it keeps only the objects that earlier failed attempts have adopted: those that have written the others may not say so, because they were
// interrupted, or are of another agent.
func (o *helmAction) limitToOwned(revisions []*helm.Release) error {
	latest := last(revisions)
	if latest == nil {
		return nil
	}
	_, isNoted := adoptedBy(latest)
	if !(isNoted && latest.Info.Status == common.StatusFailed || wroteNothing(latest)) || !o.client.isSigned(latest) {
		return nil
	}
	l, err := o.readLedger(revisions)
	if err == nil && wroteNothing(latest) {
		var objects kube.ResourceList
		objects, _, err = o.cluster.buildEarlier(latest.Manifest)
		l.add(objects, l.adopted)
	}
	o.cluster.ledger = l
	return err
}

// removeEarlier removes the objects that the last revision does not have, although the release may have them: those that failed attempts before it have created
// and, if the last revision is that of a failed upgrade, those of the revision from which it started.
func (o *helmAction) removeEarlier(earlier []*helm.Release, latest *helm.Release, deleteCRDs bool) error {
	worked, failed := failedAttempts(earlier)
	hasReplaced := latest != nil && !hasWorked(latest) && worked != nil
	if len(failed) == 0 && !hasReplaced {
		return nil
	}
	l, err := o.readLedger(earlier)
	if err != nil {
		return err
	}
	left, err := l.ofFailed()
	if err != nil {
		return err
	}
	of, _, err := o.cluster.buildEarlier(latest.Manifest)
	if err != nil {
		return err
	}
	o.cluster.ledger, o.cluster.keepCRDs = l, !deleteCRDs
	if hasReplaced {
		left = append(left, l.objects[worked].Difference(left)...)
	}
	return o.cluster.deleteMarked(left.Difference(of))
}

// removeRest deletes the copies and the namespace of a release whose objects are removed, and then its history: without the history, a repeated call
// would not know of them.
func (o *helmAction) removeRest(ctx context.Context, name string, options UninstallOptions, revisions []*helm.Release) error {
	if options.DeleteCopies {
		if err := o.client.DeleteCopies(ctx, o.namespace, options.Deployment); err != nil {
			return err
		}
	}
	deleteNamespace := func() (isInUse bool, err error) {
		if options.DeleteNamespace {
			isInUse, err = o.deleteNamespace(ctx, name, options.ServiceAccountNamespace)
		}
		if apierrors.IsForbidden(err) || isRefused(err) { // by RBAC or a policy of the cluster: the namespace stays
			err = nil
		}
		return isInUse, err
	}
	isInUse, err := deleteNamespace()
	if err != nil {
		return err
	}
	if err := o.forget(revisions); err != nil {
		return err
	}
	if isInUse { // perhaps by a release that was removed meanwhile, and that found this one in the namespace
		_, err = deleteNamespace()
	}
	return err
}

// storeRemoved stores that the objects of a release are removed. A repeated removal then does not run the hooks again, which may need these objects.
func (o *helmAction) storeRemoved(latest *helm.Release) error {
	if latest == nil {
		return nil
	}
	o.history.storesRemoved = true
	latest.Info.Status = common.StatusUninstalled
	if err := o.config.Releases.Update(latest); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("storing that its objects are removed: %w", err)
	}
	return nil
}

// uninstallMarked removes a release with the client's own identity: only the objects that have its marks, and without its hooks. The manifest of a
// revision that is not signed may name objects of other BundleDeployments, with their marks, so only those of the owner are removed.
func (c *Client) uninstallMarked(ctx context.Context, namespace, name string, options UninstallOptions) (isRemoved bool, err error) {
	op, revisions, err := c.open(ctx, namespace, name, serviceAccount{})
	if err != nil || len(revisions) == 0 { // with IgnoreNotFound, Helm would also ignore an error of reading the history
		return err == nil, err
	}
	if last(revisions).Info.Status == common.StatusUninstalled {
		return true, nil
	}
	op.cluster.onlyMarked = true
	if latest := last(revisions); options.Deployment != "" && !c.isSigned(latest) {
		op.cluster.setHash = options.setHash(latest)
	}
	if err := op.limitToOwned(options.ownOf(revisions)); err != nil {
		return false, err
	}
	return op.uninstall(ctx, name, false)
}

// setHash returns the SetHashLabel of the objects of the owner; "" if it is not known. A revision may have the full name of the BundleDeployment.
func (o UninstallOptions) setHash(r *helm.Release) string {
	if o.Scope == nil {
		return ""
	}
	deployment := o.Deployment
	if full := annotationsOf(r)[bundleAnnotation]; registration.LabelValue(full) == deployment { // the label has a shortened name
		deployment = full
	}
	return setHash(objectSetID(deployment, *o.Scope))
}

// trustedFrom returns the options for a revision of the owner that decides.
func (o UninstallOptions) trustedFrom(signed *helm.Release) UninstallOptions {
	trusted := UninstallOptionsFrom(signed.Labels)
	trusted.ServiceAccountNamespace, trusted.Scope, trusted.Adjust, trusted.ReportKept = o.ServiceAccountNamespace, o.Scope, o.Adjust, o.ReportKept
	if o.Adjust != nil {
		trusted = o.Adjust(trusted)
	}
	return trusted
}

// ownerOf returns the namespace of the agent and the BundleDeployment of a revision, as AgentLabel and DeploymentLabel have them. An agent that sets
// no labels annotates the chart.
func ownerOf(r *helm.Release) (agent, deployment string) {
	agent, deployment = r.Labels[AgentLabel], r.Labels[DeploymentLabel]
	if agent == "" && deployment == "" {
		annotations := annotationsOf(r)
		agent, deployment = registration.LabelValue(annotations[agentAnnotation]), registration.LabelValue(annotations[bundleAnnotation])
	}
	return agent, deployment
}

// ownOf returns the revisions of the owner; all if the owner is not checked.
func (o UninstallOptions) ownOf(revisions []*helm.Release) []*helm.Release {
	return slices.DeleteFunc(slices.Clone(revisions), func(r *helm.Release) bool {
		agent, deployment := ownerOf(r)
		return o.checksOwner() && (agent != o.Agent || deployment != o.Deployment)
	})
}

func (o UninstallOptions) checksOwner() bool { return o.Agent != "" || o.Deployment != "" }

// account returns the ServiceAccount that removes the release.
func (o UninstallOptions) account() serviceAccount {
	return serviceAccount{o.ServiceAccountNamespace, o.ServiceAccount}
}

// decides reports whether the labels of a revision have the options of its removal: it is signed and has the labels of the owner. A failed correction that
// is kept has none, nor has a revision of an agent that sets no labels, which EnsureHistoryKey may have signed. The signature does not cover
// AgentLabel. Without a key, every revision decides.
func (c *Client) decides(r *helm.Release, o UninstallOptions) bool {
	isLabelled := o.Deployment != "" && r.Labels[AgentLabel] == o.Agent && r.Labels[DeploymentLabel] == o.Deployment
	return c.key == nil || c.isSigned(r) && (isLabelled || !o.checksOwner())
}

// lastSigned returns the last revision of the owner that decides; nil if there is none, without a key, or if the owner is not checked.
func (c *Client) lastSigned(own []*helm.Release, options UninstallOptions) *helm.Release {
	if c.key == nil || !options.checksOwner() {
		return nil
	}
	return last(slices.DeleteFunc(slices.Clone(own), func(r *helm.Release) bool { return !c.decides(r, options) }))
}

// dropLater removes the revisions of the owner that are later than its last one that decides, with their objects that this one does not have, and
// damaged ones. It reports whether there were any. Of a release that keeps its objects, forget deletes them all.
func (o *helmAction) dropLater(
	ctx context.Context, name string, options UninstallOptions, signed *helm.Release, own, revisions []*helm.Release,
) (hasDropped bool, err error) {
	if options.KeepResources || last(own) != last(revisions) {
		return false, nil
	}
	ownerLabels := map[string]string{AgentLabel: options.Agent, DeploymentLabel: options.Deployment}
	damaged, err := o.dropDamaged(ctx, name, ownerLabels, revisions)
	if err != nil {
		return false, err
	}
	later := slices.DeleteFunc(slices.Clone(own), func(r *helm.Release) bool { return r.Version <= signed.Version })
	if len(later) == 0 {
		return len(damaged) > 0, nil
	}
	if options.Scope != nil {
		if err := o.client.deleteOwned(ctx, o.namespace, name, options, signed, later...); err != nil && isTransient(err) {
			return false, err
		}
	}
	return true, o.forget(later)
}

// deleteOwned deletes, with the client's own identity, the objects of revisions that have the marks of the release and of the owner, without those of a
// revision that is removed afterwards, if that is not nil.
func (c *Client) deleteOwned(
	ctx context.Context, namespace, name string, options UninstallOptions, without *helm.Release, revisions ...*helm.Release,
) error {
	op, err := c.newAction(ctx, namespace, serviceAccount{})
	if err != nil {
		return err
	}
	op.cluster.release, op.cluster.onlyMarked, op.cluster.removing, op.cluster.keepCRDs = name, true, true, true
	var others kube.ResourceList
	if without != nil {
		if others, err = op.cluster.Build(bytes.NewBufferString(without.Manifest), false); err != nil {
			return err
		}
	}
	for _, r := range revisions {
		infos, err := op.cluster.Build(bytes.NewBufferString(r.Manifest), false)
		if err != nil {
			return fmt.Errorf("reading the manifest of revision %d of Helm release %s/%s: %w", r.Version, namespace, name, err)
		}
		op.cluster.setHash = options.setHash(r)
		if err := op.cluster.deleteMarked(infos.Difference(others)); err != nil {
			return fmt.Errorf("removing objects of revision %d of Helm release %s/%s: %w", r.Version, namespace, name, err)
		}
	}
	return nil
}

// forgetUnsigned deletes the Secrets of revisions that have the labels of the owner and are not signed, whatever they contain. It reports
// whether there were any.
func (c *Client) forgetUnsigned(ctx context.Context, namespace, name string, options UninstallOptions) (forgotten bool, err error) {
	client := c.core.CoreV1().Secrets(namespace)
	page := metav1.ListOptions{Limit: (&historySecrets{limits: c.history}).pageSize(), LabelSelector: labels.Set{
		helmOwnerLabel: "helm", helmNameLabel: name, AgentLabel: options.Agent, DeploymentLabel: options.Deployment,
	}.String()}
	for {
		list, err := client.List(ctx, page)
		if err != nil {
			return false, fmt.Errorf("reading the history of Helm release %s/%s: %w", namespace, name, err)
		}
		for i := range list.Items {
			secret := &list.Items[i]
			if hasSignature(c.key, secret) {
				continue
			}
			err := client.Delete(ctx, secret.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(secret.UID))})
			if err != nil && !apierrors.IsNotFound(err) {
				return false, fmt.Errorf("removing the history of Helm release %s/%s: %w", namespace, name, err)
			}
			forgotten = true
		}
		if page.Continue = list.Continue; page.Continue == "" {
			return forgotten, nil
		}
	}
}

// isTransient reports whether the same call may succeed later: the error comes from a request, or is ErrBusy. Other errors are caused by the content of
// the revision.
func isTransient(err error) bool {
	var request *url.Error
	var answer apierrors.APIStatus
	return errors.Is(err, ErrBusy) || errors.As(err, &request) || errors.As(err, &answer) && !apierrors.IsNotFound(err) && !isRefused(err)
}

// isRefused reports whether the API server, or a policy of the cluster, will refuse the same request again.
func isRefused(err error) bool {
	return apierrors.IsBadRequest(err) || apierrors.IsInvalid(err) || apierrors.IsMethodNotSupported(err)
}

// isForbidden checks the text as well, because Helm does not wrap the errors of several objects.
func isForbidden(err error) bool {
	return apierrors.IsForbidden(err) || err != nil && strings.Contains(err.Error(), " is forbidden: ")
}

// uninstall removes the objects of a release, and runs its hooks. It reports whether the objects are removed, even if a hook that follows has failed. It
// keeps the history.
func (o *helmAction) uninstall(ctx context.Context, name string, deleteCRDs bool) (isRemoved bool, err error) {
	uninstall := action.NewUninstall(o.config)
	uninstall.KeepHistory = true
	uninstall.DisableHooks = o.cluster.onlyMarked
	uninstall.WaitStrategy = kube.HookOnlyStrategy
	uninstall.WaitOptions = []kube.WaitOption{kube.WithWaitContext(ctx)}
	uninstall.Timeout = defaultTimeout
	o.cluster.removing, o.cluster.keepCRDs = true, !deleteCRDs
	done, err := uninstall.Run(name)
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	if err == nil {
		return true, nil
	}
	if done != nil {
		r, ok := done.Release.(*helm.Release)
		isRemoved = ok && r.Info.Status == common.StatusUninstalled
	}
	return isRemoved, errors.Join(err, o.cluster.removeError)
}

// Forget removes the history of a release and keeps its objects.
func (c *Client) Forget(ctx context.Context, namespace, name string) error {
	c, end := c.beginAction(false)
	defer end()
	op, revisions, err := c.open(ctx, namespace, name, serviceAccount{})
	if err != nil {
		return err
	}
	return op.forget(revisions)
}

func (o *helmAction) forget(revisions []*helm.Release) error {
	for _, r := range revisions {
		if _, err := o.config.Releases.Delete(r.Name, r.Version); err != nil && !errors.Is(err, driver.ErrReleaseNotFound) {
			return fmt.Errorf("removing the history of Helm release %s/%s: %w", o.namespace, r.Name, err)
		}
	}
	return nil
}

// deleteNamespace deletes the namespace of a release. It keeps the protected ones, those that a cluster needs, and those that
// contain another Helm release, whoever deployed it; isInUse is true for the latter.
func (o *helmAction) deleteNamespace(ctx context.Context, release string, protected ...string) (isInUse bool, err error) {
	name := o.namespace
	protected = append(protected, metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease)
	if slices.Contains(protected, name) {
		return false, nil
	}
	others, err := o.client.meta.Resource(secrets).Namespace(name).List(ctx, metav1.ListOptions{
		LabelSelector: helmOwnerLabel + "=helm," + helmNameLabel + "!=" + release, Limit: 1,
	})
	if err != nil {
		return false, fmt.Errorf("listing other Helm releases in namespace %s: %w", name, err)
	}
	if len(others.Items) > 0 {
		return true, nil
	}
	err = o.member.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return false, err
}
