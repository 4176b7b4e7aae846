"""What a run needs, checked before it starts: servers, GPUs, memory, settings."""
