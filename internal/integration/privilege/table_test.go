package privilege

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// verbs are all verbs of the API server's authorization.
var verbs = []string{
	"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection",
	"bind", "escalate", "impersonate", "approve", "sign", "use", "attest", "register",
}

// nowhere is a namespace that does not exist: the rights of an identity there are its rights in every namespace.
const nowhere = "nowhere"

// resource is a resource or subresource of the API server.
type resource struct {
	schema.GroupResource
	sub string
}

func (r resource) String() string {
	text := r.GroupResource.String()
	if r.sub != "" {
		text = schema.GroupResource{Group: r.Group, Resource: r.Resource + "/" + r.sub}.String()
	}
	return text
}

// served are all resources and subresources of the API server.
func served(t *testing.T, hub *testenv.Cluster) (all []resource) {
	t.Helper()
	_, lists, err := hub.Kubernetes.Discovery().ServerGroupsAndResources()
	require.NoError(t, err)
	seen := map[resource]bool{}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		require.NoError(t, err)
		for _, r := range list.APIResources {
			name, sub, _ := strings.Cut(r.Name, "/")
			one := resource{schema.GroupResource{Group: version.Group, Resource: name}, sub}
			if !seen[one] {
				seen[one] = true
				all = append(all, one)
			}
		}
	}
	ours := []string{fleet.SchemeGroupVersion.Group, v1beta1.SchemeGroupVersion.Group}
	for _, r := range slices.Clone(all) {
		if slices.Contains(ours, r.Group) && r.sub == "" { // not served, but asked about
			all = append(all, resource{r.GroupResource, "finalizers"})
		}
	}
	require.Greater(t, len(all), 100, "all kinds of Kubernetes, and the hub's own")
	return all
}

// identity is a ServiceAccount.
type identity struct{ namespace, name string }

func (i identity) user() string { return "system:serviceaccount:" + i.namespace + ":" + i.name }

func (i identity) groups() []string {
	return []string{"system:serviceaccounts", "system:serviceaccounts:" + i.namespace, "system:authenticated"}
}

// asker sends access reviews about one identity.
type asker struct {
	hub    *testenv.Cluster
	chosen func() bool // chooses which rights are reviewed although the API server does not list them
	identity
}

func (a asker) may(ctx context.Context, verb string, r resource, namespace, name string) (bool, error) {
	review, err := a.hub.Kubernetes.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: a.user(), Groups: a.groups(),
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: verb, Group: r.Group, Resource: r.Resource, Subresource: r.sub, Namespace: namespace, Name: name,
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return review.Status.Allowed, nil
}

const atATime = 16

// unnamed reviews verbs on resources without a name, which stands for all names. It reviews the rules that the API server lists for the
// identity, and a sample of the tens of thousands of other combinations, which must be refused.
func (a asker) unnamed(t *testing.T, all []resource, namespace string) map[string]bool {
	t.Helper()
	asked, allowed := make([][]string, len(all)), make([][]string, len(all))
	listed := a.rules(t, namespace).ResourceRules
	for n, r := range all {
		for _, verb := range verbs {
			if lists(listed, verb, r) || a.chosen() {
				asked[n] = append(asked[n], verb)
			}
		}
	}
	work, ctx := errgroup.WithContext(t.Context())
	work.SetLimit(atATime)
	for n, r := range all {
		work.Go(func() error {
			for _, verb := range asked[n] {
				may, err := a.may(ctx, verb, r, namespace, "")
				if err != nil {
					return err
				}
				if may {
					allowed[n] = append(allowed[n], verb)
				}
			}
			return nil
		})
	}
	require.NoError(t, work.Wait())
	lines := map[string]bool{}
	for n, r := range all {
		for _, verb := range allowed[n] {
			lines[r.String()+" "+verb] = true
		}
	}
	return lines
}

// lists reports whether a rule contains the verb and the resource, or a wildcard.
func lists(rules []authorizationv1.ResourceRule, verb string, r resource) bool {
	name := r.Resource
	if r.sub != "" {
		name += "/" + r.sub
	}
	has := func(values []string, value string) bool {
		return slices.Contains(values, value) || slices.Contains(values, "*")
	}
	return slices.ContainsFunc(rules, func(rule authorizationv1.ResourceRule) bool {
		return len(rule.ResourceNames) == 0 && has(rule.Verbs, verb) && has(rule.APIGroups, r.Group) &&
			(has(rule.Resources, name) || r.sub != "" && slices.Contains(rule.Resources, "*/"+r.sub))
	})
}

// named are the rights to objects with certain names, and to paths, as the API server lists them. Each is verified with an access review,
// and must not be granted for another name.
func (a asker) named(t *testing.T, namespace string) map[string]bool {
	t.Helper()
	lines := map[string]bool{}
	answer := a.rules(t, namespace)
	for _, rule := range answer.ResourceRules {
		for _, one := range product(rule) {
			for _, name := range rule.ResourceNames {
				may, err := a.may(t.Context(), one.verb, one.resource, namespace, name)
				require.NoError(t, err)
				require.True(t, may, "%s %s %s", one.verb, one.resource, name)
				lines[fmt.Sprintf("%s %s %s", one.resource, one.verb, name)] = true
			}
		}
	}
	for _, rule := range answer.NonResourceRules {
		for _, path := range rule.NonResourceURLs {
			lines[path+" "+strings.Join(rule.Verbs, " ")] = true
		}
	}
	return lines
}

func (a asker) rules(t *testing.T, namespace string) authorizationv1.SubjectRulesReviewStatus {
	t.Helper()
	client := a.hub.ClientFor(t, a.hub.TokenOf(t, a.namespace, a.name)).Kubernetes
	answer := testenv.Create(t, client.AuthorizationV1().SelfSubjectRulesReviews().Create, &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace},
	})
	require.False(t, answer.Status.Incomplete, answer.Status.EvaluationError)
	return answer.Status
}

type right struct {
	resource
	verb string
}

func product(rule authorizationv1.ResourceRule) (all []right) {
	for _, group := range rule.APIGroups {
		for _, name := range rule.Resources {
			name, sub, _ := strings.Cut(name, "/")
			for _, verb := range rule.Verbs {
				all = append(all, right{resource{schema.GroupResource{Group: group, Resource: name}, sub}, verb})
			}
		}
	}
	return all
}

// rights are all rights of an identity in a namespace.
func (a asker) rights(t *testing.T, all []resource, namespace string) map[string]bool {
	t.Helper()
	lines := a.unnamed(t, all, namespace)
	maps.Copy(lines, a.named(t, namespace))
	return lines
}

func without(lines map[string]bool, others ...map[string]bool) map[string]bool {
	left := maps.Clone(lines)
	maps.DeleteFunc(left, func(line string, _ bool) bool {
		return slices.ContainsFunc(others, func(other map[string]bool) bool { return other[line] })
	})
	return left
}

// together joins the verbs on one resource with one name into one line.
func together(lines map[string]bool) (merged []string) {
	verbsOf := map[string][]string{}
	for _, line := range slices.Sorted(maps.Keys(lines)) {
		resource, rest, _ := strings.Cut(line, " ")
		verb, name, found := strings.Cut(rest, " ")
		key := resource
		if found {
			key += " " + name
		}
		verbsOf[key] = append(verbsOf[key], verb)
	}
	for _, key := range slices.Sorted(maps.Keys(verbsOf)) {
		resource, name, named := strings.Cut(key, " ")
		line := resource + ": " + strings.Join(verbsOf[key], " ")
		if named {
			line += " (only " + name + ")"
		}
		merged = append(merged, line)
	}
	return merged
}
