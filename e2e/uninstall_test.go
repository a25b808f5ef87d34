//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// uninstallHub removes the hub as docs/operations.md describes: first the Clusters and Bundles, which the hub has to finalize, then the
// charts, then the kinds and namespaces that the charts keep.
func (s *suite) uninstallHub(ctx context.Context) error {
	if !s.isInstalled(ctx) {
		return nil
	}
	defer s.setInstalled(false)
	for _, kind := range []string{"clusters", "bundles", "clusterregistrationtokens"} {
		if err := s.removeAll(ctx, kind); err != nil {
			return err
		}
	}
	for _, release := range []string{"fleet", "fleet-crd"} {
		if _, err := s.helm(ctx, s.hub, "uninstall", "--wait", release); err != nil {
			return err
		}
	}
	return errors.Join(s.removeKinds(ctx), s.removeNamespaces(ctx), s.removeRoles(ctx))
}

func (s *suite) isInstalled(ctx context.Context) bool {
	_, err := s.hub.kube.AppsV1().Deployments(systemNamespace).Get(ctx, controllerName, metav1.GetOptions{})
	return err == nil
}

func (s *suite) setInstalled(installed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.installed = installed
}

// removeAll deletes all objects of a kind and waits until there are none.
func (s *suite) removeAll(ctx context.Context, kind string) error {
	objects, err := s.hub.objects(fleet.SchemeGroupVersion.WithResource(kind))
	if err != nil {
		return err
	}
	return waitFor(ctx, "all "+kind+" to be gone", func(ctx context.Context) (bool, string) {
		list, err := objects.List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		var there []string
		for _, o := range list.Items {
			there = append(there, o.GetNamespace()+"/"+o.GetName())
			if o.GetDeletionTimestamp() == nil {
				err = errors.Join(err, objects.Namespace(o.GetNamespace()).Delete(ctx, o.GetName(), metav1.DeleteOptions{}))
			}
		}
		return len(there) == 0, fmt.Sprintf("there are %s (%v)", strings.Join(there, ", "), err)
	})
}

func (c *cluster) objects(kind schema.GroupVersionResource) (dynamic.NamespaceableResourceInterface, error) {
	client, err := dynamic.NewForConfig(c.config)
	if err != nil {
		return nil, err
	}
	return client.Resource(kind), nil
}

// removeKinds deletes the CustomResourceDefinitions, which the chart keeps.
func (s *suite) removeKinds(ctx context.Context) error {
	kinds, err := s.hub.objects(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	if err != nil {
		return err
	}
	list, err := kinds.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for _, kind := range list.Items {
		if strings.HasSuffix(kind.GetName(), "."+fleet.SchemeGroupVersion.Group) {
			errs = append(errs, s.removeKind(ctx, kinds, kind))
		}
	}
	return errors.Join(errs...)
}

func (s *suite) removeKind(ctx context.Context, kinds dynamic.ResourceInterface, kind unstructured.Unstructured) error {
	return gone(ctx, kind.GetName(), func(ctx context.Context) error {
		_, err := kinds.Get(ctx, kind.GetName(), metav1.GetOptions{})
		return err
	}, func(ctx context.Context) error {
		return kinds.Delete(ctx, kind.GetName(), metav1.DeleteOptions{})
	})
}

func (s *suite) removeNamespaces(ctx context.Context) error {
	list, err := s.hub.kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: fleet.ManagedLabel + "=" + fleet.ManagedValue})
	if err != nil {
		return err
	}
	names := []string{systemNamespace, registrationNamespace, localNamespace}
	for _, namespace := range list.Items {
		names = append(names, namespace.Name)
	}
	return s.hub.deleteNamespaces(ctx, names...)
}

// removeRoles deletes the ClusterRoles and the binding that all agents share.
func (s *suite) removeRoles(ctx context.Context) error {
	var errs []error
	if err := s.hub.kube.RbacV1().ClusterRoleBindings().Delete(ctx, registration.ClusterRoleContent, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		errs = append(errs, err)
	}
	for _, name := range []string{registration.ClusterRoleAgent, registration.ClusterRoleBundleDeployment, registration.ClusterRoleContent} {
		err := s.hub.kube.RbacV1().ClusterRoles().Delete(ctx, name, metav1.DeleteOptions{})
		if !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
