package deploy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/content"
	"github.com/muster-fleet/muster/pkg/release"
)

// valuesKey is the key of the Secret of a BundleDeployment that holds the values.
const valuesKey = "values"

// request gathers what is to be deployed.
func (d *deployer) request(ctx context.Context, key string, bd *fleet.BundleDeployment, correcting bool) (release.Request, error) {
	if bd.Spec.OCIContents {
		return release.Request{}, &release.UnsupportedError{Field: "ociContents", Why: "the hub has to deliver the resources as a Content"}
	}
	if bd.Spec.HelmChartOptions != nil {
		return release.Request{}, &release.UnsupportedError{Field: "helmChartOptions", Why: "put the chart's files into the Bundle"}
	}
	resources, err := d.resources(ctx, bd)
	if err != nil {
		return release.Request{}, err
	}
	values, err := d.values(ctx, bd)
	if err != nil {
		return release.Request{}, err
	}
	namespace, name := release.Place(bd.Name, bd.Spec.Options)
	return release.Request{
		Namespace: namespace, Name: name, Resources: resources, Options: options(bd.Spec), Values: values,
		HandOver:                older(d.shelf.of(key), namespace, name),
		Labels:                  d.owner.LabelsFor(bd.Name, bd.Spec.DeploymentID),
		ServiceAccountNamespace: d.AgentNamespace,
		Recorded:                bd.Status.Release,
		Correcting:              correcting,
		NoWait:                  isAgent(bd.Name),
	}, nil
}

func options(spec fleet.BundleDeploymentSpec) fleet.BundleDeploymentOptions {
	options := *spec.Options.DeepCopy()
	if spec.CorrectDrift != nil {
		options.CorrectDrift = spec.CorrectDrift
	}
	return options
}

// older are releases of the same BundleDeployment in other places, from before its options changed.
func older(releases []release.Found, namespace, name string) (older []release.Found) {
	for _, f := range releases {
		if f.Namespace != namespace || f.Name != name {
			older = append(older, f)
		}
	}
	return older
}

func (d *deployer) resources(ctx context.Context, bd *fleet.BundleDeployment) ([]fleet.BundleResource, error) {
	name, _, _ := strings.Cut(bd.Spec.DeploymentID, ":")
	c, err := d.Hub.FleetV1alpha1().Contents().Get(ctx, name, metav1.GetOptions{})
	if err = d.heard(err); err != nil {
		return nil, fmt.Errorf("fetching Content %s: %w", name, err)
	}
	return content.Decode(c)
}

func (d *deployer) values(ctx context.Context, bd *fleet.BundleDeployment) (map[string]any, error) {
	if bd.Spec.ValuesHash == "" {
		return nil, nil
	}
	secret, err := d.HubCore.CoreV1().Secrets(bd.Namespace).Get(ctx, bd.Name, metav1.GetOptions{})
	if err = d.heard(err); err != nil {
		return nil, fmt.Errorf("fetching the values: %w", err)
	}
	data := secret.Data[valuesKey]
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != bd.Spec.ValuesHash {
		return nil, fmt.Errorf("Secret %s/%s does not hold the values that spec.valuesHash is of (yet)", bd.Namespace, bd.Name)
	}
	values := map[string]any{}
	if err := json.Unmarshal(data, &values); err != nil {
		return nil, fmt.Errorf("Secret %s/%s holds no values under key %s", bd.Namespace, bd.Name, valuesKey)
	}
	return values, nil
}
