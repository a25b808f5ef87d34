package release

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"helm.sh/helm/v4/pkg/action"
	chartcommon "helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/kube"
	helmrelease "helm.sh/helm/v4/pkg/release"
	"helm.sh/helm/v4/pkg/release/common"
	helm "helm.sh/helm/v4/pkg/release/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Request describes a deployment.
type Request struct {
	// Namespace and Name identify the release; Place computes them.
	Namespace, Name string
	// BundleDeployment is the name of the BundleDeployment, and Commit the commit of its resources; "" if unknown.
	BundleDeployment, Commit string
	// Scope is the scope of the agent. It is part of the marks on the objects.
	Scope string
	// Resources are files: of charts, of a kustomization, or plain manifests.
	Resources []fleet.BundleResource
	// Options are the options of the BundleDeployment.
	Options fleet.BundleDeploymentOptions
	// Copies are Secrets and ConfigMaps of the hub that are written into the namespace of the release before it is deployed.
	Copies []runtime.Object
	// Values come from the Secret of a BundleDeployment. They override those in Options, and helm.valuesFrom overrides both.
	Values map[string]any
	// Labels go on the history of the release; Owner.LabelsFor returns them.
	Labels map[string]string
	// ServiceAccountNamespace is the namespace of Options.ServiceAccount: the agent's own.
	ServiceAccountNamespace string
	// Predecessors lists older releases of the same BundleDeployment under other names, which this one replaces. The new release may adopt their
	// objects, but not objects of other owners or of none. Deploy ignores releases whose revision is not signed, except the recorded one.
	Predecessors []Found
	// Recorded is the release in the status of the BundleDeployment, as Deployed.String prints it; empty if there is none. Only
	// agents of this cluster write it, so an unlabelled release with that name was deployed by an agent that sets no labels,
	// and may be adopted. A release whose chart is annotated for the BundleDeployment may be adopted, too.
	Recorded string
	// Applied is true if the status of the BundleDeployment records that release Recorded was deployed with the deployment ID in Labels and with
	// these Copies.
	Applied bool
	// IsAgent is true for the release of the agent itself. Deploy does not wait for it, because the agent would wait for its own end, and uses the
	// field manager of an import, which applies the same objects.
	IsAgent bool
}

// Deployed is a release that is on the cluster.
type Deployed struct {
	// Namespace, Name and Version identify the revision.
	Namespace, Name string
	Version         int
	// Labels are the labels of its Secret.
	Labels map[string]string
	// Objects are the objects of the release, without hooks.
	Objects []Object
	// Unchanged is true if nothing was deployed, because the revision already existed.
	Unchanged bool
	// NamespaceErr is the error with which the API server refused the labels and annotations of the namespace; nil if there was none.
	NamespaceErr *NamespaceError
	// Dropped lists the damaged revisions that Deploy has deleted.
	Dropped []Found
	// Kept describes objects that the release no longer has, and that stay because they do not belong to it: another release has adopted them, or a
	// person may have created them, perhaps before a failed deployment has adopted them.
	Kept []string
}

// String formats the release as a status shows it: "namespace/name:version".
func (d Deployed) String() string {
	return Found{Namespace: d.Namespace, Name: d.Name, Version: d.Version}.String()
}

// Object is one object of a release.
type Object struct {
	// Desired is the object as it was applied, with Helm's marks, and Manager the field manager that applied it.
	Desired *unstructured.Unstructured
	Manager string
	// Resource is the resource of its kind.
	Resource schema.GroupVersionResource
}

const (
	// defaultTimeout bounds an operation and its hooks if the options set no timeout.
	defaultTimeout = 5 * time.Minute
	// defaultHistory is the number of kept revisions if the options set none.
	defaultHistory = 5
)

// Bound returns the time that the options allow the deployment to take: for waiting, and for waiting after a rollback.
func (r Request) Bound() time.Duration { return 2 * r.timeout() }

