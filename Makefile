# Makes a virtual environment in .venv and calls cudal2 or pytest in it; nothing else is decided here.
.PHONY: demo demo-gpu smoke test slow parts vllm verifiers lint install clean
.DEFAULT_GOAL := demo

BIN := .venv/bin
RUN ?= runs/demo
BESIDE := -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder
TESTS := $(BIN)/pytest $(BESIDE)
# Where the shell forbids it to keep bytecode, each of many processes compiles what it imports: five seconds of it.
export PYTHONDONTWRITEBYTECODE =

demo: install ## train, evaluate, export and report into runs/demo: six minutes, of which training takes four
	$(BIN)/cudal2 train experiment=demo run=$(RUN)
	$(BIN)/cudal2 eval $(RUN) shapes=demo
	$(BIN)/cudal2 export $(RUN)
	$(BIN)/cudal2 report $(RUN)
	@echo; echo "In $(RUN):"; ls $(RUN) $(RUN)/eval $(RUN)/export

demo-gpu: RUN := runs/demo-gpu
demo-gpu: install ## the same on an H200: CUDA kernels for the layers of Llama 3.2 1B
	$(BIN)/cudal2 train experiment=h200_demo run=$(RUN)
	$(BIN)/cudal2 eval $(RUN) shapes=demo_gpu target=sm_90a
	$(BIN)/cudal2 export $(RUN) target=sm_90a
	$(BIN)/cudal2 report $(RUN)

smoke: install ## the demo cut down to two minutes
	$(BIN)/cudal2 train experiment=smoke
	$(BIN)/cudal2 eval runs/smoke shapes=64_64_64,128_128_128 worker=quick
	$(BIN)/cudal2 export runs/smoke
	$(BIN)/cudal2 report runs/smoke

test: install ## the tests, side by side on all processors: five minutes on two cores
	$(TESTS)

slow: install ## the exhaustive part of them, as far as it needs no GPU: ten to sixteen minutes more
	$(TESTS) -m "slow and not gpu and not parts"

parts: install .venv/.parts .venv-kernels/.installed .venv-verifiers/.installed vllm ## what needs the packages of large models and many machines, Ray, DeepSpeed, wandb, vLLM, and others' trainers: eight minutes
	$(TESTS) -m "parts and not vllm and not gpu"

vllm: .venv-vllm/.installed ## and vLLM, on a processor, in an environment of its own
	.venv-vllm/bin/pytest $(BESIDE) tests/runtime/test_vllm.py tests/policy tests/train -m "vllm and not gpu"

verifiers: install .venv-verifiers/.installed ## and the environment for verifiers, by its own command in a virtual environment of its own
	$(BIN)/pytest tests/integrations -m verifiers

lint: install
	$(BIN)/ruff check && $(BIN)/ruff format --check && $(BIN)/mypy

install: .venv/.installed ## .venv with cudal2 and its development tools, by the Python that PYTHON names: a quarter of a minute

.venv/.installed: pyproject.toml .ci/install
	./.ci/install .venv
	touch $@

.venv/.parts: .venv/.installed
	./.ci/install .venv parts
	touch $@

.venv-vllm/.installed: pyproject.toml .ci/install .ci/install-vllm
	./.ci/install-vllm .venv-vllm
	touch $@

.venv-kernels/.installed: .venv/.installed .ci/install-kernels
	./.ci/install-kernels .venv-kernels .venv
	touch $@

.venv-verifiers/.installed: integrations/verifiers/pyproject.toml .ci/install-verifiers
	./.ci/install-verifiers .venv-verifiers
	touch $@

clean:
	rm -rf .venv .venv-vllm .venv-kernels .venv-verifiers runs
