"""Laws of settings: one error names everything that is wrong, and no secret is ever shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path

import pytest

from tenure.runtime.settings import Address, ConfigurationError, Secret, describe, group, load, setting

PREFIX = "TENURE_TEST_"


@dataclass(frozen=True, kw_only=True)
class Shared:
    failpoints: str = setting("what breaks", default="")
    log_format: str = setting("how logs look", default="json", choices=["json", "human"])


@dataclass(frozen=True, kw_only=True)
class Settings:
    database: Secret = setting("where the ledger is")
    address: Address = setting("where to serve", default=Address("0.0.0.0:8472"))
    ttl_seconds: float = setting("how long a lease lasts", default=5.0, minimum=1.0, maximum=60.0)
    renew_seconds: float = setting("how often it is renewed", default=1.5, minimum=0.1)
    slots: int = setting("how many at once", default=8, minimum=1)
    allow_unsafe: bool = setting("for experiments", default=False)
    peers: tuple[Address, ...] = setting("the others", default=())
    queues: tuple[str, ...] = setting("which queues", default=("default",))
    workspace: Path = setting("where files go", default=Path("/tmp"))
    max_cost: float | None = setting("no more than that", default=None)
    endpoint: str = setting("not ours by name", default="", variable="OTEL_EXPORTER_OTLP_ENDPOINT")
    shared: Shared = group(Shared)

    def problems(self) -> Iterator[str]:
        if self.renew_seconds * 3 > self.ttl_seconds:
            yield f"{PREFIX}RENEW_SECONDS must be at most a third of {PREFIX}TTL_SECONDS"


def read(**environment: str) -> Settings:
    given = {f"{PREFIX}DATABASE": "postgresql://ledger"}
    return load(Settings, given | {f"{PREFIX}{name}": value for name, value in environment.items()}, prefix=PREFIX)


def problems(environment: dict[str, str]) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        load(Settings, environment, prefix=PREFIX)
    return caught.value.problems


def test_unset_settings_have_defaults() -> None:
    settings = read()
    assert (settings.ttl_seconds, settings.slots, settings.peers, settings.max_cost) == (5.0, 8, (), None)
    assert settings.shared == Shared()


def test_each_type_is_read_from_text() -> None:
    settings = read(
        ADDRESS="[::1]:80",
        TTL_SECONDS="7.5",
        SLOTS=" 3 ",
        ALLOW_UNSAFE="Yes",
        PEERS="a:1, b:2,",
        QUEUES="x,y",
        WORKSPACE="/srv",
        MAX_COST="1.25",
    )
    assert (settings.address.host, settings.address.port) == ("::1", 80)
    assert (settings.ttl_seconds, settings.slots, settings.allow_unsafe) == (7.5, 3, True)
    assert settings.peers == (Address("a:1"), Address("b:2"))
    assert (settings.queues, settings.workspace, settings.max_cost) == (("x", "y"), Path("/srv"), 1.25)


def test_a_variable_may_have_a_foreign_name() -> None:
    settings = load(
        Settings,
        {f"{PREFIX}DATABASE": "d", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "TENURE_LOG_FORMAT": "human"},
        prefix=PREFIX,
    )
    assert (settings.endpoint, settings.shared.log_format) == ("http://c:4317", "human")


def test_mistakes_are_reported_together() -> None:
    response = problems(
        {
            f"{PREFIX}TTL_SECONDS": "soon",
            f"{PREFIX}SLOTS": "0",
            f"{PREFIX}PEERS": "a:1,b",
            f"{PREFIX}SLOT": "3",
            f"{PREFIX}ALLOW_UNSAFE": "perhaps",
            "TENURE_LOG_FORMAT": "xml",
        }
    )
    assert response == (
        f"{PREFIX}SLOT is not a setting (did you mean {PREFIX}SLOTS?)",
        f"{PREFIX}DATABASE is missing: where the ledger is",
        f"{PREFIX}TTL_SECONDS must be a number, not 'soon'",
        f"{PREFIX}SLOTS must be at least 1, not '0'",
        f"{PREFIX}ALLOW_UNSAFE must be true or false, not 'perhaps'",
        f"{PREFIX}PEERS must be host:port, not 'a:1,b'",
        "TENURE_LOG_FORMAT must be one of json, human, not 'xml'",
    )


def test_variables_of_other_services_are_not_unknown() -> None:
    settings = load(
        Settings, {f"{PREFIX}DATABASE": "d", "TENURE_WORKER_SLOTS": "1", "TENURE_FAILPOINTS": "x"}, prefix=PREFIX
    )
    assert settings.shared.failpoints == "x"


def test_relations_are_checked_once_the_values_are_there() -> None:
    response = problems({f"{PREFIX}DATABASE": "d", f"{PREFIX}RENEW_SECONDS": "3"})
    assert response == (f"{PREFIX}RENEW_SECONDS must be at most a third of {PREFIX}TTL_SECONDS",)


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "", "1e999"])
def test_a_duration_is_a_finite_number(number: str) -> None:
    if number:
        assert problems({f"{PREFIX}DATABASE": "d", f"{PREFIX}TTL_SECONDS": number})
    else:  # an empty variable is one that was not given
        assert read(TTL_SECONDS=number).ttl_seconds == 5.0


@pytest.mark.parametrize("address", ["host", ":80", "host:", "host:x", "host:65536", "::1:80", "host:-1", "host:²"])
def test_an_address_is_host_and_port(address: str) -> None:
    assert problems({f"{PREFIX}DATABASE": "d", f"{PREFIX}ADDRESS": address})


def test_secret_is_hidden_in_texts() -> None:
    settings = read(DATABASE="postgresql://u:hunter2@h/d")
    shown = [repr(settings), str(settings.database), f"{settings.database}", json.dumps(settings.database, default=str)]
    assert not [text for text in shown if "hunter2" in text]
    assert settings.database.reveal() == "postgresql://u:hunter2@h/d"


def test_a_secret_may_be_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "dsn"
    path.write_text("postgresql://u:hunter2@h/d\n")
    variable = f"{PREFIX}DATABASE"
    settings = load(Settings, {f"{variable}_FILE": str(path)}, prefix=PREFIX)
    assert settings.database.reveal() == "postgresql://u:hunter2@h/d"
    assert problems({variable: "x", f"{variable}_FILE": str(path)}) == (
        f"{variable} is set, and {variable}_FILE too; unset one of them",
    )
    path.write_bytes(b"\xff")
    assert problems({f"{variable}_FILE": str(path)}) == (
        f"{variable} cannot be read from {path}: the file is not text",
    )
    assert problems({f"{variable}_FILE": str(tmp_path / "none")}) == (
        f"{variable} cannot be read from {tmp_path}/none: No such file or directory",
    )
    path.write_text(" \n")
    assert problems({f"{variable}_FILE": str(path)}) == (f"{variable} is missing: where the ledger is",)


def test_settings_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        read().slots = 3  # type: ignore[misc]  # that is the test


def test_table_has_every_variable() -> None:
    table = describe(Settings, prefix=PREFIX)
    assert "TENURE_TEST_DATABASE" in table
    lines = {line.split()[0]: line for line in table.splitlines()}
    assert set(lines) == {
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "TENURE_FAILPOINTS",
        "TENURE_LOG_FORMAT",
        *(
            f"{PREFIX}{name}"
            for name in ("DATABASE", "DATABASE_FILE", "ADDRESS", "TTL_SECONDS", "RENEW_SECONDS", "SLOTS")
        ),
        *(f"{PREFIX}{name}" for name in ("ALLOW_UNSAFE", "PEERS", "QUEUES", "WORKSPACE", "MAX_COST")),
    }
    assert "required" in lines[f"{PREFIX}DATABASE"]
    assert lines[f"{PREFIX}TTL_SECONDS"].endswith("how long a lease lasts (at least 1.0, at most 60.0)")
    assert "json|human" in lines["TENURE_LOG_FORMAT"]
