# `make` alone lists the targets. All that is needed is make and Python 3.11 or newer; the rest goes into .venv.

PYTHON ?= python3
BIN := .venv/bin
SEEDS ?= 300
SECONDS_EACH ?= 60
SEED ?= 0
# Tests that run at the same time. They wait for processes and disks most of the time, and one worker for containers.
WORKERS ?= 3
# Unit tests wait less: a third worker fills what the waits of two leave (65 s instead of 78 s on two cores).
UNIT_WORKERS ?= 3

# Without its byte code, pytest would compile all tests in each of its processes.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo recording walk lint check test sim night exhaustive exhaustive-all mutate fuzz majors conformance torture soak bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: .venv/.dev ## make .venv and install the project with everything that its tests need

demo: .venv/.embedded ## the whole story on an embedded PostgreSQL: commits, crashes, losses, WAL as tables; QUICK=1: its first part
	$(BIN)/walproxy demo $(if $(QUICK),--quick)

recording: .venv/.dev ## run the quick demo and draw docs/demo.svg of what it prints
	$(BIN)/python -m walproxy.lab.demo.recording

walk: ## follow the README's five minutes on a fresh Debian 12, as root and as ordinary users; needs root and mmdebstrap
	.ci/walk

lint: .venv/.dev ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint ## what a change needs: lint, unit tests and a few hundred simulation seeds
	$(BIN)/pytest -q -n $(UNIT_WORKERS) tests/unit
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

test: .venv/.dev ## all tests: unit, simulation, real PostgreSQL, containers (where there is an engine)
	@# The tests start hundreds of processes, also in places where they cannot write what they compile.
	$(BIN)/python -m compileall -q safekeeper walproxy
	$(BIN)/pytest -n $(WORKERS) --in-memory --dist loadfile --no-loadscope-reorder -m "not nightly" tests --ignore=tests/torture
	$(BIN)/python -m tests.simulation --seeds 500

sim: .venv/.dev ## simulate SEEDS runs, the first with SEED: make sim SEEDS=1000 SEED=42
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --first $(SEED)

night: .venv/.dev ## run seeds for HOURS, from where the last night ended, and report all nights: make night HOURS=8
	$(BIN)/python -m tests.simulation.night --hours $(or $(HOURS),8)

exhaustive: .venv/.dev ## every interleaving of two terms in a small world: with slow flushes, with late answers, with a change of the member
	$(BIN)/python -m tests.simulation.exhaustive --terms 2 --records 1 --prompt
	$(BIN)/python -m tests.simulation.exhaustive --terms 2 --records 1 --prompt flushes
	$(BIN)/python -m tests.simulation.exhaustive --change --terms 2 --records 1 --prompt flushes
	$(BIN)/python -m tests.simulation.exhaustive --change --terms 2 --records 1 --prompt --crashes 1

exhaustive-all: .venv/.dev ## every interleaving of two terms in a small world, with flushes and answers late: seven minutes of CPU time, 3.3 GB
	$(BIN)/python -m tests.simulation.exhaustive --terms 2 --records 1

mutate: .venv/.dev ## change one thing at a time in the consensus and the storage, and count what the tests detect: make mutate SAMPLE=40 SEED=7
	$(BIN)/python -m tests.mutation $(if $(SAMPLE),--sample $(SAMPLE)) --seed $(SEED) $(if $(ONLY),--only $(ONLY))

fuzz: .venv/.dev ## look for bytes of peers that a decoder has no answer to: make fuzz SECONDS_EACH=600 TARGET=session
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS_EACH) $(TARGET)

majors: .venv/.dev ## fetch PostgreSQL 13, 14 and 16 into build/postgres, for the torture
	$(BIN)/python -m tests.torture.majors

conformance: .venv/.dev ## PostgreSQL's regression and TAP suites with safekeepers between, from sources that apt fetches: make conformance MAJORS=15,18 SUITE=regress
	$(BIN)/python -m tests.conformance $(if $(MAJORS),--majors $(MAJORS)) $(if $(SUITE),--suite $(SUITE))

torture: .venv/.dev ## what takes minutes: kills, gigabytes. With MINUTES=10 SEED=7 a cluster is stressed so long instead
	@mkdir -p build
	$(if $(MINUTES),,$(BIN)/python -m tests.torture.majors)
	$(if $(MINUTES),$(BIN)/walproxy torture --minutes $(MINUTES) $(if $(filter file,$(origin SEED)),,--seed $(SEED)) --report build/torture.html,$(BIN)/pytest -v -s tests/torture && $(BIN)/pytest -v -m nightly tests/unit tests/integration tests/pipeline tests/simulation)

soak: .venv/.embedded ## a steady load, and whether any process grows: make soak MINUTES=60
	@mkdir -p build
	$(BIN)/walproxy torture --soak --minutes $(or $(MINUTES),60) --report build/soak.html

bench: .venv/.embedded ## synchronous-commit options side by side on this machine
	$(BIN)/walproxy bench

clean: ## remove .venv and every cache
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "make: $(PYTHON) is missing or older than 3.11; install Python 3.11, or name one: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "make: $(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv .venv

# A stamp for each set of extras: dev has all that embedded has.
.venv/.embedded: pyproject.toml | .venv/bin/pip
	$(BIN)/pip install --quiet --editable '.[embedded,lab,pipeline]'
	$(BIN)/python -m walproxy.pipeline.decoder.warm
	@touch $@

.venv/.dev: pyproject.toml | .venv/bin/pip
	$(BIN)/pip install --quiet --editable '.[dev]'
	@# barman requires psycopg2, which must be compiled; psycopg2-binary is the same module.
	$(BIN)/pip install --quiet --no-deps 'barman>=3.19,<3.20'
	$(BIN)/python -m walproxy.pipeline.decoder.warm
	@touch $@ .venv/.embedded
