package clusterregistration

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/index"
	"github.com/muster-fleet/muster/pkg/controllers/outcome"
	"github.com/muster-fleet/muster/pkg/registration"
)

// findReader finds the token the agent registers with: its ServiceAccount gets the right to read the credential.
func (p *pass) findReader(context.Context) outcome.Outcome {
	claimed := p.request.Labels[fleet.RegistrationTokenLabel]
	named, err := p.namedToken(claimed)
	if err != nil {
		return failed(err)
	}
	importToken, err := p.importToken()
	if err != nil {
		return failed(err)
	}
	var all []registration.Token
	if claimed == "" && importToken == nil {
		all, err = p.namespaceTokens()
	}
	if err != nil {
		return failed(err)
	}
	reader, refusal := registration.MatchToken(claimed, named, importToken, all)
	if refusal != nil {
		return refused(refusal).In(p.RecheckDelay())
	}
	p.reader = reader
	return ok
}

// keepReader finds the same token for a granted request. One that has expired takes the right to read with it.
func (p *pass) keepReader(ctx context.Context) outcome.Outcome {
	if out := p.findReader(ctx); out.Err != nil {
		return out
	}
	return ok
}

func (p *pass) namedToken(claimed string) (*registration.Token, error) {
	if claimed == "" {
		return nil, nil
	}
	tokens, err := p.tokens.GetByIndex(index.ByToken, index.Key(p.request.Namespace, claimed))
	if err != nil || len(tokens) == 0 {
		return nil, err
	}
	return usable(tokens[0]), nil
}

func (p *pass) importToken() (*registration.Token, error) {
	token, err := p.tokens.Get(p.request.Namespace, registration.ImportTokenName(p.cluster.Name))
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return usable(token), nil
}

// namespaceTokens is for agents that name no token, which no current release makes: only for them the tokens of a
// namespace are listed.
func (p *pass) namespaceTokens() (all []registration.Token, err error) {
	tokens, err := p.tokens.List(p.request.Namespace, labels.Everything())
	for _, token := range tokens {
		if t := usable(token); t != nil {
			all = append(all, *t)
		}
	}
	return all, err
}

func usable(token *fleet.ClusterRegistrationToken) *registration.Token {
	if token.DeletionTimestamp != nil {
		return nil
	}
	return &registration.Token{
		Name:           token.Name,
		ServiceAccount: registration.TokenServiceAccount(token.Name, string(token.UID)),
	}
}
