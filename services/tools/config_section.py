"""What all parts of the config file have in common. Apart from the file's own model, which is made of the parts."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Nothing unknown in it, and nothing changes it later. What is wrong with it is told without its content: there may
    be secrets in it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, hide_input_in_errors=True)
