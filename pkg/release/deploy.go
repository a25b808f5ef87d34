package release

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	helmrelease "helm.sh/helm/v4/pkg/release"
	"helm.sh/helm/v4/pkg/release/common"
	helm "helm.sh/helm/v4/pkg/release/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

// Deploy installs the release, or upgrades it from whatever the last attempt left behind. It returns an UnsupportedError, an
// InvalidError or a ConflictError when trying again is of no use. When ctx ends in the middle, the next Deploy goes on.
func (c *Client) Deploy(ctx context.Context, r Request) (Deployed, error) {
	chart, err := pack(r)
	if err != nil {
		return Deployed{}, err
	}
	op, err := c.operation(ctx, r.Namespace, identity{r.ServiceAccountNamespace, r.Options.ServiceAccount})
	if err != nil {
		return Deployed{}, err
	}
	op.capabilities(chart)
	values, err := c.values(ctx, r)
	if err != nil {
		return Deployed{}, err
	}
	revisions, err := op.revisions(r.Name)
	if err != nil {
		return Deployed{}, err
	}
	if err := mine(r, last(revisions)); err != nil {
		return Deployed{}, err
	}
	if err := errors.Join(c.ensureNamespace(ctx, r.Namespace, r.Options), op.settle(revisions)); err != nil {
		return Deployed{}, err
	}
	return op.run(ctx, r, chart, values, revisions)
}

func (o *operation) run(ctx context.Context, r Request, p packaged, values map[string]any, revisions []*helm.Release) (Deployed, error) {
	o.cluster.replace = r.force()
	// Helm's own context would leave the work running behind our back; the wire ends it, see operation.
	background := context.WithoutCancel(ctx)
	var made helmrelease.Releaser
	var err error
	if len(revisions) == 0 {
		made, err = o.install(ctx, r).RunWithContext(background, p.chart, values)
	} else {
		made, err = o.upgrade(ctx, r).RunWithContext(background, r.Name, p.chart, values)
	}
	if ctx.Err() != nil {
		return Deployed{}, context.Cause(ctx)
	}
	if err != nil {
		return Deployed{}, err
	}
	deployed, err := o.deployed(made)
	if err != nil {
		return deployed, err
	}
	return deployed, o.sweep(deployed, revisions)
}

// mine refuses a release that is somebody else's: an upgrade would replace what it consists of.
func mine(r Request, existing *helm.Release) error {
	if existing == nil || r.helm().TakeOwnership {
		return nil
	}
	agent, deployment := existing.Labels[AgentLabel], existing.Labels[DeploymentLabel]
	if agent == r.Labels[AgentLabel] && deployment == r.Labels[DeploymentLabel] {
		return nil
	}
	if agent == "" && deployment == "" && r.recorded(existing) {
		return nil
	}
	owner := "somebody else"
	if deployment != "" {
		owner = fmt.Sprintf("BundleDeployment %s of the agent in namespace %s", deployment, agent)
	}
	return &ConflictError{Namespace: r.Namespace, Name: r.Name, Owner: owner}
}

// recorded says whether the hub has the release on record. A later revision than the one on record is of an agent that ended
// before it could report.
func (r Request) recorded(existing *helm.Release) bool {
	place, number, _ := strings.Cut(r.Recorded, ":")
	version, err := strconv.Atoi(number)
	return err == nil && place == r.Namespace+"/"+r.Name && version <= existing.Version
}

func (o *operation) install(ctx context.Context, r Request) *action.Install {
	install := action.NewInstall(o.config)
	install.ReleaseName, install.Namespace = r.Name, r.Namespace
	install.Labels = present(labels.Merge(r.Labels, optionLabels(r.Options)))
	install.ForceConflicts = true
	install.DisableOpenAPIValidation = true // the API server validates what is applied, strictly
	install.TakeOwnership = r.adopts()
	install.Timeout, install.WaitForJobs = r.timeout(), r.waits() && r.helm().WaitForJobs
	install.WaitStrategy, install.WaitOptions = r.waiting(ctx)
	install.RollbackOnFailure = r.undoes() && !r.adopts() // undoing an installation deletes all of it, adopted or not
	install.EnableDNS = !r.helm().DisableDNS
	install.SkipSchemaValidation = r.helm().SkipSchemaValidation
	install.PostRenderer = o.postRenderer(r)
	return install
}