// Deploy installs the release, or upgrades it from whatever the last attempt left. It installs the release until a revision has worked, see isInstalling:
// an upgrade from a failed installation would not run the hooks of an installation. It returns an UnsupportedError, an
// InvalidError or a ConflictError if a retry does not help. If the release is deployed, it returns a LeftoverError if something of
// earlier attempts could not be removed. After ctx has ended in the middle, the next Deploy continues. It keeps a revision that
// equals what it would store, even if another agent, or this one for another Cluster, stored it: see keepRevision.
func (c *Client) Deploy(ctx context.Context, r Request) (Deployed, error) {
	c, end := c.beginAction(true)
	defer end()
	source, err := makeSource(r)
	if err != nil {
		return Deployed{}, err
	}
	source.chart.Metadata.Annotations = labels.Merge(source.chart.Metadata.Annotations, chartAnnotations(r))
	delete(source.chart.Metadata.Annotations, adoptedAnnotation)
	if r.Predecessors, err = c.signedPredecessors(ctx, r); err != nil {
		return Deployed{}, err
	}
	op, revisions, err := c.openFor(ctx, &r)
	if err != nil {
		return Deployed{}, err
	}
	if !source.needsCapabilities() {
		op.config.Capabilities = chartcommon.DefaultCapabilities // saves requests
	}
	if err := op.checkPlace(ctx, r, last(revisions)); err != nil {
		return Deployed{}, err
	}
	mayAdopt, err := op.mayAdopt(ctx, r, last(revisions))
	if err != nil {
		return Deployed{}, err
	}
	if err := checkReleaseOwner(r, last(revisions), mayAdopt); err != nil {
		return Deployed{}, err
	}
	var unlabelled *NamespaceError
	if err := op.ensureNamespace(ctx, r); err != nil && !errors.As(err, &unlabelled) {
		return Deployed{}, err
	}
	dropped, err := op.dropDamaged(ctx, r.Name, r.Labels, revisions)
	if err != nil {
		return Deployed{}, err
	}
	if err := op.failInterrupted(revisions); err != nil {
		return Deployed{}, err
	}
	if err := op.writeCopies(ctx, r); err != nil {
		return Deployed{}, err
	}
	values, err := readValues(ctx, op.member, r) // a tenant deploys only values that they may read
	if err != nil {
		return Deployed{}, err
	}
	if err := source.checkDependencies(r, values); err != nil {
		return Deployed{}, err
	}
	if err := source.checkSchemas(r, values); err != nil {
		return Deployed{}, err
	}

	kept, err := op.keepRevision(ctx, r, source, values, last(revisions))
	if err != nil {
		return Deployed{}, err
	}
	if kept != nil {
		deployed, err := op.deployed(kept)
		deployed.Unchanged, deployed.NamespaceErr, deployed.Dropped = true, unlabelled, dropped
		return deployed, err
	}

	op.cluster.keepCRDs = !r.Options.DeleteCRDResources
	op.cluster.replace = r.helm().Force
	op.cluster.inherits = r.inherits(op.manager, last(revisions)) || len(revisions) > 0 && !c.isSigned(last(revisions)) // Helm copies labels
	// The upgrade removes objects that the last revision has and the new one lacks, if they have the marks of the release. A forged revision may name any
	// object, and so may a revision that was deployed with the rights of another ServiceAccount: they must have the marks of the BundleDeployment too.
	isForged := func(r *helm.Release) bool { return !c.isSigned(r) }
	if from := upgradedFrom(revisions); slices.ContainsFunc(revisions, isForged) || from != nil && !r.hasDeployed(from) {
		op.cluster.onlyMarked = true
	}
	if op.cluster.ledger, err = op.readLedger(revisions); err != nil {
		return Deployed{}, err
	}
	op.cluster.ledger.annotations = source.chart.Metadata.Annotations
	r.Labels = labels.Merge(r.Labels, map[string]string{FieldManagerLabel: op.manager})
	// With ctx, Helm would return early and continue in the background. The client of newAction ends its requests instead.
	background := context.WithoutCancel(ctx)
	var made helmrelease.Releaser
	installs := isInstalling(revisions)
	if installs {
		if made, err = op.install(ctx, r, source, last(revisions)).RunWithContext(background, source.chart, values); err == nil {
			err = op.storeInstalled(made)
		}
	} else {
		made, err = op.upgrade(ctx, r, source, revisions).RunWithContext(background, r.Name, source.chart, values)
	}
	if ctx.Err() != nil {
		return Deployed{}, context.Cause(ctx)
	}
	if err != nil {
		if failed, _ := made.(*helm.Release); failed != nil && r.rollsBack() && !installs && failed.Info.Status == common.StatusFailed {
			err = errors.Join(err, op.config.Releases.Update(failed)) // Helm marks it as superseded if the rollback fails as well
		}
		return Deployed{}, errors.Join(err, op.forgetRepeated(revisions, made))
	}
	deployed, err := op.deployed(made)
	if err != nil {
		return deployed, err
	}
	deployed.NamespaceErr, deployed.Dropped = unlabelled, dropped
	err = op.sweep(op.cluster.ledger.target)
	deployed.Kept = op.cluster.kept
	return deployed, err
}

// storeInstalled stores that an installation has worked, if Helm has failed to do so, which it does not report. Otherwise the next version of the chart would be
// installed, and not upgraded to.
func (o *helmAction) storeInstalled(made helmrelease.Releaser) error {
	r, ok := made.(*helm.Release)
	if !ok {
		return nil
	}
	if stored := o.history.read[secretName(r.Name, r.Version)]; stored != nil && stored.Labels[helmStatusLabel] == string(common.StatusDeployed) {
		return nil
	}
	if err := o.config.Releases.Update(r); err != nil {
		return fmt.Errorf("storing that Helm release %s/%s is deployed: %w", r.Namespace, r.Name, err)
	}
	return nil
}

// forgetRepeated deletes the revision of the last failed attempt if another one has failed since that has the same objects, and knows which of them it has
// created. Otherwise repeated attempts would push the revisions of other attempts, whose objects have to be removed, out of the history.
func (o *helmAction) forgetRepeated(revisions []*helm.Release, made helmrelease.Releaser) error {
	isFailed := func(r *helm.Release) bool { return r != nil && r.Info.Status == common.StatusFailed }
	earlier, l := last(revisions), o.cluster.ledger
	later, ok := made.(*helm.Release)
	isStored := ok && later != nil && earlier != nil && later.Version > earlier.Version // an installation that cannot be rendered returns one that is not
	if !isStored || !isFailed(later) || !isFailed(earlier) || !o.client.isSigned(earlier) || earlier.Labels[DeploymentLabel] != later.Labels[DeploymentLabel] {
		return nil
	}
	if l.err != nil || len(l.objects[earlier].Difference(l.target)) > 0 {
		return nil
	}
	return o.forget([]*helm.Release{earlier})
}

// inherits reports whether an agent may have applied the objects on the cluster with another field manager.
func (r Request) inherits(manager string, latest *helm.Release) bool {
	if latest == nil {
		return r.adopts()
	}
	return latest.Labels[FieldManagerLabel] != manager ||
		slices.ContainsFunc(r.Predecessors, func(f Found) bool { return f.Labels[FieldManagerLabel] != manager })
}

// Sweep removes the objects for which Deploy has returned a LeftoverError. Another Deploy would not remove them: it considers only the attempts
// after the last revision that worked.
func (c *Client) Sweep(ctx context.Context, r Request) (Deployed, error) {
	c, end := c.beginAction(true)
	defer end()
	op, revisions, err := c.resume(ctx, &r)
	if err != nil {
		return Deployed{}, err
	}
	deployed, err := op.deployed(last(revisions))
	if err != nil {
		return deployed, err
	}
	// Corrections since the deployment, and attempts with the same objects, have left nothing else.
	of, _, err := op.cluster.buildEarlier(last(revisions).Manifest)
	earlier := revisions
	for len(earlier) > 0 && last(earlier).Manifest == last(revisions).Manifest {
		earlier = earlier[:len(earlier)-1]
	}
	if err == nil {
		op.cluster.ledger, err = op.readLedger(earlier)
	}
	if err != nil {
		return deployed, &LeftoverError{err}
	}
	err = op.sweep(of)
	deployed.Kept = op.cluster.kept
	return deployed, err
}

