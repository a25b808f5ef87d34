package release

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"helm.sh/helm/v4/pkg/release/common"
	helm "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/release/v1/util"
	"helm.sh/helm/v4/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/transport"
)

// Labels of the Secrets in which Helm keeps a release. The member has no other record of the releases of an agent: a restarted agent, and a hub
// that uninstalls an agent, find them by these labels.
const (
	// AgentLabel holds the namespace of the agent. It tells agents of two hubs on one member apart, whose clusters may have
	// the same name.
	AgentLabel = labelPrefix + "agent-namespace"
	// ClusterLabel holds the namespace of the agent's Cluster on the hub.
	ClusterLabel = labelPrefix + "cluster"
	// DeploymentLabel holds the name of the BundleDeployment, shortened to the length of a label.
	DeploymentLabel = labelPrefix + "bundle-deployment"
	// DeploymentIDLabel holds a digest of the deployment ID of this revision.
	DeploymentIDLabel = labelPrefix + "deployment-id"
	// ServiceAccountLabel holds the ServiceAccount that deployed, if it was not the agent's own.
	ServiceAccountLabel = labelPrefix + "service-account"

	// CopiesLabel holds the generation of the Secrets and ConfigMaps that were copied for this revision.
	CopiesLabel = labelPrefix + "copies"

	// FieldManagerLabel holds the field manager that applied the objects. Revisions of Fleet's own agent and of earlier agents of
	// this project have none.
	FieldManagerLabel = labelPrefix + "field-manager"

	keepResourcesLabel   = labelPrefix + "keep-resources"
	deleteNamespaceLabel = labelPrefix + "delete-namespace"
	deleteCRDsLabel      = labelPrefix + "delete-crds"

	labelPrefix = "muster.fleet.cattle.io/"
	labelTrue   = "true"
	// labelRemoved is the value with which a Helm upgrade removes a label of the previous revision.
	labelRemoved = "null"
)

// Labels that Helm itself puts on the Secret of a revision.
const (
	helmOwnerLabel   = "owner"
	helmNameLabel    = "name"
	helmVersionLabel = "version"
	helmStatusLabel  = "status"
)

var secrets = corev1.SchemeGroupVersion.WithResource("secrets")

// Owner is the agent that deploys releases.
type Owner struct {
	// Namespace is the agent's namespace on the member.
	Namespace string
	// Workspace, the namespace of the Cluster, and ClusterName identify the Cluster on the hub.
	Workspace, ClusterName string
}

// Labels returns the labels of all releases of the agent.
func (o Owner) Labels() map[string]string {
	return map[string]string{
		AgentLabel:   registration.LabelValue(o.Namespace),
		ClusterLabel: registration.ClusterNamespace(o.Workspace, o.ClusterName),
	}
}

// Selector selects all releases of the agent.
func (o Owner) Selector() labels.Selector { return labels.SelectorFromSet(o.Labels()) }

// LabelsFor returns the labels for a revision that deploys a BundleDeployment.
func (o Owner) LabelsFor(bundleDeployment, deploymentID string) map[string]string {
	all := o.Labels()
	all[DeploymentLabel] = registration.LabelValue(bundleDeployment)
	all[DeploymentIDLabel] = DeploymentIDValue(deploymentID)
	return all
}

// DeploymentIDValue returns the value of DeploymentIDLabel.
func DeploymentIDValue(deploymentID string) string {
	sum := sha256.Sum256([]byte(deploymentID))
	return hex.EncodeToString(sum[:20])
}

// UninstallOptionsFrom returns the options of a removal from the labels of the release.
func UninstallOptionsFrom(l map[string]string) UninstallOptions {
	return UninstallOptions{
		KeepResources:           l[keepResourcesLabel] == labelTrue,
		DeleteNamespace:         l[deleteNamespaceLabel] == labelTrue,
		DeleteCRDs:              l[deleteCRDsLabel] == labelTrue,
		DeleteCopies:            l[CopiesLabel] != "",
		ServiceAccount:          l[ServiceAccountLabel],
		ServiceAccountNamespace: l[AgentLabel],
		Agent:                   l[AgentLabel],
		Deployment:              l[DeploymentLabel],
	}
}

