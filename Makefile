# Everything that one does with this tree, as one command each: see `make help`.
#
# Needs a Rust toolchain; whatever else is missing, `prepare` installs from Debian's packages. `install` alone
# changes the server of PG_CONFIG; tests, demo and benchmark use a private copy of it below target/.

SHELL := /bin/bash
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help all build install deb rpm packages packages-all apt-repository try-deb try-rpm client-packages \
  try-clients source try-source sbom checksums dist try-reproducible release next audit hooks check-commit check-forge \
  check-instructions try-image test ci test-all test-cluster torture drill drill-upgrade demo web bench \
  instructions soak soak-sql check check-majors doc \
  generate format lint core-test miri pgspot server-test major-test web-test other-tests test-asserts bridge-majors \
  try-moves other-servers test-upgrade stage stage-release examples clients test-conformance drivers bench-clients \
  monitoring browser site test-majors xtask prepare clean

# The server: PG=17 is that major where packages put it, PG_CONFIG=PATH any other one. Without either PostgreSQL 15 of
# Debian if it is there, else what the PATH has. Looked up when used: `prepare` may install it. Where no package of PG
# is known, `prepare` fetches a server, but for tests alone: nothing that is given away is built for it.
ifdef PG
PACKAGED = /usr/lib/postgresql/$(PG)/bin/pg_config /usr/pgsql-$(PG)/bin/pg_config
ifeq (,$(filter build install deb rpm packages% apt-repository try-% dist release,$(MAKECMDGOALS)))
FETCHED = $(patsubst %,$(shell pgrx-tests/scripts/cache-folder)/%/bin/pg_config,debian-postgres-$(PG) postgres-$(PG))
endif
PG_CONFIG = $(firstword $(shell ls -U $(PACKAGED) $(FETCHED) 2>/dev/null))
else
PG_CONFIG ?= $(shell ls /usr/lib/postgresql/15/bin/pg_config 2>/dev/null || command -v pg_config)
endif
MAJOR = $(shell $(PG_CONFIG) --version | sed -E 's/^[^0-9]*([0-9]+).*/\1/')
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
DESTDIR ?=
# The pg_config of a major, which is fetched, or the path itself.
server = $(if $(filter 15 16 17 18 19,$(1)),$$(pgrx-tests/scripts/fetch-postgres $(1)),$(1))
# So many tests of a kind run side by side: some wait, for a lease or for a server to start.
THREADS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 4)))
# So many of those that run beside the tests of the server.
OTHER_THREADS = $(shell echo $$((($(THREADS) + 2) / 3)))
# The major that `test-asserts` builds.
MAJOR_ASSERTS ?= 18
# How long `soak` and `torture` run pg_queue.
MINUTES ?= 10

# What `prepare` has to look for: the server or the major that was asked for, or else one of the package manager.
ASKED = $(if $(filter file,$(origin PG_CONFIG)),$(PG) $(if $(FETCHED),--fetch),$(PG_CONFIG))

export XTASK = $(TARGET)/debug/xtask
# A cargo that does not heed which compiler pgrx asks for.
export PATH := $(CURDIR)/pgrx-tests/bin:$(PATH)
# pgrx finds the server by it, without any configuration below the home directory.
export PGRX_PG_CONFIG_PATH = $(PG_CONFIG)
# Other linker flags than cargo's own would make two sets of everything that is compiled.
export CARGO_PGRX_DISABLE_GC_SECTIONS_WORKAROUND = 1

# Only the last step of an installation may need more rights: what was compiled belongs to the user.
INSTALL_AS = $(if $(DESTDIR),,$(shell [ -w "$$($(PG_CONFIG) --pkglibdir)" ] || echo sudo))

# The benchmark's cell `cores` measures how long a lock is held.
FEATURES = --no-default-features --features pg$(MAJOR)$(if $(findstring cores,$(ARGS)),$(COMMA)lock-times)
COMMA := ,
# With the points at which tests hold, fail or kill a process (src/pg/fault.rs); never for an installation.
TEST_FEATURES = $(FEATURES),faults
# What is compiled for tests. A part of the workspace alone would want dependencies with fewer features, and compile
# those once more.
EVERYTHING = --workspace $(TEST_FEATURES)

