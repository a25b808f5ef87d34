// Package controlplane runs real Kubernetes control planes as child processes: etcd, kube-apiserver and, when asked for,
// kube-controller-manager. The integration tests and `muster demo` use it, so that what they prove holds for a real API
// server: its validation, its tokens, its authorization, its watches.
//
// A control plane needs no root, no container engine and no network beyond 127.0.0.1. It has no nodes: Pods stay
// Pending unless something plays the kubelet.
package controlplane
