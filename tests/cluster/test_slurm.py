"""cluster/slurm.sh with a Slurm of our own: ``srun`` starts a process per node, all on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "cluster" / "slurm.sh"
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
pids=()
for number in $(seq 0 $((STARTED - 1))); do SLURM_PROCID=$number "$@" & pids+=($!); done
wait "${pids[0]}"; status=$?
for pid in "${pids[@]:1}"; do kill "$pid" 2>/dev/null; wait "$pid"; done
exit $status
"""


def slurm(tmp_path: Path, n_nodes: int, *command: str, started: int | None = None, stand_ins=None, **variables: str):
    """Run a job on so many nodes, of which fewer may start; ``stand_ins`` are programs by name."""
    programs = {"srun": SRUN, "scontrol": "#!/bin/bash\necho 127.0.0.1\necho node2\n", **(stand_ins or {})}
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    variables.setdefault("SLURM_JOB_ID", str(20_000 + os.getpid() % 9_000))
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env |= {"PATH": os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), env["PATH"]]), "TMPDIR": "/tmp"}
    env |= {"SLURM_JOB_NUM_NODES": str(n_nodes), "SLURM_JOB_NODELIST": "n[1-2]"}
    env |= {"SLURM_CPUS_ON_NODE": "1", "STARTED": str(started or n_nodes), **variables}
    env["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] = "0"  # a node would wait 30 s for replicas to move away
    return subprocess.run([str(SCRIPT), *command], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=500)


@pytest.mark.slow
def test_a_job_runs_on_all_of_its_nodes_with_a_token_of_its_own_and_ends_them(tmp_path, tiny_encoder):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("One hall draws 4 MW. It is cooled by air.")
    overrides = ["documents.paths=[in]", "documents.metadata=null", f"index.encoder.model={tiny_encoder}"]
    overrides += [f"index.path={tmp_path}/index", "index.encoders=1"]
    look = "python -c \"import ray; ray.init(); print(len(ray.nodes()), ray.cluster_resources()['CPU'])\""
    index = " ".join(["kohaku-ray index demo", *(f"--set '{item}'" for item in overrides)])
    done = slurm(tmp_path, 2, "bash", "-c", f"{look} && echo token ${{#RAY_AUTH_TOKEN}} && {index} && exit 3")
    assert done.returncode == 3, done.stderr[-3000:]
    assert "2 2.0" in done.stdout.splitlines()
    assert "token 64" in done.stdout.splitlines()
    assert (tmp_path / "index" / "manifest.json").is_file()


@pytest.mark.slow
def test_a_node_that_never_comes_is_counted_and_the_command_not_run(tmp_path):
    done = slurm(tmp_path, 2, "touch", "ran", started=1, NODES_WITHIN_S="10")
    assert done.returncode == 1
    assert "1 of 2 nodes joined Ray within 10 s: " in done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("job", [0, 9_999, 10_000, 123_456])
def test_the_port_of_a_job_is_none_that_ray_gives_to_its_workers(tmp_path, job):
    broken = "echo $RAY_PORT >>ports\necho Ray is broken >&2\nexit 1\n"
    done = slurm(tmp_path, 1, "touch", "ran", stand_ins={"ray": f"#!/bin/bash\n{broken}"}, SLURM_JOB_ID=str(job))
    assert 20_000 <= int((tmp_path / "ports").read_text()) < 30_000
    # ... and a head that ends is not waited for.
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["Ray is broken", "the Ray head did not start: its lines are above"]
    assert not (tmp_path / "ran").exists()


def test_a_list_of_many_nodes_ends_no_job(tmp_path):
    many = "#!/bin/bash\necho 127.0.0.1\nsleep 0.1\nseq 100000\n"
    done = slurm(tmp_path, 1, "true", stand_ins={"scontrol": many, "ray": "#!/bin/bash\nexit 1\n"})
    assert done.returncode == 1, "not 141, a broken pipe"


def test_without_a_command_the_script_says_how_it_is_called(tmp_path):
    done = slurm(tmp_path, 1)
    assert done.returncode == 2
    assert "usage: sbatch cluster/slurm.sh COMMAND" in done.stderr
