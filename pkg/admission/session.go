package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

const (
	stepRetry    = 200 * time.Millisecond
	stepRetryMax = time.Minute
	stepTimeout  = 15 * time.Second
)

// session watches the policies in the versions that the API server serves now.
type session struct {
	*Monitor
	wanted  []*unstructured.Unstructured
	factory dynamicinformer.DynamicSharedInformerFactory
	changed chan struct{}
	failed  chan error
	proven  string // the print of the objects that a dry run has shown to work
	lacking string // what was logged last of the other policies
}

// session returns when the policies cannot be watched, with the reason; worked says that they were for a while.
func (m *Monitor) session(ctx context.Context) (worked bool, err error) {
	version, err := ServedVersion(m.discovery)
	if err != nil {
		return false, err
	}
	wanted, err := Objects(version)
	if err != nil {
		return false, err
	}
	s := &session{Monitor: m, wanted: wanted, changed: make(chan struct{}, 1), failed: make(chan error, 1)}
	if version == "" {
		return false, s.withoutMutation(ctx)
	}
	s.factory = dynamicinformer.NewFilteredDynamicSharedInformerFactory(m.dynamic, 0, metav1.NamespaceAll, managedOnly)
	ctx, stop := context.WithCancel(ctx)
	defer func() { stop(); s.factory.Shutdown() }()
	if err := s.watch(ctx); err != nil {
		return false, err
	}
	return s.live(ctx)
}

// withoutMutation: what the agents may do is bounded even where nobody knows who creates a request.
func (s *session) withoutMutation(ctx context.Context) error {
	if s.options.Install {
		if err := s.install(ctx); err != nil {
			return fmt.Errorf("%w; and %w", errNotServed, err)
		}
	}
	return errNotServed
}

// watch begins to. The objects are installed first, for nothing is to be told of a state that does not last.
func (s *session) watch(ctx context.Context) error {
	if s.options.Install {
		if err := s.install(ctx); err != nil {
			logrus.Warnf("Cannot install the admission policies of the hub; those that are there are used: %v", err)
		}
	}
	for resource := range s.kinds() {
		if err := s.listen(s.factory.ForResource(resource).Informer()); err != nil {
			return err
		}
	}
	s.factory.Start(ctx.Done())
	return nil
}

func (s *session) kinds() map[schema.GroupVersionResource]bool {
	kinds := map[schema.GroupVersionResource]bool{}
	for _, object := range s.wanted {
		kinds[Resource(object)] = true
	}
	return kinds
}

func managedOnly(o *metav1.ListOptions) {
	o.LabelSelector = fleet.ManagedLabel + "=" + fleet.ManagedValue
}

func (s *session) listen(informer cache.SharedIndexInformer) error {
	if err := informer.SetWatchErrorHandlerWithContext(s.watchFailed); err != nil {
		return err
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { s.wake() },
		UpdateFunc: func(any, any) { s.wake() },
		DeleteFunc: func(any) { s.wake() },
	})
	return err
}

func (s *session) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// watchFailed ends the session for what does not pass by itself: a right, or a version that is served no more.
func (s *session) watchFailed(ctx context.Context, reflector *cache.Reflector, err error) {
	if !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) && !apierrors.IsUnauthorized(err) {
		cache.DefaultWatchErrorHandler(ctx, reflector, err)
		return
	}
	select {
	case s.failed <- err:
	default:
	}
}

func (s *session) live(ctx context.Context) (worked bool, err error) {
	if err := s.synced(ctx); err != nil {
		return false, err
	}
	delay := stepRetry
	for {
		var retry <-chan time.Time
		if err := s.step(ctx); err != nil {
			retry, delay = s.options.Clock.After(delay), min(2*delay, stepRetryMax)
		} else {
			delay = stepRetry
		}
		select {
		case <-ctx.Done():
			return true, ctx.Err()
		case err := <-s.failed:
			return true, err
		case <-s.changed:
			delay = stepRetry // what failed was about something else
		case <-retry:
		}
	}
}

func (s *session) synced(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	synced := make(chan struct{})
	go func() {
		defer close(synced)
		s.factory.WaitForCacheSync(ctx.Done())
	}()
	select {
	case err := <-s.failed:
		return err
	case <-synced:
		return ctx.Err()
	}
}

// step looks, puts right what is wrong, tries what is new, and tells. After an error it is taken again.
func (s *session) step(ctx context.Context) error {
	found := compare(s.wanted, s.get)
	var err error
	if s.options.Install && len(found.wrong)+len(found.others) > 0 {
		err = s.install(ctx)
	}
	s.warn(found.others)
	if len(found.wrong) > 0 {
		s.set(answer{missing: because(describe(found.wrong), err)})
		return err
	}
	if errTry := s.try(ctx, found.print); errTry != nil {
		if ctx.Err() == nil {
			s.set(answer{missing: explain(errTry)})
		}
		return errTry
	}
	s.set(answer{since: found.since.Add(settle)})
	return err
}

func because(text string, err error) string {
	if err == nil {
		return text
	}
	return fmt.Sprintf("%s (%v)", text, err)
}

func (s *session) try(ctx context.Context, fingerprint string) error {
	if s.proven == fingerprint {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if err := Probe(ctx, s.requests); err != nil {
		return err
	}
	s.proven = fingerprint
	return nil
}

func (s *session) install(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	return Install(ctx, s.dynamic, s.wanted)
}

// get reads from memory; nil means that it is not there.
func (s *session) get(want *unstructured.Unstructured) *unstructured.Unstructured {
	object, err := s.factory.ForResource(Resource(want)).Lister().Get(want.GetName())
	if err != nil {
		return nil
	}
	got, _ := object.(*unstructured.Unstructured)
	return got
}

// warn logs what is wrong with the policies that bound the agents, when it changes.
func (s *session) warn(others []string) {
	lacking := strings.Join(slices.Sorted(slices.Values(others)), ", ")
	if lacking != "" && lacking != s.lacking {
		logrus.Warnf("Agents are held to less than they should be: %s", describe(others))
	}
	s.lacking = lacking
}
