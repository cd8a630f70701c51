# Two commands do everything on a fresh machine:
#   make demo    install, then run the main job
#   make test    install, then run the whole suite
# `make test-fast` is the inner loop: everything that is not marked slow. It ends with a list of
# those that took more than a second, which want the mark.
# `make test-clients` runs mjlab and rsl_rl themselves, on the CPU, in an environment of their own.
# `make test-robust` runs the suite as nohup, a busy machine, a read-only tree or another order would.
# All stand on `make setup`, which does nothing when nothing has changed.

# empty is off: programs that tests start would otherwise compile the library anew each time
export PYTHONDONTWRITEBYTECODE :=

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-fast test-clients test-robust setup lint types clean

demo: setup
	$(BIN)/python -m striderl.cli.demo

test: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-fast: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" --durations=15 --durations-min=1

test-clients:
	@$(PYTHON) tools/setup.py --clients --venv $(VENV)-clients
	$(VENV)-clients/bin/python -m pytest -q -c tests/clients/pytest.ini tests/clients

test-robust: setup
	$(BIN)/python tools/robust_suite.py $(ROBUST) -- -n 2 --dist worksteal $(TESTS)

setup:
	@$(PYTHON) tools/setup.py --venv $(VENV)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

clean:
	rm -rf $(VENV) $(VENV)-clients .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
