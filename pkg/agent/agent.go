// Package agent runs the agent of a member cluster: it registers with the hub, works with the credential it gets, and recovers
// from failures of itself, its cluster and the hub.
//
// Run waits until this process holds the Lease of the agents in its namespace, and starts the loop. Each iteration of the loop observes the objects
// on the member and the hub's verdict on the credential, decides (both in observe.go) and acts. The packages below know the details:
//
//	register    obtains a credential with the bootstrap Secret
//	credential  stores, uses and renews the credential
//	heartbeat   reports the agent and its cluster to the hub
//	deploy      deploys the Bundles
//	uninstall   removes the agent from its cluster
//	hubclient   endpoints, TLS, connections, and the meaning of the hub's answers
//	member      the API server of the agent's own cluster
//	timing      the durations and backoffs of registration, renewal and heartbeat
package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/pkg/agent/credential"
	"github.com/muster-fleet/muster/pkg/agent/deploy"
	"github.com/muster-fleet/muster/pkg/agent/heartbeat"
	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	"github.com/muster-fleet/muster/pkg/agent/member"
	"github.com/muster-fleet/muster/pkg/agent/register"
	"github.com/muster-fleet/muster/pkg/agent/timing"
	"github.com/muster-fleet/muster/pkg/agent/uninstall"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/leader"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/release"
)

// Run runs the agent until ctx ends, and then returns nil with nothing left running. It returns an error when the configuration
// is wrong or the Lease was lost: the process should end then and be restarted. It retries after every other failure, on the
// member or the hub.
func Run(ctx context.Context, c Config) error {
	c, err := c.withDefaults()
	if err != nil {
		return err
	}
	m, err := member.New(c.Member, c.Namespace, c.userAgent(), c.Timing.Request)
	if err != nil {
		return err
	}
	defer m.Close()
	if c.Metrics != nil {
		c.heartbeats = heartbeat.NewAgentMetrics(c.Version)
		if err := c.Metrics.Register(c.heartbeats); err != nil {
			return fmt.Errorf("registering the metrics of the agent (two agents cannot use the same registry): %w", err)
		}
		defer c.Metrics.Unregister(c.heartbeats)
	}
	c.Log.Infof("Agent %s starting in namespace %s (scope %q)", c.Version, c.Namespace, c.Scope)
	return lead(ctx, c, func(ctx context.Context) error {
		runLoop(ctx, c, m, deploy.Run)
		return nil
	})
}

// lead does the work while this process holds the Lease of the agents in its namespace.
func lead(ctx context.Context, c Config, work func(context.Context) error) error {
	if c.LeaderElection == nil {
		return work(ctx)
	}
	return leader.Run(ctx, leader.Config{
		Client:    c.Member,
		Namespace: c.Namespace,
		Name:      registration.AgentName,
		Identity:  c.LeaderElection.Identity,
		OnWaiting: func(string) { c.OnState("standing by: another agent of this namespace holds the Lease") },
		Times:     c.LeaderElection.Times,
	}, work)
}

// deployFunc is deploy.Run, or a replacement in a test.
type deployFunc func(context.Context, deploy.Config) error

// loop is the state of the agent between two iterations.
type loop struct {
	config  Config
	log     logrus.FieldLogger
	member  *member.Member
	changed <-chan struct{} // receives a signal when an object that configures the registration has changed
	deploy  deployFunc

	dialer      *hubclient.Dialer
	heartbeat   *heartbeat.Heartbeat
	renewer     *credential.Renewer
	registrar   *register.Registrar
	uninstaller *uninstall.Uninstaller

	rejectionReported bool // by an event; see announce
}