help: ## shows this
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

all: build

build: prepare ## builds the extension and its installer, optimised
	cargo build --release $(FEATURES)
	cargo build -p xtask

install: build ## installs it into the server of PG_CONFIG, below DESTDIR if given
	$(INSTALL_AS) $(XTASK) install --library $(TARGET)/release/libpg_queue.so --pg-config $(PG_CONFIG) \
	  $(if $(DESTDIR),--destdir $(DESTDIR))

# Packages, and all else that is given away, come into one folder.
DIST = $(TARGET)/dist
client-packages try-clients: export CARGO_TARGET_DIR = $(TARGET)
# What is given away does not tell in which folders it was built, so it is built apart.
deb rpm: export CARGO_TARGET_DIR = $(TARGET)/package
deb rpm: export RUSTFLAGS = --remap-path-prefix=$(CURDIR)=. --remap-path-prefix=$(TARGET)/package=target \
  --remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)=cargo

packages: deb rpm ## makes packages for Debian and for Red Hat: extension, cluster, dashboard, in target/dist

deb rpm: prepare
	packaging/server $@ $(PG_CONFIG) $(DIST)
	packaging/dashboard $@ $(DIST)

packages-all: ## makes those that this machine can make of packaging/matrix, and names the others
	packaging/all

apt-repository: deb ## makes a folder that apt installs from, target/apt, signed with gpg's KEY=…
	packaging/apt-repository $(DIST) $(TARGET)/apt $(KEY)

try-deb: deb ## tries the packages in a clean Debian, from such a folder with a key of its own; as root
	packaging/try-deb $(DIST) $(MAJOR)

try-rpm: rpm ## tries the packages for Red Hat in an empty root
	packaging/try-rpm $(DIST) $(MAJOR)

try-image: deb ## builds the images of the Dockerfile from these packages, by buildah, and tries them; as root
	packaging/try-image $(DIST) $(MAJOR)

client-packages: ## makes the wheel, the npm package and the crate of clients, in target/dist
	packaging/clients $(DIST)

try-clients: client-packages ## installs each of them from its file into an empty environment
	packaging/try-clients $(DIST)

source: ## makes the archive of the source that PGXN takes, of the last commit
	packaging/source $(DIST)

try-source: source prepare ## builds and installs from that archive, below a throw-away folder
	packaging/try-source $(DIST) $(PG_CONFIG)

sbom: ## writes what of others is in extension and dashboard as CycloneDX, from Cargo.lock
	packaging/sbom $(DIST)

checksums:
	export LC_ALL=C && cd $(DIST) && rm -f SHA256SUMS && sha256sum *.* > .sums && mv .sums SHA256SUMS

dist: packages client-packages source sbom ## makes all that a release gives away, with checksums, in target/dist
	$(MAKE) checksums

try-reproducible: prepare ## builds packages, clients, source and bill twice, in two folders: the same to the byte?
	packaging/try-reproducible $(PG_CONFIG) $(TARGET)/reproducible

# The archive of the source is made of a commit, so the release is one before it is built.
release: xtask ## makes the tree the release VERSION=…, commits and builds it, prints the rest; DRY_RUN=1 only checks
	$(XTASK) release $(VERSION) --date $(shell date -u +%F) $(if $(DRY_RUN),--dry-run)
ifndef DRY_RUN
	git add --all && git commit --quiet --message "pg_queue $(VERSION)"
	rm -rf $(DIST)
	$(MAKE) dist
	$(XTASK) by-hand
endif

next: xtask ## begins the version after a release, VERSION=…
	$(XTASK) next $(VERSION)

hooks: ## has git check each commit of this clone before it is made: format, layers, generated files
	git config core.hooksPath .ci/hooks

check-commit: format xtask
	$(XTASK) generate --check
	cargo test -q -p xtask --bins --test layers

