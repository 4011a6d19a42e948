PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Three of them take the long tests that need a server, which wait much, the other the rest.
TEST_PROCESSES ?= 4
# Which tests, by their marks: long, integration; and where, by default also in docstrings.
TESTS ?= not long
IN ?=
# A machine with an NVIDIA GPU takes the registry's CUDA build ("===" rules out a local "+cpu" build);
# any other takes a CPU build where pip is configured with one.
TORCH := $(shell command -v nvidia-smi >/dev/null 2>&1 && sed -n 's/^torch==\([^ ;]*\).*/torch===\1/p' requirements.lock)
# The page of `fineweb-mask explore`; of the packages that it asks for, none is used.
MAP := embedding-atlas==0.22.0
# Settings that Prefect reads when it is imported. Nothing here calls home.
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export DO_NOT_TRACK := 1
# Where it is set, as in images of containers, every process compiles all that it imports: some 15 seconds each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint pytest test-long soak fuzz audit serve lock clean docs wheel

demo: $(VENV)/.installed
	$(BIN)/fineweb-mask run deployments/recipes/sample.yaml
	@$(BIN)/python -m data_samples.outcome

test: lint pytest

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Those of TESTS, without lint and types.
pytest: $(VENV)/.installed
	$(BIN)/python -m pytest $(IN) -m "$(TESTS)" --numprocesses $(TEST_PROCESSES) --no-loadscope-reorder --durations=20 --durations-min=1

# Kill and cancel whole runs, clusters and workers, read hundreds of broken files, compare with large references.
test-long:
	@$(MAKE) --no-print-directory pytest TESTS=long IN=tests

# Kill runs anywhere, flip bits, read hostile files, run and read at once, fill the disk, and compare with a run that
# nothing disturbed; then measure what grows over many runs. It takes hours; to fill a disk takes root.
soak: $(VENV)/.installed
	$(BIN)/python -m tests.soak.kill_anywhere --kills $(or $(KILLS),200)
	$(BIN)/python -m tests.soak.flip --flips $(or $(FLIPS),1000)
	$(BIN)/python -m tests.soak.hostile
	$(BIN)/python -m tests.soak.together
	$(BIN)/python -m tests.soak.full_disk
	$(BIN)/python -m tests.soak.growth runs --count $(or $(RUNS),500)
	$(BIN)/python -m tests.soak.growth shards --count $(or $(SHARDS),300)
	$(BIN)/python -m tests.soak.growth deployments --count $(or $(DEPLOYMENT_RUNS),100)

# Change JSON Lines at random and read them, for five minutes; what fails is in .fuzz/ (Linux only).
FUZZ_SECONDS ?= 300
fuzz: $(VENV)/.installed
	@PIP_CONSTRAINT=requirements.lock $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	$(BIN)/python -m tests.fuzz.run jsonl .fuzz $(FUZZ_SECONDS)

# Run a Prefect server with its UI and a worker on this machine, and deploy, until Ctrl-C: make serve PORT=4300
serve: $(VENV)/.installed
	@$(BIN)/python -m deployments.serve $(if $(PORT),--port $(PORT))

# Not compiled: what is imported is compiled then, and most modules never are.
$(VENV)/.installed: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"fineweb-mask needs Python 3.11 or newer, not {sys.version.split()[0]}: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	@echo "Installing the locked packages into $(VENV); this takes a few minutes the first time."
	@PIP_CONSTRAINT=requirements.lock $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --editable '.[dev]' $(TORCH)
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps $(MAP)
	touch $@

# The package as one file in dist/, for `pip install` on any machine; what an earlier build left is no part of it.
wheel: $(VENV)/.installed
	rm -rf build
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	rm -rf build

# The documentation as a site in site/, which needs no server. A link that leads nowhere fails it.
docs: $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The one place where versions are decided: names and versions for every platform, no addresses.
lock:
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --upgrade \
	  --no-emit-index-url --no-annotate --no-header --output-file requirements.lock

# Known vulnerabilities of the locked packages; pip-audit is installed into a folder that is removed at the end.
# Error 1: some were found, and are listed. Error 3: nothing was audited, because a service could not be reached.
audit:
	@folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	$(PYTHON) -m venv "$$folder" && "$$folder/bin/python" -m pip install --quiet --disable-pip-version-check pip-audit \
	  || { echo "audit: pip-audit could not be installed: nothing was audited" >&2; exit 3; }; \
	"$$folder/bin/pip-audit" --requirement requirements.lock --no-deps --disable-pip --progress-spinner off \
	  --output "$$folder/found" 2> "$$folder/errors"; code=$$?; \
	if [ -f "$$folder/found" ]; then cat "$$folder/found"; tail -n 1 "$$folder/errors" >&2; exit $$code; fi; \
	tail -n 3 "$$folder/errors" >&2; \
	if [ $$code -eq 0 ]; then exit 0; fi; \
	echo "audit: the advisory service could not be reached: nothing was audited; try again with a network" >&2; exit 3

clean:
	rm -rf $(VENV) workspaces build dist src/*.egg-info
