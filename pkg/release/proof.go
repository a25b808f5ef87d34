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

// ErrUnproved is the error of Get, Correct and Sweep for a revision that the agent cannot have stored as it is. Another deployment replaces it.
var ErrUnproved = errors.New("the Secret of the last revision of the Helm release was not written by this agent, or was changed since")

const (
	// proofAnnotation is on the Secret of a revision that the agent has stored: an HMAC of the Secret with the agent's history key.
	proofAnnotation = labelPrefix + "proof"
	// provedLabel is on the revisions in memory whose Secret has a valid proof. It is never stored.
	provedLabel = labelPrefix + "proved"
	// historyKey is the key of Secret registration.HistoryKeySecret.
	historyKey = "key"
	keyLength  = 32
)

// WithHistoryKey returns a client that proves the revisions that it stores, and distinguishes those with a proof from others. A user who may
// write Secrets in one namespace of the member could otherwise forge or change a revision, and have the agent apply it or run its hooks. The
// key is in Secret registration.HistoryKeySecret in the namespace of the agent. Without that Secret, every revision counts as proved.
func (c *Client) WithHistoryKey(ctx context.Context, agentNamespace string) (*Client, error) {
	secret, err := c.core.CoreV1().Secrets(agentNamespace).Get(ctx, registration.HistoryKeySecret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return c, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the key that proves the history of Helm releases: %w", err)
	}
	if len(secret.Data[historyKey]) < keyLength {
		return nil, fmt.Errorf("Secret %s/%s has no key of %d bytes; delete it and restart the agent", agentNamespace, registration.HistoryKeySecret, keyLength)
	}
	return c.withKey(secret.Data[historyKey]), nil
}

// EnsureHistoryKey returns the client of WithHistoryKey, and creates the Secret with the key if it does not exist. Before, it proves the
// revisions that the agent, or one that sets no labels, has stored until now, apart from those that are damaged or exceed the limits; the Secret
// comes last, so that an interrupted call is repeated.
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
		if err := c.prove(ctx, key, f); err != nil {
			return nil, fmt.Errorf("proving the history of Helm release %s/%s: %w", f.Namespace, f.Name, err)
		}
	}
	_, err = c.core.CoreV1().Secrets(owner.Namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: registration.HistoryKeySecret}, Data: map[string][]byte{historyKey: key},
	}, metav1.CreateOptions{FieldManager: registration.FieldManager})
	if err != nil {
		return nil, fmt.Errorf("storing the key that proves the history of Helm releases: %w", err)
	}
	return c.withKey(key), nil
}

func (c *Client) withKey(key []byte) *Client {
	keyed := *c
	keyed.key = key
	return &keyed
}

func (c *Client) prove(ctx context.Context, key []byte, f Found) error {
	client := c.core.CoreV1().Secrets(f.Namespace)
	secret, err := client.Get(ctx, secretName(f.Name, f.Version), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if c.decode(ctx, secret) == nil {
		return nil // it stays without a proof, and is never parsed
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": secret.ResourceVersion, "annotations": map[string]string{proofAnnotation: proof(key, f.Namespace, secret)},
	}})
	if err != nil {
		return err
	}
	_, err = client.Patch(ctx, secret.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: registration.FieldManager})
	return err
}

// secretName is the name of the Secret of a revision, as Helm computes it.
func secretName(release string, version int) string {
	return fmt.Sprintf("sh.helm.release.v1.%s.v%d", release, version)
}

// isProved reports whether the agent has stored a revision as it is. Without a key every revision counts.
func (c *Client) isProved(kept helmrelease.Releaser) bool {
	r, ok := kept.(*helm.Release)
	return c.key == nil || ok && r.Labels[provedLabel] == labelTrue
}

// proof computes the HMAC of the Secret of a revision: its place, its content, and the labels that an agent reads. The labels of the
// agent change when a release follows it to another namespace.
func proof(key []byte, namespace string, secret *corev1.Secret) string {
	signed := map[string]string{}
	for name, value := range secret.Labels {
		isRead := strings.HasPrefix(name, labelPrefix) && name != AgentLabel && name != provedLabel
		if isRead || name == helmOwnerLabel || name == helmNameLabel || name == helmVersionLabel || name == helmStatusLabel {
			signed[name] = value
		}
	}
	text, _ := json.Marshal([]any{namespace, secret.Name, signed, secret.Data["release"]}) // cannot fail
	mac := hmac.New(sha256.New, key)
	mac.Write(text)
	return hex.EncodeToString(mac.Sum(nil))
}

func hasProof(key []byte, secret *corev1.Secret) bool {
	return hmac.Equal([]byte(secret.Annotations[proofAnnotation]), []byte(proof(key, secret.Namespace, secret)))
}

// MoveProof returns the annotations that prove a revision to the agent that it moves to, or nil if the earlier agent cannot have stored the
// revision as it is. The keys are those of Secret registration.HistoryKeySecret in the namespaces of the two agents. The proof is of the
// revision as it was read, so it does not hold for one that somebody changes at the same time.
func MoveProof(revision, earlierKey, laterKey *corev1.Secret) map[string]string {
	earlier, later := earlierKey.Data[historyKey], laterKey.Data[historyKey]
	if len(earlier) < keyLength || len(later) < keyLength || !hasProof(earlier, revision) {
		return nil
	}
	return map[string]string{proofAnnotation: proof(later, revision.Namespace, revision)}
}

