// Package integration is empty: the tests that run hubs and agents, wired as in production, against real API servers are in
// the folders below. Each of these packages has a hub and a member of its own, which its tests share one after another, for
// only one hub may run on a control plane at a time; the packages run beside one another.
package integration
