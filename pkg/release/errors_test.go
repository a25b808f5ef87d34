package release

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestAnExplanationShowsNoValues(t *testing.T) {
	const hidden = "expected string, got &value.valueUnstructured{Value:(hidden)}"
	for name, row := range map[string]struct{ text, want string }{
		"no value":            {"pods is forbidden", "pods is forbidden"},
		"a plain one":         {`.data: expected string, got &value.valueUnstructured{Value:12345}`, ".data: " + hidden},
		"a map":               {`.data: expected string, got &value.valueUnstructured{Value:map[string]interface {}{"a":"hunter2"}} in x`, ".data: " + hidden + " in x"},
		"braces in a string":  {`expected string, got &value.valueUnstructured{Value:"}hunter2{"}; more`, hidden + "; more"},
		"quotes in a string":  {`expected string, got &value.valueUnstructured{Value:"\"}hunter2\\"}; more`, hidden + "; more"},
		"two of them":         {`expected string, got &value.valueUnstructured{Value:1}, expected string, got &value.valueUnstructured{Value:"hunter2"}`, hidden + ", " + hidden},
		"one that never ends": {`expected string, got &value.valueUnstructured{Value:"hunter2`, hidden},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, row.want, Explain(errors.New(row.text))) })
	}
	long := Explain(errors.New("got valueUnstructured{Value:\"" + strings.Repeat("x", 2*messageMax) + "\"} for .data"))
	assert.Equal(t, "got valueUnstructured{Value:(hidden)} for .data", long, "hidden before it is cut")
}
