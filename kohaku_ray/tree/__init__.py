"""The four-level node table: ids, ancestors, weights, upward propagation."""
