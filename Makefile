# `make` lists the targets. Everything is installed into the ignored folder .local/.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Else each process would compile airflow_ft, and each worker of the tests all of tests/, again and again.
export PYTHONDONTWRITEBYTECODE :=

venv := .local/venv
bin := $(venv)/bin
uv := .local/uv/bin/uv
comma := ,

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' \
		| while IFS=$$'\t' read -r target text; do printf '  %-14s %s\n' "make $$target" "$$text"; done

.PHONY: install
install: ## install what is lacking: virtual environment, Kafka, HDFS, Iceberg, Hive, Paimon, HBase, Cassandra, MariaDB, MySQL, PostgreSQL, Redis, Spin, Chromium; ONLY="venv kafka" just these
	@tools/bootstrap.sh $(ONLY)

.PHONY: venv
venv: ## install the virtual environment alone
	@tools/bootstrap.sh venv

.PHONY: classes
classes: install ## archive the classes of Spark and Kafka: tests start drivers and brokers in less time
	@$(MAKE) -j2 .local/classes tests/wal/__pycache__

.PHONY: .local/classes
.local/classes:
	@$(bin)/python -m tools.class_archive

# pytest compiles the tests of a fresh clone: once here, and not in four workers at the same time.
tests/wal/__pycache__:
	@$(bin)/python -m pytest --collect-only -qq >/dev/null || true # the tests report what cannot be collected

# Four workers, each with servers of its own: many tests wait for servers, so that two cores have work for four.
# What runs and in which order says tests/tiers.py.
WORKERS ?= 4
beside := -n $(WORKERS) --dist loadscope --no-loadscope-reorder
pytest := $(bin)/python -m pytest $(beside)
# Unit tests wait for little: one worker more than there are cores has enough to do while others wait.
UNIT_WORKERS ?= $(shell echo $$(($$(nproc) + 1)))

.PHONY: test
test: classes ## run the tests; ARGS="-k kafka -x" goes to pytest, WORKERS=0: one after the other, PART=0..23: also a part of the rest
	@PART="$(PART)" $(pytest) $(ARGS)

.PHONY: unit
unit: venv ## run the unit tests, which need no server; ARGS="tests/protocol -x" goes to pytest
	@$(bin)/python -m pytest --unit -n $(UNIT_WORKERS) --dist loadscope --no-loadscope-reorder $(if $(findstring tests,$(ARGS)),,tests) $(ARGS)

.PHONY: check
check: lint types unit ## lint, types and unit tests: what needs no server

.PHONY: test-twice
test-twice: classes ## ... and run those that failed again, one after the other: the status is that of the second run
	@PART="$(PART)" $(bin)/python -m tests.twice $(beside) $(ARGS)

.PHONY: seeded
seeded: classes ## switch off one rule of the protocol after the other, and tell which tests detect it; ARGS="name of a defect"
	@$(bin)/python -m tests.seeded $(ARGS)

.PHONY: screenshots
screenshots: install ## make the pictures of the page in docs/images anew
	@SCREENSHOTS=1 $(bin)/python -m pytest tests/browser/test_pictures.py -n0 -q

.PHONY: durations
durations: classes ## run the tests and note what each file takes, which decides on their order
	@$(pytest) --record $(ARGS)

# A small pipeline, Kafka to MariaDB and Kafka, without kills: does the wheel work where nothing else of this is?
small := --calm --flights 3000

.PHONY: test-unlocked
test-unlocked: ## run a small pipeline with the wheel and the newest of each dependency, as `pip install` has it
	@tools/unlocked.sh newest $(small)

.PHONY: test-oldest
test-oldest: ## ... with the oldest of each dependency that setup.cfg allows
	@tools/unlocked.sh lowest $(small)

# asyncpg: the API server asks its database by it. celery: the provider's newest, 3.26.0, allows 5.7.0, but cannot import it.
.PHONY: celery
celery: ## ... with CeleryExecutor, Redis and PostgreSQL, and kill -9 of the Celery worker with all it runs, in the middle
	@NAME=celery SERVERS="postgres redis" ALSO="apache-airflow-providers-celery celery<5.7 asyncpg" \
		tools/unlocked.sh newest --executor celery --flights 3000 $(ARGS)

.PHONY: test-all
test-all: classes lint types ## everything, before a release: all tests, whole matrices, every place to die, both unlocked wheels
	@tools/bootstrap.sh pgbouncer
	@THOROUGH=1 $(pytest) --all --timeout 1800 $(ARGS)
	@$(MAKE) test-unlocked test-oldest

.PHONY: lint
lint: venv ## check style, format, English, codes of errors, the direction of imports, and unsafe code
	@$(bin)/ruff check .
	@$(bin)/ruff format --check .
	@$(bin)/lint-imports --config pyproject.toml
	@$(bin)/python -m tools.prose
	@$(bin)/python -m tools.errors

.PHONY: types
types: ## check the types of the package, the plugin with its scripts, the tools and the benchmarks
	@tools/bootstrap.sh venv js
	@$(bin)/mypy airflow_ft plugins tools benchmarks
	@tools/js/check.sh

.PHONY: audit
audit: venv ## ask a vulnerability service about each release of requirements.lock; SERVICE=pypi or osv
	@$(bin)/pip-audit --vulnerability-service "$(or $(SERVICE),pypi)" --strict --no-deps --disable-pip --progress-spinner off \
		--requirement requirements.lock \
		|| { echo "make audit: the lock is not known to be safe. 'not found' and errors of the connection say that the service is out of reach"; exit 1; }

