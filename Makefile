# lexicast: `make demo` shows it, `make test` checks it. Everything goes into .venv; nothing outside but Debian packages.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.ONESHELL:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
OUT := out

# Ray: no token file in the user's home for clusters that live for one test, and no usage reports.
TEST_ENV := RAY_AUTH_MODE=disabled RAY_USAGE_STATS_ENABLED=0

.PHONY: help
help: ## This list
	@printf 'make TARGET:\n'
	sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 16

.PHONY: setup
setup: compiled ## Install lexicast into .venv (then: . .venv/bin/activate; lexicast up)

# Without a C compiler, or where it fails, the sources run.
.PHONY: compiled
compiled: $(VENV)/.installed ## Compile the data path, where there is a C compiler (setup does it; some minutes, once)
	-@$(BIN)/python scripts/compile.py

.PHONY: wheel
wheel: compiled ## A wheel in dist/, with what was compiled
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

.PHONY: demo
demo: compiled ## Replay 100,000 flight events through a cluster on this machine (under 3 minutes after set-up)
	@mkdir -p $(OUT)
	$(BIN)/lexicast demo --out $(OUT)

.PHONY: demo-spark
demo-spark: $(VENV)/.installed-spark ## Ask and train from the history of flights with Spark (installs it: 1 GB)
	@mkdir -p $(OUT)
	$(BIN)/python -m lexicast.bench.demo_spark --out $(OUT)

.PHONY: pictures
pictures: $(VENV)/.installed-dev debian-test ## The README's pictures of the page anew, into docs/pictures (two minutes)
	@$(TEST_ENV) $(BIN)/python -m lexicast.bench.demo_page.pictures docs/pictures

.PHONY: test
test: $(VENV)/.installed-dev debian-test npm-test compiled ## Lint, types and all tests
	@printf '== ruff\n'
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	printf '== mypy\n'
	$(BIN)/mypy
	printf '== pytest\n'
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 --max-worker-restart 0 -m 'not spark and not drill' $(PYTEST_ARGS)

.PHONY: test-drill
test-drill: $(VENV)/.installed-dev debian-test debian-drill ## `ray up` on machines that are namespaces, brokers that die, a bridge to RabbitMQ (four minutes, alone)
	@$(TEST_ENV) $(BIN)/python -m pytest -m drill $(PYTEST_ARGS)

.PHONY: test-spark
test-spark: $(VENV)/.installed-dev $(VENV)/.installed-spark ## The tests that start Spark (installs it: 1 GB)
	@$(TEST_ENV) $(BIN)/python -m pytest tests/raydp_jobs $(PYTEST_ARGS)

.PHONY: lint
lint: $(VENV)/.installed-dev ## Only ruff and mypy
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.PHONY: format
format: $(VENV)/.installed-dev ## Bring the code into ruff's form
	@$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench
bench: $(VENV)/.installed-bench debian-bench compiled ## All drivers beside their peers (hours; BENCH_ARGS=--quick: minutes)
	@mkdir -p $(OUT)
	for driver in fanout fanin aliases shared bridge latency connections resume past stream_cpu fleet security damage failover replication reaps srem bandwidth tapd compression \
	    history.learning dualdb dualdb.crash; do
	    printf '== %s\n' "$$driver"
	    $(TEST_ENV) $(BIN)/python -m lexicast.bench.$$driver --json "$(OUT)/$$driver.json" $(BENCH_ARGS)
	done

.PHONY: bench-spark
bench-spark: $(VENV)/.installed-spark ## The driver of the history in Spark (installs it: 1 GB)
	@mkdir -p $(OUT)
	$(TEST_ENV) $(BIN)/python -m lexicast.bench.history --json "$(OUT)/history.json" $(BENCH_ARGS)

.PHONY: spark
spark: $(VENV)/.installed-spark ## Install what the history as Spark DataFrames needs (1 GB)

.PHONY: clean
clean: ## Remove .venv, caches and output
	@rm -rf $(VENV) $(OUT) build dist src/lexicast/compiled_modules .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage htmlcov
	find . -name '*.egg-info' -prune -exec rm -rf {} +
	find . -name __pycache__ -prune -exec rm -rf {} +

# Installing. A stamp is written only after pip has ended well, so that an interrupted run starts again, and one that
# has nothing to do costs nothing.

# A stamp too, because `python -m venv` makes bin/python first and pip last.
$(VENV)/.made:
	@if ! command -v "$(PYTHON)" > /dev/null; then
	    printf 'lexicast needs Python 3.11: install it (Debian: apt-get install python3.11-venv), or say where it is: make PYTHON=/path/to/python3.11 ...\n' >&2
	    exit 1
	fi
	if ! "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
	    printf '%s is not Python 3.11, for which constraints.txt is pinned: make PYTHON=/path/to/python3.11 ...\n' "$(PYTHON)" >&2
	    exit 1
	fi
	rm -rf $(VENV)
	if ! "$(PYTHON)" -m venv $(VENV); then
	    rm -rf $(VENV)
	    printf 'no virtual environment could be made: install the venv module (Debian: apt-get install python3.11-venv)\n' >&2
	    exit 1
	fi
	touch $@

define install
	@printf 'installing lexicast%s into $(VENV) ...\n' '$(1)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(2) -e '.$(1)'
	touch $@
endef

$(VENV)/.installed: $(VENV)/.made pyproject.toml constraints.txt
	$(call install,[compile])

# Not compiled: the tests import a fifth of 7,000 modules, and Python compiles what it imports.
$(VENV)/.installed-dev: $(VENV)/.made pyproject.toml constraints.txt
	$(call install,[dev],--no-compile)
	touch $(VENV)/.installed

$(VENV)/.installed-bench: $(VENV)/.made pyproject.toml constraints.txt
	$(call install,[bench])
	touch $(VENV)/.installed

$(VENV)/.installed-spark: $(VENV)/.made pyproject.toml constraints.txt
	$(call install,[spark])
	touch $(VENV)/.installed

.PHONY: debian-test
debian-test:
	@scripts/debian mosquitto_pub=mosquitto-clients mosquitto=mosquitto nats-server=nats-server \
	    sshd=openssh-server rsync=rsync ip=iproute2 chromium=chromium npm=npm \
	    promtool=prometheus /usr/include/MQTTAsync.h=libpaho-mqtt-dev

.PHONY: debian-drill
debian-drill:
	@scripts/debian rabbitmq-server=rabbitmq-server

# The MQTT client of tests in Node and of their page in a browser. Where it cannot be had, they say so.
.PHONY: npm-test
npm-test: $(VENV)/.installed-npm

$(VENV)/.installed-npm: | $(VENV)/.made debian-test
	@if timeout 120 npm install --silent --no-audit --no-fund --no-save --ignore-scripts --fetch-retries 1 \
	    --prefix $(VENV)/npm mqtt@5.16.0; then
	    touch $@
	else
	    echo "not installed: npm's mqtt (see above)" >&2
	fi

.PHONY: debian-bench
debian-bench:
	@scripts/debian mosquitto_pub=mosquitto-clients mosquitto=mosquitto nats-server=nats-server ip=iproute2
