"""The documents and the index of a run: where they are, how they are read and encoded."""
