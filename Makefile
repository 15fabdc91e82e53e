# make demo, make test, make bench: each sets up what it needs first. See make help.

# The Postgres major: 15, 16 or 18. Empty: the default of pgrx.toml.
PG ?=
# With PG_CONFIG, as other extensions are built, it is the major of that Postgres.
ifneq ($(PG_CONFIG),)
export PG_CONFIG
ifeq ($(PG),)
PG := $(shell $(PG_CONFIG) --version | sed 's/^PostgreSQL \([0-9]*\).*/\1/')
endif
endif
ifneq ($(PG),)
export PG
endif

# Options of the demo, of the benchmark and of the chaos test, read by their scripts.
export STREAM SEQUENCE ORDER CONSUMERS SEED REVERSE BROKER DURATION ARGS
# Of soak and of check-upgrade-major.
export CALLS TO
# Of test-all and deny: see docs/packaging.md.
export MAJORS ADVISORIES

.DEFAULT_GOAL := help
.PHONY: help setup install demo examples test chaos bench fmt clippy doc docs clean
.PHONY: check-monitoring dashboard-picture
.PHONY: soak valgrind check-upgrade-major
.PHONY: all uninstall installcheck test-all package check-package dist check-dist check-publish sbom deny

help: ## show this
	@echo "make TARGET [PG=15|16|18 | PG_CONFIG=path]"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-19s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "Options of demo: STREAM=file.csv SEQUENCE=file.json ORDER=conditions|position"
	@echo "CONSUMERS=n SEED=n REVERSE=1 BROKER=own|rabbitmq. Of bench: ARGS=\"--only P1 --quick\""
	@echo "Of chaos: DURATION=seconds SEED=n CONSUMERS=n"

setup: ## find or install what building and testing needs
	@scripts/setup.sh

install: setup ## build the extension (release) and install it into Postgres
	@scripts/install-extension.sh release

demo: install ## replay a message stream with duplicates, failures and crashes
	@scripts/demo.sh

examples: install ## run the consumers in Rust, Python, Node, Java and SQL, and compare their ledgers
	@scripts/examples.sh

test: setup ## run every check and every test
	@scripts/test.sh

soak: install ## a million calls in one session, whose memory must not grow (CALLS=n)
	@scripts/soak.sh

valgrind: install ## the SQL tests on a server under valgrind: no error of the extension's
	@scripts/valgrind.sh

check-upgrade-major: ## pg_upgrade with data, from PG to TO (15 to 18 unless given)
	@scripts/check-upgrade-major.sh

chaos: install ## kill consumers, sessions, servers and commits, and check every message
	@scripts/chaos.sh

bench: install ## measure against hand-written SQL
	@scripts/bench.sh

fmt: setup ## format the Rust code
	@cargo fmt --all

clippy: setup ## lint as make test does
	@scripts/lint.sh clippy

doc: setup ## build the Rust documentation
	@scripts/lint.sh doc

docs: ## build the documentation as a book, into target/book
	@scripts/docs.sh

check-monitoring: install ## compare what exporters say with inbox_metrics(), test alerts and dashboard
	@scripts/check-monitoring.sh

dashboard-picture: install ## draw the dashboard's picture anew, from three minutes of work
	@scripts/dashboard-picture.sh

# What is released. Where it takes long, and what each of them needs, is in docs/packaging.md.

all: setup ## build the extension (release), without installing it
	@scripts/build-extension.sh

uninstall: setup ## remove what make install has installed
	@scripts/uninstall-extension.sh

installcheck: setup ## run the regression tests against the extension that is installed
	@scripts/regress.sh regress

test-all: ## make test for every Postgres, one after the other
	@scripts/test-all.sh

package: setup ## build the Debian package into target/package
	@scripts/package.sh

check-package: package ## install it into a Debian of its own, use it, remove it
	@scripts/check-package.sh

dist: ## make the source archive for PGXN, of what is committed
	@scripts/dist.sh

check-dist: setup dist ## build and install that archive with PGXN's client
	@scripts/check-dist.sh

check-publish: ## see whether the client's crate could be published
	@scripts/check-publish.sh

sbom: ## write the software bill of materials into target/sbom
	@scripts/sbom.sh

deny: ## check the licences, sources and known advisories of the dependencies
	@scripts/deny.sh

clean: ## remove everything that was built or unpacked
	@scripts/clean.sh
