package crds

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
)

// pollInterval is how often Ensure looks whether a definition is served. The API server takes a second or so.
const pollInterval = 100 * time.Millisecond

// Ensure creates the CustomResourceDefinitions that are missing and returns once the API server serves all of them, or
// with an error that names the one it does not serve when the context ends.
//
// A definition that exists is left as it is: it may be newer, and it may be Helm's. Wrangler's BatchCreateCRDs would
// overwrite it together with the labels and annotations by which Helm knows its own.
func Ensure(ctx context.Context, client clientset.Interface) error {
	objects, err := Objects()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, object := range objects {
		group.Go(func() error { return ensure(ctx, client, object) })
	}
	return group.Wait()
}

func ensure(ctx context.Context, client clientset.Interface, object *apiextensionsv1.CustomResourceDefinition) error {
	crds := client.ApiextensionsV1().CustomResourceDefinitions()
	// Looking first: a hub that starts where all is in place should need no right to write here, and write nothing.
	existing, err := crds.Get(ctx, object.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		existing, err = crds.Create(ctx, object, metav1.CreateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating CustomResourceDefinition %s: %w", object.Name, err)
	}
	if err == nil {
		if served, _ := describe(existing); served {
			return nil
		}
	}
	return waitUntilServed(ctx, client, object.Name)
}

func waitUntilServed(ctx context.Context, client clientset.Interface, name string) error {
	state := "it has no conditions yet"
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		object, err := client.ApiextensionsV1().CustomResourceDefinitions().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		var served bool
		if served, state = describe(object); served {
			served, state = offered(client.Discovery(), object), "it is not offered yet"
		}
		return served, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for CustomResourceDefinition %s to be served (%s): %w", name, state, err)
	}
	return nil
}

// offered: an API server that has written that a definition is established answers 404 for a moment until its other parts
// have heard of that. Once it offers the kind all of them have. Who may not ask has to take the word of the definition.
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

// describe tells whether a definition is served and, if not, the API server's reason. A conflict of names with another
// definition is the one a person has to resolve.
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
