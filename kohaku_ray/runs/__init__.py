"""A run as its configuration sees it: its identity, its files, its scores, its export to trackers."""
