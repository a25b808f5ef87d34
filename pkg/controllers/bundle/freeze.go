package bundle

import fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"

// freeze leaves the BundleDeployments of a quarantined Cluster as they are. An agent that has lost every right may still
// have a watch open, for rights are looked at when a request begins; what is not written cannot reach it. Bundles do not
// wait for such a Cluster.
func (p *pass) freeze(all []*fleet.BundleDeployment) {
	for _, d := range all {
		if isOf(d, p.cluster.Namespace) {
			p.keep(d)
		}
	}
	for _, b := range p.candidates(p.memberOf(p.cluster)) {
		p.arrived = append(p.arrived, keyOf(b))
	}
}
