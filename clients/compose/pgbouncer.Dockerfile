FROM debian:bookworm-slim
RUN apt-get update && apt-get install --yes --no-install-recommends pgbouncer && rm -rf /var/lib/apt/lists/*
COPY pgbouncer.ini /etc/pgbouncer/pgbouncer.ini
RUN echo '"app" "app"' > /etc/pgbouncer/users.txt && chown -R postgres /etc/pgbouncer
USER postgres
CMD ["pgbouncer", "--quiet", "/etc/pgbouncer/pgbouncer.ini"]
