# PostgreSQL with pg_queue in it, preloaded, and created in the first database. The image of each major from 15 to 19:
#   docker build -t pg_queue --build-arg PG=17 .  # 18 without
# The dashboard alone, and the extension's files alone, as CloudNativePG mounts them beside a server's image:
#   docker build -t pg_queue_web --target web .
#   docker build -t pg_queue_files --target files .
# All of them compile. With FILES=package they take target/dist, which `make deb PG=…` fills on Debian 12.
ARG PG=18
ARG FILES=source

FROM rust:1.95-slim-bookworm AS rust

# Built on the very image that it will run in, so that the server and its headers are the same.
FROM postgres:${PG}-bookworm AS compiler
# The versions are those of the Debian that the tag names.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        ca-certificates gcc libc6-dev libclang-dev make "postgresql-server-dev-$PG_MAJOR" \
    && rm -rf /var/lib/apt/lists/*
COPY --from=rust /usr/local/rustup /usr/local/rustup
COPY --from=rust /usr/local/cargo /usr/local/cargo
ENV RUSTUP_HOME=/usr/local/rustup CARGO_HOME=/usr/local/cargo PATH=/usr/local/cargo/bin:$PATH
WORKDIR /pg_queue
COPY . .

FROM compiler AS from-source
RUN make install PG="$PG_MAJOR" DESTDIR=/files \
    && strip --strip-unneeded "/files/usr/lib/postgresql/$PG_MAJOR/lib/pg_queue.so"

FROM compiler AS web-from-source
RUN cargo build --release --package pg_queue_web && install -D --strip target/release/pg_queue_web /files/usr/bin/pg_queue_web

FROM debian:bookworm-slim AS from-package
ARG PG
COPY target/dist/ /dist/
# The files alone: the server's own image has what the package depends on.
RUN for name in "postgresql-$PG-pg-queue" "postgresql-$PG-pg-queue-cluster" "postgresql-$PG-pg-queue-bridge"; do \
        dpkg-deb --extract /dist/"$name"_[0-9]*.deb /package || exit; \
    done \
    && mkdir -p /files/usr && mv /package/usr/lib /files/usr/lib \
    && mkdir -p /files/usr/share && mv /package/usr/share/postgresql /files/usr/share

FROM debian:bookworm-slim AS web-from-package
COPY target/dist/ /dist/
RUN dpkg-deb --extract /dist/pg-queue-web_[0-9]*.deb /files

# hadolint ignore=DL3006
FROM web-from-${FILES} AS web-files

FROM debian:bookworm-slim AS web
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/*
COPY --from=web-files /files/usr/bin/pg_queue_web /usr/bin/
COPY packaging/image/web-health /usr/bin/
# nobody, by number: Kubernetes cannot tell of a name that it is not root.
USER 65534
EXPOSE 8432
HEALTHCHECK --interval=10s --start-period=10s CMD ["web-health"]
ENTRYPOINT ["pg_queue_web"]

# hadolint ignore=DL3006
FROM from-${FILES} AS all-files
ARG PG
# Where CloudNativePG's extension images have them.
RUN mkdir -p /image/lib /image/share/extension \
    && cp "/files/usr/lib/postgresql/$PG/lib/pg_queue.so" /image/lib \
    && cp "/files/usr/share/postgresql/$PG/extension"/pg_queue* /image/share/extension

FROM scratch AS files
COPY --from=all-files /image /

FROM postgres:${PG}-bookworm
COPY --from=all-files /files /
COPY packaging/image/initdb.sql /docker-entrypoint-initdb.d/00-pg_queue.sql
COPY packaging/image/health /usr/local/bin/pg_queue-health
# What initdb makes postgresql.conf of.
RUN echo "shared_preload_libraries = 'pg_queue'" >> /usr/share/postgresql/postgresql.conf.sample
HEALTHCHECK --interval=10s --start-period=60s CMD ["pg_queue-health"]
