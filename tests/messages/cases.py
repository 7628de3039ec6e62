"""All mistakes whose messages are kept."""

from __future__ import annotations

from tests.messages.of_ours import OF_OURS
from tests.messages.of_published import OF_COMMANDS, OF_PUBLISHED

__all__ = ["CASES"]

CASES = [*OF_OURS, *OF_PUBLISHED, *OF_COMMANDS]
