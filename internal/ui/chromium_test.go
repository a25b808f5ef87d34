package ui

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// tab is a tab of a headless Chromium, which is driven by the DevTools protocol over two pipes.
type tab struct {
	t       *testing.T
	in      io.Writer
	out     *bufio.Reader
	session string
	calls   int
	// problems are the errors in the console, such as violations of the content security policy.
	problems []string
}

func openTab(t *testing.T) *tab {
	t.Helper()
	program := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		t.Skip("no Chromium is installed, so the page is not tried in a browser: apt-get install chromium")
	}
	commands, in, err := os.Pipe() // Chromium reads its file 3
	require.NoError(t, err)
	out, answers, err := os.Pipe() // and writes its file 4
	require.NoError(t, err)
	home := t.TempDir()
	command := exec.CommandContext(context.WithoutCancel(t.Context()), program, // the cleanup closes it

		"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
		"--disable-background-networking", "--user-data-dir="+filepath.Join(home, "profile"), "--remote-debugging-pipe")
	command.Env = append(os.Environ(), "HOME="+home)
	command.ExtraFiles = []*os.File{commands, answers}
	command.WaitDelay = 10 * time.Second
	var stderr bytes.Buffer
	command.Stderr = &stderr
	require.NoError(t, command.Start())
	commands.Close()
	answers.Close()
	b := &tab{t: t, in: in, out: bufio.NewReader(out)}
	limit := time.AfterFunc(2*testenv.Patience, func() { _ = command.Process.Kill() })
	t.Cleanup(func() {
		in.Close() // which ends Chromium
		_ = command.Wait()
		limit.Stop()
		out.Close()
		if t.Failed() {
			t.Log(stderr.String())
		}
	})
	if _, err := b.send("Browser.getVersion", nil); err != nil {
		t.Skipf("%s is installed, but does not start on this machine, so the page is not tried in a browser: %v: %s", program, err, stderr.String())
	}

	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	return b
}

// send sends a command, and waits for its answer.
func (b *tab) send(method string, params any) (result json.RawMessage, err error) {
	b.calls++
	message := map[string]any{"id": b.calls, "method": method, "params": params}
	if b.session != "" {
		message["sessionId"] = b.session
	}
	line, err := json.Marshal(message)
	if err != nil {
		return nil, err
	}
	if _, err := b.in.Write(append(line, 0)); err != nil {
		return nil, err
	}
	for {
		line, err := b.out.ReadBytes(0)
		if err != nil {
			return nil, fmt.Errorf("Chromium has ended, or has not answered in time: %w", err)
		}
		var answer struct {
			ID     int
			Result json.RawMessage
			Error  struct{ Message string }
			Method string
			Params struct{ Entry struct{ Level, Text string } }
		}
		if err := json.Unmarshal(bytes.TrimSuffix(line, []byte{0}), &answer); err != nil {
			return nil, err
		}
		switch {
		case answer.Method == "Log.entryAdded" && answer.Params.Entry.Level == "error":
			b.problems = append(b.problems, answer.Params.Entry.Text)
		case answer.ID == b.calls && answer.Error.Message != "":
			return nil, errors.New(method + ": " + answer.Error.Message)
		case answer.ID == b.calls:
			return answer.Result, nil
		}
	}
}

func (b *tab) call(method string, params, result any) {
	b.t.Helper()
	answer, err := b.send(method, params)
	require.NoError(b.t, err)
	if result != nil {
		require.NoError(b.t, json.Unmarshal(answer, result))
	}
}

// evaluate returns the value of an expression in the page, as text.
func (b *tab) evaluate(expression string) string {
	b.t.Helper()
	value, err := b.tryEvaluate(expression)
	require.NoError(b.t, err)
	return value
}

func (b *tab) tryEvaluate(expression string) (string, error) {
	text, err := b.send("Runtime.evaluate", map[string]any{"expression": "String(" + expression + ")", "returnByValue": true})
	if err != nil {
		return "", err
	}
	var answer struct {
		Result struct{ Value string }
	}
	err = json.Unmarshal(text, &answer)
	return answer.Result.Value, err
}

// eventually waits until an expression has a value. Chromium ends the evaluation in a page that it leaves with an error.
func (b *tab) eventually(expression, want string) {
	b.t.Helper()
	testenv.Eventually(b.t, func() (bool, string) {
		got, err := b.tryEvaluate(expression)
		if err != nil {
			require.ErrorContains(b.t, err, "navigated")
			return false, err.Error()
		}
		return got == want, expression + " is " + got + ", not " + want
	})
}

