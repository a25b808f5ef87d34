package release

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"helm.sh/helm/v4/pkg/action"
	helmrelease "helm.sh/helm/v4/pkg/release"
	"helm.sh/helm/v4/pkg/release/common"
	helm "helm.sh/helm/v4/pkg/release/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// ErrNotSigned is the error of Get, Correct and Sweep if the last revision is not a signed one. Another deployment replaces the revision.
var ErrNotSigned = errors.New("the Secret of the last revision of the Helm release was not written by this agent, or was changed since")

const (
	// signatureAnnotation is the annotation of a signed revision: the HMAC of its Secret with the agent's history key.
	signatureAnnotation = labelPrefix + "proof"
	// signedLabel marks a signed revision in memory. It is never stored.
	signedLabel = labelPrefix + "signed"
	// historyKeyField is the field of the data of Secret registration.HistoryKeySecret that has the history key.
	historyKeyField = "key"
	keyLength       = 32
)

// WithHistoryKey returns a client that signs the revisions that it stores: it annotates their Secrets with an HMAC. A user who may write Secrets
// in one namespace of the member could otherwise forge or change a revision, and have the agent apply it or run its hooks. The key is in Secret
// registration.HistoryKeySecret in the namespace of the agent. Without that Secret, every revision counts as signed.
func (c *Client) WithHistoryKey(ctx context.Context, agentNamespace string) (*Client, error) {
	secret, err := c.core.CoreV1().Secrets(agentNamespace).Get(ctx, registration.HistoryKeySecret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return c, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the history key, which signs the revisions of Helm releases: %w", err)
	}
	if len(secret.Data[historyKeyField]) < keyLength {
		return nil, fmt.Errorf("Secret %s/%s has no key of %d bytes: restore the Secret, or delete it, "+
			"and the agent creates it again with its next attempt", agentNamespace, registration.HistoryKeySecret, keyLength)
	}
	return c.withKey(secret.Data[historyKeyField]), nil
}

// EnsureHistoryKey returns the client of WithHistoryKey, and creates the Secret with the key if it does not exist. Before that, it signs the
// revisions that the agent, or an agent that sets no labels, has stored until now, except damaged ones and those that exceed the limits. The
// Secret comes last, so that an interrupted call is repeated.
func (c *Client) EnsureHistoryKey(ctx context.Context, owner Owner) (*Client, error) {
	keyed, err := c.WithHistoryKey(ctx, owner.Namespace)
	if err != nil || keyed.key != nil {
		return keyed, err
	}
	key := make([]byte, keyLength)
	_, _ = rand.Read(key) // never fails
	found, err := c.allRevisions(ctx, owner.Selector())
	if err != nil {
		return nil, err
	}
	unlabelled, err := c.Unlabelled(ctx)
	if err != nil {
		return nil, err
	}
	for _, f := range unlabelled {
		deployment, agent, err := c.Annotated(ctx, f)
		if err != nil {
			return nil, err
		}
		if deployment != "" && agent == owner.Namespace {
			found = append(found, f)
		}
	}
	for _, f := range found {
		if err := c.sign(ctx, key, f); err != nil {
			return nil, fmt.Errorf("signing the history of Helm release %s/%s: %w", f.Namespace, f.Name, err)
		}
	}
	_, err = c.core.CoreV1().Secrets(owner.Namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: registration.HistoryKeySecret}, Data: map[string][]byte{historyKeyField: key},
	}, metav1.CreateOptions{FieldManager: registration.FieldManager})
	if err != nil {
		return nil, fmt.Errorf("storing the history key, which signs the revisions of Helm releases: %w", err)
	}
	return c.withKey(key), nil
}

func (c *Client) withKey(key []byte) *Client {
	keyed := *c
	keyed.key = key
	return &keyed
}

func (c *Client) sign(ctx context.Context, key []byte, f Found) error {
	c, end := c.beginAction(true)
	defer end()
	client := c.core.CoreV1().Secrets(f.Namespace)
	secret, err := client.Get(ctx, secretName(f.Name, f.Version), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if revision, err := c.decode(ctx, secret); revision == nil {
		return err // without one, it is damaged: it stays unsigned, and is never parsed
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": secret.ResourceVersion, "annotations": map[string]string{signatureAnnotation: signature(key, f.Namespace, secret)},
	}})
	if err != nil {
		return err
	}
	_, err = client.Patch(ctx, secret.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: registration.FieldManager})
	return err
}

// secretName returns the name of the Secret of a revision, as Helm computes it.
func secretName(release string, version int) string {
	return fmt.Sprintf("sh.helm.release.v1.%s.v%d", release, version)
}

// versionOf returns the version of the revision in the labels of a Secret, and whether the Secret has the name that Helm gives to that of the revision. Helm
// writes no version with leading zeros.
func versionOf(secret metav1.Object) (version int, hasHelmsName bool) {
	l := secret.GetLabels()
	version, err := strconv.Atoi(l[helmVersionLabel])
	isCanonical := err == nil && strconv.Itoa(version) == l[helmVersionLabel]
	return version, isCanonical && secret.GetName() == secretName(l[helmNameLabel], version)
}

