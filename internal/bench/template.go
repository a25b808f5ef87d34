package bench

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/rancher/wrangler/v3/pkg/apply"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/muster-fleet/muster/internal/controlplane"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// template copies the objects of one registered cluster. A copy has the objects that the hub would have created for another cluster. Each name, hash,
// key and UID is replaced by another of the same length, so the encoded objects are not decoded.
type template struct {
	entries []controlplane.StoredObject
	old     identity
	uids    []string
}

// identity has the texts that differ between the objects of two clusters, apart from UIDs.
type identity struct {
	clientID, clientRandom, request, requestUID, cluster, namespace string
	account, agentRole                                              string // agentRole is empty if the agent shares its Role with others
	setID, setHash                                                  string // of the object set of the request
	key, digest                                                     string // of the cluster namespace
}

// complete derives the other texts from the names, the UID and the key, as the hub does.
func (i identity) complete(hasRole bool) (identity, error) {
	owner := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: i.request}}
	owner.SetGroupVersionKind(fleet.SchemeGroupVersion.WithKind("ClusterRegistration"))
	i.setID = registration.OwnedSetID("cluster-registration", workspace, i.request)
	labels, _, err := apply.GetLabelsAndAnnotations(i.setID, owner)
	i.setHash = labels[apply.LabelHash]
	i.namespace = registration.ClusterNamespace(workspace, i.cluster)
	i.account = registration.RequestServiceAccount(i.request, i.requestUID)
	if hasRole {
		i.agentRole = registration.AgentRoleName(i.account)
	}
	digest := sha256.Sum256([]byte(i.key))
	i.digest = hex.EncodeToString(digest[:])
	return i, err
}

// texts are in the order in which they are searched: a text precedes those that are part of it.
func (i identity) texts() []string {
	all := []string{i.clientRandom, i.clientID, i.namespace, i.cluster, i.setID, i.setHash, i.account, i.request, i.requestUID, i.key, i.digest}
	if i.agentRole != "" {
		all = append([]string{i.agentRole}, all...)
	}
	return all
}

var uidPattern = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// newTemplate selects the objects of one cluster from the objects that were created while it registered. UIDs that are in shared belong to other
// objects. It fails if a text does not occur, because then a copy would keep another text of the original.
func newTemplate(created []controlplane.StoredObject, old identity, shared ...string) (*template, error) {
	t := &template{old: old}
	var all []byte
	known := map[string]bool{old.requestUID: true}
	for _, uid := range shared {
		known[uid] = true
	}
	for _, entry := range created {
		isOfCluster := func(name string) bool {
			return bytes.Contains(entry.Key, []byte(name)) || bytes.Contains(entry.Value, []byte(name))
		}
		if bytes.HasPrefix(entry.Key, []byte("/registry/events/")) || !isOfCluster(old.cluster) && !isOfCluster(old.request) {
			continue
		}
		t.entries = append(t.entries, entry)
		all = append(append(all, entry.Key...), entry.Value...)
		for _, uid := range uidPattern.FindAllString(string(entry.Value), -1) {
			if !known[uid] {
				known[uid] = true
				t.uids = append(t.uids, uid)
			}
		}
	}
	slices.SortStableFunc(t.entries, func(a, b controlplane.StoredObject) int { return cmp.Compare(writeOrder(a), writeOrder(b)) })
	for _, text := range old.texts() {
		if !bytes.Contains(all, []byte(text)) {
			return nil, fmt.Errorf("none of the %d objects of Cluster %s contains %q: the hub names them in another way than the bench expects", len(t.entries), old.cluster, text)
		}
	}
	return t, nil
}

// writeOrder puts owners before their dependents, because the garbage collector deletes dependents without an owner. The namespace is last,
// because the controller manager would create the objects that each namespace needs.
func writeOrder(entry controlplane.StoredObject) int {
	for n, kind := range []string{"/registry/fleet.cattle.io/clusters/", "/registry/fleet.cattle.io/clusterregistrations/"} {
		if bytes.HasPrefix(entry.Key, []byte(kind)) {
			return n
		}
	}
	const others, last = 2, 3
	if bytes.HasPrefix(entry.Key, []byte("/registry/namespaces/")) {
		return last
	}
	return others
}

// bytes is the size of the keys and values of one cluster.
func (t *template) bytes() (sum int) {
	for _, entry := range t.entries {
		sum += len(entry.Key) + len(entry.Value)
	}
	return sum
}

// copyFor returns the objects of the cluster with another identity.
func (t *template) copyFor(i identity) ([]controlplane.StoredObject, error) {
	var pairs []string
	before, after := t.old.texts(), i.texts()
	for n, text := range before {
		if len(text) != len(after[n]) {
			return nil, fmt.Errorf("%q cannot replace %q: it has another length", after[n], text)
		}
		pairs = append(pairs, text, after[n])
	}
	for _, uid := range t.uids {
		pairs = append(pairs, uid, string(uuid.NewUUID()))
	}
	replacer := strings.NewReplacer(pairs...)
	copies := make([]controlplane.StoredObject, 0, len(t.entries))
	for _, entry := range t.entries {
		copies = append(copies, controlplane.StoredObject{Key: []byte(replacer.Replace(string(entry.Key))), Value: []byte(replacer.Replace(string(entry.Value)))})
	}
	return copies, nil
}

// copiedRequest is the name of the request of a copy. The API server does not generate names with this letter, so no agent that registers
// gets the same.
func copiedRequest(n int) string {
	const digits = 4
	text := strconv.FormatInt(int64(n), 36)
	return registration.RequestPrefix + "a" + strings.Repeat("0", max(0, digits-len(text))) + text
}
