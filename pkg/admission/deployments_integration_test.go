package admission_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/admission"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// deployment creates a BundleDeployment of a Cluster, and returns a function that writes its status as a user.
func (s *scene) deployment(cluster string) func(who user, status string) error {
	s.Helper()
	deployments := s.admin.fleet.BundleDeployments(registration.ClusterNamespace(s.namespace, cluster))
	_, err := deployments.Create(s.Context(), &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, metav1.CreateOptions{})
	require.NoError(s, err)
	return func(who user, status string) error {
		_, err := who.fleet.BundleDeployments(registration.ClusterNamespace(s.namespace, cluster)).Patch(s.Context(), "b", types.MergePatchType,
			[]byte(`{"status":`+status+`}`), metav1.PatchOptions{}, "status")
		return err
	}
}

// replace writes a status with an update. The API server takes long to read a merge patch with values nested so deep.
func (s *scene) replace(who user, cluster, status string) error {
	s.Helper()
	namespace := registration.ClusterNamespace(s.namespace, cluster)
	found, err := s.admin.fleet.BundleDeployments(namespace).Get(s.Context(), "b", metav1.GetOptions{})
	require.NoError(s, err)
	body := fmt.Sprintf(`{"apiVersion":"fleet.cattle.io/v1alpha1","kind":"BundleDeployment","metadata":{"name":"b","resourceVersion":%q},"status":%s}`,
		found.ResourceVersion, status)
	return who.fleet.RESTClient().Put().Namespace(namespace).Resource("bundledeployments").Name("b").SubResource("status").
		SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(s.Context()).Error()
}

// nested returns a value inside that number of lists or objects.
func nested(levels int, opens, value, closes string) string {
	return strings.Repeat(opens, levels) + value + strings.Repeat(closes, levels)
}

// fields returns unknown fields of an object, each after a comma.
func fields(count int) []string {
	all := make([]string, count)
	for i := range all {
		all[i] = fmt.Sprintf(`,"x%d":1`, i)
	}
	return all
}

// repeated returns a JSON list.
func repeated(count int, item string) string {
	return "[" + strings.TrimSuffix(strings.Repeat(item+",", count), ",") + "]"
}

const (
	quarterKilobyte = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" +
		"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	resource = `{"apiVersion":"apps/v1","kind":"Deployment","namespace":"web","name":"a-name-of-twenty-five","createdAt":"2026-11-22T10:00:00Z"}`
)

// tooLarge has statuses with which a compromised agent fills etcd and the memory of their readers, and the answers of the API server.
func tooLarge() map[string]struct{ status, refusal string } {
	long := strings.Repeat(quarterKilobyte, 600) // 150 kB
	const (
		others    = "at most 131072 bytes apart from its resources"
		resources = "status.resources of a BundleDeployment may have at most 262144 bytes"
		nesting   = "at most 128 values, and be nested at most five deep"
		flat      = "at most 4096 objects, without lists and objects in them"
	)
	return map[string]struct{ status, refusal string }{
		"a message": {`{"conditions":[{"type":"Ready","status":"False","message":"` + long + `"}]}`, others + ", and this one has 15"},
		"a message of four-byte characters": {
			`{"conditions":[{"type":"Ready","status":"False","message":"` + strings.Repeat("\U0001F600", 40_000) + `"}]}`, others + ", and this one has 16",
		},
		"many conditions":      {`{"conditions":` + repeated(128, `{"type":"Ready","status":"False","message":"`+quarterKilobyte[:64]+strings.Repeat(quarterKilobyte, 5)+`"}`) + `}`, others},
		"nonReadyStatus":       {`{"nonReadyStatus":[{"name":"x","summary":{"message":["` + long + `"]}}]}`, ": nonReadyStatus 15"},
		"modifiedStatus":       {`{"modifiedStatus":[{"name":"x","patch":"` + long + `"}]}`, ": modifiedStatus 15"},
		"display":              {`{"display":{"deployed":"` + long + `"}}`, ": display 15"},
		"an unknown field":     {`{"display":{"deployed":"x","more":{"below":[{"x":"` + long + `"}]}}}`, ": display 15"},
		"deep lists":           {`{"display":{"more":` + nested(5000, "[", `"`+long+`"`, "]") + `}}`, nesting},
		"deep objects":         {nested(3000, `{"x":`, `"`+long+`"`, "}"), nesting},
		"deep resources":       {`{"resources":[{"more":` + nested(5000, "[", `"`+long+`"`, "]") + `}]}`, flat},
		"numbers":              {`{"display":{"more":` + repeated(50000, "1234567") + `}}`, nesting},
		"129 conditions":       {`{"conditions":` + repeated(129, `{"type":"Ready","status":"False"}`) + `}`, nesting},
		"129 fields":           {`{"ready":true` + strings.Join(fields(129), "") + `}`, nesting},
		"six levels":           {`{"display":{"more":[{"x":[[[1]]]}]}}`, nesting},
		"4097 resources":       {`{"resources":` + repeated(4097, `{"name":"x"}`) + `}`, flat},
		"release":              {`{"release":"` + long + `"}`, ": release 15"},
		"many resources":       {`{"resources":` + repeated(4000, resource) + `}`, resources + ", and this one has "},
		"a resource's name":    {`{"resources":[{"name":"` + strings.Repeat(quarterKilobyte, 1100) + `"}]}`, resources},
		"an unknown resource":  {`{"resources":[{"name":"x","more":"` + strings.Repeat(quarterKilobyte, 1100) + `"}]}`, resources},
		"a list in a resource": {`{"resources":[{"name":"x","more":[]}]}`, flat},
		"several parts of 64k": {`{"release":"` + long[:60000] + `","display":{"deployed":"` + long[:60000] + `","monitored":"` + long[:60000] + `"}}`, "display 12"},
	}
}

