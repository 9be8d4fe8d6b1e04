# Everything here makes its own environment first, and is quick about it the second time.
# Another interpreter: make quickstart PYTHON=python3.12
PYTHON ?= python3
PIP = -m pip --disable-pip-version-check --quiet
export DO_NOT_TRACK = 1
SLOW_LAYOUTS = tests/integration/test_pretrain_layouts.py tests/integration/test_machines.py

.PHONY: quickstart test layouts lint peers javascript browser doctor up schema lock clean

quickstart: .venv/installed  ## from text to a released model, no network, minutes on two cores
	.venv/bin/mindcycle run configs/quickstart.yaml

test: lint  ## what must hold
	.venv/bin/python -m pytest tests --ignore=tests/peers --ignore=tests/javascript --ignore=tests/browser \
	  $(addprefix --ignore=,$(SLOW_LAYOUTS)) -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

layouts: .venv/installed  ## every layout trains like one, killed too, on several machines too; slow
	.venv/bin/python -m pytest tests/integration/test_layouts.py $(SLOW_LAYOUTS)

lint: .venv/installed
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

peers: .venv-peers/installed  ## the same numbers in transformers, peft, OpenVINO and onnxruntime-genai
	.venv-peers/bin/python -m pytest tests/peers

javascript: .venv/installed build/javascript/installed  ## the bundle in transformers.js: in Node, and in a browser
	.venv/bin/python -m pytest tests/javascript

browser: .venv/browser  ## a person at Prefect's interface: Chromium against a real server
	.venv/bin/python -m pytest tests/browser

doctor: .venv/installed  ## is this machine fit?
	.venv/bin/mindcycle doctor

up: .venv/installed  ## Prefect's server, user interface and all deployments, on 127.0.0.1
	.venv/bin/mindcycle up

schema: .venv/installed  ## configs/schema.json, after a config class has changed
	.venv/bin/mindcycle schema

lock:  ## requirements.lock anew, after pyproject.toml has changed; needs uv
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.10 \
	  --no-header --no-annotate --no-emit-index-url --quiet --output-file requirements.lock
	sed -i "s/ ; python_full_version < '3.13'$$//; s/ and python_full_version < '3.13'//; \
	  s/python_full_version < '3.13' and //" requirements.lock

clean:  ## the environments and caches; never a store
	rm -rf .venv .venv-peers .mypy_cache .ruff_cache .pytest_cache

.venv/installed: requirements.lock pyproject.toml
	@$(call check_python)
	@test -x .venv/bin/python || $(PYTHON) -m venv .venv
	@echo "Installing what requirements.lock names into .venv: about 1.2 GB to fetch, 4 GB on disk ..."
	.venv/bin/python $(PIP) install -r requirements.lock
	.venv/bin/python $(PIP) install --no-deps --editable .
	@touch $@

.venv-peers/installed: requirements.lock requirements-peers.lock pyproject.toml
	@$(call check_python)
	@test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python $(PIP) install -r requirements.lock -r requirements-peers.lock
	.venv-peers/bin/python $(PIP) install --no-deps --editable .
	@touch $@

.venv/browser: .venv/installed requirements-browser.lock
	.venv/bin/python $(PIP) install -r requirements-browser.lock
	@touch $@

# No install scripts: onnxruntime-node's would fetch CUDA.
build/javascript/installed: tests/javascript/package.json
	@mkdir -p build/javascript
	cp tests/javascript/package.json build/javascript/
	npm install --ignore-scripts --no-audit --no-fund --prefix build/javascript
	@touch $@

check_python = $(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' \
	2>/dev/null || { echo "MindCycle needs Python 3.10, 3.11 or 3.12, but $(PYTHON) is \
	$$($(PYTHON) --version 2>&1). Name another one: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 2; }
