"""docker-compose.yml is as its comments and docs/guide/operations.md say. tests/e2e shows that it works."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from safekeeper.base.cluster_file import ClusterFile
from safekeeper.process.config import SAFEKEEPER
from walproxy.cli.configuration import PROXY, roles

ROOT = Path(__file__).parents[2]
FILE: dict[str, Any] = msgspec.yaml.decode((ROOT / "docker-compose.yml").read_bytes())
SERVICES: dict[str, dict[str, Any]] = FILE["services"]


def test_each_image_is_built_by_one_service_which_comes_before_all_others_that_run_it() -> None:
    builders = {service["image"]: name for name, service in SERVICES.items() if "build" in service}
    assert Counter(service["image"] for service in SERVICES.values() if "build" in service) == dict.fromkeys(
        builders, 1
    )
    for name, service in SERVICES.items():
        builder = builders.get(service["image"], name)
        assert builder == name or builder in _all_dependencies(name), f"{name} may start before {builder} has built"


def test_what_is_published_is_published_on_loopback_only_and_can_be_moved() -> None:
    for name, service in SERVICES.items():
        for port in service.get("ports", []):
            assert re.fullmatch(r"127\.0\.0\.1:\$\{[A-Z0-9_]+_PORT:-\d+\}:\d+", port), name


def test_every_service_starts_again_by_itself_and_has_time_to_end() -> None:
    for name, service in SERVICES.items():
        assert service["restart"] == "unless-stopped", name
    for name in ("postgres", "standby", "safekeeper2", "walproxy2", "store"):
        assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) >= 20, name


def test_every_secret_is_a_file_with_a_trial_value_and_stands_nowhere_else() -> None:
    used = {secret for service in SERVICES.values() for secret in service.get("secrets", [])}
    assert used == set(FILE["secrets"])
    text = (ROOT / "docker-compose.yml").read_text()
    made = (ROOT / "deploy" / "make-secrets").read_text()
    for secret in used:
        assert FILE["secrets"][secret]["file"] == f"${{SECRETS_DIR:-./deploy/trial-secrets}}/{secret}"
        value = (ROOT / "deploy" / "trial-secrets" / secret).read_text().strip()
        assert value == "walproxy" or value == "standby" or value not in text, secret
        assert secret in made, f"deploy/make-secrets makes no {secret}"


def test_volumes_are_named_and_every_one_is_used() -> None:
    used = {volume.partition(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert {volume for volume in used if not volume.startswith(".")} == set(FILE["volumes"])


def test_the_file_of_the_cluster_is_that_of_its_services() -> None:
    file = ClusterFile(ROOT / "deploy" / "walproxy.toml", roles())
    places = file.addresses("safekeepers")
    for name in ("safekeeper1", "safekeeper2", "safekeeper3", "walproxy", "walproxy2"):
        assert "./deploy/walproxy.toml:/etc/walproxy/walproxy.toml:ro" in SERVICES[name]["volumes"]
    for number, place in places.items():
        assert SERVICES[f"safekeeper{number}"]["command"] == f"safekeeper run --id {number}"
        assert place.host == f"safekeeper{number}"
    assert set(file.values(PROXY)) == {"secret_file", "primary", "http_hosts"}
    used = {given.value for given in file.values(SAFEKEEPER, "1").values() if str(given.value).startswith("/run/")}
    assert {Path(each).name for each in used} <= set(SERVICES["safekeeper2"]["secrets"])


def test_every_service_and_every_variable_is_described() -> None:
    page = (ROOT / "docs" / "guide" / "operations.md").read_text()
    page = page[page.index("\n## In containers\n") :]
    for name in SERVICES:
        assert f"`{name}`" in page, name
    for variable in set(re.findall(r"\$\{([A-Z0-9_]+)", (ROOT / "docker-compose.yml").read_text())):
        described = variable in page or re.fullmatch(r"SAFEKEEPER[23]_HTTP_PORT", variable)
        assert described, variable


def _all_dependencies(name: str) -> set[str]:
    found: set[str] = set()
    left = [name]
    while left:
        for dependency in SERVICES[left.pop()].get("depends_on", ()):
            if dependency not in found:
                found.add(dependency)
                left.append(dependency)
    return found
