# Makes a virtual environment in .venv and calls cudal2 or pytest in it; nothing else is decided here.
.PHONY: demo smoke test lint install clean
.DEFAULT_GOAL := demo

BIN := .venv/bin
RUN ?= runs/demo

demo: install ## train, evaluate, export and report into runs/demo: about ten minutes on two cores
	$(BIN)/cudal2 train experiment=demo run=$(RUN)
	$(BIN)/cudal2 eval $(RUN) --shapes demo
	$(BIN)/cudal2 export $(RUN)
	$(BIN)/cudal2 report $(RUN)
	@echo; echo "In $(RUN):"; ls $(RUN) $(RUN)/eval $(RUN)/export

smoke: install ## the demo cut down to about a minute
	$(BIN)/cudal2 train experiment=smoke
	$(BIN)/cudal2 eval runs/smoke --shapes 64_64_64,128_128_128 worker=quick
	$(BIN)/cudal2 export runs/smoke
	$(BIN)/cudal2 report runs/smoke

test: install ## the tests
	$(BIN)/pytest

lint: install
	$(BIN)/ruff check && $(BIN)/ruff format --check && $(BIN)/mypy

install: .venv/.installed

# torch comes first: without a GPU a CPU build is enough, and the default one would pull gigabytes of CUDA.
.venv/.installed: pyproject.toml
	./.ci/install .venv
	touch $@

clean:
	rm -rf .venv runs
