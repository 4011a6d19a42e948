PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two of them take the tests that need a server, which wait much, the others the rest.
TEST_PROCESSES ?= 3
# A machine with an NVIDIA GPU takes the registry's CUDA build ("===" rules out a local "+cpu" build);
# any other takes a CPU build where pip is configured with one.
TORCH := $(shell command -v nvidia-smi >/dev/null 2>&1 && sed -n 's/^torch==\([^ ;]*\).*/torch===\1/p' requirements.lock)
# Settings that Prefect reads when it is imported. Nothing here calls home.
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export DO_NOT_TRACK := 1

.PHONY: demo test serve stop lock clean

demo: $(VENV)/.installed
	$(BIN)/fineweb-mask run deployments/recipes/sample.yaml

test: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --no-loadscope-reorder

# Start a Prefect server with its UI and a worker on this machine, and deploy: make serve PORT=4300
serve: $(VENV)/.installed
	@$(BIN)/python -m deployments.serve start $(if $(PORT),--port $(PORT))

stop:
	@$(BIN)/python -m deployments.serve stop

$(VENV)/.installed: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"fineweb-mask needs Python 3.11 or newer, not {sys.version.split()[0]}: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	@echo "Installing the locked packages into $(VENV); this takes a few minutes the first time."
	@PIP_CONSTRAINT=requirements.lock $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' $(TORCH)
	touch $@

# The one place where versions are decided: names and versions for every platform, no addresses.
lock:
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --upgrade \
	  --no-emit-index-url --no-annotate --no-header --output-file requirements.lock

clean:
	rm -rf $(VENV) workspaces build dist src/*.egg-info
