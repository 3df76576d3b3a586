# The targets people use; .ci/run calls `make test` and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SECONDS ?= 60
ALONE = $$(grep -rl --include='test_*.py' pytest.mark.alone tests)
# Every target that runs skyward sees the engine, registry, base image and index map of `make engine`.
ENV := set -a; [ -f .engine/env ] && . ./.engine/env; set +a;

.PHONY: demo test test-all docs dockerfiles lint typing engine engine-down stand stand-down slurm slurm-down kube kube-build kube-down venv bench bench-peers chaos sim clean

demo: engine venv  ## set up everything, then train on two containers
	@$(ENV) $(BIN)/python examples/digits.py

test: engine venv lint typing  ## what a contributor waits for: unit, simulator, processes, Docker, SSH, a framework of each kind
	@$(ENV) $(BIN)/python -m pytest --instafail --core -n 3 --dist loadgroup --no-loadscope-reorder -m "not alone"

test-all: engine venv lint typing  ## everything, before a release: also Kubernetes, Slurm, clouds, all frameworks, chaos
	@mkdir -p .kube && { $(PYTHON) -m scripts.kube build >.kube/build.log 2>&1 & }  # its tests come last, and wait for it
	@$(ENV) $(BIN)/python -m pytest --instafail -n 3 --dist loadgroup --no-loadscope-reorder -m "not alone"
	@$(ENV) $(BIN)/python -m pytest --instafail -m alone $(ALONE)

lint: venv
	@$(BIN)/ruff check -q . && $(BIN)/ruff format --check -q .

typing: venv
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/mypy --no-error-summary --platform darwin --cache-dir .mypy_cache/darwin skyward

docs: venv  ## the documentation as a site, into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict && echo "docs: $(CURDIR)/site/index.html"

dockerfiles: venv  ## rewrite dockerfiles/ from images/
	@$(BIN)/python -m scripts.dockerfiles

sim: venv  ## simulate a pool for a minute, or the one seed SEED=n; see docs/architecture.md
	@$(BIN)/python -m tests.sim $(if $(SEED),--seed $(SEED),--seconds $(SECONDS))

bench: engine venv  ## dispatch figures as JSON
	@$(ENV) $(BIN)/python benchmarks/dispatch.py

bench-peers: venv  ## dispatch beside multiprocessing, loky, Ray and Dask; writes docs/performance.md anew
	@$(BIN)/python benchmarks/peers.py
	@$(BIN)/python -m benchmarks.peers_page

chaos: engine venv  ## 10,000 calls while workers, nodes and hosts are killed, stopped and cut off; SEED=n chooses the faults
	@$(ENV) CALLS=10000 $(BIN)/python -m pytest -s tests/e2e/test_chaos.py

engine:  ## a reachable Docker engine, a registry on loopback, the default base image
	@$(PYTHON) -m scripts.engine up

engine-down:
	@$(PYTHON) -m scripts.engine down

stand: engine  ## three Docker hosts in network namespaces of this machine; .stand/hosts.json says how to reach them
	@$(PYTHON) -m scripts.stand up

stand-down:
	@$(PYTHON) -m scripts.stand down

kube: engine  ## a Kubernetes of two nodes on this machine; KUBECONFIG=.kube/kubeconfig
	@$(PYTHON) -m scripts.kube up

kube-build:  ## build what `make kube` starts, about 5 minutes once per user
	@$(PYTHON) -m scripts.kube build

kube-down:
	@$(PYTHON) -m scripts.kube down

slurm:  ## a Slurm cluster of three nodes in network namespaces of this machine; .slurm/cluster.json says how to reach it
	@$(PYTHON) -m scripts.slurm up

slurm-down:
	@$(PYTHON) -m scripts.slurm down

venv: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	@echo "venv: creating $(VENV) and installing skyward with its development tools"
	@$(PYTHON) -c 'import sys; sys.exit("skyward needs Python 3.11 or newer, found " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { [ "$$(id -u)" = 0 ] && apt-get install -y -q python3-venv; } || \
	  { echo "venv: $(PYTHON) cannot make virtual environments. Install its venv package (Debian: python3-venv)." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q -e '.[dev,docs]'
	@touch $@

clean:
	@$(PYTHON) -m scripts.kube down
	@$(PYTHON) -m scripts.slurm down
	@$(PYTHON) -m scripts.stand down
	@$(PYTHON) -m scripts.engine purge
	@rm -rf $(VENV)
