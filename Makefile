# Two commands do everything on a fresh machine:
#   make demo    install, then run the main job
#   make test    install, then run the whole suite
# Both stand on `make setup`, which does nothing when nothing has changed.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test setup lint types clean

demo: setup
	$(BIN)/python -m striderl.cli.demo

test: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal

setup:
	@$(PYTHON) tools/setup.py --venv $(VENV)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
