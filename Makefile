# Everything that one does with this tree, as one command each: see `make help`.
#
# Needs a Rust toolchain; whatever else is missing, `prepare` installs from Debian's packages. `install` alone
# changes the server of PG_CONFIG; tests, demo and benchmark use a private copy of it below target/.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help all build install deb try-deb test demo bench soak check check-majors lint core-test pgspot \
  stage stage-release examples monitoring prepare clean

# The server: PG=17 is that major where packages put it, PG_CONFIG=PATH any other one. Without either PostgreSQL 15 of
# Debian if it is there, else what the PATH has. Looked up when used: `prepare` may install it.
ifdef PG
PG_CONFIG = $(shell ls {/usr/lib/postgresql/,/usr/pgsql-}$(PG)/bin/pg_config 2>/dev/null)
else
PG_CONFIG ?= $(shell ls /usr/lib/postgresql/15/bin/pg_config 2>/dev/null || command -v pg_config)
endif
MAJOR = $(shell $(PG_CONFIG) --version | sed -E 's/^[^0-9]*([0-9]+).*/\1/')
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
DESTDIR ?=
# How long `soak` runs pg_queue.
MINUTES ?= 10

# What `prepare` has to look for: the server or the major that was asked for, or else one of the package manager.
ASKED = $(if $(filter file,$(origin PG_CONFIG)),$(PG),$(PG_CONFIG))

export XTASK = $(TARGET)/debug/xtask
# pgrx finds the server by it, without any configuration below the home directory.
export PGRX_PG_CONFIG_PATH = $(PG_CONFIG)
# Other linker flags than cargo's own would make two sets of everything that is compiled.
export CARGO_PGRX_DISABLE_GC_SECTIONS_WORKAROUND = 1
# With it, errors of the extension carry a backtrace in their DETAIL.
unexport RUST_BACKTRACE

# Only the last step of an installation may need more rights: what was compiled belongs to the user.
INSTALL_AS = $(if $(DESTDIR),,$(shell [ -w "$$($(PG_CONFIG) --pkglibdir)" ] || echo sudo))

FEATURES = --no-default-features --features pg$(MAJOR)

help: ## shows this
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

all: build

build: prepare ## builds the extension and its installer, optimised
	cargo build --release $(FEATURES)
	cargo build -p xtask

install: build ## installs it into the server of PG_CONFIG, below DESTDIR if given
	$(INSTALL_AS) $(XTASK) install --library $(TARGET)/release/libpg_queue.so --pg-config $(PG_CONFIG) \
	  $(if $(DESTDIR),--destdir $(DESTDIR))

deb: build ## makes the Debian package postgresql-MAJOR-pg-queue in target/deb
	packaging/deb $(PG_CONFIG) $(TARGET)/deb

try-deb: deb ## tries that package in a clean Debian; as root
	packaging/try-deb $(TARGET)/deb/postgresql-$(MAJOR)-pg-queue_*.deb

test: check stage pgspot examples monitoring ## runs all checks and all tests
	PG_CONFIG=$(TARGET)/debug/server/pg_config cargo test -p queue-tests --no-fail-fast

check: lint core-test ## runs what needs no server: format, lints, unit and property tests

lint: prepare
	@cargo fmt --version >/dev/null && cargo clippy --version >/dev/null || rustup component add rustfmt clippy
	cargo fmt --all --check
	cargo clippy --workspace --all-targets $(FEATURES) -- -D warnings

check-majors: ## compiles and lints the extension for all majors, which need not be installed
	pgrx-tests/check-majors $(TARGET)/majors

core-test: prepare
	cargo test -p pg_queue_core -p xtask

pgspot: stage ## looks for what others could plant for the scripts of the extension
	pgrx-tests/pgspot $(TARGET)/pgspot $$($(TARGET)/debug/server/pg_config --sharedir)/extension

stage: prepare ## builds for tests: a private server with the extension in target/debug/server
	cargo build -p pg_queue -p xtask $(FEATURES)
	pgrx-tests/stage $(PG_CONFIG) $(TARGET)/debug/libpg_queue.so $(TARGET)/debug/server

examples: prepare ## builds the example workers, and gets what their tests need
	pgrx-tests/prepare-examples $(TARGET)/examples
	cargo build -p queue-worker

monitoring: prepare ## gets the exporter and the tool that the tests of /monitoring need
	pgrx-tests/prepare-monitoring

stage-release: build
	pgrx-tests/stage $(PG_CONFIG) $(TARGET)/release/libpg_queue.so $(TARGET)/release/server

demo: stage-release ## shows what it does, on a throw-away server; ARGS='--files 500' for fewer files
	PG_CONFIG=$(TARGET)/release/server/pg_config cargo run -q -p queue-tests --bin demo -- $(ARGS)

bench: stage-release ## measures it against others, on throw-away servers; ARGS=--quick for a look
	PG_CONFIG=$(TARGET)/release/server/pg_config cargo run --release -q -p queue-tests --bin bench -- $(ARGS)

soak: stage-release ## loads it for MINUTES=10 beside an open snapshot; ARGS=--check makes a miss an error
	pgrx-tests/stage-pgq $(TARGET)/release/server
	PG_CONFIG=$(TARGET)/release/server/pg_config cargo run --release -q -p queue-tests --bin bench -- \
	  soak --minutes $(MINUTES) $(ARGS)

prepare:
	@pgrx-tests/prepare $(ASKED)

clean: ## removes all that was built
	cargo clean
	if [ -w /var/cache/pg_queue-tests ]; then rm -rf /var/cache/pg_queue-tests; fi
