package bench

import (
	"os"
	"testing"
	"time"

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

func TestThePeakIsInBytes(t *testing.T) {
	assert.Equal(t, int64(2048), parsePeak([]byte("Name:\thub\nVmHWM:\t       2 kB\nVmRSS:\t 1 kB\n")))
	assert.Zero(t, parsePeak([]byte("Name:\thub\n")))
}

func TestThisProgramUsesSomething(t *testing.T) {
	u, err := usageOf(os.Getpid())
	require.NoError(t, err)
	assert.Positive(t, u.peak)
	assert.GreaterOrEqual(t, u.cpu, time.Duration(0))
	_, err = usageOf(-1)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestQuantilesOfTimes(t *testing.T) {
	assert.Zero(t, times(nil).quantile(.5))
	all := times{3, 1, 2, 5, 4}
	assert.Equal(t, time.Duration(3), all.quantile(.5))
	assert.Equal(t, time.Duration(5), all.quantile(.99))
	assert.Equal(t, time.Duration(1), all.quantile(0))
	assert.Equal(t, times{3, 1, 2, 5, 4}, all, "the order is not changed")
}
