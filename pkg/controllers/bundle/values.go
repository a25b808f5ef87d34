package bundle

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Keys of the Secret with the Helm values of a BundleDeployment.
const (
	currentKey = "values"
	stagedKey  = "stagedValues"
)

// helmValues are the Helm values of a BundleDeployment: JSON objects, nil if there are no values.
type helmValues struct {
	current, staged []byte
	unread          string // the hash of values that the Secret has already, which are not read; current and staged are nil
}

func (v helmValues) isEmpty() bool {
	return len(v.current) == 0 && len(v.staged) == 0 && v.unread == ""
}

// hash returns the value of spec.valuesHash. Other hubs and agents compute the same.
func (v helmValues) hash() string {
	switch {
	case v.unread != "":
		return v.unread
	case v.isEmpty():
		return ""
	}
	sum := v.digest()
	return hex.EncodeToString(sum[:])
}

func (v helmValues) digest() [sha256.Size]byte {
	return sha256.Sum256(slices.Concat(v.current, v.staged))
}

// valuesFor returns the wanted Helm values of a BundleDeployment. While it is postponed, the current ones stay.
func (d *Deployer) valuesFor(
	ctx context.Context, b *fleet.Bundle, v variant, isPostponed bool, cluster *fleet.Cluster, existing *fleet.BundleDeployment,
) (helmValues, error) {
	switch {
	case !isPostponed || existing != nil && existing.Spec.DeploymentID == v.deploymentID:
		return helmValues{current: v.values, staged: v.values}, nil
	case existing == nil:
		return helmValues{staged: v.values}, nil
	case existing.Spec.ValuesHash == "": // older versions of Fleet wrote the values into the options
		current, err := takeValues(existing.Spec.Options.DeepCopy())
		return helmValues{current: current, staged: v.values}, err
	}
	if hash := d.values.hashOf(keyOf(existing), v.values); hash != "" {
		return helmValues{unread: hash}, nil
	}
	values, err := d.values.read(ctx, keyOf(existing))
	// The agent of a Cluster that is not paused acts on the Secret: without its values it would deploy something else.
	if err == nil && values.isEmpty() && !isPaused(b, cluster) && existing.Spec.DeploymentID != "" {
		err = fmt.Errorf("Secret %s with the deployed Helm values is missing, and the rollout strategy of Bundle %s does not allow new ones yet; "+
			"restore the Secret, or wait until the Cluster gets the new version", keyOf(existing), keyOf(b))
	}
	return helmValues{current: values.current, staged: v.values}, err
}

// takeValues removes the Helm values from options, and returns them as a JSON object, nil if there are none.
func takeValues(options *fleet.BundleDeploymentOptions) ([]byte, error) {
	values := valuesOf(*options)
	if values == nil {
		return nil, nil
	}
	options.Helm.Values = nil
	if values.PackedSize() == 0 && len(values.Data) == 0 {
		return nil, nil
	}
	return json.Marshal(values)
}

// valueSecrets writes the Secrets with the Helm values of BundleDeployments. Its cache has their metadata, and it remembers which values a
// version has, so that a pass that changes nothing reads no Secret.
type valueSecrets struct {
	*app.Context
	created *expectations.Expectations // Secrets, by the key
	written *expectations.Expectations // versions of Secrets

	mu    sync.Mutex
	known map[key]knownValues
}

// knownValues identify the values that one version of a Secret has by their digests: the values of all Clusters would take the memory of the
// hub. The version is empty if this hub has neither written nor read the Secret.
type knownValues struct {
	both, staged [sha256.Size]byte // both is the digest of spec.valuesHash
	hasValues    bool
	version      string
}

func (k knownValues) equal(values helmValues) bool {
	return k.both == values.digest() && k.staged == sha256.Sum256(values.staged)
}

func newValueSecrets(c *app.Context) *valueSecrets {
	return &valueSecrets{Context: c, created: expectations.New(c.Clock), written: expectations.New(c.Clock), known: map[key]knownValues{}}
}

