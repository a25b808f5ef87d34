package release

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/release/common"
	helm "helm.sh/helm/v4/pkg/release/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/cli-runtime/pkg/resource"
)

// ledger is what the revisions of a release say about the objects that it has, or may have:
//
//   - The objects of the last revision that worked belong to the release.
//   - Each deployment notes in its revision, before it writes the first object, which of its objects exist although they do not belong to the release:
//     it adopts them. If it fails, they stay, because a person may have created them, and get the marks back that they had. It creates the others, and they
//     belong to the release.
//   - If several failed deployments have an object, the last of them decides.
//   - A deployment that has failed before it wrote an object, for example in a hook, notes that: it changes nothing.
//   - A deployment without a note that is signed was interrupted, or is one of another agent. All of its objects may have existed before.
//
// The end of an upgrade, the undoing of a deployment, and a removal delete only objects that belong to the release.
type ledger struct {
	// worked is the last revision that worked, nil if there is none, and failed are the failed ones. objects are the objects of each, of those before worked
	// without the objects of worked.
	worked  *helm.Release
	failed  []*helm.Release
	objects map[*helm.Release]kube.ResourceList
	// err is the error of reading failed revisions, nil if there is none.
	err error
	// ofWorked are the objects of worked; created are the others that belong to the release. The keys are those of objectKey.
	ofWorked, created sets.Set[string]
	// adopted are the objects that failed deployments have adopted, and their marks before: "NAMESPACE/NAME" of a release; "/" if they had none that
	// name a release, and "" if that is not known.
	adopted map[string]string
	// annotations are those of the chart that the action deploys, which Helm stores with the revision; nil if it deploys none. target are the objects that it
	// deploys; nil before it writes the first one.
	annotations map[string]string
	target      kube.ResourceList
}

// failedAttempts returns the last revision that worked, nil if there is none, and all failed revisions, in their order. Those before the one that worked may
// have left objects, too: a rollback undoes only the attempt that it ends, and what a deployment removes of earlier attempts may stay because of an error.
func failedAttempts(revisions []*helm.Release) (worked *helm.Release, failed []*helm.Release) {
	for _, r := range revisions {
		if hasWorked(r) {
			worked = r
		} else {
			failed = append(failed, r)
		}
	}
	return worked, failed
}

func hasWorked(r *helm.Release) bool {
	return r.Info.Status == common.StatusDeployed || r.Info.Status == common.StatusSuperseded
}

// isInstalling reports whether the next deployment of a release is an installation: there are no revisions, or an installation has failed and no revision
// has worked since. Without that installation in the history, as after many failed upgrades, an earlier revision may have worked, so the release is
// upgraded.
func isInstalling(revisions []*helm.Release) bool {
	worked, failed := failedAttempts(revisions)
	return worked == nil && (len(failed) == 0 || slices.ContainsFunc(failed, isFailedInstallation))
}

// isFailedInstallation reports whether an installation has failed. A failed revision with the time of a removal may have worked before: see
// failInterrupted.
func isFailedInstallation(r *helm.Release) bool {
	return r.Info.Status == common.StatusFailed && isInstallation(r) && r.Info.Deleted.IsZero()
}

// isInstallation reports whether an installation made a revision: an upgrade and a rollback keep the time of the first deployment.
func isInstallation(r *helm.Release) bool { return r.Info.FirstDeployed.Equal(r.Info.LastDeployed) }

// readLedger builds the objects of the revisions.
func (o *helmAction) readLedger(revisions []*helm.Release) (*ledger, error) {
	l := &ledger{
		objects: map[*helm.Release]kube.ResourceList{}, ofWorked: sets.New[string](), created: sets.New[string](), adopted: map[string]string{},
	}
	l.worked, l.failed = failedAttempts(revisions)
	for _, r := range append([]*helm.Release{l.worked}, l.failed...) {
		if r == nil {
			continue
		}
		isEarlier := l.worked != nil && r.Version < l.worked.Version
		infos, isOutdated, err := o.cluster.buildEarlier(r.Manifest)
		if err != nil {
			err = fmt.Errorf("reading the manifest of revision %d of Helm release %s/%s: %w", r.Version, r.Namespace, r.Name, err)
			if r == l.worked {
				return nil, err
			}
			if !isEarlier && (isTransient(err) || o.client.isSigned(r)) { // an earlier one may have kinds that have been deleted since
				l.err = errors.Join(l.err, err)
			}
			continue // a deployment finds that the objects exist, and keeps them
		}
		if isOutdated && r == upgradedFrom(revisions) { // Helm builds it too
			o.cluster.outdated = r.Manifest
		}
		if o.client.isSigned(r) && wroteNothing(r) {
			continue
		}
		if isEarlier { // the deployment that worked decides about its own objects
			infos = infos.Filter(func(info *resource.Info) bool { return !l.ofWorked.Has(objectKey(info)) })
		}
		l.objects[r] = infos
		adopted, isNoted := adoptedBy(r)
		switch {
		case r == l.worked:
			for _, info := range infos {
				l.ofWorked.Insert(objectKey(info))
			}
		case isNoted && o.client.isSigned(r):
			l.add(infos, adopted)
		default:
			for _, info := range infos {
				l.created.Delete(objectKey(info))
			}
		}
	}
	return l, nil
}

