// Package e2e is the end-to-end suite: pairs of clusters with real pods, a hub and a member, the charts installed by helm, and
// every way in which a cluster registers, or fails to for a while. It knows kubeconfigs and charts; no part of Muster runs in
// its process. scripts/e2e prepares what it needs and runs it; without the build tag e2e there is nothing here.
//
// Each test is a scene of numbered steps. What a scene makes carries its ID in its names, and when it ends everything is
// removed again and looked for on both clusters: an object that still mentions the ID is a failure. A scene that stops, cuts
// off or reconfigures a cluster has one of the two pairs to itself meanwhile; the others share one, at the same time.
package e2e
