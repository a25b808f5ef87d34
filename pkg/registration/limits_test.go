package registration

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestAllowsClientID(t *testing.T) {
	for _, row := range []struct {
		name     string
		ids      []string
		pattern  string
		clientID string
		allowed  bool
	}{
		{"no limit", nil, "", "anything", true},
		{"in the list", []string{"a", "b"}, "", "b", true},
		{"not in the list", []string{"a", "b"}, "", "c", false},
		{"a list is exact", []string{"edge-*"}, "", "edge-1", false},
		{"of the pattern", nil, "edge-*", "edge-1", true},
		{"not of the pattern", nil, "edge-*", "core-1", false},
		{"a pattern is for the whole", nil, "edge", "my-edge-1", false},
		{"case counts", nil, "edge-*", "Edge-1", false},
		{"a class", nil, "edge-[0-9]", "edge-7", true},
		{"one character", nil, "edge-?", "edge-77", false},
		{"a star ends at a slash", nil, "edge-*", "edge-1/x", false},
		{"either will do", []string{"core-1"}, "edge-*", "core-1", true},
		{"or the other", []string{"core-1"}, "edge-*", "edge-1", true},
		{"neither", []string{"core-1"}, "edge-*", "core-2", false},
		{"a list without a pattern has no empty pattern", []string{"a"}, "", "", false},
		{"a pattern that is none allows nothing", nil, "edge-[", "edge-[", false},
		{"a pattern for which a backtracking matcher would take years", nil, strings.Repeat("*a", 250), strings.Repeat("a", 4000) + "b", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			spec := fleet.ClusterRegistrationTokenSpec{ClientIDs: row.ids, ClientIDPattern: row.pattern}
			assert.Equal(t, row.allowed, allowsClientID(spec, row.clientID))
		})
	}
}

func TestExpired(t *testing.T) {
	created := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for _, row := range []struct {
		name    string
		ttl     *metav1.Duration
		now     time.Time
		expired bool
	}{
		{"none", nil, created.Add(1e6 * time.Hour), false},
		{"zero", &metav1.Duration{}, created.Add(1e6 * time.Hour), false},
		{"below zero", &metav1.Duration{Duration: -1}, created.Add(1e6 * time.Hour), false},
		{"the last moment", &metav1.Duration{Duration: time.Hour}, created.Add(time.Hour - 1), false},
		{"the moment", &metav1.Duration{Duration: time.Hour}, created.Add(time.Hour), true},
		{"after it", &metav1.Duration{Duration: time.Hour}, created.Add(2 * time.Hour), true},
		{"the clock is behind", &metav1.Duration{Duration: time.Hour}, created.Add(-time.Minute), false},
	} {
		token := &fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)}}
		token.Spec.TTL = row.ttl
		assert.Equal(t, row.expired, Expired(token, row.now), row.name)
	}
}

func FuzzAllowsClientID(f *testing.F) {
	f.Add("edge-*", "edge-1")
	f.Add("[", "[")
	f.Add("\\", "")
	f.Fuzz(func(t *testing.T, pattern, clientID string) {
		allowsClientID(fleet.ClusterRegistrationTokenSpec{ClientIDPattern: pattern}, clientID)
		assert.True(t, allowsClientID(fleet.ClusterRegistrationTokenSpec{ClientIDPattern: pattern, ClientIDs: []string{clientID}}, clientID))
	})
}

func TestImposeLabels(t *testing.T) {
	labels := NewClusterLabels("c", map[string]string{"env": "prod", "team": "a"}, false)
	ImposeLabels(labels, map[string]string{"env": "test", "management.cattle.io/x": "y", fleet.ClusterLabel: "other"})
	assert.Equal(t, map[string]string{"env": "test", "team": "a", "management.cattle.io/x": "y", fleet.ClusterLabel: "c"}, labels)
	ImposeLabels(labels, nil)
	assert.Len(t, labels, 4)
}