// owns reports whether an object belongs to the release.
func (l *ledger) owns(info *resource.Info) bool {
	return l.ofWorked.Has(objectKey(info)) || l.created.Has(objectKey(info))
}

// ofFailed returns the objects of the failed revisions, those of the last one first.
func (l *ledger) ofFailed() (all kube.ResourceList, err error) {
	for _, r := range slices.Backward(l.failed) {
		all = append(all, l.objects[r].Difference(all)...)
	}
	return all, l.err
}

// add adds the objects of a deployment, and those of them that it has adopted.
func (l *ledger) add(objects kube.ResourceList, adopted map[string]string) {
	for _, info := range objects {
		key := objectKey(info)
		if marks, isAdopted := adopted[key]; isAdopted {
			l.adopted[key] = marks
			l.created.Delete(key)
		} else if !l.ofWorked.Has(key) {
			l.created.Insert(key)
			delete(l.adopted, key)
		}
	}
}

// note notes the objects that the action deploys, and which of them it adopts.
func (l *ledger) note(target kube.ResourceList, adopted map[string]string) error {
	l.target = target
	l.add(target, adopted)
	text, err := json.Marshal(adopted)
	l.annotations[adoptedAnnotation] = string(text)
	return err
}

// formerMarks returns the marks of an object as ledger.adopted has them: "/" if they are no names of a release and a namespace. Whoever may change the object
// can write anything into them, and the revision has to fit into a Secret.
func formerMarks(name, namespace string) string {
	if len(validation.IsDNS1123Subdomain(name)) > 0 || len(validation.IsDNS1123Label(namespace)) > 0 {
		return "/"
	}
	return namespace + "/" + name
}

// objectKey identifies an object in all versions of its kind.
func objectKey(info *resource.Info) string {
	return fmt.Sprintf("%s %s/%s", info.Mapping.GroupVersionKind.GroupKind(), info.Namespace, info.Name)
}

// claim returns the objects of a target without those that another release has adopted, unless the action takes ownership: with two owners, the end of
// either deletes the object. If the action deploys the target, it notes what it creates, including what it takes over from releases that it replaces, and
// what it adopts. original contains the objects that Helm has found, and those that a failed deployment may have created. claim returns an error if an
// object that it adopts is being deleted: the object would be gone later, although the deployment has succeeded.
func (c *cluster) claim(original, target kube.ResourceList) (claimed kube.ResourceList, err error) {
	leavesOthers := c.owns != nil && !c.takesOwnership
	adopted, errs := map[string]string{}, []error(nil)
	for _, info := range target {
		key, name, namespace := objectKey(info), "", ""
		isNew := c.isDeploying() && !c.ledger.ofWorked.Has(key)
		live, exists := *info, false
		if leavesOthers || isNew && original.Contains(info) {
			err := live.Get()
			if exists = err == nil; exists {
				name, namespace = marksOf(live.Object)
			} else if !apierrors.IsNotFound(err) {
				errs = append(errs, fmt.Errorf("reading %s: %w", info.ObjectName(), err))
				continue
			}
		}
		isOther, isReplaced := c.isOfOther(name, namespace), c.isReplaced(name, namespace)
		if !leavesOthers || !isOther || isReplaced {
			claimed = append(claimed, info)
		}
		switch {
		case !isNew:
		case !exists, isReplaced, name != "" && !isOther && c.ledger.created.Has(key): // one without marks is not the one that a failed deployment has created
		case isBeingDeleted(live.Object):
			errs = append(errs, fmt.Errorf("%s: it is being deleted; the next attempt creates it", info.ObjectName()))
		default:
			adopted[key] = formerMarks(name, namespace)
			if marks, isKnown := c.ledger.adopted[key]; isKnown && name != "" && !isOther { // a failed deployment has adopted it before
				adopted[key] = marks
			}
		}
	}
	if err := errors.Join(errs...); err != nil || !c.isDeploying() {
		return claimed, err
	}
	return claimed, c.ledger.note(target, adopted)
}

func isBeingDeleted(object runtime.Object) bool {
	accessor, err := meta.Accessor(object)
	return err == nil && accessor.GetDeletionTimestamp() != nil
}
