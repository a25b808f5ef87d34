// Package rancherlike plays, for tests, a management server that embeds a fleet: it writes the hub's configuration by its
// chart, makes Clusters and kubeconfig Secrets and re-applies them whenever it likes, and is the proxy through which agents
// reach the hub and the hub reaches members.
package rancherlike
