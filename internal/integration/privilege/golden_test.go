package privilege

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/golden"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/admission"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// place is a namespace and its name in the table.
type place struct{ name, title string }

func (s *scene) places() []place {
	return []place{
		{s.own.ClusterNamespace(), "cluster-own"},
		{s.other.ClusterNamespace(), "cluster-other"},
		{s.Namespace, "workspace"},
		{testenv.RegistrationNamespace, testenv.RegistrationNamespace},
		{testenv.SystemNamespace, testenv.SystemNamespace},
		{agentNamespace, agentNamespace},
		{metav1.NamespaceSystem, metav1.NamespaceSystem},
	}
}

// plain replaces generated names by their names in the table.
func (s *scene) plain(t *testing.T) *strings.Replacer {
	t.Helper()
	token := s.ReadyToken(t, "shared-tok")
	pairs := []string{
		registration.TokenServiceAccount("shared-tok", string(token.UID)), "SERVICEACCOUNT-OF-TOKEN", "shared-tok", "TOKEN-OWN",
		s.own.Secret.Name, "CREDENTIAL-OWN", s.other.Secret.Name, "CREDENTIAL-OTHER",
		s.own.Account(), "SERVICEACCOUNT-OWN", s.other.Account(), "SERVICEACCOUNT-OTHER",
		bundleOf("own"), "VALUES-OF-OWN", bundleOf("other"), "VALUES-OF-OTHER",
		s.own.Request.Status.ClusterName, "CLUSTER-OWN", s.other.Request.Status.ClusterName, "CLUSTER-OTHER",
	}
	for _, name := range s.ownContent {
		pairs = append(pairs, name, "CONTENT-OF-OWN")
	}
	for _, name := range s.otherContent {
		pairs = append(pairs, name, "CONTENT-OF-OTHER")
	}
	return strings.NewReplacer(pairs...)
}

func nobody(t *testing.T, hub *testenv.Cluster) identity {
	t.Helper()
	_, err := hub.Kubernetes.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "nobody"}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		require.NoError(t, err)
	}
	return identity{metav1.NamespaceDefault, "nobody"}
}

// everybodys are the rights of every ServiceAccount, except for the right that the hub gives to all of them, which is in the tables.
func everybodys(t *testing.T, hub *testenv.Cluster, chosen func() bool, all []resource) map[string]bool {
	t.Helper()
	rights := asker{hub, chosen, nobody(t, hub)}.rights(t, all, nowhere)
	delete(rights, "contents.fleet.cattle.io get")
	return rights
}

func TestRights(t *testing.T) {
	sample.Long(t)
	s := newScene(t)
	s.Hub.ClusterCondition(t, "fleet-local", registration.LocalCluster, fleet.ConditionImported, "True Imported")
	testenv.RequireMay(t, s.Hub, s.own.Bearer(), testenv.To("get", "contents.fleet.cattle.io", "", s.ownContent[0]))
	all, plain := served(t, s.Hub), s.plain(t)
	chosen := sample.OneIn(t, 100)
	everybodys := everybodys(t, s.Hub, chosen, all)
	token := s.ReadyToken(t, "shared-tok")
	for title, who := range map[string]identity{
		"import":      {s.Namespace, registration.TokenServiceAccount("shared-tok", string(token.UID))},
		"request":     {s.own.ClusterNamespace(), s.own.Account()},
		"hub":         {testenv.SystemNamespace, "fleet-controller"},
		"bootstrap":   {testenv.SystemNamespace, registration.BootstrapAccount},
		"local-agent": {agentNamespace, registration.AgentName},
	} {
		t.Run(title, func(t *testing.T) {
			requireGolden(t, "testdata/"+title+".golden", asker{s.Hub, chosen, who}.table(t, s.places(), all, everybodys, plain), all)
		})
	}
	t.Run("its own cluster has no credential of the hub", s.requireNoCredentialOfTheHub)
}

// table lists the rights that an identity has in all namespaces, and then its additional rights in each namespace. It leaves out what every
// authenticated user may do.
func (a asker) table(t *testing.T, places []place, all []resource, everybodys map[string]bool, plain *strings.Replacer) string {
	t.Helper()
	everywhere := a.rights(t, all, nowhere)
	if everywhere["* *"] || everywhere["pods deletecollection"] && everywhere["clusterroles.rbac.authorization.k8s.io escalate"] {
		return "everything\n"
	}
	var text strings.Builder
	section := func(title string, lines map[string]bool) {
		if len(lines) > 0 {
			fmt.Fprintf(&text, "# %s\n%s\n", title, strings.Join(together(renamed(lines, plain)), "\n"))
		}
	}
	section("everywhere", without(everywhere, everybodys))
	for _, p := range places {
		section(p.title, without(a.rights(t, all, p.name), everybodys, everywhere))
	}
	return text.String()
}

// renamed replaces generated names, which differ in each run, before the lines are sorted.
func renamed(lines map[string]bool, plain *strings.Replacer) map[string]bool {
	all := map[string]bool{}
	for line := range lines {
		all[plain.Replace(line)] = true
	}
	return all
}

func requireGolden(t *testing.T, file, got string, all []resource) {
	t.Helper()
	// API servers before 1.36 do not serve all kinds of policies, so the test sends no reviews about the missing kinds.
	lines := slices.DeleteFunc(strings.SplitAfter(golden.Want(t, file, got), "\n"), func(line string) bool {
		kind, _, _ := strings.Cut(line, ": ")
		return strings.HasSuffix(kind, "."+admission.Group) && !slices.ContainsFunc(all, func(r resource) bool { return r.String() == kind })
	})
	assert.Equal(t, strings.Join(lines, ""), got)
}