check-forge: ## checks the files of the forge and the Dockerfile, by checkers from PyPI
	pgrx-tests/scripts/check-forge $(TARGET)/forge

# Advisories come from the forge that has them. Without it: CHECKS='bans licenses sources'.
audit: ## looks through Cargo.lock: advisories, licences, sources, crates that are refused; gets cargo-deny
	deny=$$(pgrx-tests/scripts/cargo-tool cargo-deny 0.20.2 cargo-deny) && $$deny --locked --workspace check $(CHECKS)

# What is compiled is linted at the same time: see the wrapper.
test ci test-all: export RUSTC_WORKSPACE_WRAPPER = $(CURDIR)/pgrx-tests/scripts/lint-and-compile

# The tests of the server keep the processors busy for minutes. Most others wait often, for a lease or for a process, so
# they run beside these. The tests of the dashboard measure how soon a page answers: beside them are only downloads.
test: format stage monitoring browser ## runs all checks and all tests
	$(XTASK) generate --check
	pgrx-tests/scripts/prepare-examples
	pgrx-tests/scripts/side-by-side 'tests of the dashboard' '$(MAKE) -o stage -o xtask web-test' \
	  'what the tests of the examples need' '$(MAKE) examples' \
	  pgspot '$(MAKE) -o stage pgspot'
	pgrx-tests/scripts/side-by-side 'tests of the server' '$(MAKE) -o stage server-test' \
	  'all other tests' '$(MAKE) -o stage other-tests'

# A wrong declaration of a function of Postgres shows only where it runs, so the newest major runs. A lock or reference
# too many shows only with assertions: 18 is the newest major whose source Debian has. 16 and 17 differ from these in a
# few lines, so here they are compiled; `test-all` runs them.
ci: other-servers test ## the same, packages, cluster, torture, 19, 18 with assertions, pg_upgrade, 16 and 17 compiled
	$(MAKE) doc
	$(MAKE) check-forge
	$(MAKE) release VERSION=1000.0.0 DRY_RUN=1
	$(MAKE) clients
	$(MAKE) test-cluster
	$(MAKE) torture MINUTES=2 ARGS='--seed 4'
	$(MAKE) check-majors MAJORS="16 17"
	$(MAKE) test-majors MAJORS=19
	$(MAKE) test-asserts ARGS=all
	$(MAKE) test-upgrade
	$(MAKE) test-upgrade OLD="$$(pgrx-tests/scripts/build-postgres $(MAJOR_ASSERTS) --cassert)"

# First, so that the tests of the bridge find primaries of other majors from the start.
other-servers: prepare
	pgrx-tests/scripts/fetch-postgres 19
	pgrx-tests/scripts/build-postgres $(MAJOR_ASSERTS) --cassert

test-all: ci drivers ## this and drivers, 16, 17, 18 without caches, for a release
	$(MAKE) test-majors MAJORS="16 17"
	$(MAKE) test-asserts ARGS=caches

torture: stage ## calls everything at once for MINUTES=10, ends servers, checks all promises; ARGS='--seed 4' as before
	PG_CONFIG=$(TARGET)/debug/server/pg_config $(TARGET)/debug/torture --minutes $(MINUTES) $(ARGS)

test-cluster: stage ## tests pg_queue_cluster on three and four servers, with PL/Proxy from Debian's package
	pgrx-tests/scripts/stage-peer $(TARGET)/debug/server plproxy plproxy
	PG_CONFIG=$(TARGET)/debug/server/pg_config RUST_TEST_THREADS=$(THREADS) \
	  cargo test $(EVERYTHING) --test cluster -- $(ARGS)

# The bridge's is its storm: 1,000 ends of something and more, then 50 failovers.
drill: stage ## fails over: three servers under Patroni; ARGS='--kills 1' is shorter, ARGS=bridge that of the bridge
ifeq ($(ARGS),bridge)
	PG_CONFIG=$(TARGET)/debug/server/pg_config QUEUE_SOAK=$(or $(QUEUE_SOAK),900) \
	  QUEUE_FAILOVERS=$(or $(QUEUE_FAILOVERS),50) RUST_TEST_THREADS=1 \
	  cargo test -q $(EVERYTHING) --test bridge -- --nocapture storm::
