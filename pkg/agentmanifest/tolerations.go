package agentmanifest

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// sortedTolerations orders a copy: management servers list the taints of nodes in whatever order they find them, and a
// changed order must not restart an agent. The caller's slice may belong to a cache.
func sortedTolerations(tolerations []corev1.Toleration) []corev1.Toleration {
	sorted := slices.Clone(tolerations)
	slices.SortStableFunc(sorted, func(a, b corev1.Toleration) int {
		return cmp.Or(
			cmp.Compare(a.Key, b.Key),
			cmp.Compare(a.Value, b.Value),
			cmp.Compare(a.Operator, b.Operator),
			cmp.Compare(a.Effect, b.Effect),
			compareSeconds(a.TolerationSeconds, b.TolerationSeconds),
		)
	})
	return sorted
}

// compareSeconds puts "for ever", which is nil, first.
func compareSeconds(a, b *int64) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return -1
	case b == nil:
		return 1
	default:
		return cmp.Compare(*a, *b)
	}
}
