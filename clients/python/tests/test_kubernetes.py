"""The manifests of docs/kubernetes.md are YAML, fit each other, and fit the packages' worker. No cluster is needed."""

import inspect
import re
from pathlib import Path

import yaml

from pg_queue import Worker

PAGE = (Path(__file__).parents[3] / "docs/kubernetes.md").read_text()

# The secrets that CloudNativePG makes beside a cluster of this name, and those that the page tells the reader to make.
SECRETS = {"queue-db-app", "queue-db-ca", "queue-web"}


def manifests():
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return [manifest for block in blocks for manifest in yaml.safe_load_all(block)]


def of_kind(kind):
    found = [manifest for manifest in manifests() if manifest["kind"] == kind]
    assert found, kind
    return found


def values(tree, key):
    """All values under this key, however deep."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            if name == key:
                yield value
            yield from values(value, key)
    elif isinstance(tree, list):
        for value in tree:
            yield from values(value, key)


def test_each_is_a_resource_of_kubernetes():
    assert len(manifests()) >= 10
    for manifest in manifests():
        assert set(manifest) - {"spec", "data"} == {"apiVersion", "kind", "metadata"}, manifest
        assert re.fullmatch(r"[a-z0-9-]+", manifest["metadata"]["name"])


def test_each_server_preloads_the_library():
    for manifest in of_kind("Cluster") + of_kind("PostgresCluster") + of_kind("postgresql"):
        (libraries,) = values(manifest, "shared_preload_libraries")
        names = libraries if isinstance(libraries, list) else libraries.split(",")
        assert "pg_queue" in names, manifest
    # Patroni's default has no room for the executors.
    for manifest in of_kind("PostgresCluster") + of_kind("postgresql"):
        (processes,) = values(manifest, "max_worker_processes")
        assert int(processes) >= 16


def test_labels_ports_volumes_and_secrets_fit():
    labels = []
    for manifest in of_kind("Deployment"):
        template = manifest["spec"]["template"]
        assert manifest["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
        labels.append(template["metadata"]["labels"])
        volumes = {volume["name"] for volume in template["spec"]["volumes"]}
        assert {mount["name"] for mounts in values(template, "volumeMounts") for mount in mounts} == volumes
    (service,) = of_kind("Service")
    assert service["spec"]["selector"] in labels
    ports = {port["name"] for manifest in of_kind("Deployment") for ports in values(manifest, "ports")
        for port in ports}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    named = set(values(manifests(), "secretName")) | {reference["name"]
        for reference in values(manifests(), "secretKeyRef")}
    assert named == SECRETS


def test_kubernetes_waits_for_longer_than_the_worker():
    worker = next(manifest for manifest in of_kind("Deployment") if manifest["metadata"]["name"] == "mail-worker")
    timeout = inspect.signature(Worker).parameters["shutdown_timeout"].default
    assert worker["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= timeout + 10


def test_the_queries_within_the_config_map_are_yaml():
    (text,) = (manifest["data"]["queries"] for manifest in of_kind("ConfigMap") if "queries" in manifest["data"])
    (query,) = yaml.safe_load(text).values()
    columns = [name for metric in query["metrics"] for name in metric]
    assert all(f"AS {column}" in query["query"] for column in columns)
