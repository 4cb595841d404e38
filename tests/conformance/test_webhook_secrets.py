"""Secrets of webhooks in the database: sealed, for their webhook only, and with another key after a rotation."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.checkpoint.queries import SCHEMA
from services.checkpoint.webhooks.sealing import Resealed, seal_again
from services.checkpoint.webhooks.sending import WebhookSettings
from tenure.runtime.security import secret_box
from tenure.runtime.security.secret_box import SecretBox, add_encryption_key, withdraw_encryption_key
from tenure.runtime.store.postgres import open_pool
from tenure.v1 import webhook_service_pb2 as pb
from tenure.wire.webhook_service import new_secret, read_secret
from tests.conformance.webhook_client import HERE, WebhookClient
from tests.support.fix_checkpoint import MakeCheckpoint
from tests.support.fix_webhooks import MakeReceiver
from tests.support.http_stub import HttpStub, page

FORMER, NEW = "aaaaaaaa", "bbbbbbbb"
SLACK_PATH = "/services/T0/B0/hidden"


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(secret_box, "LOOK_SECONDS", 0.0)
    path = tmp_path / "encryption.json"
    add_encryption_key(path, FORMER)
    return path


async def hooks_of(checkpoint: MakeCheckpoint, keys: Path | None) -> WebhookClient:
    return WebhookClient(await checkpoint(webhook=WebhookSettings(**HERE), encryption_keys_file=keys))


async def sealed_again(hooks: WebhookClient, keys: Path) -> Resealed:
    """As the command `reencrypt` does it."""
    async with open_pool(hooks.replica.dsn, service="test", schema=SCHEMA) as pool:
        return await seal_again(pool, SecretBox(keys))


async def stored(hooks: WebhookClient) -> bytes:
    """All that the database has of webhooks, with bytes as they are."""
    rows = await hooks.replica.query("select secret, old_secret, url from ledger.webhooks order by name")
    return b"\n".join(
        one if isinstance(one, bytes) else str(one).encode() for row in rows for one in row if one is not None
    )


async def test_no_secret_is_in_the_database_and_both_still_sign(
    checkpoint: MakeCheckpoint, keys: Path, webhook_receiver: MakeReceiver
) -> None:
    hooks, receiver = await hooks_of(checkpoint, keys), await webhook_receiver()
    await hooks.create(receiver)
    new = new_secret()
    again = [await hooks.call("RotateWebhookSecret", secret=new) for _ in range(2)]
    assert again[0].webhook.old_secret_until_time == again[1].webhook.old_secret_until_time
    receiver.secrets.append(new)
    await hooks.finish()
    assert (await receiver.until(1))[0].valid == 2
    kept = await stored(hooks)
    assert not [secret for secret in receiver.secrets if read_secret(secret) in kept]
    assert kept.count(FORMER.encode()) == 2


async def test_the_url_of_a_slack_webhook_is_sealed(checkpoint: MakeCheckpoint, keys: Path) -> None:
    hooks = await hooks_of(checkpoint, keys)
    async with HttpStub(lambda _seen: page("ok")) as slack:
        created = await hooks.create(url=slack.url(SLACK_PATH), kind=pb.WEBHOOK_KIND_SLACK)
        assert SLACK_PATH not in created.url
        assert SLACK_PATH.encode() not in await stored(hooks)
        await hooks.finish()
        await hooks.until(lambda hook: hook.delivered == 1)
    assert slack.seen[0].target == SLACK_PATH


async def test_a_new_key_replaces_the_former_while_webhooks_are_sent(
    checkpoint: MakeCheckpoint, keys: Path, webhook_receiver: MakeReceiver
) -> None:
    hooks, receiver = await hooks_of(checkpoint, keys), await webhook_receiver()
    await hooks.create(receiver)
    await hooks.call("RotateWebhookSecret", secret=(new := new_secret()))
    receiver.secrets.append(new)
    add_encryption_key(keys, NEW)
    assert [await sealed_again(hooks, keys) for _ in range(2)] == [Resealed(1, []), Resealed(0, [])]
    assert FORMER.encode() not in await stored(hooks)
    withdraw_encryption_key(keys, FORMER)
    await hooks.finish()
    assert (await receiver.until(1))[0].valid == 2


async def test_secrets_from_before_there_was_a_key_are_used_and_sealed(
    checkpoint: MakeCheckpoint, keys: Path, webhook_receiver: MakeReceiver
) -> None:
    plain, receiver = await hooks_of(checkpoint, None), await webhook_receiver()
    await plain.create(receiver)
    slack_url = f"https://hooks.example.com{SLACK_PATH}"
    await plain.create(name="slack", url=slack_url, kind=pb.WEBHOOK_KIND_SLACK)
    assert (await plain.get("slack")).url == "https://hooks.example.com/…"
    assert read_secret(receiver.secrets[0]) in await stored(plain)
    hooks = WebhookClient(
        await checkpoint(dsn=plain.replica.dsn, webhook=WebhookSettings(**HERE), encryption_keys_file=keys)
    )
    assert await sealed_again(hooks, keys) == Resealed(2, [])
    kept = await stored(hooks)
    assert SLACK_PATH.encode() not in kept
    assert read_secret(receiver.secrets[0]) not in kept


async def test_secret_moved_to_another_webhook_is_unusable(
    checkpoint: MakeCheckpoint, keys: Path, webhook_receiver: MakeReceiver
) -> None:
    hooks, receiver = await hooks_of(checkpoint, keys), await webhook_receiver()
    await hooks.create(receiver, name="hook")
    await hooks.create(receiver, name="other")
    await hooks.replica.query(
        "update ledger.webhooks set secret = (select secret from ledger.webhooks where name = 'other')"
        " where name = 'hook'"
    )
    await hooks.call("TestWebhook", "hook")
    failed = await hooks.until(lambda hook: bool(hook.problem))
    assert "SECRET_NOT_READABLE" in failed.problem
    assert receiver.came == []
    add_encryption_key(keys, NEW)
    assert await sealed_again(hooks, keys) == Resealed(1, [failed.webhook_id])
    rotated = await hooks.call("RotateWebhookSecret", secret=(new := new_secret()))
    receiver.secrets = [new]
    assert not rotated.webhook.HasField("old_secret_until_time"), "the moved secret must not stay valid"
    await hooks.call("TestWebhook", "hook")
    assert (await receiver.until(1))[0].valid == 1