// runLoop runs the loop, and beside it the watch on the Secrets and ConfigMaps that configure the registration, until ctx ends.
func runLoop(ctx context.Context, c Config, m *member.Member, deploying deployFunc) {
	ctx, stop := context.WithCancel(ctx)
	changed := make(chan struct{}, 1)
	var watching sync.WaitGroup
	watching.Go(func() { m.WatchConfiguration(ctx, changed) })
	defer watching.Wait()
	defer stop()

	l := &loop{
		config: c, log: c.Log, member: m, changed: changed, deploy: deploying,
		dialer:      &hubclient.Dialer{UserAgent: c.userAgent(), Timing: *c.Timing, Clock: c.Clock, Log: c.Log},
		uninstaller: &uninstall.Uninstaller{Member: m, Scope: c.Scope, Log: c.Log},
	}
	l.heartbeat = &heartbeat.Heartbeat{
		Member: m, Clock: c.Clock, Timing: *c.Timing, Log: c.Log, Interval: c.CheckinInterval,
		Version: c.Version, Generation: c.Generation, Instance: newInstance(),
		Metrics: c.heartbeats,
	}
	l.renewer = &credential.Renewer{
		Member: m, Dialer: l.dialer, Clock: c.Clock, Timing: *c.Timing, Log: c.Log, Lifetime: c.CredentialLifetime,
		Event: l.event, Renewed: l.heartbeat.Notes.SendNow,
	}
	l.registrar = &register.Registrar{
		Member: m, Dialer: l.dialer, Clock: c.Clock, Timing: *c.Timing, Log: c.Log,
		Pod: c.Pod, HeartbeatLease: c.HeartbeatLease, Changed: changed, OnState: c.OnState, Event: l.event,
	}
	l.run(ctx)
}

// untilChange is a pause that only a change ends.
const untilChange = time.Duration(-1)

// run is the agent's loop: observe, decide, act, wait. It ends with ctx.
//
// What the agent does while it is registered (heartbeats, renewals, deployments) are runnables beside the loop. They work with one
// credential and go on while the loop observes and acts, even while the agent registers again. The loop waits for them to end,
// for a change and for the next iteration at the same time.
func (l *loop) run(ctx context.Context) {
	var running *runnables // nil while the agent does not work with a credential
	defer func() { _ = running.stop() }()
	retry := l.config.Timing.Retry()
	replaced := 0       // how often act has stored another credential or endpoint since the agent last began to work with one
	conflicted := false // the last iteration could not write a newer token, because the Secret had changed
	for ctx.Err() == nil {
		if running.ended() {
			failed := l.finish(ctx, running.stop())
			if running = nil; failed {
				l.wait(ctx, retry.Step(), nil)
			}
			continue
		}

		// Observe. The end of the runnables cancels the work of this iteration: the credential no longer works then.
		work := running.context(ctx)
		o, err := l.observe(work, running)
		if err != nil {
			l.logError(work, "Cannot read the objects of the agent, trying again", err)
			l.wait(ctx, retry.Step(), running)
			continue
		}
		if o.mustStop {
			_ = running.stop() // ended on purpose
			running = nil
			continue
		}
		if o.newerToken != "" {
			err := o.stored.WithToken(o.newerToken).Replace(work, l.member, o.storedSecret)
			if conflicted = apierrors.IsConflict(err) && !conflicted; conflicted {
				continue // a renewal has stored a token since the Secret was read
			}
			if err != nil {
				l.logError(work, "Cannot write the newer token of the credential back to Secret "+registration.CredentialSecret, err)
				l.wait(ctx, retry.Step(), running)
				continue
			}
			l.log.Warnf("Secret %s/%s had an earlier token of the credential: the member was probably restored from a backup. The agent has written the newer one back",
				l.member.Namespace, registration.CredentialSecret)
			continue
		}
		conflicted = false
		if work.Err() != nil {
			o.conn.Close()
			continue
		}

		// Decide.
		action := Decide(o.facts)
		l.announce(ctx, action, o, running != nil)

		// Act.
		if running == nil && action.usesStored() {
			running = l.start(ctx, o.conn, o.stored, o.settings)
			work, o.conn = running.context(ctx), nil
			retry, replaced = l.config.Timing.Retry(), 0
		}
		running.setCompareInterval(o.settings)
		pause, err := l.act(ctx, work, action, o, running, retry)
		o.conn.Close()
		if err == nil && action.replacesStored() {
			replaced++
		}

		// Wait.
		switch {
		case errors.Is(err, register.ErrInputChanged):
			pause = 0
		case err != nil:
			pause = retry.Step()
		case pause == 0 && replaced > 1: // a credential that was replaced before it was used must not be replaced again at once
			pause = retry.Step()
		}
		if changed := l.wait(ctx, pause, running); changed {
			retry = l.config.Timing.Retry()
		}
	}
}

