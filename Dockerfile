# syntax=docker/dockerfile:1
# glibc, not musl: its allocator and resolver are what the figures were measured with.

FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
# aws-lc is C and assembler: it asks for the compiler that this image has, and for neither cmake nor clang.
# The caches outlive the layer, so the binary is copied out of them in the same step.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin chiefsync \
    && install -D -m 0755 target/release/chiefsync /out/chiefsync

# Same Debian as the builder: the binary finds the libc that it was linked against, libgcc and the CA certificates.
FROM gcr.io/distroless/cc-debian12:nonroot
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="chiefsync" \
      org.opencontainers.image.description="Carries a training job's output to S3-compatible storage while it trains, and proves that it arrived" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /out/chiefsync /usr/local/bin/chiefsync
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/chiefsync"]