// isSigned reports whether a revision is a signed one, which means that the agent has stored it as it is. Without a key every revision counts.
func (c *Client) isSigned(kept helmrelease.Releaser) bool {
	r, ok := kept.(*helm.Release)
	return c.key == nil || ok && r.Labels[signedLabel] == labelTrue
}

// signature computes the HMAC of the Secret of a revision: of its namespace and name, its content, and the labels that an agent reads, except
// AgentLabel, which changes when the agent moves to another namespace.
func signature(key []byte, namespace string, secret *corev1.Secret) string {
	signed := map[string]string{}
	for name, value := range secret.Labels {
		isRead := strings.HasPrefix(name, labelPrefix) && name != AgentLabel && name != signedLabel
		if isRead || name == helmOwnerLabel || name == helmNameLabel || name == helmVersionLabel || name == helmStatusLabel {
			signed[name] = value
		}
	}
	text, _ := json.Marshal([]any{namespace, secret.Name, signed, secret.Data["release"]}) // cannot fail
	mac := hmac.New(sha256.New, key)
	mac.Write(text)
	return hex.EncodeToString(mac.Sum(nil))
}

func hasSignature(key []byte, secret *corev1.Secret) bool {
	return hmac.Equal([]byte(secret.Annotations[signatureAnnotation]), []byte(signature(key, secret.Namespace, secret)))
}

// MoveSignature returns the annotations that sign a revision for the agent that adopts it, or nil if the earlier agent has not signed it.
// The keys are Secrets registration.HistoryKeySecret in the namespaces of the two agents. The signature covers the revision as it was read, so
// it is not valid if another user changes the Secret at the same time.
func MoveSignature(revision, earlierKey, laterKey *corev1.Secret) map[string]string {
	earlier, later := earlierKey.Data[historyKeyField], laterKey.Data[historyKeyField]
	if len(earlier) < keyLength || len(later) < keyLength || !hasSignature(earlier, revision) {
		return nil
	}
	return map[string]string{signatureAnnotation: signature(later, revision.Namespace, revision)}
}

// signedPredecessors returns the releases in r.Predecessors whose revision is signed, and the one that the status of the BundleDeployment records: an
// agent that signs nothing may have stored that.
func (c *Client) signedPredecessors(ctx context.Context, r Request) (signed []Found, err error) {
	if c.key == nil {
		return r.Predecessors, nil
	}
	recorded := ParseRecord(r.Recorded)
	for _, f := range r.Predecessors {
		if f.Namespace == recorded.Namespace && f.Name == recorded.Name {
			signed = append(signed, f)
			continue
		}
		isSigned, err := c.HasSignedSecret(ctx, f)
		if err != nil {
			return nil, err
		}
		if isSigned {
			signed = append(signed, f)
		}
	}
	return signed, nil
}

// HasSignedSecret reports whether the Secret of a revision exists and is signed. Without a key every revision counts.
func (c *Client) HasSignedSecret(ctx context.Context, f Found) (bool, error) {
	if c.key == nil {
		return true, nil
	}
	secret, err := c.core.CoreV1().Secrets(f.Namespace).Get(ctx, secretName(f.Name, f.Version), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reading Helm release %s/%s: %w", f.Namespace, f.Name, err)
	}
	return hasSignature(c.key, secret), nil
}

// mayBeSame reports whether the last revision may be what a request would deploy. It relies only on what a user who may write Secrets in the
// namespace cannot forge: the status of the BundleDeployment, which only agents of this cluster write, or the signature of a revision that this
// agent deployed for another Cluster.
func (c *Client) mayBeSame(r Request, latest *helm.Release) bool {
	if c.key == nil || latest == nil || latest.Info.Status != common.StatusDeployed || len(r.Predecessors) > 0 || !r.hasDeployed(latest) {
		return false
	}
	if c.isSigned(latest) {
		isEqual := func(label string) bool { return latest.Labels[label] == r.Labels[label] }
		return !isEqual(ClusterLabel) && isEqual(DeploymentIDLabel) && isEqual(CopiesLabel)
	}
	if latest.Labels[CopiesLabel] != "" && r.Labels[CopiesLabel] == "" {
		return false // without the label, a removal would leave the copies
	}
	return r.Applied && r.Recorded == Found{Namespace: latest.Namespace, Name: latest.Name, Version: latest.Version}.String()
}

