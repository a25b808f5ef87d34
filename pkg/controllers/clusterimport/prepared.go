package clusterimport

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/pkg/config"
)

// prepared is what a Cluster is imported with: its kubeconfig Secret, and the connection made of it.
type prepared struct {
	secret *corev1.Secret // nil where nothing is prepared
	mode   config.TLSMode
	member *member // nil as long as only the Secret was read
}

// preparations are kept while an import is under way: its Cluster is looked at whenever something that it waits for has
// happened, and to read the Secret each time would be most of what an import reads. The zero preparations are ready to use.
type preparations struct{ by sync.Map }

// of are those of a Cluster, if they were made of this version of the Secret.
func (p *preparations) of(key types.NamespacedName, secretVersion string) prepared {
	if known, found := p.by.Load(key); found && version(known.(prepared).secret) == secretVersion {
		return known.(prepared)
	}
	return prepared{}
}

func (p *preparations) keep(key types.NamespacedName, now prepared) { p.by.Store(key, now) }

func (p *preparations) drop(key types.NamespacedName) { p.by.Delete(key) }
