package crds

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
)

// pollInterval is the interval at which Ensure checks whether a definition is served. The API server needs about a second.
const pollInterval = 100 * time.Millisecond

// Ensure creates the CustomResourceDefinitions that are missing and returns when the API server serves all of them. If the
// context ends before, the error names the definition that is not served.
//
// An existing definition is not changed: it may be newer, and it may belong to Helm. Wrangler's BatchCreateCRDs would overwrite
// it, together with Helm's labels and annotations.
//
// clustersHaveStatus reports whether the definition of Clusters gives each an empty status from its creation on. Those of earlier versions do not.
func Ensure(ctx context.Context, client clientset.Interface) (clustersHaveStatus bool, err error) {
	objects, err := Objects()
	if err != nil {
		return false, err
	}
	served, err := ensureAll(ctx, client, objects)
	if err != nil {
		return false, err
	}
	clusters := slices.IndexFunc(served, func(d *apiextensionsv1.CustomResourceDefinition) bool { return d.Spec.Names.Kind == "Cluster" })
	return !slices.ContainsFunc(served[clusters].Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
		return v.Served && (v.Schema == nil || v.Schema.OpenAPIV3Schema == nil || v.Schema.OpenAPIV3Schema.Properties["status"].Default == nil)
	}), nil
}

// EnsureClusternet is Ensure for the kinds of Clusternet.
func EnsureClusternet(ctx context.Context, client clientset.Interface) error {
	objects, err := ClusternetObjects()
	if err != nil {
		return err
	}
	_, err = ensureAll(ctx, client, objects)
	return err
}

// ensureAll returns the definitions that the API server serves, in the order of the objects.
func ensureAll(
	ctx context.Context, client clientset.Interface, objects []*apiextensionsv1.CustomResourceDefinition,
) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	served := make([]*apiextensionsv1.CustomResourceDefinition, len(objects))
	group, ctx := errgroup.WithContext(ctx)
	for i, object := range objects {
		group.Go(func() (err error) {
			served[i], err = ensure(ctx, client, object)
			return err
		})
	}
	return served, group.Wait()
}

func ensure(
	ctx context.Context, client clientset.Interface, object *apiextensionsv1.CustomResourceDefinition,
) (*apiextensionsv1.CustomResourceDefinition, error) {
	crds := client.ApiextensionsV1().CustomResourceDefinitions()
	// Get first: if all definitions exist, a hub needs no right to create any, and writes nothing.
	existing, err := crds.Get(ctx, object.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		existing, err = crds.Create(ctx, object, metav1.CreateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("creating CustomResourceDefinition %s: %w", object.Name, err)
	}
	if err == nil {
		if lacking := lackingStatus(existing, object); len(lacking) > 0 {
			logrus.Warnf("CustomResourceDefinition %s lacks %s: the API server drops these fields, and people do not see what the hub reports in them; "+
				"install the chart fleet-crd of this version", object.Name, strings.Join(lacking, ", "))
		}
		if lacking := lackingSpec(existing, object); len(lacking) > 0 {
			logrus.Warnf("CustomResourceDefinition %s lacks %s: %s", object.Name, strings.Join(lacking, ", "), SpecRemedy)
		}
		if served, _ := describe(existing); served {
			return existing, nil
		}
	}
	return waitUntilServed(ctx, client, object.Name)
}

func waitUntilServed(ctx context.Context, client clientset.Interface, name string) (object *apiextensionsv1.CustomResourceDefinition, err error) {
	state := "it has no conditions yet"
	err = wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		var err error
		if object, err = client.ApiextensionsV1().CustomResourceDefinitions().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return false, err
		}
		var served bool
		if served, state = describe(object); served {
			served, state = offered(client.Discovery(), object), "it is not offered yet"
		}
		return served, nil
	})
	if err != nil {
		return nil, fmt.Errorf("waiting for CustomResourceDefinition %s to be served (%s): %w", name, state, err)
	}
	return object, nil
}

