# Short names for the tasks of scripts/run.py, which says what each does: make help
#
#   make test ARGS="-k ledger"     arguments for the task
#   make test PYTHON=python3.12    interpreter to make .venv with

RUN := $(or $(PYTHON),python3) scripts/run.py
TASKS := analyze test exhaustive newest lint types check format docs site distributions benchmarks ratios setup clean

.PHONY: help $(TASKS)

help:
	@$(RUN) --help

$(TASKS):
	@$(RUN) $@ $(ARGS)
