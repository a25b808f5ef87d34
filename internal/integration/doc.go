// Package integration is empty. The packages below it test hubs and agents, wired as in production, against real API servers. The tests of
// a package run one after another and share a hub and a member, because only one hub may run on a control plane at a time. The packages
// run in parallel.
package integration