else
	pgrx-tests/scripts/prepare-drill $(TARGET)/patroni
	PG_CONFIG=$(TARGET)/debug/server/pg_config $(TARGET)/debug/drill --patroni $(TARGET)/patroni $(ARGS)
endif

# The commit of the release before this one, as a rule its tag; there is none before the first.
OLD_RELEASE ?= v$(shell sed -nE 's/.*  pg_queue--([0-9.]+)\.sql$$/\1/p' sql/released.sha256 | sort -V | tail -n 1)

try-moves: stage ## moves jobs and schedules of real peers by docs/coming-from; ARGS='--only pg-boss' for some
	pgrx-tests/moves/run $(TARGET)/debug/server/pg_config $(TARGET)/moves $(ARGS)

drill-upgrade: stage ## upgrades from OLD_RELEASE=TAG under load, with the packages' workers of both releases
	pgrx-tests/scripts/prepare-clients $(TARGET)/clients
	pgrx-tests/upgrade/prepare $(OLD_RELEASE) $(TARGET)/old-release $(PG_CONFIG)
	/usr/bin/python3 pgrx-tests/upgrade/run $(TARGET)/old-release . $(TARGET)/clients $(ARGS)

server-test: stage ## runs the tests of the server alone
	PG_CONFIG=$(TARGET)/debug/server/pg_config RUST_TEST_THREADS=$(THREADS) cargo test $(EVERYTHING) --test server

# What runs SQL in the server, but not the tests of programs beside it.
major-test: stage
	cargo test -q -p xtask --test headers
	PG_CONFIG=$(TARGET)/debug/server/pg_config RUST_TEST_THREADS=$(THREADS) cargo test $(EVERYTHING) --no-fail-fast \
	  --test server --test docs -- $(ARGS)
	PG_CONFIG=$(TARGET)/debug/server/pg_config cargo test $(EVERYTHING) --no-fail-fast --test regress --test isolation
	$(MAKE) -o stage bridge-majors

web-test: stage browser site ## runs the tests of the dashboard and of the site alone
	PG_CONFIG=$(TARGET)/debug/server/pg_config RUST_TEST_THREADS=$(THREADS) cargo test $(EVERYTHING) --test web

other-tests: stage examples monitoring
	PG_CONFIG=$(TARGET)/debug/server/pg_config RUST_TEST_THREADS=$(OTHER_THREADS) cargo test $(EVERYTHING) \
	  --no-fail-fast --config 'target."cfg(all())".runner = ["$(CURDIR)/pgrx-tests/scripts/all-but", "server,web"]'

test-asserts: prepare ## runs them on a server that checks its own assertions, MAJOR_ASSERTS=18, built from source once
	pg_config=$$(pgrx-tests/scripts/build-postgres $(MAJOR_ASSERTS) --cassert) && \
	  PGRX_PG_CONFIG_PATH=$$pg_config cargo test -q -p xtask --test headers && \
	  $(MAKE) bridge-majors PG= PG_CONFIG=$$pg_config && \
	  RUST_TEST_THREADS=$(THREADS) pgrx-tests/scripts/run-asserts $(TARGET)/debug/server/pg_config $(ARGS)

# Both servers are fetched: Debian's own 15 may have stored what the new one, of an older date, does not know.
test-upgrade: prepare ## takes jobs in all states from OLD=15 to NEW=19, majors or paths of a pg_config
	old=$(call server,$(or $(OLD),15)) && $(MAKE) stage PG= PG_CONFIG=$$old
	ln -sfn "$$(readlink -f $(TARGET)/debug/server/pg_config)" $(TARGET)/debug/server/old_pg_config
	new=$(call server,$(or $(NEW),19)) && $(MAKE) stage PG= PG_CONFIG=$$new
	OLD_PG_CONFIG=$(TARGET)/debug/server/old_pg_config PG_CONFIG=$(TARGET)/debug/server/pg_config \
	  cargo test --workspace --test majors -- $(ARGS)

