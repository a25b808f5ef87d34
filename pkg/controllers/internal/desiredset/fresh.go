package desiredset

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/rancher/wrangler/v3/pkg/gvk"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// makeMissing creates the missing objects of a set, and reports whether the set is complete then. It leaves objects of somebody else with
// a wanted name to wrangler's apply.
func (s Sets) makeMissing(ctx context.Context, set marks, owner runtime.Object, missing []runtime.Object) (complete bool, err error) {
	marked, known, err := set.onAll(owner, missing)
	if err != nil || !known {
		return false, err
	}
	for _, alike := range byKind(marked) {
		if complete, err := s.createAll(ctx, set, owner, alike); err != nil || !complete {
			return false, err
		}
	}
	return true, nil
}

// byKind groups the objects by kind, in the order of the first object of each kind: a Role is created before its binding.
func byKind(objects []runtime.Object) (all [][]runtime.Object) {
	for _, object := range objects {
		same := func(alike []runtime.Object) bool { return reflect.TypeOf(alike[0]) == reflect.TypeOf(object) }
		if n := slices.IndexFunc(all, same); n >= 0 {
			all[n] = append(all[n], object)
		} else {
			all = append(all, []runtime.Object{object})
		}
	}
	return all
}

// createAll creates objects of one kind in parallel: a registration waits only for the slowest of them.
func (s Sets) createAll(ctx context.Context, set marks, owner runtime.Object, objects []runtime.Object) (complete bool, err error) {
	var all errgroup.Group
	var taken atomic.Bool
	for _, object := range objects {
		all.Go(func() error {
			is, err := s.createOne(ctx, set, owner, object)
			if !is {
				taken.Store(true)
			}
			return err
		})
	}
	err = all.Wait()
	return !taken.Load(), err
}

// createOne creates an object, or checks an existing one that the cache does not show yet.
func (s Sets) createOne(ctx context.Context, set marks, owner, object runtime.Object) (is bool, err error) {
	err = s.create(ctx, object)
	if !apierrors.IsAlreadyExists(err) {
		return err == nil, err
	}
	existing, err := s.get(ctx, object)
	if apierrors.IsNotFound(err) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	holder, err := meta.Accessor(owner)
	return err == nil && set.isAs(existing, object, holder), err
}

// marks are the labels and annotations by which wrangler identifies the objects of a set.
type marks struct{ labels, annotations map[string]string }

func marksOf(setID string, owner runtime.Object) (m marks, err error) {
	m.labels, m.annotations, err = apply.GetLabelsAndAnnotations(setID, owner)
	return m, err
}

// onAll returns copies of the objects with marks and owner. known is false if an object has a kind that create does not support.
func (m marks) onAll(owner runtime.Object, objects []runtime.Object) (all []runtime.Object, known bool, err error) {
	reference, namespace, err := referenceTo(owner)
	if err != nil {
		return nil, false, err
	}
	for _, object := range objects {
		if !creatable(object) {
			return nil, false, nil
		}
		object = object.DeepCopyObject()
		accessor, err := meta.Accessor(object)
		if err != nil {
			return nil, false, err
		}
		accessor.SetLabels(labels.Merge(accessor.GetLabels(), m.labels))
		accessor.SetAnnotations(labels.Merge(accessor.GetAnnotations(), m.annotations))
		if accessor.GetNamespace() == namespace {
			accessor.SetOwnerReferences([]metav1.OwnerReference{reference})
		}
		all = append(all, object)
	}
	return all, true, nil
}

// referenceTo returns the owner reference that wrangler sets on objects in the namespace of the owner.
func referenceTo(owner runtime.Object) (reference metav1.OwnerReference, namespace string, err error) {
	kind, err := gvk.Get(owner)
	if err != nil {
		return reference, "", err
	}
	accessor, err := meta.Accessor(owner)
	if err != nil {
		return reference, "", err
	}
	apiVersion, name := kind.ToAPIVersionAndKind()
	return metav1.OwnerReference{
		APIVersion: apiVersion, Kind: name, Name: accessor.GetName(), UID: accessor.GetUID(),
		Controller: ptr.To(false), BlockOwnerDeletion: ptr.To(false),
	}, accessor.GetNamespace(), nil
}

func creatable(object runtime.Object) bool {
	switch object.(type) {
	case *corev1.ServiceAccount, *rbacv1.Role, *rbacv1.RoleBinding, *rbacv1.ClusterRoleBinding:
		return true
	}
	return false
}

func (s Sets) create(ctx context.Context, object runtime.Object) (err error) {
	var options metav1.CreateOptions
	switch o := object.(type) {
	case *corev1.ServiceAccount:
		_, err = s.client.CoreV1().ServiceAccounts(o.Namespace).Create(ctx, o, options)
	case *rbacv1.Role:
		_, err = s.client.RbacV1().Roles(o.Namespace).Create(ctx, o, options)
	case *rbacv1.RoleBinding:
		_, err = s.client.RbacV1().RoleBindings(o.Namespace).Create(ctx, o, options)
	case *rbacv1.ClusterRoleBinding:
		_, err = s.client.RbacV1().ClusterRoleBindings().Create(ctx, o, options)
	}
	return err
}

func (s Sets) get(ctx context.Context, object runtime.Object) (metav1.Object, error) {
	var options metav1.GetOptions
	switch o := object.(type) {
	case *corev1.ServiceAccount:
		return s.client.CoreV1().ServiceAccounts(o.Namespace).Get(ctx, o.Name, options)
	case *rbacv1.Role:
		return s.client.RbacV1().Roles(o.Namespace).Get(ctx, o.Name, options)
	case *rbacv1.RoleBinding:
		return s.client.RbacV1().RoleBindings(o.Namespace).Get(ctx, o.Name, options)
	case *rbacv1.ClusterRoleBinding:
		return s.client.RbacV1().ClusterRoleBindings().Get(ctx, o.Name, options)
	}
	return nil, fmt.Errorf("%T is not read here", object) // creatable has let nothing else through
}
