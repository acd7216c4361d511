# make demo    FlashInfer 0.6.3 in a virtual environment of its own: `check`, then `prove`
# make test    the test suite, against real FlashInfer releases
# make test-all  the same, with every op on every release of the matrix
# make reliability  processes, nodes, faults, neighbours, soak: the figures of docs/reliability.md
# make matrix  every pair of versions in docs/compatibility.md, which it writes: hours, gigabytes
# make bench   what it costs, on the CPU: bench/results, and the tables and plots of docs/performance.md
# make bench-docs   those tables and plots from what is in bench/results, such as a GPU's (bench/gpu.sh)
# make bench-quick  a short one, which fails where a figure is over its limit (bench/goals.py)
# make lint    ruff and mypy --strict
# make radar   what the newest release on the index would do to our patches: a report, never a failure
# make release RELEASE=0.7.5   make that release a tested one (docs/compatibility.md)
# make wheel   build the wheel, install it into a clean virtual environment, try it
# make audit   bandit, known vulnerabilities, and a bill of materials: dist/*.cdx.json
# make clean   remove all that these made
#
# PYTHON names another interpreter (3.10 or newer): make demo PYTHON=python3.12
# ARGS goes to pytest:                              make test ARGS="-k gate -x"

PYTHON ?= python3
ARGS ?=

FLASHINFER = 0.6.3
SOURCES := pyproject.toml hatch_build.py constraints.txt README.md sitecustomize.py \
    flashinfer_shim_plugin.py \
    $(shell find shim -name '*.py' -o -name py.typed)
# Not compiled beforehand: most of torch is never imported here.
INSTALL = -m pip --disable-pip-version-check -qq install --no-compile
PIN = -c constraints.txt

SHELL := /bin/sh
.PHONY: demo test test-all releases reliability matrix bench bench-docs bench-quick lint radar \
    release wheel audit clean
.DELETE_ON_ERROR:

# --- make demo ------------------------------------------------------------------------------------

# As a user would: the commands on PATH, our start-up directory in front of PYTHONPATH.
demo: .venv-demo/.ready
	@set -e; \
	export PATH="$(CURDIR)/.venv-demo/bin:$$PATH" FLASHINFER_WORKSPACE_BASE="$(CURDIR)/.cache/demo"; \
	export PYTHONPATH="$$(flashinfer-shim path)$${PYTHONPATH:+:$$PYTHONPATH}"; \
	echo "PYTHONPATH=$$PYTHONPATH"; \
	echo; echo "\$$ flashinfer-shim check"; flashinfer-shim check; \
	echo; echo "\$$ flashinfer-shim prove"; flashinfer-shim prove

# FlashInfer comes without its requirements, which are gigabytes of CUDA; [demo] has what its import
# needs. Where pip finds a CPU build of torch, it takes that.
.venv-demo/.ready: $(SOURCES) | .venv-demo
	@echo "Installing torch, FlashInfer $(FLASHINFER) and flashinfer-shim into .venv-demo ..."
	@.venv-demo/bin/python $(INSTALL) $(PIN) ".[demo]"
	@.venv-demo/bin/python $(INSTALL) --no-deps flashinfer-python==$(FLASHINFER)
	@touch $@

# --- make test, make lint -------------------------------------------------------------------------

test: releases
	.venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-all:
	FLASHINFER_SHIM_TEST_MATRIX=whole $(MAKE) test

# One after the other: some count processes, memory and files of the machine.
reliability: releases
	.venv/bin/python $(INSTALL) $(PIN) -e ".[reliability]"
	.venv/bin/python -m pytest tests/reliability -m "" $(ARGS)

# Wants each Python of the matrix on PATH.
matrix: releases
	.venv/bin/nox $(ARGS)

# Of FlashInfer, for the tests.
releases: .venv/.ready
	.venv/bin/python tests/releases.py

lint: .venv/.ready
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

.venv/.ready: pyproject.toml hatch_build.py constraints.txt | .venv
	@echo "Installing the tools for tests and checks into .venv ..."
	@.venv/bin/python $(INSTALL) $(PIN) -e ".[test,dev]"
	@touch $@

# --- make bench ------------------------------------------------------------------------------------

# Their start is slower with each .pth file of site-packages, so that start is measured where there is none.
bench: .venv/.bench .venv-bench/.ready
	.venv/bin/python bench/run.py bench/results --others .venv-bench/bin/python \
	    --flashinfer $$(.venv/bin/python tests/releases.py 0.6.3 0.7.4)
	@$(MAKE) --no-print-directory bench-docs

