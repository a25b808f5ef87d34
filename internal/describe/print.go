package describe

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/xlab/treeprint"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/muster-fleet/muster/internal/view"
)

// Print writes the Description as text.
func (d *Description) Print(w io.Writer, now time.Time) error {
	fmt.Fprint(w, d.Tree())
	if d.CredentialExpires != nil {
		left := fmt.Sprintf("%d days left", *d.CredentialDaysLeft)
		if !d.CredentialExpires.After(now) {
			left = "expired"
		}
		fmt.Fprintf(w, "\nCredential of the agent: expires %s (%s)\n", view.Until(d.CredentialExpires, now), left)
	}
	if len(d.Conditions) > 0 {
		fmt.Fprintln(w)
		var rows [][]string
		for _, c := range d.Conditions {
			rows = append(rows, []string{c.Type, string(c.Status), c.Reason, c.Message})
		}
		if err := view.PrintTable(w, []string{"CONDITION", "STATUS", "REASON", "MESSAGE"}, rows); err != nil {
			return err
		}
	}
	fmt.Fprintln(w)
	var rows [][]string
	for i, h := range d.Timeline {
		after := ""
		if i > 0 {
			after = "+" + duration.HumanDuration(time.Duration(h.AfterSeconds*float64(time.Second)))
		}
		rows = append(rows, []string{view.Ago(&metav1.Time{Time: h.Time.Time}, now), after, h.Object, h.What, h.Message})
	}
	if err := view.PrintTable(w, []string{"SEEN", "AFTER", "OBJECT", "WHAT", "MESSAGE"}, rows); err != nil {
		return err
	}
	if len(d.Incomplete) > 0 {
		fmt.Fprintf(w, "\nNot everything could be read:\n")
		for _, what := range d.Incomplete {
			fmt.Fprintln(w, "  "+view.Printable(what))
		}
	}
	return nil
}

// Tree returns the cluster and its objects as a tree.
func (d *Description) Tree() string {
	root := "no Cluster " + d.Namespace + "/" + d.Name + " yet"
	if d.Cluster != nil {
		root = title(&Related{
			Kind: "Cluster", Namespace: d.Namespace, Name: d.Name, State: d.Cluster.State, Reason: d.Cluster.Reason, Message: d.Cluster.Message,
		}) + " [" + d.Cluster.WayIn + "]"
	}
	tree := treeprint.NewWithRoot(root)
	grow(tree, d.Objects)
	return tree.String()
}

func grow(tree treeprint.Tree, objects []*Related) {
	for _, r := range objects {
		if len(r.Objects) == 0 {
			tree.AddNode(title(r))
			continue
		}
		grow(tree.AddBranch(title(r)), r.Objects)
	}
}

// title returns "Kind namespace/name: State, Reason (message)".
func title(r *Related) string {
	text := r.Kind + " " + strings.TrimPrefix(r.Namespace+"/"+r.Name, "/")
	if r.State != "" {
		text += ": " + r.State
	}
	if r.Reason != "" && r.Reason != r.State {
		text += ", " + r.Reason
	}
	if r.Message != "" {
		text += " (" + r.Message + ")"
	}
	return view.Printable(text)
}