# The other servers are those that this machine has by then.
bridge-majors: stage
	PG_CONFIG=$(TARGET)/debug/server/pg_config QUEUE_TESTS_PATIENCE=3 \
	  cargo test $(EVERYTHING) --test bridge -- \
	    another_major a_synchronised_slot a_primary_that_is_not does_not_answer silent::

generate: ## writes what pages say that the SQL has: signatures, contents
	cargo run -q -p xtask -- generate

check: lint core-test ## runs what needs no server: format, lints, unit and property tests

format: prepare
	@cargo fmt --version >/dev/null && cargo clippy --version >/dev/null || rustup component add rustfmt clippy
	cargo fmt --all --check

lint: format xtask
	$(XTASK) generate --check
	cargo clippy $(EVERYTHING) --all-targets -- -D warnings
	cargo clippy $(EVERYTHING) --test cluster --test majors -- -D warnings

doc: prepare ## writes the documentation of the code, private items too, below target/doc
	RUSTDOCFLAGS='-D warnings' cargo doc --no-deps --document-private-items $(EVERYTHING)

check-majors: ## compiles and lints for all majors or MAJORS='16', which need not be installed
	pgrx-tests/scripts/check-majors $(TARGET)/majors $(MAJORS)

test-majors: xtask ## runs tests on MAJORS='16 17 18 19', where a package lacks fetched; ARGS='limits:: storage::'
	MAKE='$(MAKE)' TEST_FEATURES=pg$(MAJOR),faults RUST_TEST_THREADS=$(THREADS) \
	  pgrx-tests/scripts/test-majors $(TARGET) '$(or $(MAJORS),16 17 18 19)' $(ARGS)

core-test: prepare
	cargo test -p pg_queue_core -p xtask

# The locks of stateright make pointers of integers, which is no fault.
miri: ## runs the unit tests of src/core under miri, which a nightly toolchain has: undefined behaviour, leaks
	MIRIFLAGS=-Zmiri-permissive-provenance cargo +nightly miri test -p pg_queue_core

pgspot: stage ## looks for what others could plant for the scripts of the extension
	pgrx-tests/scripts/pgspot $(TARGET)/pgspot $$($(TARGET)/debug/server/pg_config --sharedir)/extension

stage: prepare ## builds for tests: a private server with the extension in target/debug/server
	cargo build $(EVERYTHING) --all-targets
	pgrx-tests/scripts/stage $(PG_CONFIG) $(TARGET)/debug/libpg_queue.so $(TARGET)/debug/server

examples: prepare ## builds the example workers, and gets what their tests need
	pgrx-tests/scripts/prepare-examples $(TARGET)/examples
	cargo build $(EVERYTHING) --all-targets

drivers: stage ## tests what docs/clients.md and frameworks.md say of Perl, PHP, Ruby, Java, Go and sqlx; gets these
	pgrx-tests/scripts/prepare-clients $(TARGET)/clients drivers
	clients/drivers/run $(TARGET)/debug/server/pg_config $(TARGET)/clients $(ARGS)

bench-clients: stage-release ## measures the packages' workers beside those of other queues; gets these
	pgrx-tests/scripts/prepare-clients $(TARGET)/clients bench
	pgrx-tests/scripts/stage-pgmq $(TARGET)/release/server
	clients/bench/run $(TARGET)/release/server/pg_config $(TARGET)/clients $(ARGS)

clients: stage ## tests the packages for producers and workers, and gets what that needs
	pgrx-tests/scripts/prepare-clients $(TARGET)/clients
	pgrx-tests/scripts/test-clients $(TARGET)/debug/server/pg_config $(TARGET)/clients

test-conformance: stage ## runs the scenarios that all packages for workers pass; ARGS='node --only cancel' for a few
	pgrx-tests/scripts/prepare-clients $(TARGET)/clients
	pgrx-tests/scripts/test-clients $(TARGET)/debug/server/pg_config $(TARGET)/clients conformance $(ARGS)