// Found is one revision of a release, as its labels describe it.
type Found struct {
	// Namespace, Name and Version identify the revision.
	Namespace, Name string
	Version         int
	// Deployed is true if the objects of this revision are on the cluster. It is false if the revision failed, was interrupted, or was
	// replaced by a newer one.
	Deployed bool
	// Failed is true if the operation that made this revision has failed.
	Failed bool
	// Pending is true if the operation that made this revision has not ended.
	Pending bool
	// Labels are the labels of the Secret.
	Labels map[string]string
}

// FoundIn reads a revision from the labels of its Secret. A Secret that has not the name that Helm gives it is never the last or a deployed revision.
func FoundIn(secret metav1.Object) Found {
	l := secret.GetLabels()
	version, hasHelmsName := versionOf(secret)
	if !hasHelmsName {
		return Found{Namespace: secret.GetNamespace(), Name: l[helmNameLabel], Labels: l}
	}
	return Found{
		Namespace: secret.GetNamespace(), Name: l[helmNameLabel], Version: version, Labels: l,
		Deployed: l[helmStatusLabel] == string(common.StatusDeployed),
		Failed:   l[helmStatusLabel] == string(common.StatusFailed),
		Pending:  common.Status(l[helmStatusLabel]).IsPending(),
	}
}

// String formats the revision as Deployed does.
func (f Found) String() string { return fmt.Sprintf("%s/%s:%d", f.Namespace, f.Name, f.Version) }

// ParseRecord reads a revision from the status of a BundleDeployment. Without one the result has no name.
func ParseRecord(text string) Found {
	place, number, _ := strings.Cut(text, ":")
	namespace, name, _ := strings.Cut(place, "/")
	version, err := strconv.Atoi(number)
	if err != nil {
		return Found{}
	}
	return Found{Namespace: namespace, Name: name, Version: version}
}

// Options returns the options with which to remove the release.
func (f Found) Options() UninstallOptions { return UninstallOptionsFrom(f.Labels) }

// Newest returns the last revision of each release.
func Newest(all []Found) (newest []Found) {
	type releaseName struct{ namespace, name string }
	at := map[releaseName]int{}
	for _, f := range all {
		i, known := at[releaseName{f.Namespace, f.Name}]
		switch {
		case !known:
			at[releaseName{f.Namespace, f.Name}] = len(newest)
			newest = append(newest, f)
		case f.Version > newest[i].Version:
			newest[i] = f
		}
	}
	return newest
}

// List returns the newest revision of each release in all namespaces whose history matches the selector.
func (c *Client) List(ctx context.Context, selector labels.Selector) ([]Found, error) {
	all, err := c.allRevisions(ctx, selector)
	return Newest(all), err
}

// allRevisions lists the revisions in all namespaces whose history matches the selector.
func (c *Client) allRevisions(ctx context.Context, selector labels.Selector) (all []Found, err error) {
	err = c.eachRevision(ctx, selector, func(f Found) { all = append(all, f) })
	return all, err
}

// ListAfter is List for a cluster of which the caller may have only so many releases in memory. It returns those whose namespaces and names follow the
// given ones in alphabetical order, a limited number of them, and whether there are more.
func (c *Client) ListAfter(ctx context.Context, selector labels.Selector, after Found, limit int) (found []Found, hasMore bool, err error) {
	byPlace := func(a, b Found) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	}
	dropLast := func() {
		found = Newest(found)
		slices.SortFunc(found, byPlace)
		hasMore = hasMore || len(found) > limit
		found = found[:min(limit, len(found))]
	}
	err = c.eachRevision(ctx, selector, func(f Found) {
		if byPlace(f, after) <= 0 {
			return
		}
		if found = append(found, f); len(found) >= 2*limit {
			dropLast()
		}
	})
	if err != nil {
		return nil, false, err
	}
	dropLast()
	return found, hasMore, nil
}

