# make demo, make test, make bench: each sets up what it needs first. See make help.

# The Postgres major: 15, 16 or 18. Empty: the default of pgrx.toml.
PG ?=
ifneq ($(PG),)
export PG
endif

# Options of the demo and of the benchmark, read by their scripts.
export STREAM SEQUENCE ORDER CONSUMERS SEED REVERSE ARGS

.DEFAULT_GOAL := help
.PHONY: help setup install demo test bench fmt clippy doc clean

help: ## show this
	@echo "make TARGET [PG=15|16|18]"
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "Options of demo: STREAM=file.csv SEQUENCE=file.json ORDER=conditions|position"
	@echo "CONSUMERS=n SEED=n REVERSE=1. Of bench: ARGS=\"--only P1 --quick\""

setup: ## find or install what building and testing needs
	@scripts/setup.sh

install: setup ## build the extension (release) and install it into Postgres
	@scripts/install-extension.sh release

demo: install ## replay a message stream with duplicates, failures and crashes
	@scripts/demo.sh

test: setup ## run every check and every test
	@scripts/test.sh

bench: install ## measure against hand-written SQL
	@scripts/bench.sh

fmt: setup ## format the Rust code
	@cargo fmt --all

clippy: setup ## lint as make test does
	@scripts/lint.sh clippy

doc: setup ## build the Rust documentation
	@scripts/lint.sh doc

clean: ## remove everything that was built or unpacked
	@scripts/clean.sh
