// Package bench measures a registration hub from outside: through the Kubernetes API, the audit log of its API server, and
// what the kernel says of its process. Nothing in it knows how the hub works, so that another hub can be measured with the
// same ruler.
package bench
