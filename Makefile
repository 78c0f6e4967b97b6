# Everything a person needs to build, try and check Millrace. `make` lists the targets.

export PATH := $(HOME)/.cargo/bin:$(PATH)
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help deps build dist oci demo test crash arm interop loom miri bench bench-peers soak-toe fuzz mutants deny fmt clean toolchain

XTASK := cargo run --quiet --locked --package xtask --
TARGET := $(or $(CARGO_TARGET_DIR),target)

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## install the Debian packages that building, demo and tests need (root or sudo)
	@scripts/deps.sh build demo test

build: toolchain ## the programs, optimised: target/release/millrace and millrace-lab, symbols in .debug files beside them, and libmillrace_preload.so
	@scripts/deps.sh --try build
	@scripts/npm.sh --try page
	cargo build --release --locked --package millrace-server --package millrace-lab --package millrace-preload
	@scripts/split-symbols.sh $(TARGET)/release/millrace
	@scripts/split-symbols.sh $(TARGET)/release/millrace-lab
	@scripts/split-symbols.sh $(TARGET)/release/libmillrace_preload.so

dist: toolchain ## Debian packages and an archive of the optimised programs, in target/dist; CHECK=1: install, run and remove them in a container, as root
	@scripts/deps.sh --try build dist $(if $(CHECK),dist-check)
	@$(MAKE) --no-print-directory build
	cargo build --release --locked --package millrace-manual
	@scripts/dist.sh $(TARGET)/release
	$(if $(CHECK),@scripts/dist-check.sh $(TARGET)/release)

oci: dist ## the server with Debian and ffmpeg as a container image, target/dist/millrace-VERSION-oci.tar, as root; CHECK=1: start it too
	@scripts/deps.sh oci $(if $(CHECK),dist-check)
	@scripts/oci.sh $(if $(CHECK),--check)

demo: ## make two films and serve them; PROVE=1: play them too, then end
	@scripts/deps.sh build demo
	@$(MAKE) --no-print-directory build
	@MILLRACE=$(TARGET)/release/millrace scripts/demo.sh $(if $(PROVE),--prove)

test: toolchain ## everything that CI runs; says what was skipped and why
	@scripts/deps.sh --try build test
	@scripts/npm.sh --try page browser
	@$(XTASK) ci

interop: toolchain ## long runs with FFmpeg, GStreamer, VLC, Chromium, Firefox and our own receiver
	@scripts/deps.sh --try build test
	@scripts/npm.sh --try page browser
	cargo build --release --locked --package millrace-server --package millrace-lab
	@$(XTASK) interop --long --millrace $(TARGET)/release/millrace

bench: build ## measure every promise about speed but `bench streams`, which takes an hour; CHECK=1: fail if one does not hold
	@for name in $$($(TARGET)/release/millrace bench list | awk '/^[a-z]/ && $$1 != "peers" && $$1 != "streams" { print $$1 }'); do \
	  echo; echo "== bench $$name"; \
	  $(TARGET)/release/millrace bench $$name $(if $(CHECK),--check) || failed=1; \
	done; exit $${failed:-0}

bench-peers: build ## compare with the media servers that Debian has, as root; QUICK=1: a first look
	@scripts/deps.sh --try peers
	$(TARGET)/release/millrace bench peers $(if $(QUICK),--quick) $(if $(CHECK),--check)

crash: toolchain ## power cuts and failing disks under the store, far more of them; SEEDS=100
	MILLRACE_CRASH_SEEDS=$(or $(SEEDS),100) cargo test --release --locked --package millrace-store --test crash crash_

soak-toe: toolchain ## the TCP offload engine by AF_XDP through loss and kills for so long, as root; MINUTES=60
	MILLRACE_SOAK_SECONDS=$$((60 * $(or $(MINUTES),60))) cargo test --release --locked --package millrace-lab --test kernel toe_soak:: -- --nocapture

arm: toolchain ## tests of framing, sums and parity code on an emulated arm64: the NEON kernels too
	@scripts/deps.sh arm
	rustup target add aarch64-unknown-linux-gnu
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu" \
	  cargo test --locked --package millrace-core --lib --target aarch64-unknown-linux-gnu

loom: toolchain ## every order in which threads can run, for what is shared without locks: at most ten minutes
	@$(XTASK) loom --long

miri: toolchain ## unsafe code of core with every access to memory checked, where a nightly has miri
	@$(XTASK) miri

fuzz: toolchain ## all property tests for longer; SECONDS_EACH=60
	@$(XTASK) fuzz --seconds $(or $(SECONDS_EACH),60)

# Every fifteenth of some 4,600, from the SEED-th on: the same ones for the same seed and code. Missed ones and time-outs are the result, no failure.
mutants: toolchain ## faults put into TCP one at a time, 300 of them: which does no test notice? at most an hour; SEED=0..14 (needs cargo-mutants)
	@if ! command -v cargo-mutants >/dev/null; then echo "skipped: cargo-mutants is not installed; cargo install --locked cargo-mutants"; \
	else mkdir -p $(TARGET); MILLRACE_TCP_RUNS=50 cargo mutants --package millrace-tcp --shard $(or $(SEED),0)/15 --sharding round-robin \
	  --no-shuffle --jobs 2 --output $(TARGET) || test $$? -eq 2 -o $$? -eq 3; fi

deny: toolchain ## licences, advisories and sources of all dependencies (needs cargo-deny)
	@if command -v cargo-deny >/dev/null; then cargo deny --workspace check; \
	else echo "skipped: cargo-deny is not installed; cargo install --locked cargo-deny"; fi

fmt: toolchain ## format all code
	cargo fmt --all

clean: ## remove what was built, and the demo's films and store
	rm -rf demo target/npm
	if command -v cargo >/dev/null; then cargo clean; fi

# Cargo's own words for a compiler that is too old are hard to understand, for one that is missing there are none.
toolchain:
	@need=$$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml); \
	how="install it with rustup (https://rustup.rs; on Debian 13: apt-get install rustup), then: rustup default stable"; \
	if ! command -v cargo >/dev/null; then echo "Rust $$need or newer is needed and there is none; $$how" >&2; exit 1; fi; \
	have=$$(rustc --version | cut -d' ' -f2); \
	if [ "$$(printf '%s\n' "$$need" "$$have" | sort -V | head -n 1)" != "$$need" ]; then \
	  echo "Rust $$need or newer is needed, this is $$have; rustup update, or $$how" >&2; exit 1; \
	fi