// offered reports whether the discovery of the API server lists the kind. After a definition is established, requests for its
// kind still get 404 for a moment; they do not once discovery lists it. Without the right to discovery the condition has to do.
func offered(api discovery.ServerResourcesInterface, object *apiextensionsv1.CustomResourceDefinition) bool {
	for _, version := range object.Spec.Versions {
		if !version.Served {
			continue
		}
		kinds, err := api.ServerResourcesForGroupVersion(object.Spec.Group + "/" + version.Name)
		if apierrors.IsForbidden(err) {
			return true
		}
		if err != nil || !slices.ContainsFunc(kinds.APIResources, func(r metav1.APIResource) bool { return r.Name == object.Spec.Names.Plural }) {
			return false
		}
	}
	return true
}

// describe reports whether a definition is served and, if not, the API server's reason, such as a conflict of names with
// another definition.
func describe(object *apiextensionsv1.CustomResourceDefinition) (bool, string) {
	state := "it has no conditions yet"
	for _, condition := range object.Status.Conditions {
		if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
			return true, ""
		}
		if condition.Status == apiextensionsv1.ConditionFalse {
			state = fmt.Sprintf("%s is False: %s", condition.Type, condition.Message)
		}
	}
	return false, state
}

// SpecRemedy says what a lacking field of the spec means, and what to do.
const SpecRemedy = "the API server drops these fields from existing objects too, so a quarantine and the limits of registration tokens have no effect; " +
	"install the chart fleet-crd of this version"

// LackingSpec returns the fields of the spec that an existing definition of Clusters or ClusterRegistrationTokens lacks, as paths: those with which
// people limit agents. It returns none for another definition.
func LackingSpec(existing *apiextensionsv1.CustomResourceDefinition) ([]string, error) {
	objects, err := Objects()
	if err != nil {
		return nil, err
	}
	for _, object := range objects {
		if object.Name == existing.Name {
			return lackingSpec(existing, object), nil
		}
	}
	return nil, nil
}

// LimitingKinds are the kinds of which LackingSpec compares the spec, as names of their definitions.
var LimitingKinds = []string{"clusterregistrationtokens.fleet.cattle.io", "clusters.fleet.cattle.io"}

func lackingSpec(existing, wanted *apiextensionsv1.CustomResourceDefinition) []string {
	if !slices.Contains(LimitingKinds, wanted.Name) {
		return nil
	}
	return lackingFields(existing, wanted, "spec", false)
}

// lackingStatus returns the fields of the status, and of the objects in it, that an existing definition lacks, as paths.
func lackingStatus(existing, wanted *apiextensionsv1.CustomResourceDefinition) []string {
	return lackingFields(existing, wanted, "status", true)
}

// lackingFields returns the fields of the spec or the status that an existing definition lacks, as paths, and with isDeep those of the objects in it.
func lackingFields(existing, wanted *apiextensionsv1.CustomResourceDefinition, part string, isDeep bool) (paths []string) {
	var compare func(path string, have, want apiextensionsv1.JSONSchemaProps)
	compare = func(path string, have, want apiextensionsv1.JSONSchemaProps) {
		if have.XPreserveUnknownFields != nil && *have.XPreserveUnknownFields {
			return
		}
		for name, wantField := range want.Properties {
			haveField, found := have.Properties[name]
			if !found {
				paths = append(paths, path+"."+name)
			} else if isDeep && path == part {
				compare(path+"."+name, haveField, wantField)
			}
		}
	}
	for _, want := range wanted.Spec.Versions {
		for _, have := range existing.Spec.Versions {
			if have.Name == want.Name && have.Schema != nil && have.Schema.OpenAPIV3Schema != nil && want.Schema != nil {
				compare(part, have.Schema.OpenAPIV3Schema.Properties[part], want.Schema.OpenAPIV3Schema.Properties[part])
			}
		}
	}
	slices.Sort(paths)
	return paths
}
