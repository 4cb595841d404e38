"""The fixture of the answer links' tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.edges.answer_links.desk import Desk, desk_settings, open_desk
from tests.support.fix_checkpoint import MakeCheckpoint
from tests.support.fix_mail import MakeMailServer


@pytest.fixture
async def desk(checkpoint: MakeCheckpoint, mail_server: MakeMailServer) -> AsyncIterator[Desk]:
    async with open_desk(await checkpoint(**desk_settings(mails := await mail_server())), mails) as made:
        yield made
