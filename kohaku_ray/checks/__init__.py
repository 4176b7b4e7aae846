"""What is checked before a start: files, servers, deployments, what fits a cluster, whether a run is finished."""