// resume prepares an action on a release whose last revision is deployed and signed, and returns its revisions. It also refuses a revision of another
// owner, even if the options allow the adoption: Deploy does that, but an action on the revision itself would run the hooks of its owner
// with the identity of this request.
func (c *Client) resume(ctx context.Context, r *Request) (*helmAction, []*helm.Release, error) {
	op, revisions, err := c.openFor(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	isKeptFailure := func(r *helm.Release) bool { // see Correct
		return r.Info.Status != common.StatusDeployed && r.Labels[AgentLabel] == "" && c.isSigned(r)
	}
	for len(revisions) > 0 && isKeptFailure(last(revisions)) {
		revisions = revisions[:len(revisions)-1]
	}
	latest := last(revisions)
	switch {
	case latest != nil && !latest.Info.Status.IsPending() && !c.isSigned(latest):
		return nil, nil, ErrNotSigned
	case latest == nil || latest.Info.Status != common.StatusDeployed:
		return nil, nil, fmt.Errorf("Helm release %s/%s is not deployed any more", r.Namespace, r.Name)
	}
	if err := checkReleaseOwner(*r, latest, false); err != nil {
		return nil, nil, err
	}
	op.cluster.keepCRDs = !r.Options.DeleteCRDResources
	return op, revisions, nil
}

// openFor is open with the identity of the request, which it notes in the options.
func (c *Client) openFor(ctx context.Context, r *Request) (*helmAction, []*helm.Release, error) {
	account, err := c.serviceAccount(ctx, *r)
	if err != nil {
		return nil, nil, err
	}
	r.Options.ServiceAccount = account.name
	op, revisions, err := c.open(ctx, r.Namespace, r.Name, account)
	if err != nil {
		return nil, nil, err
	}
	if r.IsAgent {
		op.manager = registration.FieldManager
	}
	op.cluster.manager = op.manager
	op.cluster.owns, op.cluster.takesOwnership = r.owns, r.helm().TakeOwnership
	return op, revisions, nil
}

// mayAdopt reports whether the options allow the request to adopt a release of another owner. The history is written with the client's own
// identity, so a tenant must have the right to change it.
func (o *helmAction) mayAdopt(ctx context.Context, r Request, existing *helm.Release) (bool, error) {
	if existing == nil || !r.helm().TakeOwnership || r.Options.ServiceAccount == "" {
		return r.helm().TakeOwnership, nil
	}
	review, err := o.member.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: r.Namespace, Verb: "update", Resource: secrets.Resource},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("asking for the rights of ServiceAccount %s in namespace %s: %w", r.Options.ServiceAccount, r.Namespace, err)
	}
	return review.Status.Allowed, nil
}

// checkReleaseOwner refuses a release of another owner: an upgrade would replace its objects.
func checkReleaseOwner(r Request, existing *helm.Release, mayAdopt bool) error {
	if existing == nil || mayAdopt {
		return nil
	}
	agent, deployment := existing.Labels[AgentLabel], existing.Labels[DeploymentLabel]
	if agent == r.Labels[AgentLabel] && deployment == r.Labels[DeploymentLabel] {
		return nil
	}
	if agent == "" && deployment == "" {
		if isAnnotatedFor(r, existing) {
			return nil
		}
		// The last revision is later than the recorded one if the agent that stored it ended before it could report.
		recorded := ParseRecord(r.Recorded)
		if recorded.Name != "" && recorded.Namespace == r.Namespace && recorded.Name == r.Name && recorded.Version <= existing.Version {
			return nil
		}
	}
	owner := "another owner"
	if deployment != "" {
		owner = fmt.Sprintf("BundleDeployment %s of the agent in namespace %s", deployment, agent)
	}
	return &ConflictError{Namespace: r.Namespace, Name: r.Name, Owner: owner}
}