// eachRevision calls a function with each revision whose history matches the selector, in all namespaces. It leaves out labels that only other programs
// read: users who may write Secrets in one namespace could fill the memory.
func (c *Client) eachRevision(ctx context.Context, selector labels.Selector, visit func(Found)) error {
	err := eachObject(ctx, c.meta.Resource(secrets), ownedByHelm(selector), func(secret *metav1.PartialObjectMetadata) error {
		if hasLegalNames(secret) {
			reduced := reducedMeta(secret)
			visit(FoundIn(&reduced))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("listing Helm releases: %w", err)
	}
	return nil
}

// listPage is the number of objects whose metadata are read at a time. Most take some kilobytes.
const listPage = 500

// eachObject calls a function with the metadata of each selected object. It has one page of them in memory at a time, and reads smaller pages if
// one is larger than the client accepts: users may store large annotations.
func eachObject(ctx context.Context, client metadata.ResourceInterface, selector string, visit func(*metav1.PartialObjectMetadata) error) error {
	for page := (metav1.ListOptions{LabelSelector: selector, Limit: listPage}); ; {
		list, err := client.List(ctx, page)
		var tooLarge *transport.TooLargeError
		switch {
		case errors.As(err, &tooLarge) && page.Limit > 1:
			page.Limit /= 2
			continue
		case err != nil:
			return err
		}
		for i := range list.Items {
			if err := visit(&list.Items[i]); err != nil {
				return err
			}
		}
		if page.Continue = list.Continue; page.Continue == "" {
			return nil
		}
	}
}

// hasLegalNames reports whether the metadata that reducedMeta keeps of a Secret are no longer than an API server permits, or writes.
func hasLegalNames(secret metav1.Object) bool {
	for _, value := range withNames(secret.GetLabels(), revisionLabels...) {
		if len(value) > validation.LabelValueMaxLength {
			return false
		}
	}
	longest := max(len(secret.GetName()), len(secret.GetUID()), len(secret.GetResourceVersion()))
	return longest <= validation.DNS1123SubdomainMaxLength && len(secret.GetNamespace()) <= validation.DNS1123LabelMaxLength
}

// Revisions lists and watches the metadata of the Secrets that List reads.
func (c *Client) Revisions(selector labels.Selector) *cache.ListWatch {
	text := ownedByHelm(selector)
	return transport.ListWatch(c.meta.Resource(secrets), func(o *metav1.ListOptions) { o.LabelSelector = text })
}

// revisionLabels are the labels that Found and its users read.
var revisionLabels = []string{
	helmOwnerLabel, helmNameLabel, helmVersionLabel, helmStatusLabel, AgentLabel, ClusterLabel, DeploymentLabel, DeploymentIDLabel, ServiceAccountLabel,
	CopiesLabel, FieldManagerLabel, keepResourcesLabel, deleteNamespaceLabel, deleteCRDsLabel,
}

// ReduceRevision drops from the metadata that Revisions returns what FoundIn does not read, before a cache keeps it: users who may write Secrets in one
// namespace could fill the memory.
func ReduceRevision(object any) (any, error) {
	secret, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object, nil
	}
	secret.ObjectMeta = reducedMeta(secret)
	return secret, nil
}

func ownedByHelm(selector labels.Selector) string {
	owner, _ := labels.NewRequirement(helmOwnerLabel, selection.Equals, []string{"helm"}) // constants: this cannot fail
	return selector.Add(*owner).String()
}

// Adopt makes a release of an agent that sets no labels, such as Fleet's own, one of this agent: it labels the last revision, which has no labels, or
// those that Helm copied from the previous revision. It adopts only a release whose chart is annotated for the BundleDeployment of the
// request; without one the result has no name. A revision that the status of the BundleDeployment records (Request.Recorded) gets the
// deployment ID and the options of the request. Any other revision gets only the labels that Uninstall reads.
func (c *Client) Adopt(ctx context.Context, r Request) (Found, error) {
	c, end := c.beginAction(true)
	defer end()
	op, revisions, err := c.open(ctx, r.Namespace, r.Name, serviceAccount{})
	if err != nil {
		return Found{}, err
	}
	latest := last(revisions)
	if latest == nil || !isAnnotatedFor(r, latest) {
		return Found{}, nil
	}
	found := Found{Namespace: latest.Namespace, Name: latest.Name, Version: latest.Version, Deployed: latest.Info.Status == common.StatusDeployed}
	recorded := found.Deployed && found.String() == r.Recorded
	agent, deployment := latest.Labels[AgentLabel], latest.Labels[DeploymentLabel]
	copied := recorded && agent == r.Labels[AgentLabel] && deployment == r.Labels[DeploymentLabel]
	if !copied && (agent != "" || deployment != "") {
		return Found{}, nil
	}
	found.Labels = maps.Clone(r.Labels)
	options := r.Options
	if !recorded {
		delete(found.Labels, DeploymentIDLabel)
		options = fleet.BundleDeploymentOptions{}
	}
	annotations := annotationsOf(latest)
	options.KeepResources = annotations[keepResourcesAnnotation] == strconv.FormatBool(true)
	options.ServiceAccount = annotations[serviceAccountAnnotation]
	found.Labels[FieldManagerLabel] = labelRemoved
	found.Labels = withoutRemoved(labels.Merge(latest.Labels, labels.Merge(found.Labels, optionLabels(options))))
	latest.Labels = found.Labels
	if err := op.config.Releases.Update(latest); err != nil {
		return Found{}, fmt.Errorf("labelling Helm release %s/%s: %w", latest.Namespace, latest.Name, err)
	}
	return found, nil
}

// withoutRemoved leaves out the labels that an upgrade would remove: an installation would store the value instead.
func withoutRemoved(l map[string]string) map[string]string {
	kept := maps.Clone(l)
	maps.DeleteFunc(kept, func(_, value string) bool { return value == labelRemoved })
	return kept
}

// optionLabels returns the labels with the options of a later removal. Unset options have the value labelRemoved. CopiesLabel is not
// among them: a release that was deployed with copies keeps it when downstreamResources is emptied, so that its removal deletes them.
func optionLabels(o fleet.BundleDeploymentOptions) map[string]string {
	all := map[string]string{
		keepResourcesLabel: labelRemoved, deleteNamespaceLabel: labelRemoved, deleteCRDsLabel: labelRemoved, ServiceAccountLabel: labelRemoved,
	}
	for label, set := range map[string]bool{
		keepResourcesLabel: o.KeepResources, deleteNamespaceLabel: o.DeleteNamespace, deleteCRDsLabel: o.DeleteCRDResources,
	} {
		if set {
			all[label] = labelTrue
		}
	}
	if o.ServiceAccount != "" {
		// With a name that was shortened, Uninstall cannot act as the ServiceAccount. It removes the release as if that were gone.
		all[ServiceAccountLabel] = registration.LabelValue(o.ServiceAccount)
	}
	return all
}

// Unlabelled returns the newest revision of each release that has no AgentLabel.
func (c *Client) Unlabelled(ctx context.Context) ([]Found, error) {
	unlabelled, err := labels.NewRequirement(AgentLabel, selection.DoesNotExist, nil)
	if err != nil {
		return nil, err
	}
	return c.List(ctx, labels.NewSelector().Add(*unlabelled))
}

// Annotated returns the BundleDeployment and the agent's namespace from the annotations of a revision's chart, which Fleet's own agent sets
// too. Both are empty for a release of another program, and for a Secret that Helm cannot decode or that exceeds the limits: no agent has
// stored such a Secret, and it must not keep the agent from finding other releases. It returns ErrBusy instead of waiting.
func (c *Client) Annotated(ctx context.Context, f Found) (bundleDeployment, agentNamespace string, err error) {
	c, end := c.beginAction(false)
	defer end()
	name := secretName(f.Name, f.Version)
	secret, err := c.core.CoreV1().Secrets(f.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", "", nil
	}
	if err != nil {
		return "", "", fmt.Errorf("reading Helm release %s/%s: %w", f.Namespace, f.Name, err)
	}
	revision, err := c.decode(ctx, secret)
	if revision == nil {
		return "", "", err
	}
	annotations := annotationsOf(revision)
	return annotations[bundleAnnotation], annotations[agentAnnotation], nil
}

// decode returns the revision in a Secret; nil if it is damaged or exceeds the limits. Here the limits apply to signed revisions too. The error is ErrBusy,
// or that of ctx.
func (c *Client) decode(ctx context.Context, secret *corev1.Secret) (*helm.Release, error) {
	strict := *c
	strict.history.TrustSigned = false
	read := &historySecrets{SecretInterface: readSecret{secret: secret}, ctx: ctx, limits: strict.history}
	found, err := soundReleases{driver.NewSecrets(read), &strict, ctx, secret.Namespace}.Get(secret.Name)
	switch {
	case errors.Is(err, ErrBusy):
		return nil, ErrBusy
	case err != nil: // the Secret was read before, so its content is the cause, unless ctx has ended
		return nil, context.Cause(ctx)
	}
	revision, _ := found.(*helm.Release)
	return revision, nil
}

// readSecret is a Secret that was read before.
type readSecret struct {
	corev1client.SecretInterface
	secret *corev1.Secret
}

// Get returns the Secret.
func (r readSecret) Get(context.Context, string, metav1.GetOptions) (*corev1.Secret, error) {
	return r.secret, nil
}

// Get reads the objects of a revision, as Deploy returns them. It returns ErrNotSigned for a revision that is not signed, see WithHistoryKey: it
// may name any object, and Compare reads the objects with the client's own identity.
func (c *Client) Get(ctx context.Context, f Found) (*Deployed, error) {
	c, end := c.beginAction(true)
	defer end()
	op, err := c.newAction(ctx, f.Namespace, serviceAccount{})
	if err != nil {
		return nil, err
	}
	op.history.onlySigned = true
	kept, err := op.config.Releases.Get(f.Name, f.Version)
	if errors.Is(err, ErrNotSigned) {
		return nil, ErrNotSigned
	}
	if err != nil {
		return nil, fmt.Errorf("reading Helm release %s/%s: %w", f.Namespace, f.Name, err)
	}
	deployed, err := op.deployed(kept)
	return &deployed, err
}

// failInterrupted marks the last revision as failed if its operation was interrupted, for example because the agent was
// killed. Helm refuses to work on a pending release, and no other process would finish the operation.
func (o *helmAction) failInterrupted(revisions []*helm.Release) error {
	ended := []common.Status{common.StatusDeployed, common.StatusFailed, common.StatusSuperseded}
	r := last(revisions)
	if r == nil || slices.Contains(ended, r.Info.Status) {
		return nil
	}
	r.Info.Status, r.Info.Description = common.StatusFailed, "Interrupted while "+string(r.Info.Status)
	if wroteNothing(r) { // it is not known whether it did
		delete(annotationsOf(r), adoptedAnnotation)
	}
	if err := o.config.Releases.Update(r); err != nil {
		return fmt.Errorf("recovering Helm release %s/%s: %w", r.Namespace, r.Name, err)
	}
	return nil
}

// dropDamaged deletes revisions that are neither signed nor sound, see soundReleases: those with the labels of the owner, and those later than the last
// sound revision, whose owner was checked. One of them may have the number of the next revision, or look like the last revision to a reader of labels.
func (o *helmAction) dropDamaged(ctx context.Context, name string, ownerLabels map[string]string, sound []*helm.Release) (dropped []Found, err error) {
	if o.client.key == nil {
		return nil, nil
	}
	latest := last(sound)
	for _, key := range slices.Sorted(maps.Keys(o.history.read)) {
		secret := o.history.read[key]
		found := FoundIn(secret)
		isSound := slices.ContainsFunc(sound, func(r *helm.Release) bool { return secretName(r.Name, r.Version) == key })
		isOwn := found.Labels[AgentLabel] == ownerLabels[AgentLabel] && found.Labels[DeploymentLabel] == ownerLabels[DeploymentLabel]
		isLater := latest != nil && found.Version > latest.Version
		if isSound || hasSignature(o.client.key, secret) || !isOwn && !isLater {
			continue
		}
		err := o.history.Delete(ctx, key, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(secret.UID))})
		if err != nil {
			return dropped, fmt.Errorf("deleting a damaged revision of Helm release %s/%s: %w", o.namespace, name, err)
		}
		dropped = append(dropped, found)
	}
	return dropped, nil
}

