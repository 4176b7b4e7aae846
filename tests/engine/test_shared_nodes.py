"""What needs nodes of a kind, on one cluster of a head and three nodes: where things stand, what they take."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from kit import own_ray, tiny_llama
from kit.installed import needs
from shared_nodes import N_FILES, PARTS

from kohaku_ray.index.gpu import without_gpu_support

HERE = Path(__file__).parent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def can_hide(directory: Path) -> bool:
    """Whether a directory can be hidden from a process by a mount namespace of its own."""
    if shutil.which("unshare") is None or shutil.which("setpriv") is None:
        return False
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "none", str(directory)]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def home(tmp_path_factory, tiny_encoder, sample_here) -> Path:
    """What the program is given, and where it writes."""
    home = tmp_path_factory.mktemp("nodes")
    for name in ("hidden", "seen"):
        shutil.copytree(sample_here, home / name / "index")
    model = tiny_llama.build(home / "model", ["some words to learn"], window=16384)
    (home / "given.json").write_text(json.dumps({"encoder": tiny_encoder, "index": sample_here, "model": model}))
    return home


@pytest.fixture(scope="module")
def done(request, home) -> dict:
    """What each part found."""
    possible = {"hidden": can_hide(home), "replicas": find_spec("vllm") is not None}
    parts = [part for part in PARTS if possible.get(part, True)]
    path = os.pathsep.join([str(HERE.parents[1]), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    environment = own_ray.environment(
        # What a job sets for its own handles, and the session's cluster may have set, is not the program's.
        *(name for name in os.environ if name.startswith("RAY_SERVE_")),
        PYTHONPATH=path,
    )
    command = [sys.executable, str(HERE / "shared_nodes.py"), str(home), *parts]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=850, env=environment, cwd=home)
    found = {}
    for line in ended.stdout.splitlines():
        if line.startswith('{"'):
            found |= json.loads(line)
    assert ended.returncode == 0, f"after {list(found)}: {ended.stderr[-4000:]}"
    assert "Triton" not in ended.stdout + ended.stderr
    return found


def test_coordinators_stand_on_the_group_that_the_configuration_names(done):
    by_default, by_group = done["coordinators"]["by_default"], done["coordinators"]["by_group"]
    named = {"cpu"}
    assert all(set(nodes) - named - {"head"} for nodes in by_default.values()), "the nodes of this test tell nothing"
    assert (set(by_group["LedgerShard"]), set(by_group["MemberProcess"])) == (named, named)
    assert by_group["Voter"].count("head") == 1, "the first writes outputs beside the driver"
    assert set(by_group["Voter"]) == named | {"head"}


def test_a_node_that_does_not_see_a_directory_is_named(done, home):
    if "hidden" not in done:
        pytest.skip("this machine lets nobody make a mount namespace")
    figures = done["hidden"]
    keys = ("index.path", "index.path", "ledger.path")
    files = ("index", "index/manifest.json", "ledger")
    for message, key, file in zip(figures["messages"], keys, files, strict=True):
        missing = f"({figures['node']}) does not see {key} {home}/hidden/{file}: there is no such file there: mount"
        assert message.startswith("node ")
        assert missing in message
    late = f"({figures['node']}) has not answered in 0 s: whether it sees ledger.path is not known"
    assert late in figures["late"], "a node that is slow to start a process ends no job"
    assert not list(home.rglob("*.probe")), "nothing is left behind"


def test_encoders_hold_gpus_and_encode_while_later_files_are_parsed(done):
    figures = done["gpus"]
    while_parsing = [line for line in figures["index"] if line.startswith("parse") and line.endswith(" texts encoded")]
    assert while_parsing, figures["index"]
    # How many depends on which is faster; the first window has 63 texts, for one of its 64 repeats.
    progress = [(int(line.split("/")[0].split()[-1]), int(line.split()[-3])) for line in while_parsing]
    assert any(0 < n_files < N_FILES and n_texts > 0 for n_files, n_texts in progress), progress
    # Two share one GPU; where the second one starts late (a loaded machine), the first has encoded all.
    assert len(figures["texts_by_encoder"]) in (1, 2)
    assert sum(figures["texts_by_encoder"]) >= figures["counts"]["n_encoded"]
    assert figures["counts"]["n_documents"] == N_FILES
    assert figures["counts"]["n_encoded"] == 24 * N_FILES + 1, "a text of every file is one"


def test_builders_and_retrievers_ask_for_gpus_and_go_on_where_faiss_cannot_use_them(done, home):
    figures = done["gpus"]
    for_cpus = without_gpu_support()
    assert "the one for CPUs" in for_cpus
    assert [line for line in figures["index"] if line.startswith("reduce  on CPUs")] == [
        f"reduce  on CPUs: FAISS trains and fills no lists on a GPU: {for_cpus}"
    ]
    assert [line for line in figures["free"] if "auto" in line] == [
        f"answer  index.search_device auto: FAISS searches on the CPU, since {for_cpus}",
    ]
    assert figures["taken"].startswith(
        "1 retriever (1 CPU and 0.5 GPUs) got no room on the nodes in 2 s: the cluster has 9 CPUs of which "
    )
    assert (
        "12 GPUs of which 0 free: lower cluster.retriever.replicas, .cpus (0 is possible) or .gpus" in figures["taken"]
    )
    assert figures["answers"] == [8, 0]
    first, second = ((home / run / "submission.csv").read_bytes() for run in ("free", "cpus"))
    assert first == second


def test_a_job_whose_encoders_have_no_node_yet_says_so_and_counts_what_is_parsed_meanwhile(done):
    figures = done["late"]
    # Once the node is there, an encoder holds a part of it while its model loads.
    waiting = [line for line, given in figures["lines"] if line.startswith("index   waiting") and not given]
    assert waiting[0].startswith("index   waiting for 1 encoder (1 CPU and 0.001 encoder_nodes each)")
    assert "0 encoder_nodes free; 4 of 4 files are parsed" in waiting[-1]
    parsed = next(was_given for line, was_given in figures["lines"] if line.startswith("parse  "))
    assert not parsed, "what is parsed is counted, and BM25 begun, before an encoder has a node"
    assert figures["parse_s"] < figures["encode_s"], "waiting for encoders is no parsing"
    assert figures["n_documents"] == 4


@needs("vllm")
def test_serve_asks_a_cluster_of_gpus_for_whole_nodes(done):
    """The placement groups are those of a real cluster, only engines are missing."""
    figures = done["replicas"]
    tensor = figures["tensor"]
    assert tensor["strategy"] == "STRICT_PACK"
    assert tensor["nodes"] in (["a"], ["b"])
    assert [bundle["GPU"] for bundle in tensor["bundles"]] == [1] * 4
    assert all(bundle["replica_node"] > 0 for bundle in tensor["bundles"])
    both = figures["pipeline"]
    assert (both["strategy"], both["nodes"]) == ("PACK", ["a", "b"])
    assert len(both["bundles"]) == 8
    group = figures["data"]
    assert [bundle["GPU"] for bundle in group["bundles"]] == [1] * 4, "two engines of two GPUs"
    assert set(group["nodes"]) <= {"a", "b"}
    assert group["n_up"] == 2
    assert [figures[name]["worker_gpus"] for name in ("tensor", "pipeline", "data")] == [1, 1, 1]
    [bundle] = figures["share"]["bundles"]
    assert (bundle["GPU"], figures["share"]["worker_gpus"]) == (0.25, 0.25)
    assert "swap_space" in figures["unknown"]
    assert figures["refused"].startswith("a replica of big needs 6 GPUs on one node but the largest node has 4")
