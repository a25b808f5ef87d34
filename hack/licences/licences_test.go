package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const mit = `MIT License

Copyright (c) 2026 Somebody

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation
files (the "Software"), to deal in the Software without restriction, including without limitation the rights to use, copy,
modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the
Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE,
ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
`

const gplHeader = `This program is free software: you can redistribute it and/or modify it under the terms of the GNU General Public
License as published by the Free Software Foundation, either version 3 of the License, or (at your option) any later version.
`

func TestPermitted(t *testing.T) {
	for name, row := range map[string]struct {
		files map[string]string
		want  string // of the error
	}{
		"allowed":                      {map[string]string{"LICENSE": mit, "license.go": "package license"}, ""},
		"another spelling of the file": {map[string]string{"licence.md": mit}, ""},
		"no licence":                   {map[string]string{"README.md": mit}, "no file with a licence"},
		"not allowed":                  {map[string]string{"COPYING": gplHeader}, "its licence is GPL-3.0"},
		"allowed and not allowed":      {map[string]string{"LICENSE": mit, "LICENSE.other": gplHeader}, "its licence is GPL-3.0"},
		"unknown text":                 {map[string]string{"LICENSE": "You may use this on Sundays."}, "0 % of it"},
		"allowed, with more text":      {map[string]string{"LICENSE": mit + string(bytes.Repeat([]byte("But not on any other day. "), 200))}, "less than 75"},
		"directory of that name":       {map[string]string{"LICENSE/text": mit}, "no file with a licence"},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := licencesOf(written(t, row.files))
			if err == nil {
				err = permitted("example.com/x", found)
			}
			if row.want == "" {
				require.NoError(t, err)
				assert.Equal(t, []string{"MIT"}, found)
				return
			}
			assert.ErrorContains(t, err, row.want)
		})
	}
}

func TestExceptions(t *testing.T) {
	for path, licence := range excepted {
		require.NoError(t, permitted(path, []string{"MIT", licence}))
		assert.Error(t, permitted(path, []string{"GPL-3.0"}))
		assert.Error(t, permitted(path+"/v2", []string{licence}))
	}
}

func TestRun(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run([]string{".", "."}, &out))
	assert.Contains(t, out.String(), "licences: 1 modules: 1 BSD-3-Clause")
	assert.ErrorContains(t, run([]string{"."}, &out), "usage")
	assert.ErrorContains(t, run([]string{"texts", "."}, &out), "usage")
	assert.ErrorContains(t, run([]string{"texts", ".", ".", "--"}, &out), "usage")
	assert.ErrorContains(t, run([]string{"-colour", ".", "./cmd"}, &out), "usage")
	assert.ErrorContains(t, run([]string{".", "./nothing"}, &out), "go list")
}
