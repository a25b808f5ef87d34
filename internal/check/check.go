// Package check finds out why a cluster is not connected. It has a table of checks of a hub, of a member and of the connection between them.
// The checks are in the order in which a registration depends on them, so that the first check that fails is the cause. They send requests to
// the hub and the member only, change nothing, and never report a value of a Secret.
package check

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
)

// Verdict is the result of a check.
type Verdict string

// The results of a check. The empty Verdict means that the check does not apply, so that it is not shown.
const (
	Pass    Verdict = "pass"
	Warn    Verdict = "warn"
	Fail    Verdict = "fail"
	Unknown Verdict = "unknown" // the check has no answer, for example because a right is missing or an earlier check failed
)

// Exit codes of a program that prints a Diagnosis. They are the same in every format of the output.
const (
	ExitGood    = 0 // all checks passed, or there are only warnings
	ExitFailed  = 1
	ExitUsage   = 2
	ExitUnknown = 3 // no check failed, but some have the result unknown
)

// Inputs name the objects to check, and the connections to use.
type Inputs struct {
	// Hub and Member are the connections of the user; nil if there is none. Without Member, the checks of an imported Cluster use the
	// kubeconfig of the import.
	Hub, Member *rest.Config
	// Namespace is the workspace of Cluster and Token on the hub. Both are optional.
	Namespace, Cluster, Token string
	// SystemNamespace is the hub's own namespace; empty means cattle-fleet-system. AgentNamespace is the agent's namespace on the member; empty
	// means the one in the status or the spec of the Cluster, or else cattle-fleet-system.
	SystemNamespace, AgentNamespace string
	// Probe runs the checks of the connection from the agent to the hub in a Job on the member, instead of in this program.
	Probe bool
	// HubFlags are the flags that select the hub, for the commands in hints. They are quoted for a shell, each with a space before it.
	HubFlags string
	// Version is the version of the program.
	Version string
	// Now is the clock.
	Now func() time.Time
}

// Check is a row of the table.
type Check struct {
	// ID is stable: scripts compare it, and docs/checks.md has a section with this name.
	ID string
	// Category groups checks on the screen.
	Category string
	// Says is a sentence that is true if the check passes.
	Says string
	// Needs lists checks that must pass before this one can run. This check is skipped if one of them fails or is unknown.
	Needs []string
	// ExplainedBy lists checks whose failure also makes this one fail. This check is skipped if one of them fails, so that only the cause is
	// reported.
	ExplainedBy []string
	// Hint is the remedy if the check fails. Commands of muster in it are between backquotes, with CLUSTER for the name.
	Hint string

	on side
	// when reports, after the earlier checks, whether this one applies; nil means always.
	when func(*knowledge) bool
	run  func(context.Context, *knowledge) Finding
}

// side is a set of inputs: those that a check requires, or those that are available.
type side int

const (
	anywhere  side = 0
	onHub     side = 1 << iota // the connection to the hub
	onMember                   // the connection to the member
	onCluster                  // the name of a Cluster
	onFleet                    // no name of a Cluster: the whole fleet is checked
	onToken                    // the name of a token, or a Cluster or a member with which the checks find the token
)

// Finding is the result of a check, with its detail.
type Finding struct {
	Verdict Verdict
	Detail  string
	// forbidden is set if the user lacks a right that the check needs. optional is set as well if few users have that right: the check is then
	// left out, even if the user asks about the whole hub.
	forbidden, optional bool
}

func pass(format string, args ...any) Finding { return finding(Pass, format, args...) }
func warn(format string, args ...any) Finding { return finding(Warn, format, args...) }
func fail(format string, args ...any) Finding { return finding(Fail, format, args...) }
func unknown(format string, args ...any) Finding {
	return finding(Unknown, format, args...)
}

func finding(verdict Verdict, format string, args ...any) Finding {
	return Finding{Verdict: verdict, Detail: fmt.Sprintf(format, args...)}
}

// doesNotApply returns the finding of a check that does not apply to these inputs. Its line is omitted.
func doesNotApply() Finding { return Finding{} }

// failed returns the finding for a failed request. The finding is unknown if the user lacks the right to send the request, if the request timed
// out, or if a webhook without a server prevents the answer: none of them is a property of the object.
func failed(doing string, err error) Finding {
	if apierrors.IsInternalError(err) && strings.Contains(err.Error(), "failed calling webhook") {
		return unknown("%s: there is no answer, because the server of a webhook fails: %s", doing, err)
	}
	if apierrors.IsForbidden(err) || isTimeout(err) {
		f := unknown("%s: %s", doing, err)
		f.forbidden = apierrors.IsForbidden(err)
		return f
	}
	return fail("%s: %s", doing, err)
}

func isTimeout(err error) bool {
	var network net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &network) && network.Timeout() ||
		apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err)
}

// Line is a check with its result.
type Line struct {
	ID       string  `json:"id"`
	Category string  `json:"category"`
	Check    string  `json:"check"`
	Result   Verdict `json:"result"`
	Detail   string  `json:"detail,omitempty"`
	// SkippedBecause is the ID of the check because of whose result this one was not run.
	SkippedBecause string `json:"skippedBecause,omitempty"`
	Hint           string `json:"hint,omitempty"`
	Documentation  string `json:"documentation,omitempty"`
}

// Diagnosis is the result of all checks.
type Diagnosis struct {
	// Summary names the first check that failed, in one sentence.
	Summary string `json:"summary"`
	// Result is the worst of the results.
	Result Verdict `json:"result"`
	Checks []Line  `json:"checks"`
	// LeftOut lists the checks of the hub that were left out because the user lacks a right: those that only write, and, if the user asked about
	// one Cluster, all others.
	LeftOut []string `json:"leftOut,omitempty"`
}

