# Each target sets up .venv by itself; needed: Python 3.11+ with pip and venv, git, make.
PYTHON ?= python3
ARGS ?=

.PHONY: demo test unit lint format bench clean

demo: .venv/installed  ## simulated vLLM servers and the proxy on loopback; ARGS=--once streams one completion
	.venv/bin/penstock demo $(ARGS)

test: .venv/installed  ## all tests; ARGS="tests/unit -k heads" for some
	.venv/bin/python -m pytest -q $(ARGS)

lint: .venv/installed  ## formatting, lint rules, types
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy

format: .venv/installed
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

bench: .venv/installed  ## CPU, latency and memory beside nginx, HAProxy and aiohttp (Debian: nginx-light haproxy)
	.venv/bin/penstock bench overhead $(ARGS)

.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "penstock needs Python 3.11 or newer: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