site: xtask ## makes a site of the pages in target/site: search, dark mode, llms.txt; gets mdBook
	$(XTASK) site --out $(TARGET)/site-source
	mdbook=$$(pgrx-tests/scripts/cargo-tool mdbook 0.5.4 mdbook --no-default-features --features search) && \
	  $$mdbook build $(TARGET)/site-source --dest-dir $(TARGET)/site

monitoring: prepare ## gets the exporter and the tool that the tests of /monitoring need
	pgrx-tests/scripts/prepare-monitoring

browser: prepare ## gets the browser and the pooler that the tests of the dashboard need
	pgrx-tests/scripts/prepare-web

stage-release: build
	pgrx-tests/scripts/stage $(PG_CONFIG) $(TARGET)/release/libpg_queue.so $(TARGET)/release/server

demo: stage-release ## shows what it does, on a throw-away server; ARGS='--files 500' for fewer files
	PG_CONFIG=$(TARGET)/release/server/pg_config cargo run -q -p queue-tests --bin demo -- $(ARGS)

# Ctrl-C ends the dashboard; then the demo ends the rest, and leaves nothing behind.
web: stage-release ## shows the dashboard over a shop under load, on a throw-away server; ARGS='--listen 127.0.0.1:8080'
	cargo build -q -p queue-tests -p pg_queue_web --bin demo --bin pg_queue_web
	trap '' INT; PG_CONFIG=$(TARGET)/release/server/pg_config $(TARGET)/debug/demo web $(ARGS)

bench: stage-release ## measures it against others, on throw-away servers; ARGS=--quick for a look, --matrix for a page
ifneq (,$(findstring --matrix,$(ARGS)))
	$(MAKE) bench-clients ARGS="$(patsubst --matrix,--matrix docs/matrix.md,$(ARGS))"
else
	PG_CONFIG=$(TARGET)/release/server/pg_config cargo run --release -q -p queue-tests --bin bench -- \
	  --charts $(TARGET)/charts $(ARGS)
endif

instructions: stage-release ## counts the server's instructions a job under valgrind: a change of a hundredth shows
	pgrx-tests/scripts/stage-peer $(TARGET)/release/server plproxy plproxy
	pgrx-tests/scripts/count-instructions $(TARGET)/release/server/pg_config

# What was counted last stands in pgrx-tests/instructions. Where more is meant, target/instructions takes its place.
check-instructions: stage-release ## fails if a job's life takes more than 2 % more instructions than were noted last
	pgrx-tests/scripts/stage-peer $(TARGET)/release/server plproxy plproxy
	pgrx-tests/scripts/count-instructions $(TARGET)/release/server/pg_config | tee $(TARGET)/instructions
	pgrx-tests/scripts/compare-instructions pgrx-tests/instructions $(TARGET)/instructions

soak-sql: stage ## 100,000 jobs that are SQL, each exactly once, over 20 kills of their processes and 20 of the server
	PG_CONFIG=$(TARGET)/debug/server/pg_config QUEUE_SQL_JOBS=100000 cargo test -q --workspace --test server -- \
	  what_a_command_does_happens_exactly_once --nocapture

soak: stage-release ## loads it for MINUTES=10 beside an open snapshot; ARGS=--check makes a miss an error
	pgrx-tests/scripts/stage-peer $(TARGET)/release/server pgq pgq3
	PG_CONFIG=$(TARGET)/release/server/pg_config cargo run --release -q -p queue-tests --bin bench -- \
	  soak --minutes $(MINUTES) --charts $(TARGET)/charts $(ARGS)

xtask: prepare
	cargo build -q -p xtask

prepare:
	@pgrx-tests/scripts/prepare $(ASKED)

clean: ## removes all that was built
	cargo clean
	for cache in /var/cache $${XDG_CACHE_HOME:-~/.cache}; do \
	  if [ -w $$cache/pg_queue-tests ]; then rm -rf $$cache/pg_queue-tests; fi; done