// keepRevision keeps the last revision if the request would deploy the same: after Fleet's own agent has deployed it meanwhile, or after the agent
// has registered as another Cluster. It renders the request, and if the revision has the same objects, hooks and values, stores what it
// rendered under the number of that revision, signed. The agent then trusts nothing that others have stored, except texts that only people and
// Fleet's agent read. The result is nil if the revision is not the same, or if the output of the chart differs each time.
func (o *helmAction) keepRevision(ctx context.Context, r Request, source chartSource, values map[string]any, latest *helm.Release) (*helm.Release, error) {
	if !o.client.mayBeSame(r, latest) {
		return nil, nil
	}
	annotations := source.chart.Metadata.Annotations
	source, err := makeSource(r) // an action of Helm changes the chart and the values
	if err != nil {
		return nil, err
	}
	source.chart.Metadata.Annotations = annotations
	install := o.install(ctx, r, source, nil)
	install.DryRunStrategy, install.IsUpgrade = action.DryRunServer, !isInstallation(latest)
	rendered, err := install.RunWithContext(context.WithoutCancel(ctx), source.chart, (&fleet.GenericMap{Data: values}).DeepCopy().Data)
	made, ok := rendered.(*helm.Release)
	if err != nil || !ok || !isSame(made, latest) {
		return nil, nil //nolint:nilerr // the deployment returns the error
	}
	made.Version, made.ApplyMethod = latest.Version, latest.ApplyMethod
	made.SetStatus(common.StatusDeployed, latest.Info.Description)
	made.Info.FirstDeployed, made.Info.LastDeployed = latest.Info.FirstDeployed, latest.Info.LastDeployed
	delete(made.Labels, FieldManagerLabel) // another agent may have applied the objects
	if manager := latest.Labels[FieldManagerLabel]; manager != "" && o.client.isSigned(latest) {
		made.Labels[FieldManagerLabel] = manager
	}
	made.Labels[signedLabel] = labelTrue
	err = o.config.Releases.Update(made)
	delete(made.Labels, signedLabel)
	if err != nil {
		return nil, fmt.Errorf("signing revision %d of Helm release %s/%s: %w", made.Version, made.Namespace, made.Name, err)
	}
	return made, nil
}

// isSame reports whether two revisions have the same objects, hooks and values.
func isSame(a, b *helm.Release) bool {
	areSame := func(a, b string) bool {
		objectsOfA, err := decodeObjects([]byte(a))
		objectsOfB, otherErr := decodeObjects([]byte(b))
		return a == b || err == nil && otherErr == nil && reflect.DeepEqual(objectsOfA, objectsOfB)
	}
	areSameHooks := func(a, b *helm.Hook) bool {
		return a.Weight == b.Weight && slices.Equal(a.Events, b.Events) && areSame(a.Manifest, b.Manifest)
	}
	valuesOfA, err := json.Marshal(a.Config)
	valuesOfB, otherErr := json.Marshal(b.Config)
	areSameValues := len(a.Config)+len(b.Config) == 0 || err == nil && otherErr == nil && bytes.Equal(valuesOfA, valuesOfB)
	return areSameValues && slices.EqualFunc(a.Hooks, b.Hooks, areSameHooks) && areSame(a.Manifest, b.Manifest)
}

// signedSecrets are the Secrets of Helm releases. A read sets signedLabel on signed revisions; a write signs a revision that the action has
// created, or that has signedLabel. A forged revision stays unsigned, whatever Helm changes in it.
type signedSecrets struct {
	corev1client.SecretInterface
	key       []byte
	namespace string
	created   map[string]bool // by name
}

// Get returns a Secret.
func (s signedSecrets) Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.Secret, error) {
	secret, err := s.SecretInterface.Get(ctx, name, o)
	if err == nil {
		s.label(secret)
	}
	return secret, err
}

// List returns Secrets.
func (s signedSecrets) List(ctx context.Context, o metav1.ListOptions) (*corev1.SecretList, error) {
	list, err := s.SecretInterface.List(ctx, o)
	if err == nil {
		for i := range list.Items {
			s.label(&list.Items[i])
		}
	}
	return list, err
}

func (s signedSecrets) label(secret *corev1.Secret) {
	secret.Labels = maps.Clone(secret.Labels)
	delete(secret.Labels, signedLabel)
	if hasSignature(s.key, secret) {
		metav1.SetMetaDataLabel(&secret.ObjectMeta, signedLabel, labelTrue)
	}
}

// Create creates a Secret.
func (s signedSecrets) Create(ctx context.Context, secret *corev1.Secret, o metav1.CreateOptions) (*corev1.Secret, error) {
	s.created[secret.Name] = true
	s.sign(secret)
	return s.SecretInterface.Create(ctx, secret, o)
}

// Update changes a Secret.
func (s signedSecrets) Update(ctx context.Context, secret *corev1.Secret, o metav1.UpdateOptions) (*corev1.Secret, error) {
	s.sign(secret)
	return s.SecretInterface.Update(ctx, secret, o)
}

func (s signedSecrets) sign(secret *corev1.Secret) {
	isOurs := s.created[secret.Name] || secret.Labels[signedLabel] == labelTrue
	delete(secret.Labels, signedLabel)
	if isOurs {
		metav1.SetMetaDataAnnotation(&secret.ObjectMeta, signatureAnnotation, signature(s.key, s.namespace, secret))
	}
}
