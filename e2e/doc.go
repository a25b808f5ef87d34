// Package e2e is the end-to-end suite: pairs of clusters with real pods, a hub and a member, charts installed with helm, and every way in
// which a cluster registers or temporarily fails to register. It uses kubeconfigs and charts only; no part of Muster runs in its process.
// scripts/e2e prepares and runs it. The files have the build tag e2e.
//
// Each test is a scene of numbered steps. The names of all objects of a scene contain its ID. When a scene ends, it removes everything and
// searches both clusters: an object that still contains the ID is a failure. A scene that stops, disconnects or reconfigures a cluster has
// one of the two pairs for itself; the others run on the second pair at the same time.
package e2e