// ensure creates or corrects the Secret of a BundleDeployment. For a Secret that this hub has neither written nor seen change, it relies on
// spec.valuesHash, which is written after the Secret.
func (s *valueSecrets) ensure(ctx context.Context, deployment *fleet.BundleDeployment, values helmValues) error {
	if values.isEmpty() || values.unread != "" {
		return nil
	}
	k := keyOf(deployment)
	known, seen := s.recall(k)
	cached := s.find(k)
	if seen && s.isCurrent(known, cached, k) && known.equal(values) {
		return nil
	}
	if !seen && cached != nil && deployment.Spec.ValuesHash == values.hash() {
		return nil
	}
	client := s.Kubernetes.CoreV1().Secrets(k.Namespace)
	wanted := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: k.Namespace, Name: k.Name,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(deployment, deploymentKind)},
		},
		Type: registration.SecretTypeHelmValues,
		Data: map[string][]byte{currentKey: append([]byte{}, values.current...), stagedKey: append([]byte{}, values.staged...)},
	}
	if cached == nil {
		made, err := client.Create(ctx, wanted, metav1.CreateOptions{})
		if err == nil {
			s.created.Expect(k.String())
			s.remember(made, values)
			return nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating Secret %s with the Helm values: %w", k, err)
		}
	}
	secret, err := client.Get(ctx, k.Name, metav1.GetOptions{})
	switch {
	case err != nil:
		return fmt.Errorf("reading Secret %s with the Helm values: %w", k, err)
	case secret.Type != registration.SecretTypeHelmValues:
		return foreignValues(k)
	}
	if !equality.Semantic.DeepEqual(secret.Data, wanted.Data) || !metav1.IsControlledBy(secret, deployment) {
		secret.Data, secret.OwnerReferences = wanted.Data, wanted.OwnerReferences
		if secret, err = client.Update(ctx, secret, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("changing Secret %s with the Helm values: %w", k, err)
		}
	}
	s.remember(secret, values)
	return nil
}

// hashOf returns the hash of the values in the Secret of a BundleDeployment, or "" if this hub would have to read the Secret, or if the Secret
// has other staged values.
func (s *valueSecrets) hashOf(k key, staged []byte) string {
	known, _ := s.recall(k)
	if !known.hasValues || known.staged != sha256.Sum256(staged) || !s.isCurrent(known, s.find(k), k) {
		return ""
	}
	return hex.EncodeToString(known.both[:])
}

// read returns the values in the Secret of a BundleDeployment, and none if there is no Secret.
func (s *valueSecrets) read(ctx context.Context, k key) (helmValues, error) {
	secret, err := s.Kubernetes.CoreV1().Secrets(k.Namespace).Get(ctx, k.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return helmValues{}, nil
	case err != nil:
		return helmValues{}, fmt.Errorf("reading Secret %s with the Helm values: %w", k, err)
	case secret.Type != registration.SecretTypeHelmValues:
		return helmValues{}, foreignValues(k)
	}
	values := helmValues{current: secret.Data[currentKey], staged: secret.Data[stagedKey]}
	s.remember(secret, values)
	return values, nil
}

// delete deletes the Secret of a BundleDeployment that has no values any more.
func (s *valueSecrets) delete(ctx context.Context, k key) error {
	err := s.Kubernetes.CoreV1().Secrets(k.Namespace).Delete(ctx, k.Name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting Secret %s with the Helm values: %w", k, err)
	}
	s.forget(k)
	return nil
}

// find returns the metadata of a Secret, or nil if the cache has none.
func (s *valueSecrets) find(k key) *metav1.PartialObjectMetadata {
	return index.Metadata(s.SecretMetadata, k.String())
}

// isCurrent reports whether a Secret still is the version with these values, or the cache does not show that version yet.
func (s *valueSecrets) isCurrent(known knownValues, cached *metav1.PartialObjectMetadata, k key) bool {
	if cached == nil {
		return s.created.IsExpected(k.String())
	}
	return cached.ResourceVersion == known.version || s.written.IsStale(cached)
}

func (s *valueSecrets) recall(k key) (known knownValues, seen bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, seen = s.known[k]
	return known, seen
}

// hasWritten reports whether this hub has written the Secret, or read Helm values from it.
func (s *valueSecrets) hasWritten(k key) bool {
	known, _ := s.recall(k)
	return known.hasValues
}

func (s *valueSecrets) remember(secret *corev1.Secret, values helmValues) {
	s.written.Wrote(secret)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[keyOf(secret)] = knownValues{values.digest(), sha256.Sum256(values.staged), !values.isEmpty(), secret.ResourceVersion}
}

// noteChange notes that a Secret has another version, and reports whether another client may have written it.
func (s *valueSecrets) noteChange(secret *metav1.PartialObjectMetadata) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, seen := s.known[keyOf(secret)]
	if !seen {
		s.known[keyOf(secret)] = knownValues{}
	}
	return known.version != secret.ResourceVersion && !s.written.IsStale(secret)
}

// forget drops the state of a deleted Secret.
func (s *valueSecrets) forget(k key) {
	s.created.Observed(k.String())
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, k)
}

var deploymentKind = fleet.SchemeGroupVersion.WithKind("BundleDeployment")

func foreignValues(k key) error {
	return &unusableError{secretKind, k, fmt.Sprintf(
		"exists and is not one with Helm values (type %s); delete it, or rename the Bundle", registration.SecretTypeHelmValues)}
}
