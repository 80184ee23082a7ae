# Two commands on a fresh machine: `make demo` and `make test`. They need Python >= 3.11 and make, nothing else.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= auto
ARGS ?=

# `make PYTHON=...` takes that one; otherwise the first that is new enough.
CANDIDATES := $(PYTHON) $(if $(filter file,$(origin PYTHON)),python3.14 python3.13 python3.12 python3.11)
PY := $(VENV)/bin/python
# The warning that is silenced is shown for every project whose data folders are mapped into the package; nothing is wrong.
INSTALL := PYTHONWARNINGS="ignore:Editable installation" $(PY) -m pip --disable-pip-version-check --quiet install --use-pep517
PYTEST := $(PY) -m pytest -n $(JOBS) --maxprocesses 8 --dist worksteal

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install demo test test-slow torch hta soak plans check format bench bench-long notebooks results validation docs size

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1|/p' Makefile | awk -F'|' '{printf "make %-10s %s\n", $$1, $$2}'

install: $(VENV)/.dev ## create .venv with all that development needs

demo: $(VENV)/.runtime ## simulate Llama-3 70B on 64 H100s, draw it, write its trace
	@$(PY) -m simulator demo

test: $(VENV)/.dev ## the tests, but for the slow ones (ARGS="-k fold" picks)
	@$(PYTEST) $(ARGS)

test-slow: $(VENV)/.dev torch hta ## the slow tests: packaging, notebooks, browser, torch, big equality runs
	@$(PYTEST) -m slow $(ARGS)

soak: $(VENV)/.dev ## kill a thousand processes of sweeps (ARGS="--kills 100", or --minutes 30)
	@$(PY) -m tests.durable.soak $(ARGS)

plans: $(VENV)/.dev ## simulate ten thousand random plans by every engine, and compare every task (ARGS="--plans 500")
	@$(PY) -m tests.equality.random_plans $(ARGS)

torch: $(VENV)/.dev ## add the torch that reads our tables; without it those tests skip, and say so
	@test $(VENV)/.torch -nt setup.cfg || { \
	  echo "installing torch into $(VENV), for the tests that ask it"; \
	  $(INSTALL) --editable '.[torch-check]' && touch $(VENV)/.torch; \
	} || echo "torch cannot be installed here: its tests skip" >&2

hta: $(VENV)/.dev ## an environment with the trace reader HTA; without it the test that asks it skips, and says so
	@test -f .venv-hta/.made || { \
	  echo "installing traceinsight into .venv-hta, for the test that loads our traces"; \
	  $(PY) -m venv --clear .venv-hta && .venv-hta/bin/python -m pip --disable-pip-version-check --quiet install \
	    'traceinsight == 0.6.1' && touch .venv-hta/.made; \
	} || echo "traceinsight cannot be installed here: its test skips" >&2

check: $(VENV)/.dev ## lint, format and types
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check
	@$(PY) -m mypy

format: $(VENV)/.dev ## put the sources into shape
	@$(PY) -m ruff check --fix
	@$(PY) -m ruff format

bench: $(VENV)/.dev ## time the engine and the commands (PEERS=DIR times other programs beside)
	@PEERS="$(PEERS)" $(PY) benchmarks/run.py $(ARGS)

bench-long: $(VENV)/.dev ## every plan of a space without bounds beside a search of it; Calculon's space (PEERS=DIR)
	@$(PY) benchmarks/brute_force.py $(ARGS)
	@PEERS="$(PEERS)" $(PY) benchmarks/calculon_space.py

notebooks: $(VENV)/.dev ## run every notebooks/*.py and write its .ipynb
	@$(PY) notebooks/make.py $(ARGS)

results: $(VENV)/.dev ## regenerate every results/<study>/ by its make.py
	@for script in $(sort $(wildcard results/*/make.py)); do echo "$$script"; $(PY) "$$script" || exit 1; done

validation: $(VENV)/.dev ## predict all published runs, and write results/validation and docs/accuracy.md
	@$(PY) results/validation/make.py --predict

docs: $(VENV)/.dev ## run README.md, scenarios, notebooks and studies, and compare
	@$(PYTEST) -m "" -k "readme or docs" $(ARGS)

size: $(VENV)/.dev ## lines per place, the longest files, functions and classes
	@$(PY) -m tests.project.size

$(PY):
	@for python in $(CANDIDATES); do \
	  if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "creating $(VENV) with $$($$python --version)"; \
	    $$python -m venv --clear $(VENV) && exit 0; rm -rf $(VENV); exit 1; \
	  fi; \
	done; \
	echo "Python 3.11 or newer with venv is needed (Debian: apt install python3-venv). None of these is it: $(CANDIDATES)." >&2; \
	echo "Name another: make PYTHON=..." >&2; exit 1

$(VENV)/.runtime: setup.cfg setup.py | $(PY)
	@echo "installing the simulator into $(VENV)"
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.dev: setup.cfg setup.py | $(PY)
	@echo "installing the simulator and its development tools into $(VENV)"
	@$(INSTALL) --editable '.[dev]'
	@$(PY) -c 'from simulator.engine.compiled import event_loop; event_loop.load()'  # compiled once, and kept
	@touch $(VENV)/.runtime $@
