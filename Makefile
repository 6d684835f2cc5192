# What a person runs here. Everything that a target needs beside Rust it gets through tests/tools/get.
MAKEFLAGS += --no-print-directory
CARGO ?= cargo
IMAGE ?= chiefsync:dev
ruff = "$$(tests/tools/get ruff)"

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: ## The whole story on this machine: a trainer, the sidecar, an S3 server in process, the proof
	@$(CARGO) run --locked -- demo

test: ## Every test; needs Go and Python once, to get the S3 servers and an independent reader
	@tests/tools/get minio versitygw boto3 >&2
	$(CARGO) test --workspace --locked

bench: ## Our figures beside those of aws, rclone and mc; BENCH_ARGS="--quick" for a short look
	@tests/tools/get minio >&2
	$(CARGO) build --release --locked --workspace --bins
	python3 benches/bench.py $(BENCH_ARGS)

check: ## Formatting, lints and documentation, all of them errors
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked --document-private-items
	$(ruff) check .
	$(ruff) format --check .

deny: ## Licences, advisories and doubled TLS stacks in the dependencies (cargo install cargo-deny)
	$(CARGO) deny --all-features check

fmt: ## Formats Rust and Python
	$(CARGO) fmt --all
	$(ruff) format .
	$(ruff) check --fix .

image: ## The container image, with Docker or Podman
	"$$(command -v docker || command -v podman)" build -t $(IMAGE) --build-arg REVISION="$$(git rev-parse HEAD)" .

.PHONY: help demo test bench check deny fmt image
.DEFAULT_GOAL := help
