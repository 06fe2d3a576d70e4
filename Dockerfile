# PostgreSQL with pg_queue installed and preloaded; `CREATE EXTENSION pg_queue` is left to each database.
# docker build -t pg_queue --build-arg PG=17 .  # 18 without
# The dashboard alone: docker build -t pg_queue_web --target web .
ARG PG=18

FROM rust:1.95-slim-bookworm AS rust

# Built on the very image that it will run in, so that the server and its headers are the same.
FROM postgres:${PG}-bookworm AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        ca-certificates gcc libc6-dev libclang-dev make "postgresql-server-dev-$PG_MAJOR"
COPY --from=rust /usr/local/rustup /usr/local/rustup
COPY --from=rust /usr/local/cargo /usr/local/cargo
ENV RUSTUP_HOME=/usr/local/rustup CARGO_HOME=/usr/local/cargo PATH=/usr/local/cargo/bin:$PATH
WORKDIR /pg_queue
COPY . .
RUN make install PG="$PG_MAJOR" DESTDIR=/files \
    && strip --strip-unneeded "/files/usr/lib/postgresql/$PG_MAJOR/lib/pg_queue.so"

FROM build AS build-web
RUN cargo build --release --package pg_queue_web && strip target/release/pg_queue_web

FROM debian:bookworm-slim AS web
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/*
COPY --from=build-web /pg_queue/target/release/pg_queue_web /usr/bin/
USER nobody
EXPOSE 8432
ENTRYPOINT ["pg_queue_web"]

FROM postgres:${PG}-bookworm
COPY --from=build /files /
# What initdb makes postgresql.conf of.
RUN echo "shared_preload_libraries = 'pg_queue'" >> /usr/share/postgresql/postgresql.conf.sample