func (o *operation) upgrade(ctx context.Context, r Request) *action.Upgrade {
	upgrade := action.NewUpgrade(o.config)
	upgrade.Namespace = r.Namespace
	upgrade.Labels = labels.Merge(r.Labels, optionLabels(r.Options))
	// Whose the objects are was decided above; what people changed on the cluster is not to stop a deployment.
	upgrade.ServerSideApply, upgrade.ForceConflicts = "true", true
	upgrade.DisableOpenAPIValidation = true
	upgrade.ResetValues = true
	upgrade.TakeOwnership = r.adopts()
	upgrade.Timeout, upgrade.WaitForJobs = r.timeout(), r.waits() && r.helm().WaitForJobs
	upgrade.WaitStrategy, upgrade.WaitOptions = r.waiting(ctx)
	upgrade.RollbackOnFailure = r.undoes()
	upgrade.MaxHistory = r.maxHistory()
	upgrade.EnableDNS = !r.helm().DisableDNS
	upgrade.SkipSchemaValidation = r.helm().SkipSchemaValidation
	upgrade.PostRenderer = o.postRenderer(r)
	return upgrade
}

// undoes says whether a deployment that fails is taken back. What runs for an older release does so until it is removed, and what
// this one took over of it would be deleted.
func (r Request) undoes() bool { return r.helm().Atomic && !r.NoWait && len(r.HandOver) == 0 }

func (r Request) waiting(ctx context.Context) (kube.WaitStrategy, []kube.WaitOption) {
	strategy := kube.HookOnlyStrategy
	if r.waits() {
		strategy = kube.StatusWatcherStrategy
	}
	return strategy, []kube.WaitOption{kube.WithWaitContext(ctx)}
}

func (r Request) maxHistory() int {
	if kept := r.helm().MaxHistory; kept > 0 {
		return kept
	}
	return history
}

func (o *operation) deployed(made helmrelease.Releaser) (Deployed, error) {
	r, ok := made.(*helm.Release)
	if !ok {
		return Deployed{}, fmt.Errorf("unknown release: Helm made one of the unknown type %T", made)
	}
	d := Deployed{Namespace: r.Namespace, Name: r.Name, Version: r.Version, Labels: r.Labels}
	objects, err := o.objects(r)
	d.Objects = objects
	return d, err
}

// objects are those of a revision, as they were applied.
func (o *operation) objects(r *helm.Release) ([]Object, error) {
	infos, err := o.cluster.Build(bytes.NewBufferString(r.Manifest), false)
	if err != nil {
		return nil, fmt.Errorf("reading the manifest of Helm release %s/%s: %w", r.Namespace, r.Name, err)
	}
	var all []Object
	for _, info := range infos {
		desired, ok := info.Object.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		desired.SetNamespace(info.Namespace)
		desired.SetLabels(labels.Merge(desired.GetLabels(), map[string]string{ManagedByLabel: ManagedByHelm}))
		desired.SetAnnotations(labels.Merge(desired.GetAnnotations(), map[string]string{NameAnnotation: r.Name, NamespaceAnnotation: r.Namespace}))
		all = append(all, Object{Desired: desired, Resource: info.Mapping.Resource})
	}
	return all, nil
}

// sweep removes what only attempts that came to nothing have made: Helm compares with the last revision that worked, and
// forgets what a failed one after it brought along.
func (o *operation) sweep(d Deployed, revisions []*helm.Release) error {
	var left kube.ResourceList
	for _, r := range slices.Backward(revisions) {
		if r.Info.Status == common.StatusDeployed || r.Info.Status == common.StatusSuperseded {
			break
		}
		infos, err := o.cluster.Build(bytes.NewBufferString(r.Manifest), false)
		if err != nil {
			continue // a kind that never existed: nothing of it can be left
		}
		for _, info := range infos {
			if !d.contains(info.Mapping.Resource.GroupResource().String(), info.Namespace, info.Name) {
				left = append(left, info)
			}
		}
	}
	if err := o.removeMarked(left, d.Name); err != nil {
		return &LeftoverError{err}
	}
	return nil
}

// Sweep does again what Deploy returned a LeftoverError for. Another Deploy would not: the attempts that left something behind are
// over for it.
func (c *Client) Sweep(ctx context.Context, r Request) (Deployed, error) {
	op, err := c.operation(ctx, r.Namespace, identity{r.ServiceAccountNamespace, r.Options.ServiceAccount})
	if err != nil {
		return Deployed{}, err
	}
	revisions, err := op.revisions(r.Name)
	if err != nil {
		return Deployed{}, err
	}
	latest := last(revisions)
	if latest == nil || latest.Info.Status != common.StatusDeployed {
		return Deployed{}, fmt.Errorf("Helm release %s/%s is not deployed any more", r.Namespace, r.Name)
	}
	deployed, err := op.deployed(latest)
	if err != nil {
		return deployed, err
	}
	return deployed, op.sweep(deployed, revisions[:len(revisions)-1])
}

func (d Deployed) contains(resource, namespace, name string) bool {
	return slices.ContainsFunc(d.Objects, func(o Object) bool {
		return o.Resource.GroupResource().String() == resource && o.Desired.GetNamespace() == namespace && o.Desired.GetName() == name
	})
}
