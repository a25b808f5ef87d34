package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// texts are the rows of an SVG, read as XML.
func texts(t *testing.T, svg []byte) (rows []string) {
	t.Helper()
	decoder := xml.NewDecoder(bytes.NewReader(svg))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return rows
		}
		require.NoError(t, err)
		switch token := token.(type) {
		case xml.StartElement:
			if token.Name.Local == "text" {
				rows = append(rows, "")
			}
		case xml.CharData:
			if len(rows) > 0 {
				rows[len(rows)-1] += strings.Trim(string(token), "\n")
			}
		}
	}
}

func TestDraw(t *testing.T) {
	var svg bytes.Buffer
	require.NoError(t, draw(strings.NewReader("\nTitle\n\n\n  ok   1.0 s first <step>\n           $ helm & more\nend \n\n"), &svg))
	require.Equal(t, []string{"Title", "  ok   1.0 s first <step>", "           $ helm & more", "end"}, texts(t, svg.Bytes()))
	require.Contains(t, svg.String(), `  <tspan fill="#3fb950">ok</tspan>   1.0 s first &lt;step&gt;`)
	require.Contains(t, svg.String(), `<tspan fill="#8b949e">           $ helm &amp; more</tspan>`)
	require.Contains(t, svg.String(), `height="130"`, "five rows, one of them empty")
}

func TestWrapped(t *testing.T) {
	command := "           $ " + strings.Repeat("word ", 17)
	require.Equal(t, []string{command + "end"}, wrapped(command+"end"))
	require.Equal(t, []string{strings.TrimRight(command, " "), continuation + "continued here"}, wrapped(command+"continued here"))
	long := strings.Repeat("x", columns+1)
	require.Equal(t, []string{long}, wrapped(long), "a word is not broken")
}

func TestDrawOfNothing(t *testing.T) {
	require.EqualError(t, draw(strings.NewReader("\n\n"), io.Discard), "the output of the demo is empty")
}
