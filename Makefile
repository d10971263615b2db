# `make up` runs the platform, `make test` tests it. Needs only Python 3.11+ and make; installs only into this folder.
#   TORCH_INDEX=URL   a package index to take torch from, e.g. one that holds CPU builds
#   PYTHON=python3    the interpreter that makes the virtual environment
#   TEST_PROCESSES=2  how many processes share the tests, file by file
PYTHON ?= python3
TEST_PROCESSES ?= 2
VENV := .venv
BIN := $(VENV)/bin
TORCH := $(shell sed -n 's/^torch==/torch==/p' constraints.txt)
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
INPUTS := pyproject.toml constraints.txt

.PHONY: help setup up down fmt lint types check test test-unit kernels coverage test-db test-containers verify proto migrate bench bench-peers aimet-parity images clean

help: ## Show the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'

$(BIN)/python:
	@echo "Making a virtual environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Octavo needs Python 3.11 or later; say PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# torch first and by its exact version: left to a range, pip may take a build of several gigabytes.
$(VENV)/.torch: $(BIN)/python constraints.txt
	@echo "Installing $(TORCH)"
	@$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) "$(TORCH)"
	@touch $@

$(VENV)/.all: $(VENV)/.torch $(INPUTS)
	@echo "Installing Octavo and what its services need"
	@$(PIP) --editable '.[all]'
	@touch $@

$(VENV)/.test: $(VENV)/.all
	@echo "Installing what the tests need"
	@$(PIP) --editable '.[test]'
	@touch $@

$(VENV)/.dev: $(VENV)/.all
	@echo "Installing what the checks need"
	@$(PIP) --editable '.[dev]'
	@touch $@

setup: $(VENV)/.all ## Install the platform into .venv
	@echo "Ready: $(BIN)/octavo"

up: setup ## Start the platform with the demo model and wait until it answers
	@$(BIN)/octavo up --detach --wait

down: ## Stop the platform
	@$(BIN)/octavo down

fmt: $(VENV)/.dev ## Format the code
	@$(BIN)/ruff check --fix-only --quiet . && $(BIN)/ruff format .

lint: $(VENV)/.dev ## Check style and the rules between the packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/buf lint protos

types: $(VENV)/.dev ## Check types
	$(BIN)/basedpyright --level error

check: lint types ## Everything that CI checks without running the code

test: $(VENV)/.test ## Run the tests (containers and the slow ones apart)
	$(BIN)/python -m pytest -m "not docker and not slow and not gpu" \
		--numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

test-unit: $(VENV)/.test ## Run the tests that need no server
	$(BIN)/python -m pytest tests/unit tests/test_architecture.py

kernels: $(VENV)/.test ## Interpret the Triton kernels over many shapes and compile all of them for three GPUs (half an hour)
	$(BIN)/python -m pytest -q tests/unit/triton

coverage: $(VENV)/.test ## Run the tests of the pure parts; their coverage has a floor
	$(BIN)/python -m pytest tests/unit/engine tests/unit/jobs tests/unit/scheduler tests/contract --cov

test-db: $(VENV)/.test ## Run the tests of the job table
	$(BIN)/python -m pytest tests/integration/store tests/migration

test-containers: $(VENV)/.test ## Build the images, bring the compose stack up and test it (needs Docker)
	$(BIN)/python -m pytest -m docker tests/containers

verify: $(VENV)/.dev ## Everything, also what takes long; writes docs/verify.md
	$(BIN)/python -m benchmarks.verify

proto: $(VENV)/.dev ## Generate sdk/octavo/v1 from protos/
	$(BIN)/python -m grpc_tools.protoc -I protos --python_out=sdk --pyi_out=sdk --grpc_python_out=sdk protos/octavo/v1/*.proto

migrate: setup ## Bring the database up to the newest schema
	@$(BIN)/octavo db migrate

bench: $(VENV)/.test ## Measure speed as ratios in one run; benchmarks/README.md says what
	$(BIN)/python -m benchmarks.verify --only engine,sampling,serving --page build/verify/bench.md

bench-peers: $(VENV)/.test ## Compare with vLLM, OpenVINO GenAI and llama.cpp, each in its own environment under build/peers
	$(BIN)/python -m benchmarks.peers

aimet-parity: $(VENV)/.test ## Compare the edge builder's quantiser with AIMET, in its own environment under build/aimet; writes docs/aimet.md
	$(BIN)/python -m benchmarks.aimet

images: ## Make the base images (where no registry is reachable) and build the service images
	deploy/base-images.sh && deploy/build-images.sh

clean: ## Remove the virtual environment and caches; the data directory stays
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache
