"""A grid of runs, without Ray: declare, plan, collect, compare."""
