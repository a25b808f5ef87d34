package clusterregistration

import (
	"context"

	"k8s.io/apimachinery/pkg/labels"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

// findReader finds the token the agent registers with: its ServiceAccount gets the right to read the credential.
func (p *pass) findReader(context.Context) result.Result {
	p.origin = registration.OriginOf(p.request, p.recording())
	claimed := p.request.Labels[fleet.RegistrationTokenLabel]
	candidates, err := p.candidates(claimed)
	if err != nil {
		return failed(err)
	}
	reader, refusal := p.choose(claimed, readersOf(candidates))
	if refusal != nil {
		return refused(refusal).In(p.RecheckDelay())
	}
	p.reader = reader
	for _, token := range candidates {
		if token.Name == reader.Name {
			p.token = token
		}
	}
	return ok
}

// keepReader finds the same token for a granted request. One that has expired takes the right to read with it.
func (p *pass) keepReader(ctx context.Context) result.Result {
	if out := p.findReader(ctx); out.Err != nil {
		return out
	}
	return ok
}

// candidates are the tokens the agent may hold. Agents that name none, which no current release does, may hold any of the
// namespace; only for them all are listed.
func (p *pass) candidates(claimed string) (usable []*fleet.ClusterRegistrationToken, err error) {
	var tokens []*fleet.ClusterRegistrationToken
	if claimed == "" {
		tokens, err = p.tokens.List(p.request.Namespace, labels.Everything())
	} else {
		tokens, err = p.tokens.GetByIndex(index.ByToken, index.Key(p.request.Namespace, claimed))
	}
	for _, token := range tokens {
		if token.DeletionTimestamp == nil && !registration.Expired(token, p.Clock.Now()) {
			usable = append(usable, token)
		}
	}
	return usable, err
}

// choose prefers what the API server recorded to what follows from there being but one token.
func (p *pass) choose(claimed string, candidates []registration.Token) (*registration.Token, *registration.Refusal) {
	if claimed == "" {
		if recorded := p.origin.TokenOf(p.request.Namespace, candidates); recorded != nil {
			return recorded, nil
		}
		return registration.MatchToken(claimed, nil, byName(candidates, registration.ImportTokenName(p.clusterName())), candidates)
	}
	if len(candidates) == 0 {
		return registration.MatchToken(claimed, nil, nil, nil)
	}
	return registration.MatchToken(claimed, &candidates[0], nil, nil)
}

func byName(tokens []registration.Token, name string) *registration.Token {
	for i := range tokens {
		if tokens[i].Name == name {
			return &tokens[i]
		}
	}
	return nil
}

func readersOf(tokens []*fleet.ClusterRegistrationToken) []registration.Token {
	readers := make([]registration.Token, 0, len(tokens))
	for _, token := range tokens {
		readers = append(readers, readerOf(token))
	}
	return readers
}

func readerOf(token *fleet.ClusterRegistrationToken) registration.Token {
	return registration.Token{
		Name:           token.Name,
		ServiceAccount: registration.TokenServiceAccount(token.Name, string(token.UID)),
	}
}
