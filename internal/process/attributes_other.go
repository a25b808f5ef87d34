//go:build !unix

package process

import (
	"errors"
	"syscall"
)

func attributes(namespaces uintptr) (*syscall.SysProcAttr, error) {
	if namespaces != 0 {
		return nil, errors.ErrUnsupported
	}
	return nil, nil
}