.PHONY: docs
docs: venv ## build the site of the documentation into .local/site, and check every link and heading in it
	@$(bin)/python -m sphinx -b html -c tools/site -d .local/doctrees -E -W --keep-going -q . .local/site
	@echo .local/site/index.html

# docker/Dockerfile runs this, too.
.PHONY: demo-install
demo-install: ## install what `make demo` needs, and no more
	@tools/bootstrap.sh venv kafka spark-jars mariadb $(filter postgres redis hbase paimon hive cassandra,$(subst $(comma), ,$(SINKS)))

.PHONY: demo
demo: ## deliver real data while processes are killed; STREAM=1 second by second, SAVEPOINT=1 with a changed job in the middle, SINKS=redis,cassandra,hbase,iceberg,paimon,hive into these too (postgres, files and delta as well), KEEP=1 keeps the servers, REPORT=file, UNLOCKED=1 as `pip install` has it
ifneq ($(filter-out 0,$(UNLOCKED)),)
	@KEEP="$(KEEP)" REPORT="$(REPORT)" STREAM="$(STREAM)" SAVEPOINT="$(SAVEPOINT)" SINKS="$(SINKS)" tools/unlocked.sh newest $(ARGS)
else
	@$(MAKE) demo-install
	@KEEP="$(KEEP)" REPORT="$(REPORT)" STREAM="$(STREAM)" SAVEPOINT="$(SAVEPOINT)" SINKS="$(SINKS)" \
		$(bin)/python -m tools.demo $(ARGS)
endif

.PHONY: demo-stop
demo-stop: ## end what `make demo KEEP=1` has kept running
	@$(bin)/python -m tools.demo --stop
	@if [ -d .local/unlocked/newest/demo ]; then $(bin)/python -m tools.demo --stop --folder .local/unlocked/newest/demo; fi

.PHONY: chaos
chaos: install ## faults on purpose over every strategy, and count rows; KILLS=500, SEED=number, REPORT=file, ARGS="--only deliveries"
	@KILLS="$(KILLS)" SEED="$(SEED)" REPORT="$(REPORT)" $(bin)/python -m tests.chaos $(ARGS)

.PHONY: soak
soak: install ## one stream for CHECKPOINTS=10000 checkpoints: what it holds stays flat, and every row is there once; LEAN=1 without servers and state
	@CHECKPOINTS="$(CHECKPOINTS)" LEAN="$(LEAN)" $(bin)/python -m tests.chaos.streams.soak $(ARGS)

.PHONY: simulate
simulate: venv ## play random schedules of crashes against models of the servers; SCHEDULES=number, SEED=number, ONLY=scenarios
	@SCHEDULES="$(SCHEDULES)" SEED="$(SEED)" ONLY="$(ONLY)" $(bin)/python -m tests.simulation $(ARGS)

.PHONY: compare
compare: ## kill Spark's own writers and this package in the same way, and count; KILLS=number, SEED=number
	@tools/bootstrap.sh venv kafka spark-jars jdbc-jars mariadb
	@KILLS="$(KILLS)" SEED="$(SEED)" $(bin)/python -m benchmarks.crashes $(ARGS)

.PHONY: bench
bench: ## measure against what people use today; QUICK=1 about 5 minutes, ONLY="mysql kafka ...", REPORT=, PICTURE=file, PROFILE=folder
	@tools/bootstrap.sh venv kafka spark-jars jdbc-jars delta-jars flink-jars mariadb mysql postgres paimon redis hbase cassandra hive
	@QUICK="$(QUICK)" ONLY="$(ONLY)" REPORT="$(REPORT)" PICTURE="$(PICTURE)" PROFILE="$(PROFILE)" ROWS="$(ROWS)" ROUNDS="$(ROUNDS)" \
		$(bin)/python -m benchmarks $(ARGS)

.PHONY: model
model: ## let Spin look at every schedule of the formal models; CALLS=number of steps of each worker
	@tools/bootstrap.sh venv spin
	@CALLS="$(CALLS)" $(bin)/python -m tests.model $(ARGS)

.PHONY: lock
lock: venv ## renew requirements.lock from setup.cfg, tools/s3.lock and tools/paimon.lock
	@echo 'moto[server,s3]' | $(uv) pip compile - --upgrade --quiet --universal --python-version 3.11 --no-annotate \
		--no-header --output-file tools/s3.lock
	@echo pypaimon | $(uv) pip compile - --upgrade --quiet --universal --python-version 3.11 --no-annotate \
		--no-header --output-file tools/paimon.lock
	@$(uv) pip compile setup.cfg --extra dev --constraint tools/lock-constraints.txt --override tools/lock-overrides.txt --upgrade --quiet \
		--universal --python-version 3.11 --no-annotate --no-header --output-file requirements.lock
	@git --no-pager diff --stat -- requirements.lock

.PHONY: wheel
wheel: venv ## build wheel and source archive of what is committed into dist/: the same bytes wherever and whenever
	@$(bin)/python -m tools.release.build dist

.PHONY: release
release: venv ## check all that a release needs: commit, version, reproducible build, installation, licences, SBOM; uploads nothing
	@$(bin)/python -m tools.release

.PHONY: matrix
matrix: venv ## run a small pipeline with each release of Airflow, pyspark and Python that is claimed; ARGS="name of one"
	@$(bin)/python -m tools.release.matrix $(ARGS)

.PHONY: clean
clean: ## remove what builds and tests left; ALL=1 removes .local too
	@rm -rf build dist *.egg-info .hypothesis .pytest_cache .ruff_cache .mypy_cache .import_linter_cache spark-warehouse metastore_db derby.log
	@find . -name __pycache__ -type d -not -path './.local/*' -prune -exec rm -rf {} +
	@$(if $(ALL),rm -rf .local)