// install returns the installation of a release. failed is the last revision if earlier installations have failed, and nil otherwise: Helm then gives the new
// revision the next number, and the failed one stays in the history.
func (o *helmAction) install(ctx context.Context, r Request, s chartSource, failed *helm.Release) *action.Install {
	install := action.NewInstall(o.config)
	install.ReleaseName, install.Namespace = r.Name, r.Namespace
	install.Labels = withoutRemoved(labels.Merge(r.Labels, optionLabels(r.Options)))
	install.ForceConflicts = true
	install.DisableOpenAPIValidation = true // the API server validates what is applied, strictly
	install.TakeOwnership = r.adopts()
	install.Timeout, install.WaitForJobs = r.timeout(), r.waits() && r.helm().WaitForJobs
	install.WaitStrategy, install.WaitOptions = waitStrategy(ctx, r)
	install.RollbackOnFailure = r.rollsBack() && !r.adopts() // undoing an installation deletes all objects, adopted ones too
	install.EnableDNS = !r.helm().DisableDNS
	install.SkipSchemaValidation = r.helm().SkipSchemaValidation
	if failed == nil {
		install.PostRenderer = renderedManifests{request: r, source: s, cluster: o.cluster}
		return install
	}
	// Except for the hooks and the templates, it does what an upgrade from the failed revision would do.
	adopts := !r.rollsBack()
	install.Replace, install.TakeOwnership = true, adopts || r.adopts()
	install.RollbackOnFailure = false // it would delete the whole history, which says what earlier attempts have created
	if copied := failed.Labels[CopiesLabel]; copied != "" {
		install.Labels = labels.Merge(map[string]string{CopiesLabel: copied}, install.Labels)
	}
	o.config.Releases.MaxHistory = r.maxHistory()
	o.cluster.replaced = o.cluster.ledger.objects[failed]
	install.PostRenderer = renderedManifests{request: r, source: s, cluster: o.cluster, deployed: o.cluster.replaced, adopts: adopts}
	return install
}

func (o *helmAction) upgrade(ctx context.Context, r Request, s chartSource, revisions []*helm.Release) *action.Upgrade {
	// As with Fleet's own agent, an upgrade adopts existing objects. An upgrade that may be undone does not: that would not restore them.
	adopts := !r.rollsBack()
	upgrade := action.NewUpgrade(o.config)
	upgrade.Namespace = r.Namespace
	upgrade.Labels = labels.Merge(r.Labels, optionLabels(r.Options))
	// Owners were checked before; changes that people made on the cluster must not stop a deployment.
	upgrade.ServerSideApply, upgrade.ForceConflicts = "true", true
	upgrade.DisableOpenAPIValidation = true
	upgrade.ResetValues = true
	upgrade.TakeOwnership = adopts || r.adopts()
	upgrade.Timeout, upgrade.WaitForJobs = r.timeout(), r.waits() && r.helm().WaitForJobs
	upgrade.WaitStrategy, upgrade.WaitOptions = waitStrategy(ctx, r)
	// A rollback runs the hooks of the revision that it restores with the identity of this upgrade.
	restored := lastWith(revisions, common.StatusDeployed, common.StatusSuperseded)
	upgrade.RollbackOnFailure = r.rollsBack() && !o.cluster.onlyMarked && checkReleaseOwner(r, restored, false) == nil
	upgrade.MaxHistory = r.maxHistory()
	upgrade.EnableDNS = !r.helm().DisableDNS
	upgrade.SkipSchemaValidation = r.helm().SkipSchemaValidation
	upgrade.PostRenderer = renderedManifests{request: r, source: s, cluster: o.cluster, deployed: o.cluster.ledger.objects[upgradedFrom(revisions)], adopts: adopts}
	return upgrade
}

// rollsBack reports whether a failed deployment is undone. A release that adopts objects of an older one is not undone: that would not
// return them to the older release, which still needs them.
func (r Request) rollsBack() bool { return r.helm().Atomic && !r.IsAgent && len(r.Predecessors) == 0 }

// adopts reports whether Helm may adopt existing objects. checkObjectOwners (render.go) limits that to Predecessors, unless the options allow all.
func (r Request) adopts() bool { return r.helm().TakeOwnership || len(r.Predecessors) > 0 }

// owns reports whether the marks of an object name the release, or one that it replaces.
func (r Request) owns(name, namespace string) bool {
	isNamed := func(f Found) bool { return f.Namespace == namespace && f.Name == name }
	return isNamed(Found{Namespace: r.Namespace, Name: r.Name}) || slices.ContainsFunc(r.Predecessors, isNamed)
}