bench-docs: .venv/.bench
	.venv/bin/python bench/plots.py
	.venv/bin/python bench/page.py

bench-quick: .venv/.ready
	.venv/bin/python bench/run.py .cache/bench --quick \
	    --flashinfer $$(.venv/bin/python tests/releases.py 0.6.3 0.7.4)

.venv/.bench: .venv/.ready
	@.venv/bin/python $(INSTALL) $(PIN) -e ".[bench]"
	@touch $@

# What an interpreter's start with us is compared with, and nothing else.
.venv-bench/.ready: bench/constraints.txt | .venv-bench
	@.venv-bench/bin/python $(INSTALL) -c bench/constraints.txt ddtrace opentelemetry-distro wrapt
	@touch $@

# --- make radar, make release ---------------------------------------------------------------------

# Of a long report the beginning and the end, which has the summary and what to do next.
radar: .venv/.ready
	@mkdir -p .cache
	@.venv/bin/flashinfer-shim radar --timeout 120 > .cache/radar.txt 2>&1 || true
	@if test $$(wc -l < .cache/radar.txt) -le 100; then cat .cache/radar.txt; else \
	    head -n 60 .cache/radar.txt; \
	    printf '\n... all of it is in .cache/radar.txt ...\n\n'; \
	    tail -n 40 .cache/radar.txt; fi

release: .venv/.ready
	@test -n "$(RELEASE)" || { echo "name it: make release RELEASE=0.7.5"; exit 2; }
	@tree=$$(.venv/bin/python tests/releases.py $(RELEASE)) && \
	    { .venv/bin/flashinfer-shim radar "$$tree" || test $$? -eq 1; }
	.venv/bin/python tests/write_rows.py $(RELEASE)

# --- make wheel -----------------------------------------------------------------------------------

# Neither torch nor FlashInfer is in the clean environment, so `check` has to say 1: stand aside.
wheel: .venv/.ready
	@rm -rf dist .venv-wheel
	.venv/bin/python -m build --no-isolation
	@$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/python $(INSTALL) $(PIN) dist/*.whl
	.venv-wheel/bin/flashinfer-shim --version
	.venv-wheel/bin/flashinfer-shim path
	.venv-wheel/bin/flashinfer-shim check --json > dist/check.json || test $$? -eq 1
	.venv-wheel/bin/python -m json.tool dist/check.json > /dev/null

# --- make audit -----------------------------------------------------------------------------------

# pip-audit asks the package index of each distribution; of one that it does not find it says so.
audit: wheel .venv-audit/.ready
	.venv-audit/bin/bandit -q -c pyproject.toml -r shim sitecustomize.py flashinfer_shim_plugin.py \
	    hatch_build.py
	@rm -rf .venv-wheel
	@$(PYTHON) -m venv --without-pip .venv-wheel
	@.venv-audit/bin/python -m pip --disable-pip-version-check -qq --python .venv-wheel/bin/python \
	    install $(PIN) dist/*.whl
	@set -e; version=$$(.venv-wheel/bin/python -c 'import shim; print(shim.__version__)'); \
	sed "s/^dynamic = .*/version = \"$$version\"/" pyproject.toml > .venv-wheel/pyproject.toml; \
	.venv-audit/bin/cyclonedx-py environment --pyproject .venv-wheel/pyproject.toml \
	    --mc-type library --output-reproducible --validate --of JSON \
	    -o "dist/flashinfer_shim-$$version.cdx.json" .venv-wheel/bin/python
	.venv-audit/bin/pip-audit --path .venv-wheel/lib/python3*/site-packages

.venv-audit/.ready: pyproject.toml constraints.txt | .venv-audit
	@echo "Installing bandit, cyclonedx-bom and pip-audit into .venv-audit ..."
	@.venv-audit/bin/python $(INSTALL) $(PIN) bandit cyclonedx-bom pip-audit
	@touch $@

# --------------------------------------------------------------------------------------------------

.venv .venv-bench .venv-demo .venv-audit:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "Python 3.10 or newer is needed and $(PYTHON) is not: name one by PYTHON=python3.12"; \
	    exit 1; }
	@$(PYTHON) -m venv $@ || { rm -rf $@; exit 1; }

clean:
	rm -rf .venv .venv-bench .venv-demo .venv-wheel .venv-audit .cache .nox .editable \
	    .mypy_cache .pytest_cache .ruff_cache dist
	find . -name __pycache__ -prune -exec rm -rf {} +
