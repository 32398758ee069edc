# Every target sets up what it needs, does nothing twice, and is quick the second time.
PYTHON ?= python3
CXX ?= g++
TORCH := torch==2.13.0
JOBS ?= $(shell nproc)

VENV := .venv
PY := $(VENV)/bin/python
STAMPS := $(VENV)/.stamps
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)

# What the native module is built from. New or removed Python files also need a fresh install.
NATIVE := CMakeLists.txt pyproject.toml $(wildcard src/tilevm/isa/*.py src/tilevm/ir/*.py) \
    $(shell find core -name '*.cpp' -o -name '*.h')
FILES := $(shell find src core -type f -not -path '*/__pycache__/*' | sort)

.DEFAULT_GOAL := help
.PHONY: help deps venv build demo test test-cpp test-py test-aarch64 test-avx2 bench lint docs \
    sanitize sanitize-python sanitize-threads valgrind coverage fuzz corpus wheel test-wheel clean \
    FORCE
.DELETE_ON_ERROR:
.NOTPARALLEL:

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) \
	  | sed -E 's/^([a-z0-9-]+):.*## /  \1\t/' | expand -t 16

deps: ## system packages (asmjit, Highway, compiler), or a sentence that says what to install
	@.ci/deps $(PYTHON) $(CXX)

$(PY): | deps
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade pip

# pip is asked for everything at once, so that no requirement can move torch.
$(STAMPS)/venv: pyproject.toml Makefile .ci/requirements | $(PY)
	.ci/requirements build dev demo > $(VENV)/requirements.txt
	$(PY) -m pip install --quiet "$(TORCH)" -r $(VENV)/requirements.txt
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/bench: $(STAMPS)/venv
	.ci/requirements bench > $(VENV)/requirements-bench.txt
	$(PY) -m pip install --quiet "$(TORCH)" -r $(VENV)/requirements-bench.txt
	@touch $@

$(STAMPS)/files: FORCE | $(STAMPS)/venv
	@printf '%s\n' $(FILES) | cmp -s - $@ || printf '%s\n' $(FILES) > $@

$(STAMPS)/build: $(STAMPS)/venv $(STAMPS)/files $(NATIVE) | deps
	$(PY) -m pip install --quiet --no-build-isolation --no-deps -e .
	@touch $@

venv: $(STAMPS)/venv ## .venv with torch, the model and the tools

build: $(STAMPS)/build ## the native module and an editable install in .venv

demo: build ## a real sentence encoder, eager against Inductor against tilevm
	$(VENV)/bin/tilevm demo $(ARGS)

test: test-cpp test-py ## C++ tests, then Python tests

test-cpp: build ## the programs in core/tests
	@dir=$$($(PY) -c 'import sys; print("build/" + sys.implementation.cache_tag)') \
	  && cmake --build $$dir --target core_tests \
	  && ctest --test-dir $$dir --output-on-failure --no-tests=ignore -j $(JOBS)

# What `doctor --tune` measured for this user must not choose ways in tests.
test-py: build ## the Python tests
	@.ci/deps $(PYTHON) $(CXX) browser
	TILEVM_MEASUREMENTS=off $(PY) -m pytest -n $(JOBS) tests $(ARGS)

# What QEMU runs below is built into build/aarch64; launches are recorded by this machine's build.
AARCH64 := build/aarch64
RECORDED := test_memory.py test_views.py test_random_programs.py
test-aarch64: build ## C++ tests, and launches recorded in Python tests, on AArch64 under QEMU
	@.ci/deps $(PYTHON) $(CXX) aarch64
	@.ci/sysroot-aarch64 $(AARCH64)/sysroot
	cmake -S . -B $(AARCH64) -G Ninja --toolchain .ci/aarch64.cmake \
	  -DTILEVM_SYSROOT=$(CURDIR)/$(AARCH64)/sysroot -DTILEVM_MAP_TWICE=OFF \
	  -DTILEVM_PYTHON=OFF -DPython_EXECUTABLE=$(CURDIR)/$(PY)
	cmake --build $(AARCH64) --target core_tests
	ctest --test-dir $(AARCH64) --output-on-failure -j $(JOBS)
	$(PY) tests/differential/record_launches.py $(AARCH64)/launches $(RECORDED:%=tests/differential/%)
	qemu-aarch64 -L /usr/aarch64-linux-gnu $(AARCH64)/replay_launches $(AARCH64)/launches

# An instruction that such a processor lacks ends a test. QEMU reads masked lanes, so that programs
# whose memory ends at a page without access are not for it. TILEVM_MAP_TWICE: as for AArch64.
AVX2 := build/avx2
AVX2_TESTS := ahead_test check_launch_test eager_test fuse_test host_test layout_test \
  program_test size_test threads_test trace_test
test-avx2: venv ## C++ tests on an x86-64 processor without AVX-512, under QEMU
	@.ci/deps $(PYTHON) $(CXX) qemu
	cmake -S . -B $(AVX2) -G Ninja -DTILEVM_MAP_TWICE=OFF -DTILEVM_PYTHON=OFF \
	  -DPython_EXECUTABLE=$(CURDIR)/$(PY)
	cmake --build $(AVX2) --target $(AVX2_TESTS)
	for name in $(AVX2_TESTS); do qemu-x86_64 -cpu max $(AVX2)/$$name || exit 1; done

bench: build $(STAMPS)/bench ## time tilevm against eager, Inductor, ONNX Runtime and JAX
	$(VENV)/bin/tilevm bench $(ARGS)

lint: venv ## ruff and mypy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

docs: build ## docs/ops.md, isa.md, config.md from their tables, docs/api.md from docstrings
	$(PY) src/tilevm/isa/generate.py --out build/gen --docs docs
	$(PY) -m tilevm.config docs/config.md
	$(PY) -m tilevm.tools.api docs/api.md

# Builds of their own, with what counts lines or finds errors; machine code that we emit has neither.
INSTRUMENTED = cmake -S . -G Ninja -DCMAKE_BUILD_TYPE=Debug -DPython_EXECUTABLE=$(CURDIR)/$(PY) \
  -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g"
sanitize: venv ## core tests under address and undefined-behaviour sanitizers
	$(INSTRUMENTED) -B build/sanitize -DTILEVM_SANITIZE=address,undefined
	cmake --build build/sanitize --target core_tests
	ctest --test-dir build/sanitize --output-on-failure --no-tests=ignore -j $(JOBS)

sanitize-python: venv ## Python tests under the same; ARGS="tests/host -k views" for some
	@.ci/deps $(PYTHON) $(CXX) browser
	$(INSTRUMENTED) -B build/sanitize -DTILEVM_SANITIZE=address,undefined
	cmake --build build/sanitize --target _core _recorder
	.ci/sanitized build/sanitize address -m pytest -n $(JOBS) $(or $(ARGS),tests)

THREADED := ahead_test threads_test trace_test
sanitize-threads: venv ## core and Python tests with several threads under ThreadSanitizer
	$(INSTRUMENTED) -B build/threads -DTILEVM_SANITIZE=thread
	cmake --build build/threads --target _core _recorder $(THREADED)
	for name in $(THREADED); do build/threads/$$name || exit 1; done
	.ci/sanitized build/threads thread -m pytest $(or $(ARGS),tests -k "thread or threads")

# Valgrind knows no AVX-512: the processor that it shows has AVX2. Code is written through another
# mapping than it runs from, so each piece is looked at before it runs.
valgrind: build ## a test that emits machine code under Valgrind's memcheck
	@.ci/deps $(PYTHON) $(CXX) valgrind
	dir=$$($(PY) -c 'import sys; print("build/" + sys.implementation.cache_tag)') \
	  && cmake --build $$dir --target x86_encoder_test \
	  && valgrind --quiet --smc-check=all --error-exitcode=1 $$dir/x86_encoder_test

# Lines of core/ that the tests run, by folder, in build/coverage/lines.txt; ARGS for some of the
# Python tests.
coverage: venv ## which lines of the core C++ and Python tests run
	@.ci/deps $(PYTHON) $(CXX) browser
	$(INSTRUMENTED) -B build/coverage -DTILEVM_COVERAGE=ON
	find build/coverage -name '*.gcda' -delete
	cmake --build build/coverage --target _core _recorder core_tests
	ctest --test-dir build/coverage --output-on-failure --no-tests=ignore -j $(JOBS)
	-.ci/sanitized build/coverage none -m pytest -n $(JOBS) $(or $(ARGS),tests)
	.ci/lines build/coverage

# Coverage guides mutation: of programs, and of their text. FOUND begins as what core/tests/guided
# keeps; `make corpus` keeps what covers something new.
FUZZ := build/fuzz
FOUND := $(FUZZ)/found
GUIDED := programs text
SECONDS ?= 60
$(FUZZ)/.built: $(STAMPS)/venv $(NATIVE)
	@.ci/deps $(PYTHON) $(CXX) fuzz
	cmake -S . -B $(FUZZ) -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g" \
	  -DCMAKE_CXX_COMPILER=clang++ -DTILEVM_PYTHON=OFF -DPython_EXECUTABLE=$(CURDIR)/$(PY) \
	  -DTILEVM_SANITIZE=address,undefined,fuzzer-no-link
	cmake --build $(FUZZ) --target guided
	for name in $(GUIDED); do mkdir -p $(FOUND)/$$name \
	  && tar -C $(FOUND)/$$name -xJf core/tests/guided/$$name.tar.xz || exit 1; done
	@touch $@

fuzz: $(FUZZ)/.built ## fuzz verifier, tiers and assembler, SECONDS each, with Clang's libFuzzer
	for name in $(GUIDED); do $(FUZZ)/guided_$$name -max_total_time=$(SECONDS) -timeout=60 \
	  -max_len=4096 -print_final_stats=1 -artifact_prefix=$(FUZZ)/$$name- $(FOUND)/$$name || exit 1; done

corpus: $(FUZZ)/.built ## keep what fuzzing found that covers something new
	for name in $(GUIDED); do rm -rf $(FUZZ)/kept && mkdir $(FUZZ)/kept \
	  && $(FUZZ)/guided_$$name -set_cover_merge=1 -max_len=700 $(FUZZ)/kept $(FOUND)/$$name \
	  && tar --sort=name --owner=0 --group=0 --mtime=2020-01-01 -C $(FUZZ)/kept \
	    -cJf core/tests/guided/$$name.tar.xz . || exit 1; done

$(STAMPS)/wheel: $(STAMPS)/venv
	.ci/requirements wheel > $(VENV)/requirements-wheel.txt
	$(PY) -m pip install --quiet -r $(VENV)/requirements-wheel.txt
	@touch $@

# Built in isolation, so without the recorder, which belongs to one version of PyTorch. What the
# linker did not find as a static library is put into the wheel.
wheel: $(STAMPS)/wheel | deps ## a source distribution, and a wheel built from it, in dist
	rm -rf dist build/wheel
	$(PY) -m build --outdir build/wheel .
	$(VENV)/bin/auditwheel show build/wheel/*.whl
	$(VENV)/bin/auditwheel repair --wheel-dir dist build/wheel/*.whl
	cp build/wheel/*.tar.gz dist
	.ci/check-wheel dist

test-wheel: wheel ## installs it in clean environments, without PyTorch, with it, and beside it
	.ci/test-wheel $(PYTHON) dist "$(TORCH)"

clean: ## everything that was built; .venv stays
	rm -rf build dist $(STAMPS)/build $(STAMPS)/files
