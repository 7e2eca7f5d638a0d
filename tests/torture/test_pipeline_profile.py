"""The profile `pipeline` of docker-compose.yml: Spark in a container turns the archive into tables.

Here and not among the end-to-end tests, because the image takes minutes to build: `eval "$(.ci/images --pipeline)"`.
"""

import json
import os

import pytest

from tests.e2e.commits import commit
from tests.e2e.conftest import compose_program, deployment, images, leave_out, shared_deployment, succeeds
from tests.e2e.deployment import Deployment, docker, wait_until

__all__ = ["compose_program", "deployment", "images", "shared_deployment"]  # fixtures

QUERY = "SELECT count(*) AS found FROM transactions WHERE outcome = 'commit'"


@pytest.mark.timeout(600)
def test_the_pipeline_writes_tables_of_what_was_committed(deployment: Deployment) -> None:
    image = os.environ.get("PIPELINE_IMAGE", "walproxy-pipeline")
    if not succeeds("docker", "image", "inspect", image):
        leave_out(
            f"no image {image} (PIPELINE_IMAGE): docker compose --profile pipeline build, or .ci/images --pipeline"
        )
    deployment.images["PIPELINE_IMAGE"] = image
    with deployment.connect() as session:
        commit(session, "CREATE TABLE for_spark AS SELECT 1 AS entry")
    deployment.compose("--profile", "pipeline", "up", "--detach", "--no-build", "--no-deps", "pipeline")
    container = deployment.container("pipeline")
    try:
        wait_until(
            lambda: '"rows"' in docker("logs", container), lambda: docker("logs", "--tail", "20", container), 180
        )
        said = docker(
            "exec", container, "walproxy", "pipeline", "query", QUERY, "--tables", "/var/lib/tables", "--json"
        )
        assert json.loads(said)["found"] > 0
    finally:
        deployment.compose("--profile", "pipeline", "rm", "--stop", "--force", "-v", "pipeline")
