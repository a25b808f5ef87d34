package usage

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCPUTimeIsThatOfUserAndSystem(t *testing.T) {
	for name, test := range map[string]struct {
		stat  string
		ticks int64
		fails bool
	}{
		"a program":                  {stat: "7 (hub) S 1 7 7 0 -1 4194304 9 0 0 0 120 34 0 0 20 0", ticks: 154},
		"a name that looks like two": {stat: "7 (a) b (c)) S 1 7 7 0 -1 4194304 9 0 0 0 5 6 0 0 20 0", ticks: 11},
		"nothing":                    {stat: "", fails: true},
		"too few fields":             {stat: "7 (hub) S 1 7", fails: true},
		"no numbers":                 {stat: "7 (hub) S 1 7 7 0 -1 4194304 9 0 0 0 x y 0 0 20 0", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			ticks, err := parseStat([]byte(test.stat))
			assert.Equal(t, test.fails, err != nil, "%v", err)
			assert.Equal(t, test.ticks, ticks)
		})
	}
}

func TestSizesAreInBytes(t *testing.T) {
	status := []byte("Name:\thub\nVmHWM:\t       2 kB\nVmRSS:\t 1 kB\n")
	assert.Equal(t, int64(2048), parseSize(status, "VmHWM:"))
	assert.Equal(t, int64(1024), parseSize(status, "VmRSS:"))
	assert.Zero(t, parseSize(status, "VmSwap:"))
}

func TestProcessesAreAddedUp(t *testing.T) {
	one, err := Of(os.Getpid())
	require.NoError(t, err)
	assert.Positive(t, one.Peak)
	assert.Positive(t, one.Resident)
	two, err := Of(os.Getpid(), os.Getpid())
	require.NoError(t, err)
	assert.GreaterOrEqual(t, two.Peak, 2*one.Peak)
	assert.GreaterOrEqual(t, two.CPU, 2*one.CPU)
	none, err := Of()
	require.NoError(t, err)
	assert.Zero(t, none)
}

func TestAProcessThatIsGoneIsAnError(t *testing.T) {
	_, err := Of(os.Getpid(), -1)
	require.ErrorIs(t, err, os.ErrNotExist)
}
