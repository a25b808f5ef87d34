package bench

import (
	"cmp"
	"io"
)

// Options says what to measure, and how much of it.
type Options struct {
	// Hub is the program of the hub. Required.
	Hub string
	// Binaries is the folder with etcd, kube-apiserver and kube-controller-manager; empty means that of this repository.
	Binaries string
	// Storm is how many agents register at once; 0 means 1000.
	Storm int
	// InFlight is how many of them have sent a request that is not answered; 0 means 200.
	InFlight int
	// Imports is how many clusters the hub imports at once; 0 means 200.
	Imports int
	// Sizes are the numbers of clusters at which the costs of growth are measured; none means 100 and 1000.
	Sizes []int
	// Only names the parts to measure; none means all.
	Only []string
	// Log gets the progress. Required.
	Log io.Writer
}

func (o Options) withDefaults() Options {
	o.Storm, o.InFlight, o.Imports = cmp.Or(o.Storm, 1000), cmp.Or(o.InFlight, 200), cmp.Or(o.Imports, 200)
	if len(o.Sizes) == 0 {
		o.Sizes = []int{100, 1000}
	}
	return o
}
