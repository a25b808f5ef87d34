package clusterimport

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// failure is why a call to a member did not work, in words that stay the same from one attempt to the next: a message
// with a port number of the moment would make every attempt a write.
type failure struct {
	reason  string
	message string
}

func failed(reason, format string, args ...any) *failure {
	return &failure{reason: reason, message: fmt.Sprintf(format, args...)}
}

// diagnose finds the cause of an error of a call to a member, and says what a person can do about it.
func diagnose(server, doing string, err error) *failure {
	var unknownCA x509.UnknownAuthorityError
	var badName x509.HostnameError
	var badCert x509.CertificateInvalidError
	switch {
	case errors.As(err, &unknownCA), errors.As(err, &badName), errors.As(err, &badCert):
		return failed(fleet.ReasonCertificateUntrusted,
			"%s at %s: its certificate is not trusted (%s); correct the CA or the server in the kubeconfig", doing, server, rootCause(err))
	case apierrors.IsUnauthorized(err):
		return failed(fleet.ReasonUnauthorized,
			"%s at %s: the member refuses the credential of the kubeconfig; renew it", doing, server)
	case apierrors.IsForbidden(err):
		return failed(fleet.ReasonForbidden, "%s at %s: %s; give the user of the kubeconfig this right", doing, server, apiMessage(err))
	case isNetwork(err), apierrors.IsServiceUnavailable(err), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err):
		return failed(fleet.ReasonUnreachable, "%s at %s: %s; it is tried again", doing, server, rootCause(err))
	}
	return failed(fleet.ReasonMemberError, "%s at %s: %s; it is tried again", doing, server, apiMessage(err))
}

func isNetwork(err error) bool {
	var network net.Error
	var address *url.Error
	return errors.As(err, &network) || errors.As(err, &address) || isTimeout(err)
}

func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

// rootCause leaves out the addresses that wrap the innermost error.
func rootCause(err error) string {
	if isTimeout(err) {
		return "no answer in time"
	}
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}

// apiMessage is what the API server said; an error that is not its own is reduced to its cause.
func apiMessage(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Message
	}
	return rootCause(err)
}
