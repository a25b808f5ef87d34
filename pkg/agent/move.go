package agent

import (
	"context"
	"fmt"
	"sync"

	"github.com/muster-fleet/muster/pkg/registration"
)

// tryOther asks the hub on the other way the agent was told of, if there is one.
func (l *life) tryOther(ctx context.Context, s *situation) {
	switch {
	case s.other == nil:
	case s.other.err != nil:
		s.There, s.thereErr = Unreachable, s.other.err
	default:
		var there *hub
		there, s.There, s.thereErr = l.askOn(ctx, s.stored.access.at(*s.other), s.other.mode)
		there.close()
	}
}

// move stores the other way, on which the credential works, with one write: there is no moment at which the agent knows of
// none. A Secret somebody else wrote in between fails the write.
func (l *life) move(ctx context.Context, s *situation) error {
	err := l.rewrite(ctx, s, s.stored.moved(*s.other, s.sources.settled()))
	if err != nil {
		l.complain(ctx, err)
		return err
	}
	l.log.Infof("The credential works at %s: stored in Secret %s/%s, and used from now on",
		s.other, l.member.namespace, registration.CredentialSecret)
	return nil
}

func (l *life) rewrite(ctx context.Context, s *situation, credential *stored) error {
	secret, err := credential.secret(l.member.namespace, s.storedSecret)
	if err != nil {
		return err
	}
	return l.member.write(ctx, secret, true)
}

// pin writes down by which TLS mode the credential works, which Secrets of earlier agents do not say: the configured mode
// may change, and then this is the one to fall back to.
func (l *life) pin(ctx context.Context, s *situation) error {
	if !s.unpinned {
		return nil
	}
	return l.rewrite(ctx, s, s.stored)
}

// note remembers for the heartbeat that the other way does not work, and why, and logs it when that is new.
func (l *life) note(action Action, s *situation) {
	if s.other == nil || action == MoveStored {
		l.notice.set("", "")
		return
	}
	why := whyNotThere(s)
	if l.notice.set(fmt.Sprint(s.other, s.There), brief(fmt.Sprintf("%s: %s", s.other, why))) {
		l.log.Warnf("Cannot go over to %s: %s. The agent keeps the way it has, at %s, and tries again", s.other, why, s.stored.access.server)
	}
}

func whyNotThere(s *situation) string {
	if s.There == Refuses {
		return fmt.Sprintf("the hub there refuses the stored credential: %v", s.thereErr)
	}
	if s.other.err != nil {
		return s.other.err.Error()
	}
	return fmt.Sprintf("%s: %v", whyNoVerdict(s.There), s.thereErr)
}

// brief keeps a page of HTML that a proxy answered with out of a Cluster's status.
func brief(text string) string {
	const most = 400
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "..."
	}
	return text
}

// notice is what the hub is to know beside the heartbeat's usual report.
type notice struct {
	mutex  sync.Mutex
	about  string
	text   string
	change chan struct{}
}

// set says whether the notice is about something new. Only then the hub hears of it at once: another wording of the same
// can wait for the next heartbeat.
func (n *notice) set(about, text string) (changed bool) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	changed = n.about != about
	n.about, n.text = about, text
	if changed && n.change != nil {
		close(n.change)
		n.change = nil
	}
	return changed
}

// poke has the hub hear of everything at once.
func (n *notice) poke() {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if n.change != nil {
		close(n.change)
		n.change = nil
	}
}

// get returns the notice, and what is closed when it is about something else.
func (n *notice) get() (string, <-chan struct{}) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if n.change == nil {
		n.change = make(chan struct{})
	}
	return n.text, n.change
}