func (r Request) maxHistory() int {
	if limit := r.helm().MaxHistory; limit > 0 {
		return limit
	}
	return defaultHistory
}

func (r Request) timeout() time.Duration {
	if seconds := r.helm().TimeoutSeconds; seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	return defaultTimeout
}

// upgradedFrom returns the revision that an upgrade starts from: the deployed one, or else the last; nil if there is none.
func upgradedFrom(revisions []*helm.Release) *helm.Release {
	return cmp.Or(lastWith(revisions, common.StatusDeployed), last(revisions))
}

// hasDeployed reports whether a revision has the owner of the request, and was deployed with the identity of the request.
func (r Request) hasDeployed(existing *helm.Release) bool {
	account := cmp.Or(existing.Labels[ServiceAccountLabel], annotationsOf(existing)[serviceAccountAnnotation])
	return checkReleaseOwner(r, existing, false) == nil && registration.LabelValue(account) == registration.LabelValue(r.Options.ServiceAccount)
}

func waitStrategy(ctx context.Context, r Request) (kube.WaitStrategy, []kube.WaitOption) {
	strategy := kube.HookOnlyStrategy
	if r.waits() {
		strategy = kube.StatusWatcherStrategy
	}
	return strategy, []kube.WaitOption{kube.WithWaitContext(ctx)}
}

func (r Request) waits() bool { return !r.IsAgent && (r.helm().TimeoutSeconds > 0 || r.helm().Atomic) }

func (r Request) helm() fleet.HelmOptions {
	if r.Options.Helm == nil {
		return fleet.HelmOptions{}
	}
	return *r.Options.Helm
}

// sweep removes objects that only failed attempts created, and that the release does not have. Helm compares with the last revision that worked, and does
// not know the objects that failed attempts added after it.
func (o *helmAction) sweep(of kube.ResourceList) error {
	left, err := o.cluster.ledger.ofFailed()
	if err == nil {
		err = o.cluster.deleteMarked(left.Difference(of))
	}
	if err != nil {
		return &LeftoverError{err}
	}
	return nil
}

// deployed returns the objects of a revision as they were applied. Those of a version that the cluster no longer serves are in another version. Those of a
// kind that it does not serve are missing: their resource is a guess.
func (o *helmAction) deployed(made helmrelease.Releaser) (Deployed, error) {
	r, ok := made.(*helm.Release)
	if !ok {
		return Deployed{}, fmt.Errorf("Helm returned a release of the unknown type %T", made)
	}
	d := Deployed{Namespace: r.Namespace, Name: r.Name, Version: r.Version, Labels: r.Labels}
	infos, isOutdated, err := o.cluster.buildEarlier(r.Manifest)
	if err != nil {
		return d, fmt.Errorf("reading the manifest of Helm release %s/%s: %w", r.Namespace, r.Name, err)
	}
	add := func(desired *unstructured.Unstructured, resource schema.GroupVersionResource) {
		desired.SetLabels(labels.Merge(desired.GetLabels(), map[string]string{ManagedByLabel: ManagedByHelm}))
		desired.SetAnnotations(labels.Merge(desired.GetAnnotations(), map[string]string{NameAnnotation: r.Name, NamespaceAnnotation: r.Namespace}))
		manager := cmp.Or(r.Labels[FieldManagerLabel], registration.FieldManager)
		d.Objects = append(d.Objects, Object{Desired: desired, Manager: manager, Resource: resource})
	}
	served := sets.New[schema.GroupKind]()
	for _, info := range infos {
		served.Insert(info.Mapping.GroupVersionKind.GroupKind())
		if desired, ok := info.Object.(*unstructured.Unstructured); ok {
			desired.SetNamespace(info.Namespace)
			add(desired, info.Mapping.Resource)
		}
	}
	if !isOutdated {
		return d, nil
	}
	all, err := decodeObjects([]byte(r.Manifest))
	for _, desired := range all {
		if kind := desired.GroupVersionKind(); !served.Has(kind.GroupKind()) {
			resource, _ := meta.UnsafeGuessKindToResource(kind)
			add(desired, resource)
		}
	}
	return d, err
}
