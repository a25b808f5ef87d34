// Package rancherlike simulates a management server that embeds a fleet: it writes the hub's configuration with the chart, applies
// Clusters and kubeconfig Secrets repeatedly, and is the proxy between agents and the hub, and between the hub and members.
package rancherlike
