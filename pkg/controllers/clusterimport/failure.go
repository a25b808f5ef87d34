package clusterimport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/release"
	"github.com/muster-fleet/muster/pkg/transport"
)

// A failure is the reason why an import or a call to a member did not succeed. The message does not vary between tries: a port
// number or a time of day in it would make each try a write of the status.
type failure struct {
	reason  string
	message string
	// isTransient is true if no person has to act: the next try may succeed. Only such a failure is reported with "; retrying".
	isTransient bool
}

func failuref(reason, format string, args ...any) *failure {
	return &failure{reason: reason, message: fmt.Sprintf(format, args...)}
}

func transientf(reason, format string, args ...any) *failure {
	return &failure{reason: reason, message: fmt.Sprintf(format, args...), isTransient: true}
}

func (f *failure) stalled() result.Result { return result.Stalled(f.reason, f.message) }

// diagnose turns an error of a request to a member into a failure that names the class of the error and what to do about it. It contains
// nothing that the server has answered: the server of a kubeconfig may be a service inside the hub's network, whose answers the
// writer of the kubeconfig must not read, and it may be as long as the server likes.
func diagnose(server, doing string, err error) *failure {
	var denied *transport.AddressError
	var tooLarge *transport.TooLargeError
	var badYAML *release.YAMLError
	var status apierrors.APIStatus
	answered := errors.As(err, &status)
	switch {
	case errors.As(err, &denied):
		return addressNotAllowed(doing, server)
	case certificateProblem(err) != "":
		return failuref(fleet.ReasonCertificateUntrusted,
			"%s at %s: its certificate is not trusted (%s); correct the CA or the server in the kubeconfig, or renew the certificate",
			doing, server, certificateProblem(err))
	case apierrors.IsUnauthorized(err):
		return failuref(fleet.ReasonUnauthorized,
			"%s at %s: the member rejected the credential of the kubeconfig; renew it", doing, server)
	case apierrors.IsForbidden(err):
		return failuref(fleet.ReasonForbidden,
			"%s at %s: the member forbids it; give the user of the kubeconfig this right", doing, server)
	case fromGateway(err):
		return transientf(fleet.ReasonUnreachable, "%s at %s: a proxy in front of the member answered %s", doing, server, codeOf(status))
	case answered && (apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err)):
		return transientf(fleet.ReasonUnreachable, "%s at %s: the member answered %s", doing, server, codeOf(status))
	case answered:
		return transientf(fleet.ReasonMemberError, "%s at %s: the member answered %s", doing, server, codeOf(status))
	case errors.As(err, &tooLarge):
		return failuref(fleet.ReasonMemberError, "%s at %s: %s", doing, server, tooLarge) // an API server would answer the same again
	case errors.As(err, &badYAML):
		return failuref(fleet.ReasonMemberError, "%s at %s: the history of a Helm release has %s", doing, server, badYAML)
	case errors.Is(err, errPriorityClassInUse), errors.Is(err, errForeignSecret):
		return failuref(fleet.ReasonMemberError, "%s at %s: %s", doing, server, err)
	case errors.Is(err, errNotKubernetes):
		return transientf(fleet.ReasonMemberError, "%s at %s: %s", doing, server, errNotKubernetes)
	case isNetwork(err):
		return transientf(fleet.ReasonUnreachable, "%s at %s: %s", doing, server, networkProblem(err))
	}
	return transientf(fleet.ReasonMemberError, "%s at %s: the answer of the member cannot be used", doing, server)
}

func addressNotAllowed(doing, server string) *failure {
	return failuref(fleet.ReasonAddressNotAllowed,
		"%s at %s: the hub does not connect to this address; correct the server in the kubeconfig, or set members.allowedCIDRs in the hub's configuration (ConfigMap %s)",
		doing, server, registration.HubConfigMap)
}

// codeOf is the HTTP status of an answer, such as "404 Not Found".
func codeOf(status apierrors.APIStatus) string {
	code := int(status.Status().Code)
	return strings.TrimSpace(fmt.Sprintf("%d %s", code, http.StatusText(code)))
}

// fromGateway reports whether the response came from a proxy that cannot reach the member.
func fromGateway(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch status.Status().Code {
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		return true
	case http.StatusServiceUnavailable:
		return apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
	}
	return false
}

func isNetwork(err error) bool {
	var network net.Error
	var address *url.Error
	return errors.As(err, &network) || errors.As(err, &address) || isTimeout(err)
}

// certificateProblem returns why the certificate of the member is not trusted, "" if the error has another cause. It does not use the texts of
// the errors, which contain names in the certificate and the current time.
func certificateProblem(err error) string {
	var unknownCA x509.UnknownAuthorityError
	var badName x509.HostnameError
	var badCert x509.CertificateInvalidError
	switch {
	case errors.As(err, &unknownCA):
		return "x509: certificate signed by unknown authority"
	case errors.As(err, &badName):
		return "x509: certificate is not valid for " + badName.Host
	case errors.As(err, &badCert):
		return strings.TrimRight(x509.CertificateInvalidError{Reason: badCert.Reason}.Error(), ": ")
	}
	return ""
}

// networkProblem is the class of an error of a connection, without addresses.
func networkProblem(err error) string {
	var refused *transport.ProxyError
	var lookup *net.DNSError
	var number syscall.Errno
	var alert tls.AlertError
	text := "the connection failed"
	switch {
	case errors.As(err, &refused):
		return refused.Error()
	case errors.As(err, &lookup):
		text = "the name " + lookup.Name + " cannot be resolved"
	case isTimeout(err):
		text = "no answer in time"
	case errors.As(err, &number):
		text = number.Error()
	case errors.As(err, &alert):
		text = alert.Error()
	case errors.Is(err, http.ErrSchemeMismatch):
		text = http.ErrSchemeMismatch.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		text = "the connection was closed"
	}
	if transport.IsProxyUnreachable(err) {
		return "the proxy in front of the member cannot be reached: " + text
	}
	return text
}

func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

// innermost is the text of the innermost error, for errors that do not come from a member.
func innermost(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}
