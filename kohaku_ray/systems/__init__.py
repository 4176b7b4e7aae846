"""The question-answering systems, each two short async functions."""
