package agent

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"

	"github.com/muster-fleet/muster/pkg/config"
)

// namesDistrust adds to the error of a certificate that is not trusted which authorities count, and where they are set.
type namesDistrust struct {
	mode     config.TLSMode
	caSource string
	next     http.RoundTripper
}

// RoundTrip passes the request on.
func (d *namesDistrust) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := d.next.RoundTrip(request)
	if distrust(err) {
		err = fmt.Errorf("the certificate of the hub is not trusted: %w; %s", err, d.remedy())
	}
	return response, err
}

// WrappedRoundTripper lets others find the transport below, to close its connections for one.
func (d *namesDistrust) WrappedRoundTripper() http.RoundTripper { return d.next }

func (d *namesDistrust) remedy() string {
	counts := "only the given CA counts"
	if d.mode != config.TLSModeStrict {
		counts = "the authorities of this image count and the given CA, if any"
	}
	return fmt.Sprintf("agentTLSMode is %s, so that %s; correct %s", d.mode, counts, d.caSource)
}

func distrust(err error) bool {
	var unknownCA x509.UnknownAuthorityError
	var badName x509.HostnameError
	var badCert x509.CertificateInvalidError
	return errors.As(err, &unknownCA) || errors.As(err, &badName) || errors.As(err, &badCert)
}