// provedHandOver returns the older releases of a request whose revision is proved, and the one that the status of the BundleDeployment records,
// which may be of an agent that proves nothing.
func (c *Client) provedHandOver(ctx context.Context, r Request) (proved []Found, err error) {
	if c.key == nil {
		return r.HandOver, nil
	}
	recorded := ParseRecord(r.Recorded)
	for _, f := range r.HandOver {
		if f.Namespace == recorded.Namespace && f.Name == recorded.Name {
			proved = append(proved, f)
			continue
		}
		secret, err := c.core.CoreV1().Secrets(f.Namespace).Get(ctx, secretName(f.Name, f.Version), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("reading Helm release %s/%s: %w", f.Namespace, f.Name, err)
		case hasProof(c.key, secret):
			proved = append(proved, f)
		}
	}
	return proved, nil
}

// mayBeSame reports whether the last revision may be what a request would deploy, by a source that a user who may write Secrets in the namespace
// cannot forge: the status of the BundleDeployment, which only agents of this cluster write; or the proof of a revision that this agent
// deployed for another Cluster.
func (c *Client) mayBeSame(r Request, latest *helm.Release) bool {
	if c.key == nil || latest == nil || latest.Info.Status != common.StatusDeployed || len(r.HandOver) > 0 || !r.hasDeployed(latest) {
		return false
	}
	if c.isProved(latest) {
		isEqual := func(label string) bool { return latest.Labels[label] == r.Labels[label] }
		return !isEqual(ClusterLabel) && isEqual(DeploymentIDLabel) && isEqual(CopiesLabel)
	}
	if latest.Labels[CopiesLabel] != "" && r.Labels[CopiesLabel] == "" {
		return false // without the label, a removal would leave the copies
	}
	return r.Applied && r.Recorded == Found{Namespace: latest.Namespace, Name: latest.Name, Version: latest.Version}.String()
}

// keepRevision keeps the last revision in place of deploying the same again: after Fleet's own agent has deployed meanwhile, or after the agent
// has registered as another Cluster. It renders the request, and if the revision has the same objects, hooks and values, stores what it
// rendered under the number of that revision, with a proof. The agent then trusts nothing that somebody else has stored, but for texts that
// only people and Fleet's agent read. The result is nil if the revision is another one; so it is if the output of a chart differs each time.
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
	install := o.install(ctx, r, source)
	install.DryRunStrategy, install.IsUpgrade = action.DryRunServer, latest.Version > 1
	rendered, err := install.RunWithContext(context.WithoutCancel(ctx), source.chart, (&fleet.GenericMap{Data: values}).DeepCopy().Data)
	made, ok := rendered.(*helm.Release)
	if err != nil || !ok || !isSame(made, latest) {
		return nil, nil //nolint:nilerr // the deployment returns the error
	}
	made.Version, made.ApplyMethod = latest.Version, latest.ApplyMethod
	made.SetStatus(common.StatusDeployed, latest.Info.Description)
	made.Info.FirstDeployed, made.Info.LastDeployed = latest.Info.FirstDeployed, latest.Info.LastDeployed
	delete(made.Labels, FieldManagerLabel) // another agent may have applied the objects
	if manager := latest.Labels[FieldManagerLabel]; manager != "" && o.client.isProved(latest) {
		made.Labels[FieldManagerLabel] = manager
	}
	made.Labels[provedLabel] = labelTrue
	err = o.config.Releases.Update(made)
	delete(made.Labels, provedLabel)
	if err != nil {
		return nil, fmt.Errorf("proving revision %d of Helm release %s/%s: %w", made.Version, made.Namespace, made.Name, err)
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

// provedSecrets are the Secrets of Helm releases. Reading, it labels those with a valid proof; writing, it proves those that it has created
// or that were labelled when they were read. What was forged stays without a proof, whatever Helm changes of it.
type provedSecrets struct {
	corev1client.SecretInterface
	key       []byte
	namespace string
	created   map[string]bool // by name
}

// Get returns a Secret.
func (s provedSecrets) Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.Secret, error) {
	secret, err := s.SecretInterface.Get(ctx, name, o)
	if err == nil {
		s.label(secret)
	}
	return secret, err
}

// List returns Secrets.
func (s provedSecrets) List(ctx context.Context, o metav1.ListOptions) (*corev1.SecretList, error) {
	list, err := s.SecretInterface.List(ctx, o)
	if err == nil {
		for i := range list.Items {
			s.label(&list.Items[i])
		}
	}
	return list, err
}

func (s provedSecrets) label(secret *corev1.Secret) {
	secret.Labels = maps.Clone(secret.Labels)
	delete(secret.Labels, provedLabel)
	if hasProof(s.key, secret) {
		metav1.SetMetaDataLabel(&secret.ObjectMeta, provedLabel, labelTrue)
	}
}

// Create creates a Secret.
func (s provedSecrets) Create(ctx context.Context, secret *corev1.Secret, o metav1.CreateOptions) (*corev1.Secret, error) {
	s.created[secret.Name] = true
	s.sign(secret)
	return s.SecretInterface.Create(ctx, secret, o)
}

// Update changes a Secret.
func (s provedSecrets) Update(ctx context.Context, secret *corev1.Secret, o metav1.UpdateOptions) (*corev1.Secret, error) {
	s.sign(secret)
	return s.SecretInterface.Update(ctx, secret, o)
}

func (s provedSecrets) sign(secret *corev1.Secret) {
	isOurs := s.created[secret.Name] || secret.Labels[provedLabel] == labelTrue
	delete(secret.Labels, provedLabel)
	if isOurs {
		metav1.SetMetaDataAnnotation(&secret.ObjectMeta, proofAnnotation, proof(s.key, s.namespace, secret))
	}
}
