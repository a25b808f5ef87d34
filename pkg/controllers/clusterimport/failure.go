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
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/transport"
)

// A failure is the reason why an import or a call to a member did not succeed. The message does not vary between tries: a port
// number or a time of day in it would make each try a write of the status.
type failure struct {
	reason  string
	message string
}

func failuref(reason, format string, args ...any) *failure {
	return &failure{reason: reason, message: fmt.Sprintf(format, args...)}
}

func (f *failure) stalled() result.Result { return result.Stalled(f.reason, f.message) }

// diagnose turns an error of a request to a member into a failure that names the cause and what to do about it.
func diagnose(server, doing string, err error) *failure {
	var unknownCA x509.UnknownAuthorityError
	var badName x509.HostnameError
	var badCert x509.CertificateInvalidError
	switch {
	case errors.As(err, &unknownCA), errors.As(err, &badName), errors.As(err, &badCert):
		return failuref(fleet.ReasonCertificateUntrusted,
			"%s at %s: its certificate is not trusted (%s); correct the CA or the server in the kubeconfig", doing, server, rootCause(err))
	case apierrors.IsUnauthorized(err):
		return failuref(fleet.ReasonUnauthorized,
			"%s at %s: the member rejected the credential of the kubeconfig; renew it", doing, server)
	case apierrors.IsForbidden(err):
		return failuref(fleet.ReasonForbidden, "%s at %s: %s; give the user of the kubeconfig this right", doing, server, apiMessage(err))
	case fromGateway(err):
		return failuref(fleet.ReasonUnreachable, "%s at %s: %s; retrying", doing, server, gatewayMessage(err))
	case isNetwork(err), apierrors.IsServiceUnavailable(err), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err):
		return failuref(fleet.ReasonUnreachable, "%s at %s: %s; retrying", doing, server, rootCause(err))
	}
	return failuref(fleet.ReasonMemberError, "%s at %s: %s; retrying", doing, server, apiMessage(err))
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

// gatewayMessage includes the body of the proxy's response if it is one short line, such as "cluster agent disconnected". A
// longer page may contain a request ID and would make each message different.
func gatewayMessage(err error) string {
	const short = 80
	var status apierrors.APIStatus
	errors.As(err, &status)
	code := int(status.Status().Code)
	message := fmt.Sprintf("a proxy in front of the member answered %d %s", code, http.StatusText(code))
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

// rootCause is the text of the innermost error, without the addresses that the outer errors add.
func rootCause(err error) string {
	if transport.ViaProxy(err) {
		return "the proxy in front of the member cannot be reached: " + innermost(err)
	}
	return innermost(err)
}

func innermost(err error) string {
	var lookup *net.DNSError
	var badCert x509.CertificateInvalidError
	switch {
	case errors.As(err, &lookup): // its text contains the address of the resolver and sometimes a local port
		return "the name " + lookup.Name + " cannot be resolved"
	case errors.As(err, &badCert) && badCert.Reason == x509.Expired: // its text contains the current time
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

// apiMessage is the message of the API server, or the root cause of an error that did not come from it.
func apiMessage(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Message
	}
	return rootCause(err)
}
