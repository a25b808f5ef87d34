package local

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAnOverlayIsNotLaidOverAnother(t *testing.T) {
	const ext4 = 0xef53
	require.Equal(t, "overlayfs", snapshotterOn(ext4))
	require.Equal(t, "native", snapshotterOn(overlayMagic))
	_, err := snapshotter("/nowhere")
	require.ErrorContains(t, err, "/nowhere")
}
