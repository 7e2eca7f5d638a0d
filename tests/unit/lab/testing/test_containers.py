"""What containers of walproxy.lab.testing are made from. What they do is for the container tests."""

import pytest

from safekeeper.base.errors import ConfigurationError
from walproxy.lab.testing.containers import postgres_image, require_engine, walproxy_image
from walproxy.lab.testing.engine import Blueprint


@pytest.mark.parametrize(
    ("wanted", "image"),
    [
        ("17", "postgres:17"),
        ("16.4-bookworm", "postgres:16.4-bookworm"),
        ("postgres:15", "postgres:15"),
        ("localhost:5000/mine", "localhost:5000/mine"),
        ("mine", "mine"),
    ],
)
def test_a_version_is_a_tag_of_the_official_image_and_all_else_an_image(wanted: str, image: str) -> None:
    assert postgres_image(Blueprint(wanted)) == image


def test_images_are_named_by_the_environment_as_for_compose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTGRES_IMAGE", raising=False)
    monkeypatch.delenv("WALPROXY_IMAGE", raising=False)
    assert (walproxy_image(), postgres_image(Blueprint())) == ("walproxy", "postgres:18")
    monkeypatch.setenv("POSTGRES_IMAGE", "ours")
    monkeypatch.setenv("WALPROXY_IMAGE", "walproxy:ci")
    assert (walproxy_image(), postgres_image(Blueprint())) == ("walproxy:ci", "ours")
    assert postgres_image(Blueprint("17")) == "postgres:17"


def test_planted_programs_are_refused_before_an_engine_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nobody.sock")
    with pytest.raises(ConfigurationError, match="take engine='processes'"):
        require_engine(Blueprint(safekeeper_program=["-m", "mine"]), may_pull=True)
    with pytest.raises(ConfigurationError, match="no container engine answers"):
        require_engine(Blueprint(), may_pull=True)
