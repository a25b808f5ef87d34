package fleetstatus

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/rancher/wrangler/v3/pkg/summary"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Limits of the part of an agent's report that the hub keeps in memory and copies to other objects. Texts are limited in bytes.
const (
	maxListed   = 10
	maxListSize = 16 << 10 // of all texts of a list
	maxText     = 2048     // of a message or a patch
	maxName     = 256      // of a name, a reason or a time
)

// Shorten returns the part of a status that the hub uses: the first conditions and objects, with shortened texts, and no resources.
// Agents write the status, so it may be as large as the API server permits. The argument is not changed.
func Shorten(s fleet.BundleDeploymentStatus) fleet.BundleDeploymentStatus {
	s.Conditions = shortened(s.Conditions, func(c *genericcondition.GenericCondition) ([]*string, []*string) {
		return []*string{&c.Type, (*string)(&c.Status), &c.Reason, &c.LastUpdateTime, &c.LastTransitionTime}, []*string{&c.Message}
	})
	s.NonReadyStatus, s.ModifiedStatus = ShortenNonReady(s.NonReadyStatus), ShortenModified(s.ModifiedStatus)
	s.Resources = nil
	for _, text := range []*string{&s.AppliedDeploymentID, &s.Release, &s.Display.State} {
		*text = Cut(*text, maxText)
	}
	// The display of a shortened condition is the same text.
	s.Display.Deployed, s.Display.Monitored = Cut(s.Display.Deployed, maxText+len(displayedError)), Cut(s.Display.Monitored, maxText+len(displayedError))
	return s
}

// ShortenNonReady returns the first objects, with shortened texts.
func ShortenNonReady(all []fleet.NonReadyStatus) []fleet.NonReadyStatus {
	return shortened(all, func(o *fleet.NonReadyStatus) ([]*string, []*string) {
		var messages []*string
		o.Summary.Message = slices.Clone(o.Summary.Message[:min(len(o.Summary.Message), maxListed)])
		for i := range o.Summary.Message {
			messages = append(messages, &o.Summary.Message[i])
		}
		return []*string{&o.UID, &o.Kind, &o.APIVersion, &o.Namespace, &o.Name, &o.Summary.State}, messages
	})
}

// ShortenModified returns the first objects, with shortened texts.
func ShortenModified(all []fleet.ModifiedStatus) []fleet.ModifiedStatus {
	return shortened(all, func(o *fleet.ModifiedStatus) ([]*string, []*string) {
		return []*string{&o.Kind, &o.APIVersion, &o.Namespace, &o.Name}, []*string{&o.Patch}
	})
}

// shortened returns the first items of a list. parts returns the names and the texts of an item.
func shortened[T any](all []T, parts func(*T) (names, texts []*string)) []T {
	var first []T
	room := maxListSize
	for _, item := range all[:min(len(all), maxListed)] {
		names, texts := parts(&item)
		for _, name := range names {
			*name = Cut(*name, maxName)
			room -= len(*name)
		}
		for _, text := range texts {
			*text = Cut(*text, maxText)
			room -= len(*text)
		}
		if room < 0 {
			break
		}
		first = append(first, item)
	}
	return slices.Clip(first)
}

// Cut returns at most so many bytes of a text. It does not keep the rest in memory.
func Cut(text string, limit int) string {
	const ellipsis = "..."
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit-len(ellipsis)], "") + ellipsis
}

// SummaryText describes the state of an object in the words of Fleet.
func SummaryText(s fleet.ResourceSummary) string {
	return summary.Summary{State: s.State, Error: s.Error, Transitioning: s.Transitioning, Message: s.Message}.String()
}

// DifferenceText describes how an object differs from what was deployed, in the words of Fleet.
func DifferenceText(m fleet.ModifiedStatus) string {
	switch {
	case m.Exist:
		return "is not owned by us"
	case m.Create:
		return "missing"
	case m.Delete:
		return "extra"
	case m.Patch == "":
		return "modified"
	}
	return "modified " + m.Patch
}

// WithoutPatches removes the differences from a message with texts of DifferenceText: they contain values of deployed objects.
func WithoutPatches(message string) string {
	const start = "modified "
	var kept strings.Builder
	for {
		before, after, isFound := strings.Cut(message, start+"{")
		kept.WriteString(before)
		if !isFound {
			return kept.String()
		}
		kept.WriteString(strings.TrimSpace(start))
		patch := json.NewDecoder(strings.NewReader("{" + after))
		if patch.Decode(&json.RawMessage{}) != nil {
			return kept.String() // it was shortened, so its end is unknown
		}
		message = after[patch.InputOffset()-1:]
	}
}
