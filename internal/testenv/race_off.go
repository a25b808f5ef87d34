//go:build !race

package testenv

// raceDetector says whether this program was built with it.
const raceDetector = false
