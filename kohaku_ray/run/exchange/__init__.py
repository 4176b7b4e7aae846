"""What is exchanged with others: bundles, batch files, converted configurations, votes, new projects."""
