package demo

import (
	"bytes"
	"encoding/xml"
	"errors"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/view"
)

func TestMissingProgram(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "fleetcontroller"), nil, 0o700))
	err := Run(t.Context(), Options{Out: &bytes.Buffer{}, Programs: dir})
	require.ErrorContains(t, err, "the demo runs the program fleetagent, which is not in "+dir+": build it with scripts/build")
}

func TestSteps(t *testing.T) {
	titles := map[string]bool{}
	for _, s := range steps() {
		require.NotEmpty(t, s.title)
		require.NotNil(t, s.run)
		require.False(t, titles[s.title], s.title)
		titles[s.title] = true
	}
}

func TestCheck(t *testing.T) {
	seen := metav1.Now()
	good := view.Cluster{Namespace: "ns", Name: "c", State: view.StateRegistered, LastSeen: &seen}
	tests := map[string]struct {
		change func(*view.Cluster)
		want   string
	}{
		"another state": {func(v *view.Cluster) { v.State, v.Reason, v.Message = "ImportFailed", "Unreachable", "no route" }, "Cluster ns/c is ImportFailed, not Registered: Unreachable: no route"},
		"some trouble":  {func(v *view.Cluster) { v.Reason, v.Message = "Unreachable", "no route" }, "Cluster ns/c is registered, but: Unreachable: no route"},
		"no heartbeat":  {func(v *view.Cluster) { v.LastSeen = nil }, "Cluster ns/c: the hub has received no heartbeat of its agent"},
	}
	require.NoError(t, checkView(good))
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			v := good
			test.change(&v)
			require.EqualError(t, checkView(v), test.want)
		})
	}
	_, err := check(t.Context(), &demo{})
	require.EqualError(t, err, "0 clusters have registered, not 3")
}

func fixedScreen(terminal bool) (*screen, *bytes.Buffer) {
	var out bytes.Buffer
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := newScreen(&out, terminal)
	s.begun = now
	s.now = func() time.Time { now = now.Add(1500 * time.Millisecond); return now }
	return s, &out
}

func TestStepLines(t *testing.T) {
	s, out := fixedScreen(false)
	s.begin(step{title: "do it", like: "do --it"})("it is done", nil)
	require.Equal(t, "  ok   1.5 s do it\n           $ do --it\n           it is done\n", out.String())
}

func TestFailedStepLines(t *testing.T) {
	s, out := fixedScreen(false)
	s.begin(step{title: "do it"})("", errors.New("no"))
	require.Equal(t, "  !!   1.5 s do it\n", out.String())
}

func TestScreenWithoutATerminal(t *testing.T) {
	s, out := fixedScreen(false)
	s.title("title")
	done := s.begin(step{title: "do it", like: "x"})
	s.progress("half way")
	done("note", nil)
	s.result([]registeredCluster{{namespace: "ns", name: "c"}}, nil)
	s.failure([]string{"/nowhere/x.log"}, "/logs")
	assert.NotContains(t, out.String(), "\x1b")
	assert.NotContains(t, out.String(), "\r")
	assert.NotContains(t, out.String(), "half way", "transient lines are for terminals")
}

func TestScreenOnATerminal(t *testing.T) {
	s, out := fixedScreen(true)
	done := s.begin(step{title: "do it"})
	assert.Contains(t, out.String(), "do it")
	s.progress("half way")
	assert.Contains(t, out.String(), eraseLine+dim+"  ...      half way")
	done("", nil)
	assert.Contains(t, out.String(), eraseLine+"  "+green+"ok")
}

func TestResult(t *testing.T) {
	s, out := fixedScreen(false)
	seen := metav1.NewTime(s.begun)
	v := view.Cluster{WayIn: "agent", State: "Registered", Bundles: "2/2", LastSeen: &seen}
	s.result([]registeredCluster{
		{namespace: "ns", name: "c", took: 1234 * time.Millisecond, view: v},
		{namespace: "ns", name: "left", took: time.Second, view: v},
	}, []string{"ns/left"})
	require.Equal(t, `
CLUSTER   WAY-IN   STATE        REGISTERED-IN   BUNDLES   LAST-SEEN
ns/c      agent    Registered   1.2 s           2/2       1s ago
ns/left   agent    Deleted      1.0 s           2/2       3s ago

2 clusters registered; 4.5 s in total.
`, out.String())
}

func TestPictureShowsTheSteps(t *testing.T) {
	file, err := os.ReadFile("../../docs/demo.svg")
	require.NoError(t, err)
	var picture struct {
		Rows []struct {
			Text string `xml:",innerxml"`
		} `xml:"g>text"`
	}
	require.NoError(t, xml.Unmarshal(file, &picture))
	var text strings.Builder
	for _, row := range picture.Rows {
		text.WriteString(html.UnescapeString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(row.Text, "")) + "\n")
	}
	var got []string
	for row := range strings.Lines(strings.ReplaceAll(text.String(), "\n"+indent+"    ", " ")) { // long rows are continued in the next one
		row = strings.TrimSuffix(row, "\n")
		if command, ok := strings.CutPrefix(row, indent+"$ "); ok {
			got = append(got, command)
		} else if passed, ok := strings.CutPrefix(row, "  ok "); ok {
			_, title, _ := strings.Cut(strings.TrimSpace(passed), " s ")
			got = append(got, title)
		}
	}
	var want []string
	for _, s := range steps() {
		want = append(want, s.title)
		if s.like != "" {
			want = append(want, s.like)
		}
	}
	require.Equal(t, want, got, "draw the picture again with scripts/picture")
}
