package agent

import "sync"

// tokens are those of a session: the one in use, and beside it the one that comes after it, or came before, while a renewal
// is being stored.
type tokens struct {
	mutex          sync.Mutex
	current, other string
}

func newSession(h *hub, credential *stored) *session {
	return &session{hub: h, credential: credential, tokens: tokens{current: credential.access.token}}
}

// token is the one in use.
func (t *tokens) token() string {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.current
}

// expect says that a token is about to be stored.
func (t *tokens) expect(token string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.other = token
}

// goOver uses another token from the next request on. What is under way goes on.
func (s *session) goOver(token string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.current, s.other = token, s.current
	s.hub.bearer.use(token)
}

// holds says that a session with that credential would do what this one does. Both tokens count: between the moment a
// renewed one is stored and the moment it is used, whoever looks may find either.
func (s *session) holds(found *stored) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, token := range []string{s.current, s.other} {
		if token != "" && found.sameWork(s.credential.renewed(token)) {
			return true
		}
	}
	return false
}
