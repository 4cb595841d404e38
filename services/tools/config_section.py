"""What all parts of the config file have in common. Apart from the file's own model, which is made of the parts."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Nothing unknown in it, and nothing changes it later."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)
