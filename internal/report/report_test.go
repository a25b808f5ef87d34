package report

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// The names of pods and containers become names of files in the report, and the owner of a member decides what it answers.
func TestInstallation_namesThatAreNoNames(t *testing.T) {
	pod := func(name, container string) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: container}}},
		}
	}
	pods := corev1.PodList{Items: []corev1.Pod{pod("good", "agent"), pod("good", "/../../../outside"), pod(`..\..`, "agent")}}
	member := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/log"):
			_, _ = w.Write([]byte("text"))
		case strings.HasSuffix(r.URL.Path, "/pods"):
			_ = json.NewEncoder(w).Encode(pods)
		default:
			http.NotFound(w, r)
		}
	}))
	defer member.Close()
	c := &collection{files: map[string][]byte{}, secrets: map[string]string{}}
	c.installation(t.Context(), "member", &rest.Config{Host: member.URL}, "ns")
	delete(c.files, "member/ns/pods.json")
	assert.Equal(t, []string{"member/logs/good-agent.log"}, slices.Collect(maps.Keys(c.files)))
	var refused []string
	for _, f := range c.Failed {
		if f.Part == "member logs" {
			refused = append(refused, f.Error)
		}
	}
	assert.Equal(t, []string{
		`container "/../../../outside" of Pod "good": no API server accepts these names`,
		`container "agent" of Pod "..\\..": no API server accepts these names`,
	}, refused)
}
