package deploy

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/muster-fleet/muster/pkg/release"
)

// shelf knows which revisions of which releases of this agent there are. A watch fills it, and each deployment puts its own
// result there at once, because the watch may be late.
type shelf struct {
	mu        sync.Mutex
	revisions map[string]map[revision]release.Found // by BundleDeployment
	changed   func(deployment string)
}

type revision struct {
	namespace, name string
	version         int
}

func newShelf(changed func(string)) *shelf {
	return &shelf{revisions: map[string]map[revision]release.Found{}, changed: changed}
}

func (s *shelf) put(f release.Found) {
	s.mu.Lock()
	defer s.mu.Unlock()
	deployment := f.Labels[release.DeploymentLabel]
	if s.revisions[deployment] == nil {
		s.revisions[deployment] = map[revision]release.Found{}
	}
	s.revisions[deployment][revision{f.Namespace, f.Name, f.Version}] = f
}

func (s *shelf) drop(f release.Found) {
	s.mu.Lock()
	defer s.mu.Unlock()
	deployment := f.Labels[release.DeploymentLabel]
	delete(s.revisions[deployment], revision{f.Namespace, f.Name, f.Version})
	if len(s.revisions[deployment]) == 0 {
		delete(s.revisions, deployment)
	}
}

// forget is told what was removed, before the watch says so.
func (s *shelf) forget(deployment, namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at := range s.revisions[deployment] {
		if at.namespace == namespace && at.name == name {
			delete(s.revisions[deployment], at)
		}
	}
}

// of are the newest revisions of the releases of a BundleDeployment: one, but for leftovers under other names.
func (s *shelf) of(deployment string) []release.Found {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []release.Found
	for _, f := range s.revisions[deployment] {
		all = append(all, f)
	}
	return release.Newest(all)
}

// deployments are those that have releases.
func (s *shelf) deployments() (keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.revisions {
		keys = append(keys, key)
	}
	return keys
}

// handler is for the watch of the Secrets.
func (s *shelf) handler() cache.ResourceEventHandler {
	tell := func(object any, do func(release.Found)) {
		if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = tombstone.Obj
		}
		if secret, ok := object.(metav1.Object); ok {
			found := release.FoundIn(secret)
			do(found)
			s.changed(found.Labels[release.DeploymentLabel])
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { tell(o, s.put) },
		UpdateFunc: func(_, o any) { tell(o, s.put) },
		DeleteFunc: func(o any) { tell(o, s.drop) },
	}
}
