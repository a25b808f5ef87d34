package clusterimport

import (
	"context"
	"encoding/base64"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// evidence is what tells whose an agent is.
type evidence struct {
	bootstrap  map[string]string // of the Secret with which it is to register; nil when there is none
	credential map[string]string // of the Secret with which it works; nil when there is none
	clientID   string
	found      bool
}

// isOurs says whether the agent in that namespace of the member still is the one of the Cluster. A management server that
// moves a cluster deletes one Cluster and makes another, and the agent may be the other's by now.
func (f *farewell) isOurs(ctx context.Context, namespace string) (bool, error) {
	found, err := f.member.evidence(ctx, namespace)
	return found.isOf(f.cluster), err
}

// isOf goes by the credential, for that says what the agent is, and by the identity it is to have where it has not registered
// yet; but whoever wrote a bootstrap Secret last has the agent from then on.
func (e evidence) isOf(cluster *fleet.Cluster) bool {
	if !e.found || e.bootstrap != nil && !bootstrapOf(e.bootstrap, cluster) {
		return false
	}
	if e.credential != nil {
		return e.credential[registration.CredentialClusterNamespace] == cluster.Namespace &&
			e.credential[registration.CredentialClusterName] == cluster.Name
	}
	return e.clientID != "" && e.clientID == cluster.Spec.ClientID
}

// bootstrapOf: the token of an import is named after its Cluster. The agent's chart may have brought another token, for the
// registration that the hub knows of.
func bootstrapOf(bootstrap map[string]string, cluster *fleet.Cluster) bool {
	if bootstrap[registration.BootstrapClusterNamespace] != cluster.Namespace {
		return false
	}
	last := cluster.Status.Import
	known := last != nil && last.Registration != "" && bootstrap[registration.BootstrapRegistration] == last.Registration
	return known || bootstrap[registration.BootstrapTokenName] == registration.ImportTokenName(cluster.Name)
}

func (m *member) evidence(ctx context.Context, namespace string) (e evidence, err error) {
	if e.bootstrap, err = m.data(ctx, "Secret", namespace, registration.BootstrapSecret); err != nil {
		return evidence{}, err
	}
	if e.credential, err = m.data(ctx, "Secret", namespace, registration.CredentialSecret); err != nil {
		return evidence{}, err
	}
	agentConfig, err := m.data(ctx, "ConfigMap", namespace, registration.AgentConfigMap)
	if err != nil {
		return evidence{}, err
	}
	if parsed, err := config.ParseAgent(agentConfig[registration.ConfigKey]); err == nil {
		e.clientID = parsed.ClientID
	}
	e.found = e.credential != nil || agentConfig != nil
	return e, nil
}

// data is that of a Secret or ConfigMap, nil when there is none.
func (m *member) data(ctx context.Context, kind, namespace, name string) (map[string]string, error) {
	client, err := m.resource(kind, namespace)
	if err != nil {
		return nil, err
	}
	object, err := client.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	content, _, err := unstructured.NestedStringMap(object.Object, "data")
	if content == nil {
		content = map[string]string{}
	}
	if kind != "Secret" {
		return content, err
	}
	for key, value := range content {
		plain, err := base64.StdEncoding.DecodeString(value)
		if err != nil {
			return nil, err
		}
		content[key] = string(plain)
	}
	return content, err
}
