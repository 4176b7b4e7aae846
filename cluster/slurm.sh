#!/bin/bash
# A job on the nodes that Slurm gives: one Ray node per Slurm node, started and ended with the job.
#   sbatch --nodes=2 --gpus-per-node=8 cluster/slurm.sh kohaku-ray answer my.yaml --set shared=/shared --rows-in-error-ok
# The environment (activated before sbatch) and the paths of the command lie on storage that all nodes mount.
#SBATCH --job-name=kohaku-ray
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=12:00:00
set -euo pipefail
[ $# -gt 0 ] || { echo "usage: sbatch cluster/slurm.sh COMMAND…, such as kohaku-ray answer my.yaml" >&2; exit 2; }

RAY_HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)  # not head, which ends scontrol by SIGPIPE
# Other jobs may share a node: a port, a directory and a token of this job's own. Ray's workers have 10002 to 19999.
RAY_PORT=$((20000 + SLURM_JOB_ID % 10000))
RAY_AUTH_TOKEN=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
RAY_AUTH_MODE=token
RAY_FILES=${TMPDIR:-/tmp}/ray-$SLURM_JOB_ID
NODES_WITHIN_S=${NODES_WITHIN_S:-300}
export RAY_HEAD RAY_PORT RAY_AUTH_TOKEN RAY_AUTH_MODE RAY_FILES NODES_WITHIN_S
export RAY_USAGE_STATS_ENABLED=0 RAY_ENABLE_UV_RUN_RUNTIME_ENV=0

wait_for_nodes() {
    python - <<'PYTHON'
import os, sys, time
import ray

wanted, within_s = int(os.environ["SLURM_JOB_NUM_NODES"]), float(os.environ["NODES_WITHIN_S"])
address, began = f"{os.environ['RAY_HEAD']}:{os.environ['RAY_PORT']}", time.monotonic()
while True:
    try:
        ray.init(address, logging_level="ERROR", log_to_driver=False)
        there = sorted(node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"])
        ray.shutdown()
    except ConnectionError:  # the head is starting
        there = []
    if len(there) >= wanted:
        sys.exit(0)
    if time.monotonic() - began > within_s:
        sys.exit(f"{len(there)} of {wanted} nodes joined Ray within {within_s:g} s: {', '.join(there) or 'none'}; look at "
                 "the others' lines above, or set NODES_WITHIN_S")
    time.sleep(1)
PYTHON
}

answers() { (exec 3<>"/dev/tcp/$RAY_HEAD/$RAY_PORT") 2>/dev/null; }

run_node() {
    # Ray would count every core of the machine; it finds the GPUs that Slurm gives by itself.
    local head status=0 node=(--num-cpus="${SLURM_CPUS_ON_NODE:-1}" --disable-usage-stats --block)
    if [ "$SLURM_PROCID" != 0 ]; then
        # The head may be slower to start than this node.
        until answers; do
            [ $((SECONDS)) -lt "${NODES_WITHIN_S%.*}" ] || { echo "no Ray head at $RAY_HEAD:$RAY_PORT" >&2; exit 1; }
            sleep 1
        done
        exec ray start --address="$RAY_HEAD:$RAY_PORT" "${node[@]}" >/dev/null
    fi
    ray start --head --port="$RAY_PORT" --temp-dir="$RAY_FILES" --include-dashboard=false "${node[@]}" >/dev/null &
    head=$!
    until answers; do
        kill -0 "$head" 2>/dev/null || { echo "the Ray head did not start: its lines are above" >&2; exit 1; }
        sleep 1
    done
    wait_for_nodes && RAY_ADDRESS="$RAY_HEAD:$RAY_PORT" "$@" || status=$?
    kill "$head" 2>/dev/null && wait "$head" || true
    exit "$status"
}
export -f answers run_node wait_for_nodes

# When the command has ended, the other nodes have a minute to see that the head is gone.
exec srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --wait=60 bash -c 'run_node "$@"' run_node "$@"