// act carries out the action, and returns how long the loop then waits. Work ends with the runnables.
func (l *loop) act(
	ctx, work context.Context, action Action, o observation, running *runnables, retry *wait.Backoff,
) (pause time.Duration, err error) {
	switch action {
	case UseStored:
		return l.cleanUp(work, o, running.started)
	case KeepEndpoint:
		return retry.Step(), l.recordMode(work, o)
	case SwitchEndpoint:
		return 0, l.switchEndpoint(work, o)
	case Register, UseStoredAndRegister:
		return 0, l.register(work, o, running)
	case Uninstall:
		if running == nil {
			err = l.uninstall(ctx)
		}
		return untilChange, err // while the runnables run, package deploy reports to the hub that everything is removed
	default: // WaitForBootstrap, WaitForHub, ReportRejected
		return retry.Step(), nil
	}
}

// wait waits for the pause or until a change; for untilChange until a change only. It also ends with ctx and with the runnables. It
// reports whether there was a change.
func (l *loop) wait(ctx context.Context, pause time.Duration, running *runnables) (changed bool) {
	if pause == 0 {
		return false
	}
	work := running.context(ctx)
	if pause == untilChange {
		select {
		case <-work.Done():
			return false
		case <-l.changed:
			return true
		}
	}
	return timing.Pause(work, l.config.Clock, pause, l.changed)
}

// runnables are what the agent runs with one credential. A nil *runnables stands for no runnables: none were started, or they were stopped.
type runnables struct {
	use     *credential.InUse
	started time.Time
	// compareInterval is the interval at which all objects of the releases are compared with the cluster: garbageCollectionInterval in the
	// configuration of the agent. compareIntervals passes a new one to the deployments.
	compareInterval  time.Duration
	compareIntervals chan time.Duration

	ctx    context.Context // ends with the first of the runnables
	cancel context.CancelFunc
	group  *errgroup.Group
}

