package clusternetagent

import (
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/util/uuid"
)

// MemberState is what the agent keeps and sees on its own cluster. It outlives the process of the agent.
type MemberState struct {
	mu         sync.Mutex
	id         string
	credential *Credential
	nodeLabels map[string]string
	unhealthy  bool
}

// Credential is the content of Secret parent-cluster.
type Credential struct {
	URL, Token, Namespace, ID string
	CA                        *[]byte // nil: there is none
}

// NewMember is a cluster on which the agent was never started.
func NewMember() *MemberState { return MemberWithID(string(uuid.NewUUID())) }

// MemberWithID is a cluster whose Lease clusternet-agent has this UID.
func MemberWithID(id string) *MemberState { return &MemberState{id: id} }

// ID is the UID of Lease clusternet-agent.
func (m *MemberState) ID() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.id
}

// LoseLease deletes Lease clusternet-agent. The next process creates another.
func (m *MemberState) LoseLease() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.id = string(uuid.NewUUID())
}

// Clone is a copy of the cluster, such as from a copy of its etcd.
func (m *MemberState) Clone() *MemberState {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &MemberState{id: m.id, credential: m.credential, nodeLabels: maps.Clone(m.nodeLabels), unhealthy: m.unhealthy}
}

// Credential returns the content of Secret parent-cluster, if it exists.
func (m *MemberState) Credential() (c Credential, found bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.credential == nil {
		return Credential{}, false
	}
	return *m.credential, true
}

// DeleteCredential deletes Secret parent-cluster.
func (m *MemberState) DeleteCredential() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.credential = nil
}

func (m *MemberState) store(c Credential) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.credential = &c
}

// LabelNodes sets the labels that enough worker nodes share.
func (m *MemberState) LabelNodes(labels map[string]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nodeLabels = maps.Clone(labels)
}

func (m *MemberState) labelsOfNodes() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.nodeLabels
}

// SetHealthy sets whether the API server of the cluster is healthy.
func (m *MemberState) SetHealthy(healthy bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unhealthy = !healthy
}

func (m *MemberState) healthy() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.unhealthy
}
