"""Model backends as Ray Serve applications."""
