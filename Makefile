# `make demo` and `make test` set everything up in .venv and reuse it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test test-min test-interop lint fuzz soak kill-test mutants gpu-check bench pictures lock clean

setup: $(READY)

# constraints.txt pins every package; pyproject.toml says which are needed.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "mongefit needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1" --constraint constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group dev
	@touch $(READY)

demo: $(READY)
	$(BIN)/mongefit demo --force

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

# The campaigns of docs/reliability.md at full length; `make test` runs a few cases of each.
CAMPAIGN := $(BIN)/python -m pytest -n 0 --long
FUZZ := $(addprefix tests/campaigns/test_,properties.py adversarial.py mutations.py)

fuzz: $(READY)
	$(CAMPAIGN) $(FUZZ) tests/oracles/test_gradients.py \
		tests/training/test_legs.py

soak: $(READY)
	$(CAMPAIGN) tests/campaigns/test_soak.py

kill-test: $(READY)
	$(CAMPAIGN) tests/campaigns/test_kills.py

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m mypy
	$(BIN)/python tools/audit.py

# The suite at the lowest versions of the packages that pyproject.toml admits; those of anndata
# cannot write the strings of pandas 3.
LOWEST := .venv-min
test-min:
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python tools/lowest.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(LOWEST)/bin/python -m pip install --quiet --constraint $(LOWEST)/constraints.txt \
		--editable . anndata ott-jax "pandas<3" --group dev
	SCIPY_ARRAY_API=1 $(LOWEST)/bin/python -m pytest -n 2 --dist worksteal  # for sklearn 1.6's checks

# CellRank, moscot and Waddington-OT go on with our plans, in an environment of their own.
INTEROP := .venv-interop
PEERS := cellrank moscot scanpy wot

test-interop: $(INTEROP)/.ready
	$(INTEROP)/bin/python -m pytest tests/interop

$(INTEROP)/.ready: pyproject.toml tests/interop/constraints.txt
	$(PYTHON) -m venv $(INTEROP)
	$(INTEROP)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(INTEROP)/bin/python -m pip install --quiet --constraint tests/interop/constraints.txt \
		--editable ".[anndata,ott]" $(PEERS) POT beartype pytest
	@touch $(INTEROP)/.ready

# Small faults in the source, each against the tests of its part; goes on where it was cut off.
mutants: $(READY)
	$(BIN)/python tools/mutants.py

# Fits of every shape on an accelerator. PYTHON is used as it is: such machines bring their own JAX.
gpu-check:
	PYTHONPATH=src $(PYTHON) tools/gpu_check.py

bench: $(READY)
	$(BIN)/python benchmarks/run.py

# The pictures of the guide, each written by the example of the same name.
pictures: $(READY)
	@set -e; for example in docs/examples/*.py; do echo "$$example"; $(BIN)/python $$example; done

# Pin afresh what .venv holds now.
lock: $(READY)
	$(BIN)/python -m pip freeze --exclude-editable > constraints.txt

clean:
	rm -rf $(VENV) $(LOWEST) $(INTEROP) .pytest_cache .ruff_cache .mypy_cache mongefit-demo build dist
