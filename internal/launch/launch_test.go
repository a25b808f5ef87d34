package launch

import (
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"k8s.io/klog/v2"
)

// From level 8 on the Kubernetes client library would write Secrets into the log.
func TestNoLevelOfTheLogIsHighEnoughForSecrets(t *testing.T) {
	t.Cleanup(func() {
		SetUpLog(true, 0)
		logrus.SetLevel(logrus.InfoLevel)
	})
	for level, want := range map[int]klog.Level{0: 0, 4: 4, 7: 7, 8: 7, 10: 7, 1000: 7} {
		SetUpLog(true, level)
		assert.True(t, klog.V(want).Enabled(), "level %d", level)
		assert.False(t, klog.V(want+1).Enabled(), "level %d", level)
		assert.Equal(t, logrus.DebugLevel, logrus.GetLevel())
	}
}

func TestWithoutDebugTheLogIsLeftAlone(t *testing.T) {
	SetUpLog(false, 7)
	assert.False(t, klog.V(1).Enabled())
	assert.Equal(t, logrus.InfoLevel, logrus.GetLevel())
}
