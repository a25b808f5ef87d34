package testenv

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A sample of the writes ends up to twice its stride after the last write, so that its numbers do not tell how many writes there were.
func TestWriteCount(t *testing.T) {
	s := &supervised{}
	s.strike(Fail, 2*sampleStride)
	for range 3 {
		assert.Empty(t, s.due(httptest.NewRequest(http.MethodPost, "/apis/fleet.cattle.io/v1alpha1/namespaces/a/clusters", nil)))
		assert.Empty(t, s.due(httptest.NewRequest(http.MethodGet, "/apis/fleet.cattle.io/v1alpha1/clusters", nil)))
	}
	assert.Empty(t, s.hit())
	assert.Equal(t, 3, s.writeCount())

	s.strike(Kill, 2)
	for n, want := range []Blow{"", Kill, ""} {
		assert.Equal(t, want, s.due(httptest.NewRequest(http.MethodDelete, "/api/v1/namespaces/a/secrets/b", nil)), n)
	}
	assert.Equal(t, "DELETE /api/v1/namespaces/a/secrets/b", s.hit())
	assert.Equal(t, 3, s.writeCount())
}