func last(revisions []*helm.Release) *helm.Release {
	if len(revisions) == 0 {
		return nil
	}
	return revisions[len(revisions)-1]
}

// lastWith returns the last revision with one of the states; nil if there is none.
func lastWith(revisions []*helm.Release, states ...common.Status) *helm.Release {
	return last(slices.DeleteFunc(slices.Clone(revisions), func(r *helm.Release) bool { return !slices.Contains(states, r.Info.Status) }))
}

// open prepares an action on a release, and returns the revisions of the release, see newAction and revisions.
func (c *Client) open(ctx context.Context, namespace, name string, account serviceAccount) (*helmAction, []*helm.Release, error) {
	op, err := c.newAction(ctx, namespace, account)
	if err != nil {
		return nil, nil, err
	}
	op.cluster.release = name
	revisions, err := op.revisions(name)
	return op, revisions, err
}

// revisions returns the revisions in the history of a release, oldest first, and none if the release does not exist.
func (o *helmAction) revisions(name string) ([]*helm.Release, error) {
	found, err := o.config.Releases.History(name)
	if errors.Is(err, driver.ErrReleaseNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the history of Helm release %s/%s: %w", o.namespace, name, err)
	}
	var all []*helm.Release
	for _, r := range found {
		if revision, ok := r.(*helm.Release); ok {
			all = append(all, revision)
		}
	}
	util.SortByRevision(all)
	return all, nil
}