// start starts the runnables. Each of them runs until its context ends, or returns an error that ends all of them.
func (l *loop) start(ctx context.Context, conn *hubclient.Connection, stored *credential.Stored, settings config.Agent) *runnables {
	r := &runnables{
		use: credential.NewInUse(conn, stored), started: l.config.Clock.Now(),
		compareInterval: settings.GarbageCollectionInterval.Duration, compareIntervals: make(chan time.Duration, 1),
	}
	first := r.compareInterval // setCompareInterval changes it
	ctx, r.cancel = context.WithCancel(ctx)
	r.group, r.ctx = errgroup.WithContext(ctx)
	run := func(name string, runnable func(context.Context, *credential.InUse) error) {
		r.group.Go(func() error {
			if err := runnable(r.ctx, r.use); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	run("heartbeat", l.heartbeat.Run)
	run("renewal", l.renewer.Run)
	run("deploy", func(ctx context.Context, use *credential.InUse) error {
		return l.deployBundles(ctx, use, first, r.compareIntervals)
	})
	return r
}

// setCompareInterval passes a changed interval to the deployments. One that they have not received yet is replaced.
func (r *runnables) setCompareInterval(settings config.Agent) {
	if r == nil || r.compareInterval == settings.GarbageCollectionInterval.Duration {
		return
	}
	r.compareInterval = settings.GarbageCollectionInterval.Duration
	select {
	case <-r.compareIntervals:
	default:
	}
	r.compareIntervals <- r.compareInterval
}

// context ends with the runnables; without runnables it is the given one.
func (r *runnables) context(ctx context.Context) context.Context {
	if r == nil {
		return ctx
	}
	return r.ctx
}

// ended reports whether one of the runnables has returned an error, which ends all of them.
func (r *runnables) ended() bool { return r != nil && r.ctx.Err() != nil }

// stop ends the runnables, waits for their end, and returns the first error.
func (r *runnables) stop() error {
	if r == nil {
		return nil
	}
	r.cancel()
	err := r.group.Wait()
	r.use.Conn.Close()
	return err
}

// finish handles the end of runnables, and reports whether they have failed, so that the loop must pause before the next iteration.
func (l *loop) finish(ctx context.Context, err error) (failed bool) {
	switch {
	case ctx.Err() != nil, err == nil, errors.Is(err, credential.ErrReplaced):
		return false
	case errors.Is(err, deploy.ErrUninstall):
		l.log.Info("The hub has asked this agent to uninstall itself, and everything it deployed is removed: the agent uninstalls itself")
		return false
	}
	l.log.Warnf("The work with the stored credential has ended, reading Secret %s again: %v", registration.CredentialSecret, err)
	return true
}

// deployBundles runs package deploy on the connection to the hub.
func (l *loop) deployBundles(ctx context.Context, use *credential.InUse, compareInterval time.Duration, compareIntervals <-chan time.Duration) error {
	rejections := hubclient.NewRejectionThreshold(*l.config.Timing)
	stored := use.Current()
	return l.deploy(ctx, deploy.Config{
		Hub: use.Conn.Fleet, Watching: use.Conn.Watching, HubCore: use.Conn.Core,
		HubID:                  stored.HubID(),
		Namespace:              use.Conn.Namespace,
		Workspace:              stored.Workspace,
		ClusterName:            stored.ClusterName,
		Member:                 rest.AddUserAgent(rest.CopyConfig(l.config.Member), l.config.userAgent()),
		AgentNamespace:         l.config.Namespace,
		Scope:                  l.config.Scope,
		Workers:                l.config.Workers,
		DriftWorkers:           l.config.DriftWorkers,
		CompareInterval:        compareInterval,
		CompareIntervalChanged: compareIntervals,
		CheckRejection:         func(err error) error { return rejections.Check(err, l.config.Clock.Now()) },
		BeginUninstall:         l.uninstaller.Begin,
		ReportKept:             l.heartbeat.Notes.SetKeptReleases,
		ReportStalled:          l.heartbeat.Notes.SetDeploymentsStalled,
		Log:                    l.log.WithField(registration.LogCluster, stored.Workspace+"/"+stored.ClusterName),
		Clock:                  l.config.Clock,
	})
}

// register makes one attempt to register. With runnables, the agent proves to the hub that the request is its own.
func (l *loop) register(ctx context.Context, o observation, running *runnables) error {
	in := register.Input{Identity: o.identity, Settings: o.settings, HubConfigDigest: o.endpoints.Digest()}
	if running != nil {
		in.ProvePossession = func(ctx context.Context, request string) {
			if err := l.heartbeat.ProvePossession(ctx, running.use, request); err != nil && ctx.Err() == nil {
				l.log.WithField(registration.LogRequest, request).Warnf("Cannot prove to the hub that ClusterRegistration %s is this agent's own, the next heartbeat tries again: %v", request, err)
			}
		}
	}
	if err := l.registrar.Register(ctx, in); err != nil {
		if !errors.Is(err, register.ErrInputChanged) {
			l.logError(ctx, "Failed to register agent", err)
		}
		return err
	}
	if o.facts.Uninstalling { // not before: the agent would use the earlier credential, and would be asked to uninstall itself again
		if err := l.uninstaller.Cancel(ctx); err != nil {
			l.logError(ctx, "Registered, but cannot cancel the uninstallation of the agent yet", err)
			return err
		}
	}
	l.heartbeat.Notes.SetPossessionProof("")
	return nil
}

// cleanUp deletes the objects of the registration, once the credential is in use, and returns the pause of the loop. A bootstrap Secret that
// cannot be parsed stays: a person may want to correct it.
//
// "helm install --wait" succeeds when all objects of the release are ready at the same moment. So a bootstrap Secret of a Helm
// release stays until the agent's own Deployment has become available.
func (l *loop) cleanUp(ctx context.Context, o observation, startedAt time.Time) (pause time.Duration, err error) {
	l.heartbeat.Notes.SetPossessionProof("")
	recordErr, err := l.recordMode(ctx, o), register.DeletePendingRequest(ctx, l.member)
	pause = untilChange
	if o.facts.Bootstrap == Present {
		helmWait := startedAt.Add(l.config.Timing.HelmWait).Sub(l.config.Clock.Now())
		if o.bootstrapSecret.Annotations[release.NameAnnotation] != "" && helmWait > 0 {
			pause = helmWait
		} else {
			pause = 0 // without the Secret, the endpoint may come from another object
			err = errors.Join(err, l.member.DeleteSecret(ctx, o.bootstrapSecret))
		}
	}
	if err != nil {
		err = fmt.Errorf("deleting the objects of the registration: %w", err)
	}
	if recordErr != nil {
		err = errors.Join(err, fmt.Errorf("recording the TLS mode with which the credential works: %w", recordErr))
	}
	if err != nil {
		l.log.Warn(err)
	}
	return pause, err
}

// recordMode stores the TLS mode with which the credential works, if Fleet's agent has stored the Secret without it: when the configured mode
// changes, the agent must keep a mode that works.
func (l *loop) recordMode(ctx context.Context, o observation) error {
	if !o.modeUnknown {
		return nil
	}
	return o.stored.Replace(ctx, l.member, o.storedSecret)
}

// switchEndpoint stores the other endpoint with one write. If the Secret has changed since it was read, the write fails.
func (l *loop) switchEndpoint(ctx context.Context, o observation) error {
	if err := o.stored.MovedTo(*o.other, o.endpoints.Bootstrap != nil, o.endpoints.Digest()).Replace(ctx, l.member, o.storedSecret); err != nil {
		l.logError(ctx, "Cannot switch to another endpoint of the hub", err)
		return err
	}
	l.log.Infof("The credential works at %s: stored in Secret %s/%s, and used from now on",
		o.other, l.member.Namespace, registration.CredentialSecret)
	return nil
}

// uninstall removes the agent and then waits to be stopped.
func (l *loop) uninstall(ctx context.Context) error {
	removed, err := l.uninstaller.Run(ctx, func(ctx context.Context) (bool, error) {
		o, err := l.observe(ctx, nil)
		o.conn.Close()
		return Decide(o.facts) == Uninstall, err
	})
	if err != nil {
		l.logError(ctx, "Cannot uninstall yet", err)
	}
	if removed {
		<-ctx.Done()
	}
	return err
}

// logError logs nothing when the work was cancelled.
func (l *loop) logError(ctx context.Context, what string, err error) {
	if ctx.Err() == nil {
		l.log.Errorf("%s: %v", what, err)
	}
}

// newInstance returns a name of this process: the name of its pod, by which a person finds it, and a random string, because a copy of the cluster
// can have a pod of the same name. The API limits its length to 64.
func newInstance() string {
	pod, _ := os.Hostname()
	random := strings.ReplaceAll(string(uuid.NewUUID()), "-", "")
	return strings.ToValidUTF8(pod[:min(len(pod), 63-len(random))], "") + "_" + random
}
