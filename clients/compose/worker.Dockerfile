FROM python:3.13-slim
COPY . /pg-queue
RUN pip install --no-cache-dir /pg-queue "psycopg[binary]"
# The first process of a container ignores SIGTERM unless it handles it, as `run` does.
CMD ["python", "/worker.py"]
