# `make help` says what each target does. Everything is installed into .venv; outside of this folder only caches change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What is installed: what Tenure runs with, and what tests, checks and docs need besides.
RUN := $(VENV)/.run
DEVELOP := $(VENV)/.develop
NODE_STAMP := tests/node/node_modules/.installed
# With it `tenure dev` knows what its caller has to type to find the command.
CALLERS_PATH := $(PATH)
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Kept compiled: the tests start processes by the hundred, and each would compile all it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup node node-if-reached demo dev test-fast test test-pauses faults nightly check lint types imports protos protos-lint protos-fresh lock lock-fresh audit sbom package docs bench bench-peers clean

help: ## Say what each target does
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(DEVELOP) ## Install Tenure and all that tests, checks and docs need into .venv

$(RUN): pyproject.toml deploy/requirements.lock deploy/requirements-dev.lock
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 14) else f"Tenure needs Python 3.11, 3.12 or 3.13; {sys.executable} is {v[0]}.{v[1]}. Choose one with: make PYTHON=python3.12 ...")'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "Python cannot make virtual environments here; on Debian install the package python3-venv."; exit 1; }
	@$(PYTHON) deploy/install.py run
	@touch $@

$(DEVELOP): $(RUN) deploy/requirements-check.lock
	@$(PYTHON) deploy/install.py develop
	@touch $@

demo: $(RUN) ## The main job: a task survives a frozen and a killed worker
	$(BIN)/tenure demo

dev: $(RUN) ## Run the whole stack here until Ctrl-C
	@PATH='$(CALLERS_PATH)' $(BIN)/tenure dev

node: $(NODE_STAMP) ## Install the Node packages that tests run

$(NODE_STAMP): tests/node/package-lock.json | $(DEVELOP)
	$(BIN)/python tests/node/install.py

# Where the npm registry cannot be reached, the tests that need its packages are skipped, and say why.
node-if-reached: setup
	@$(MAKE) --question $(NODE_STAMP) || $(BIN)/python tests/node/install.py --or-skip

# The four commands of tests, by what they protect. CONTRIBUTING.md says which to run when.
IN_PARALLEL := -n 4 --dist loadfile --no-loadscope-reorder
PYTEST := $(BIN)/python -m pytest $(IN_PARALLEL)

test-fast: setup ## The inner loop: rules and contracts, in about a minute
	$(PYTEST) -m "not faults and not nightly" tests/unit tests/contract

test: setup node-if-reached ## Rules, services on real stores, each endpoint once from end to end, a scene of each fault
	$(PYTEST) -m "not faults and not nightly"

faults: setup node-if-reached ## Sweeps over faults: MINUTES (10) of seeds, or the SEEDS A..B, or one SEED; then all others
	$(BIN)/python -m tests.fault.suite $(if $(SEED),--seed $(SEED),$(if $(SEEDS),--seeds $(SEEDS),--minutes $(or $(MINUTES),10))) $(if $(MODE),--mode $(MODE))
	$(if $(or $(SEED),$(SEEDS)),,$(BIN)/python -m spec --large || [ $$? = 2 ])
	$(if $(or $(SEED),$(SEEDS)),,TENURE_EXAMPLES=10 $(PYTEST) -m "faults or fuzz")

test-pauses: setup node-if-reached ## `make test` (or the FILES) on a machine that stands still for seconds now and then
	$(BIN)/python -m tests.support.pauses -- $(IN_PARALLEL) -m "not faults and not nightly" $(FILES)

nightly: setup node-if-reached ## Wheel, site, browsers, compose, peers: everything that neither of the others runs
	$(MAKE) test-pauses FILES="tests/conformance tests/end_to_end"
	TENURE_TEST_PEERS=1 $(PYTEST) -m nightly

# The types take as long as all else, so it runs beside them.
check: setup ## Static checks: lint, types, imports, protos, locks, known holes
	@$(MAKE) --no-print-directory -j 2 types lint imports protos-lint protos-fresh lock-fresh audit

protos-lint:
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code

protos-fresh:
	$(BIN)/python -m pytest -q tests/contract/test_protos.py

# Needs PyPI. After a change of the dependencies in pyproject.toml; with UPGRADE=1 also takes newer releases.
lock: ## Write deploy/*.lock: each release with its hashes, for the image and CI
	$(BIN)/python -m deploy.supply_chain lock $(if $(UPGRADE),--upgrade)

lock-fresh:
	$(BIN)/python -m pytest -q tests/contract/test_supply_chain.py

audit:
	$(BIN)/python -m deploy.supply_chain audit

sbom: setup ## Write dist/sbom.cdx.json: the packages of the image, as CycloneDX
	$(BIN)/python -m deploy.supply_chain sbom dist/sbom.cdx.json

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types:
	$(BIN)/mypy

imports:
	$(BIN)/lint-imports --no-logo

protos: setup ## Generate tenure/v1 from protos/
	$(BIN)/python protos/generate.py

package: setup ## Build the wheel and the source distribution into dist/
	$(BIN)/python -m build --no-isolation --outdir dist .

docs: setup ## The documentation as a site in build/site, with the references of Python and gRPC and llms.txt
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

bench: setup ## Measure: latencies of takeover, commits and steps per second; then compare ratios with the baseline
	$(BIN)/python -m bench
	$(BIN)/python -m bench --check

bench-peers: setup ## Measure Tenure beside other engines, installed into .peers; writes docs/peers.* (15 minutes)
	$(BIN)/python -m bench.peers --environment .peers --docs docs

clean: ## Remove what was installed and generated here
	rm -rf $(VENV) .peers tests/node/node_modules .tenure .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
