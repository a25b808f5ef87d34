package clusterimport

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/transport"
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
	case fromGateway(err):
		return failed(fleet.ReasonUnreachable, "%s at %s: %s; it is tried again", doing, server, gatewayMessage(err))
	case isNetwork(err), apierrors.IsServiceUnavailable(err), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err):
		return failed(fleet.ReasonUnreachable, "%s at %s: %s; it is tried again", doing, server, rootCause(err))
	}
	return failed(fleet.ReasonMemberError, "%s at %s: %s; it is tried again", doing, server, apiMessage(err))
}

// fromGateway says whether it was a proxy on the way that answered, because it does not reach the member.
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

// gatewayMessage repeats what the proxy said if that is a short line, as in "cluster agent disconnected"; a page would have
// the number of the request in it, and be another message each time.
func gatewayMessage(err error) string {
	const short = 80
	var status apierrors.APIStatus
	errors.As(err, &status)
	code := int(status.Status().Code)
	message := fmt.Sprintf("a proxy on the way answered %d %s", code, http.StatusText(code))
	cause, _ := apierrors.StatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
	if said := cause.Message; said != "" && said != "unknown" && len(said) <= short && !strings.ContainsAny(said, "<\n") {
		message += ": " + said
	}
	return message
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
	if transport.ViaProxy(err) {
		return "the proxy on the way cannot be reached: " + innermost(err)
	}
	return innermost(err)
}

func innermost(err error) string {
	var lookup *net.DNSError
	var badCert x509.CertificateInvalidError
	switch {
	case errors.As(err, &lookup): // its text names the resolver, and sometimes a port of this end
		return "the name " + lookup.Name + " cannot be resolved"
	case errors.As(err, &badCert) && badCert.Reason == x509.Expired: // its text has the time of day
		return "x509: certificate has expired or is not yet valid"
	case isTimeout(err):
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