// open opens an address, and waits until the stream of the page has begun.
func (b *tab) open(address string) {
	b.t.Helper()
	b.call("Page.navigate", map[string]any{"url": address}, nil)
	b.eventually(`document.getElementById("connection")?.textContent`, "live")
}

// size sets the size of the window, and light or dark.
func (b *tab) size(width, height int, scheme string) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// picture writes what the window shows to a PNG file.
func (b *tab) picture(file string) {
	b.t.Helper()
	var answer struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"format": "png", "optimizeForSpeed": false}, &answer)
	data, err := base64.StdEncoding.DecodeString(answer.Data)
	require.NoError(b.t, err)
	require.NoError(b.t, os.WriteFile(file, data, 0o644))
}

var screenshots = flag.String("screenshots", "", "directory into which to draw pictures of the pages")

// draw draws fleets of three sizes, on a desk and on a phone.
func draw(t *testing.T, b *tab, directory string) {
	t.Helper()
	for _, n := range []int{3, 300, 10000} {
		clusters := clustersInAllStates(n)
		s := serving(t, clusters, belongings(clusters[0])...)
		for name, path := range map[string]string{"clusters": "/", "cluster": clusterLink(clusters[0].Namespace, clusters[0].Name), "registrations": "/registrations"} {
			b.open(s.opening(path))
			file := filepath.Join(directory, fmt.Sprintf("%s-%d", name, n))
			b.size(1200, 720, "light")
			b.picture(file + ".png")
			b.size(390, 844, "dark")
			b.picture(file + "-phone.png")
		}
	}
}

// In a browser, the page works with its content security policy, escapes the texts of members, follows the hub, and fits on a phone.
func TestChromium(t *testing.T) {
	sample.Long(t)
	b := openTab(t)
	if *screenshots != "" {
		draw(t, b, *screenshots)
	}
	const script = `<img src=x onerror="document.title='hacked'"><script>document.title='hacked'</script>`
	evil := withCondition(registered("ns", "evil", noon), fleet.ConditionRegistered, corev1.ConditionFalse, "Denied", script)
	evil.Status.Agent.Version = strings.Repeat("x", 500) + script
	clusters := append(clustersInAllStates(100), evil)
	s := servingAt(t, clock.RealClock{}, clusters, belongings(evil)...)

	b.call("Log.enable", nil, nil)
	b.open(s.URL + "/open?secret=" + s.pages.secret)
	require.Equal(t, s.URL+"/", b.evaluate("location.href"), "the secret is not in the address any more")
	require.Equal(t, "101 clusters", b.evaluate(`document.querySelector("h1").textContent`))
	require.Equal(t, "101", b.evaluate(`document.querySelectorAll(".cells a").length`))
	require.NotEqual(t, "0px", b.evaluate(`getComputedStyle(document.querySelector(".cells a")).height`), "the style sheet is applied")
	require.Empty(t, b.evaluate("document.cookie"), "scripts cannot read the secret")

	b.evaluate(`document.querySelector("td a").focus()`)
	href := b.evaluate(`document.activeElement.getAttribute("href")`)
	informer := s.pages.fleet.informer.GetStore()
	require.NoError(t, informer.Add(mustEntry(t, registered("ns", "new", noon))))
	s.pages.fleet.change(true)
	b.eventually(`document.querySelector("h1").textContent`, "102 clusters")
	require.Equal(t, href, b.evaluate(`document.activeElement.getAttribute("href")`), "the focus stays where it was")

	b.evaluate(`document.querySelector("input[name=q]").value = "ns/ev"`)
	b.evaluate(`document.querySelector("form").submit()`)
	b.eventually(`document.querySelector(".pager span")?.textContent`, "1 to 1 of 1")
	require.Contains(t, b.evaluate(`document.querySelector("td.reason").textContent`), script)

	for _, path := range []string{"/", "/registrations", "/clusters/ns/evil"} {
		b.open(s.opening(path))
		for _, width := range []int{390, 1280} {
			b.size(width, 844, "dark")
			require.Equal(t, strconv.Itoa(width), b.evaluate("document.documentElement.scrollWidth"), "%s: nothing is wider than the window", path)
		}
		require.Equal(t, "Muster", b.evaluate("document.title"))
	}
	require.Empty(t, b.problems, "the console has no errors")

	s.CloseClientConnections()
	s.Close()
	b.eventually(`document.getElementById("connection").className`, "lost")
}