func TestDeploymentStatusWithoutThePolicies(t *testing.T) {
	s := newScene(t)
	s.remove()
	who, write := s.agent("c"), s.deployment("c")
	require.Eventually(t, func() bool {
		return write(who, `{"conditions":[{"type":"Ready","status":"False","message":"`+strings.Repeat(quarterKilobyte, 4096)+`"}]}`) == nil
	}, patience, poll, "an agent writes a megabyte")
}

func TestDeploymentStatusPolicy(t *testing.T) {
	sample.Long(t)
	s := sceneInForce(t)
	agent, write := s.agent("first"), s.deployment("first")
	s.eventuallyRefused(func() error { return write(agent, tooLarge()["release"].status) }, admission.DeploymentStatusPolicy)
	s.run("an agent writes no more than the limit", func(t *testing.T, s *scene) {
		who := s.agent("c")
		s.deployment("c")
		for name, attempt := range tooLarge() {
			err := s.replace(who, "c", attempt.status)
			require.True(t, apierrors.IsRequestEntityTooLargeError(err), "%s: %v", name, err)
			assert.ErrorContains(t, err, attempt.refusal, name)
		}
		found, err := s.admin.fleet.BundleDeployments(registration.ClusterNamespace(s.namespace, "c")).Get(t.Context(), "b", metav1.GetOptions{})
		require.NoError(t, err)
		assert.Empty(t, found.Status)
	})
	s.run("an agent writes the largest numbers of values", func(t *testing.T, s *scene) {
		who, write := s.agent("c"), s.deployment("c")
		require.NoError(t, write(who, `{"resources":`+repeated(1900, resource)+`,"conditions":`+repeated(128, `{"type":"Ready","status":"False"}`)+
			`,"nonReadyStatus":`+repeated(128, `{"kind":"Pod","name":"x","summary":{"state":"error","message":`+repeated(5, `"short"`)+`}}`)+
			`,"modifiedStatus":`+repeated(128, `{"kind":"Pod","name":"x","patch":"{}"}`)+`,"display":{"more":[{"x":[[1]]}]}}`))
		require.NoError(t, write(who, `{"resources":null,"conditions":null,"display":null}`))
		require.NoError(t, s.replace(who, "c", `{"resources":null,"conditions":null}`))
	})
	s.run("what unchanged agents wrote", func(t *testing.T, s *scene) {
		data, err := os.ReadFile("testdata/recorded-statuses.jsonl")
		require.NoError(t, err)
		who, write := s.account(registration.ClusterNamespace(s.namespace, "recorded"), "request-y", rule("fleet.cattle.io", "bundledeployments/status", "patch", "update")),
			s.deployment("recorded")
		deployments := who.fleet.BundleDeployments(registration.ClusterNamespace(s.namespace, "recorded"))
		for line := range bytes.Lines(data) {
			require.NoError(t, write(who, string(line)))
			found, err := s.admin.fleet.BundleDeployments(registration.ClusterNamespace(s.namespace, "recorded")).Get(t.Context(), "b", metav1.GetOptions{})
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(line, &found.Status))
			_, err = deployments.UpdateStatus(t.Context(), found, metav1.UpdateOptions{})
			require.NoError(t, err)
		}
	})
	s.run("a status of a large Bundle in which everything is wrong", func(t *testing.T, s *scene) {
		who, write := s.agent("c"), s.deployment("c")
		text := strings.Repeat(quarterKilobyte, 8)
		var conditions []string
		for _, conditionType := range []string{"Deployed", "Installed", "Monitored", "Ready", "Farewell"} {
			conditions = append(conditions, fmt.Sprintf(`{"type":%q,"status":"False","reason":"Error","message":%q}`, conditionType, text))
		}
		object := `"kind":"Deployment","apiVersion":"apps/v1","namespace":"web","name":"a-name-of-twenty-five"`
		require.NoError(t, write(who, `{"conditions":[`+strings.Join(conditions, ",")+`],"resources":`+repeated(1500, resource)+
			`,"nonReadyStatus":`+repeated(10, `{`+object+`,"summary":{"state":"in-progress","message":["`+text+`"]}}`)+
			`,"modifiedStatus":`+repeated(10, `{`+object+`,"patch":"`+text+`"}`)+
			`,"display":{"deployed":"Error: `+text+`","monitored":"Error: `+text+`","state":"ErrApplied"}}`))
	})
	s.run("a status that was too large before becomes smaller", func(t *testing.T, s *scene) {
		who, write := s.agent("c"), s.deployment("c")
		require.NoError(t, write(s.admin, tooLarge()["many resources"].status))
		refused := write(who, `{"ready":true}`)
		require.ErrorContains(t, refused, "status.resources")
		require.NoError(t, write(who, `{"ready":true,"resources":null}`))
	})
	s.run("others write any size", func(t *testing.T, s *scene) {
		s.agent("c")
		write := s.deployment("c")
		for _, who := range []user{
			s.admin,
			s.account("hub-"+s.namespace, "fleet-controller"),
			s.account("stock-"+s.namespace, "fleet-bundles"),
		} {
			if who.name != s.admin.name {
				_, namespace, _ := strings.Cut(who.name, "system:serviceaccount:")
				namespace, account, _ := strings.Cut(namespace, ":")
				s.allow(registration.ClusterNamespace(s.namespace, "c"), namespace, account, []rbacv1.PolicyRule{rule("fleet.cattle.io", "bundledeployments/status", "patch")})
			}
			for _, name := range []string{"a message", "many resources"} {
				require.NoError(t, write(who, tooLarge()[name].status), "%s: %s", who.name, name)
			}
		}
	})
}
