# Every target sets up what it needs: `make demo` and `make test` work from a clean clone.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two files of tests at a time, each on one core.
TEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --durations=25
export HF_HUB_DISABLE_TELEMETRY := 1
export TOKENIZERS_PARALLELISM := false

.DEFAULT_GOAL := help
export DATA WEIGHTS OUTPUT SEEDS PROCESSES
# What `make demo` and `make paper` hand on to the recipe, such as ARGS="--max_steps 20"
ARGS ?=
# Whether `make docs` runs the notebooks: those that have changed (cache), all (force), or none (off)
NOTEBOOKS ?= cache
.PHONY: help setup demo app space results paper checkpoints test test-all test-oldest soak check format bench docs wheel clean

help:  ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | while IFS="$$(printf '\t')" read -r name text; do printf '  make %-11s %s\n' "$$name" "$$text"; done

setup: $(VENV)/.installed  ## Install the package and all its tools into .venv

$(VENV)/.installed: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "hf_vg needs Python 3.11 or newer, and $(PYTHON) was not found. Install it, or name yours: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "hf_vg needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) -V 2>&1). Name a newer one: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments: install its venv module (on Debian and Ubuntu: apt install python3-venv)."; exit 1; }
	@echo "Setting up $(VENV); this downloads torch and takes a few minutes the first time."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --progress-bar on -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup  ## Train a captioner on scenes, score it, and draw where it looks (a few minutes)
	$(BIN)/accelerate launch --quiet --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no recipes/train_captioner.py $(ARGS)

app: setup  ## Open the web demo on the checkpoints in outputs
	$(BIN)/hf-vg app

space: setup  ## Make outputs/space, the web demo with the package and your checkpoints, ready to upload
	rm -rf outputs/space && mkdir -p outputs/space/checkpoints
	cp recipes/space/* outputs/space && cp -r hf_vg outputs/space
	find outputs/space -name __pycache__ -prune -exec rm -rf {} +
	@for config in $$(find outputs -mindepth 2 -maxdepth 2 -name config.json); do \
		folder=outputs/space/checkpoints/$$(basename $$(dirname $$config)); mkdir -p $$folder; \
		find $$(dirname $$config) -maxdepth 1 -type f \( -name '*.json' -o -name '*.safetensors' -o -name '*.txt' \) -exec cp {} $$folder \; ; \
	done
	@echo "Upload it: hf upload ME/NAME outputs/space . --repo-type space"

results: setup  ## Measure a system of RESULTS.md again; recipes/reproduce.sh says how to name it and the data
	PATH="$(abspath $(BIN)):$$PATH" bash recipes/reproduce.sh $(SYSTEM)

paper: setup  ## Train an experiment of the papers at its own settings: NAME=... of docs/papers.md
	@test -f recipes/configs/paper/$(NAME).yaml || { echo "NAME must be one of these, see docs/papers.md:"; ls recipes/configs/paper | sed 's/\.yaml$$//'; exit 2; }
	$(BIN)/accelerate launch --quiet recipes/$$(sed -n 's/^# recipe: //p' recipes/configs/paper/$(NAME).yaml).py --config recipes/configs/paper/$(NAME).yaml $(ARGS)

checkpoints: setup  ## Train the example checkpoints that come with the package again, and pack them (about an hour)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python recipes/make_checkpoints.py

test: setup  ## Run the tests
	$(TEST) -m "not slow"

test-all: setup  ## Run the tests, the slow ones included
	$(TEST)

soak: setup  ## Kill a training and a feature extraction 20 times each, and compare the results bit by bit (some minutes)
	$(BIN)/python -m tests.soak

test-oldest:  ## Run the fast tests that need no extra on the oldest versions that pyproject.toml allows
	@test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	@.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-oldest.txt \
		-e . pytest pytest-xdist matplotlib
	OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest -n 2 --dist loadfile -m "not slow" \
		tests/models tests/data tests/evaluation tests/interpretation \
		tests/pipelines/test_image_to_text.py tests/test_auto.py tests/test_import_graph.py tests/test_loading.py

check: setup  ## Check format, lint, types, and transformers' modelling conventions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	@$(BIN)/python tests/mlinter_rules.py > $(VENV)/mlinter_rules.toml
	$(BIN)/mlinter --no-progress --rules-toml $(VENV)/mlinter_rules.toml hf_vg/models

format: setup  ## Format the code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup  ## Run the benchmarks, each of which prints ratios
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

docs: setup  ## Build the documentation site, with the notebooks; NOTEBOOKS=off does not run them
	HF_VG_NOTEBOOKS=$(NOTEBOOKS) PYTHONPATH=. $(BIN)/python -m sphinx -W --keep-going -q -b html -d docs/_build/doctrees docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

wheel: setup  ## Build the wheel, install it into a clean environment, and caption an image there
	rm -rf dist build .venv-wheel
	$(BIN)/python -m build --wheel --outdir dist .
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd dist && ../.venv-wheel/bin/python -c "import hf_vg; assert '.venv-wheel' in hf_vg.__file__, hf_vg.__file__"
	cd dist && ../.venv-wheel/bin/hf-vg caption --examples

clean:  ## Remove the environment and what was made
	rm -rf $(VENV) .venv-oldest .venv-wheel outputs build dist docs/_build *.egg-info .mypy_cache .pytest_cache .ruff_cache