// Run runs the checks of the table that apply, one after another.
func Run(ctx context.Context, in Inputs) Diagnosis {
	return run(ctx, Table(), newKnowledge(in))
}

func run(ctx context.Context, table []Check, k *knowledge) Diagnosis {
	results := map[string]Line{}
	var d Diagnosis
	for _, c := range table {
		if c.on&k.sides() != c.on {
			continue
		}
		if k.probed != nil && c.Category == categoryWay {
			if made, found := k.probed[c.ID]; found {
				line := k.lineOfProbe(c, made)
				results[c.ID] = line
				d.Checks = append(d.Checks, line)
			}
			continue
		}
		line := Line{ID: c.ID, Category: c.Category, Check: c.Says}
		if cause := skippedBecause(c, results); cause != "" {
			line.Result, line.SkippedBecause = Unknown, cause
		} else {
			found := c.find(ctx, k)
			if found.Verdict == "" {
				continue
			}
			if found.forbidden && c.Category == categoryHub && (k.Cluster != "" || found.optional) {
				d.LeftOut = append(d.LeftOut, c.ID)
				continue
			}
			line.Result, line.Detail = found.Verdict, found.Detail
			if line.Result != Pass {
				line.Hint, line.Documentation = k.hint(c), k.documentation(c.ID)
			}
		}
		results[c.ID] = line
		d.Checks = append(d.Checks, line)
	}
	d.Result, d.Summary = summarize(d.Checks)
	return d
}

// lineOfProbe returns the line of a check that the probe made. The probe runs on the member, so only its result and its detail are taken over.
func (k *knowledge) lineOfProbe(c Check, made Line) Line {
	line := Line{ID: c.ID, Category: c.Category, Check: c.Says, Result: made.Result, Detail: made.Detail}
	switch made.Result {
	case Pass, Warn, Fail:
	default:
		line.Result = Unknown
	}
	if slices.ContainsFunc(Table(), func(other Check) bool { return other.ID == made.SkippedBecause }) {
		line.SkippedBecause = made.SkippedBecause
	} else if line.Result != Pass {
		line.Hint, line.Documentation = k.hint(c), k.documentation(c.ID)
	}
	return line
}

// find runs the check if it applies.
func (c Check) find(ctx context.Context, k *knowledge) Finding {
	if c.when != nil && !c.when(k) {
		return doesNotApply()
	}
	return c.run(ctx, k)
}

// hint returns the Hint of a check with commands for this hub, this Cluster and its namespace.
func (in Inputs) hint(c Check) string {
	muster := "`muster" + in.HubFlags
	if in.Cluster != "" || in.Token != "" {
		muster += " -n " + in.Namespace
	}
	text := strings.NewReplacer("`muster", muster, "docs/", in.documents()).Replace(c.Hint)
	if in.Cluster != "" {
		text = strings.ReplaceAll(text, "CLUSTER", in.Cluster)
	}
	return text
}

var release = regexp.MustCompile(`^v\d+\.\d+\.\d+$`)

// documents returns the URL of the documents of this release, or of the latest ones for a build between releases.
func (in Inputs) documents() string {
	tag := "main"
	if release.MatchString(in.Version) {
		tag = in.Version
	}
	return "https://github.com/muster-fleet/muster/blob/" + tag + "/docs/"
}

// documentation returns the URL of the section about a check.
func (in Inputs) documentation(id string) string { return in.documents() + "checks.md#" + id }

// skippedBecause returns the ID of the check whose result is the reason to skip this one, or "". If that check was skipped as well, it returns
// the check whose result caused that.
func skippedBecause(c Check, results map[string]Line) string {
	root := func(id string) (string, Verdict) {
		line, made := results[id]
		if made && line.SkippedBecause != "" {
			line = results[line.SkippedBecause]
		}
		return line.ID, line.Result
	}
	for _, id := range c.Needs {
		if cause, result := root(id); result == Fail || result == Unknown {
			return cause
		}
	}
	for _, id := range c.ExplainedBy {
		if cause, result := root(id); result == Fail {
			return cause
		}
	}
	return ""
}

// summarize returns the worst result, and a sentence about the first check with that result.
func summarize(lines []Line) (Verdict, string) {
	count := countResults(lines)
	about := func(result Verdict) string {
		line := lines[firstWith(lines, result)]
		return fmt.Sprintf("%s (%s): %s", line.Category, line.ID, line.Detail)
	}
	switch {
	case count[Fail] > 0:
		return Fail, "Failed: " + about(Fail)
	case count[Unknown] > 0:
		return Unknown, "Could not find out: " + about(Unknown)
	case count[Warn] > 0:
		return Warn, fmt.Sprintf("No check failed, %d of %d with a warning: %s", count[Warn], len(lines), about(Warn))
	}
	return Pass, fmt.Sprintf("All %d checks passed.", len(lines))
}

// countResults counts the lines by result; those of skipped checks by "".
func countResults(lines []Line) map[Verdict]int {
	count := map[Verdict]int{}
	for _, line := range lines {
		if line.SkippedBecause != "" {
			line.Result = ""
		}
		count[line.Result]++
	}
	return count
}

// firstWith returns the index of the first check with a result that was not skipped, or -1.
func firstWith(lines []Line, result Verdict) int {
	return slices.IndexFunc(lines, func(l Line) bool { return l.Result == result && l.SkippedBecause == "" })
}

// ExitCode returns the exit code of a program that prints the Diagnosis.
func (d Diagnosis) ExitCode() int {
	switch d.Result {
	case Fail:
		return ExitFailed
	case Unknown:
		return ExitUnknown
	default:
		return ExitGood
	}
}
