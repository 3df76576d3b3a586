# The targets people use; .ci/run calls `make test` and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SECONDS ?= 60
# Every target that runs skyward sees the engine, registry, base image and index map of `make engine`.
ENV := set -a; [ -f .engine/env ] && . ./.engine/env; set +a;

.PHONY: demo test dockerfiles lint typing engine engine-down stand stand-down venv bench chaos sim clean

demo: engine venv  ## set up everything, then train on two containers
	@$(ENV) $(BIN)/python examples/digits.py

test: engine venv lint typing  ## the whole suite, unit and end to end on real containers
	@$(ENV) $(BIN)/python -m pytest

lint: venv
	@$(BIN)/ruff check -q . && $(BIN)/ruff format --check -q .

typing: venv
	@$(BIN)/mypy --no-error-summary

dockerfiles: venv  ## rewrite dockerfiles/ from images/
	@$(BIN)/python -m scripts.dockerfiles

sim: venv  ## simulate a pool for a minute, or the one seed SEED=n; see docs/simulation.md
	@$(BIN)/python -m tests.sim $(if $(SEED),--seed $(SEED),--seconds $(SECONDS))

bench: engine venv  ## dispatch figures as JSON
	@$(ENV) $(BIN)/python benchmarks/dispatch.py

chaos: engine venv  ## five minutes of kills, stops, cuts, soak and mutated frames; SEED=n repeats a run
	@$(ENV) $(BIN)/python -m tests.chaos

engine:  ## a reachable Docker engine, a registry on loopback, the default base image
	@$(PYTHON) scripts/engine up

engine-down:
	@$(PYTHON) scripts/engine down

stand: engine  ## three Docker hosts in network namespaces of this machine; .stand/hosts.json says how to reach them
	@$(PYTHON) scripts/stand up

stand-down:
	@$(PYTHON) scripts/stand down

venv: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	@echo "venv: creating $(VENV) and installing skyward with its development tools"
	@$(PYTHON) -c 'import sys; sys.exit("skyward needs Python 3.11 or newer, found " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { [ "$$(id -u)" = 0 ] && apt-get install -y -q python3-venv; } || \
	  { echo "venv: $(PYTHON) cannot make virtual environments. Install its venv package (Debian: python3-venv)." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q -e '.[dev]'
	@touch $@

clean:
	@$(PYTHON) scripts/stand down
	@$(PYTHON) scripts/engine down --purge
	@rm -rf $(VENV)
