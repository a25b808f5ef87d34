package deploy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/content"
	"github.com/muster-fleet/muster/pkg/release"
	"github.com/muster-fleet/muster/pkg/release/download"
)

// helmOp is spec.helmChartOptions: how the agent downloads a chart.
type helmOp struct {
	SecretName            string `json:"helmOpSecretName"`
	InsecureSkipTLSVerify bool   `json:"helmOpInsecureSkipTLSVerify"`
	CABundle              []byte `json:"helmOpCABundle"`
}

// fetchResources returns the files to deploy: of a Content, of an artifact in an OCI registry, or of a chart that the agent
// downloads.
func (d *reconciler) fetchResources(ctx context.Context, bd *fleet.BundleDeployment) ([]fleet.BundleResource, error) {
	id, _, _ := strings.Cut(bd.Spec.DeploymentID, ":")
	switch {
	case bd.Spec.OCIContents:
		secret, access, err := d.fetchAccess(ctx, bd.Namespace, id)
		if err != nil {
			return nil, err
		}
		reference := string(secret.Data["reference"])
		if reference == "" {
			return nil, fmt.Errorf("Secret %s/%s has no key reference, which names the OCI registry", bd.Namespace, id)
		}
		return download.Artifact(ctx, reference, id, access)
	case bd.Spec.HelmChartOptions != nil:
		var op helmOp
		data, err := json.Marshal(bd.Spec.HelmChartOptions)
		if err == nil {
			err = json.Unmarshal(data, &op)
		}
		if err != nil {
			return nil, fmt.Errorf("spec.helmChartOptions: %w", err)
		}
		var access download.ServerAccess
		if op.SecretName != "" {
			if _, access, err = d.fetchAccess(ctx, bd.Namespace, op.SecretName); err != nil {
				return nil, err
			}
		}
		access.Insecure = op.InsecureSkipTLSVerify // The value in the spec replaces that of the Secret, even if it is false.
		if len(access.CAs) == 0 {
			access.CAs = op.CABundle
		}
		return download.Chart(ctx, ptr.Deref(bd.Spec.Options.Helm, fleet.HelmOptions{}), access)
	}
	c, err := d.Hub.FleetV1alpha1().Contents().Get(ctx, id, metav1.GetOptions{})
	if d.endIfRejected(err); err != nil {
		return nil, fmt.Errorf("fetching Content %s: %w", id, err)
	}
	return content.Decode(c)
}

// fetchAccess reads the Secret with the credentials for a server.
func (d *reconciler) fetchAccess(ctx context.Context, namespace, name string) (*corev1.Secret, download.ServerAccess, error) {
	secret, err := d.HubCore.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if d.endIfRejected(err); err != nil {
		return nil, download.ServerAccess{}, fmt.Errorf("fetching the credentials for the download: %w", err)
	}
	access, err := download.ServerAccessFrom(secret.Data)
	if err != nil {
		return nil, download.ServerAccess{}, fmt.Errorf("Secret %s/%s: %w", namespace, name, err)
	}
	return secret, access, nil
}

// fetchCopies reads the Secrets and ConfigMaps to copy. The hub creates them after the BundleDeployment, so a missing one is
// normal for a moment.
func (d *reconciler) fetchCopies(ctx context.Context, bd *fleet.BundleDeployment) ([]runtime.Object, error) {
	var copies []runtime.Object
	for _, r := range bd.Spec.Options.DownstreamResources {
		var object runtime.Object
		var err error
		switch strings.ToLower(r.Kind) {
		case "secret":
			object, err = d.HubCore.CoreV1().Secrets(bd.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
		case "configmap":
			object, err = d.HubCore.CoreV1().ConfigMaps(bd.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
		default:
			return nil, &release.UnsupportedError{Field: "downstreamResources", Why: fmt.Sprintf("kind %q cannot be copied; use Secret or ConfigMap", r.Kind)}
		}
		if d.endIfRejected(err); err != nil {
			return nil, fmt.Errorf("fetching %s %s, which downstreamResources names: %w", r.Kind, r.Name, err)
		}
		copies = append(copies, object)
	}
	return copies, nil
}

// copiedGeneration returns the generation of the copies with which a release was deployed; 0 if it has none.
func copiedGeneration(f release.Found) int64 {
	generation, err := strconv.ParseInt(f.Labels[release.CopiesLabel], 10, 64)
	if err != nil {
		return 0
	}
	return generation
}

// fetchValues reads the Secret with the Helm values. The hub writes it before spec.valuesHash, so another hash is normal
// for a moment.
func (d *reconciler) fetchValues(ctx context.Context, bd *fleet.BundleDeployment) (map[string]any, error) {
	if bd.Spec.ValuesHash == "" {
		return nil, nil
	}
	secret, err := d.HubCore.CoreV1().Secrets(bd.Namespace).Get(ctx, bd.Name, metav1.GetOptions{})
	if d.endIfRejected(err); err != nil {
		return nil, fmt.Errorf("fetching the values: %w", err)
	}
	values, err := decodeValues(secret.Data, bd.Spec.ValuesHash)
	if err != nil {
		return nil, fmt.Errorf("the values in Secret %s/%s: %w", bd.Namespace, bd.Name, err)
	}
	return values, nil
}

// decodeValues checks the hash, which covers the staged values as well, and returns the values to deploy. Either key may be
// empty.
func decodeValues(data map[string][]byte, hash string) (map[string]any, error) {
	sum := sha256.Sum256(slices.Concat(data["values"], data["stagedValues"]))
	if hex.EncodeToString(sum[:]) != hash {
		return nil, errors.New("they do not match spec.valuesHash yet")
	}
	if len(data["values"]) == 0 {
		return nil, nil
	}
	values := map[string]any{}
	if err := json.Unmarshal(data["values"], &values); err != nil {
		return nil, errors.New("key values is not a JSON object")
	}
	return values, nil
}
