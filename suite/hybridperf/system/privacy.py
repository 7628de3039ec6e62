"""Remove identifying data and secrets: every published string passes through `Guard`."""

from __future__ import annotations

import os
import pwd
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from hybridperf.system import files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Guard", "allowed_environment"]

T = TypeVar("T")

_LONGEST = 1000  # longer strings are no known field, but logs or keys
_NAMING_VARIABLES = {"HOME", "HOSTNAME", "LOGNAME", "SUDO_USER", "USER", "USERNAME"}
_SECRET_NAME = re.compile(r"secret|token|passw|credential|key|auth|cookie", re.IGNORECASE)
_SHORTEST_SECRET = 8  # a shorter one may be a common word, such as "enabled"
_SERIAL_FILES = (
    "etc/machine-id",
    "sys/class/dmi/id/*_serial",
    "sys/class/dmi/id/product_uuid",
    "sys/class/net/*/address",
    "sys/block/*/device/serial",
    "sys/block/*/device/wwid",
    "sys/block/*/serial",
    "sys/block/*/wwid",
)
# Common names of machines and users, which identify none.
_COMMON_NAMES = {"admin", "debian", "localhost", "nobody", "none", "root", "ubuntu", "user"}
_SUBSTRING_FROM = 6  # shorter names match whole words only: "at" is in "Platinum"

_FORBIDDEN = re.compile(
    r"""
    (?<![\w)])~?/[^\s/]                                   # absolute path
    | :// | [A-Za-z]:\\ | \\\\                             # address, path of another system
    | (?<![0-9a-f])[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5}       # MAC
    # IPv4; versions of three or five parts are none
    | (?<!\d)(?<!\d\.)(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?!\d|\.\d)
    | (?<![0-9a-z])(?:[0-9a-f]{1,4}:){2} | ::              # IPv6, PCI address
    | [0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}  # UUID
    | (?<![0-9a-z])(?:[0-9a-f]{12}|[0-9a-f]{16}|[0-9a-f]{32}|[0-9a-f]{64})(?![0-9a-z])  # hex IDs
    | \w@\w                                                # user@host
    | secret | passw(?:or)?d | credential | bearer\b | api[_-]?key | private[ _-]key
    | (?:key | pwd | auth | \bsig | token | signature | serial)["']?[=:]\S         # and its value
    | \bAKIA[0-9A-Z]{12} | \bgh[a-z]_\w{8} | \bgithub_pat_ | \bhf_\w{8} | \bsk-\w{8} | \beyJ\w{8}
    | \bxox[a-z]-\w | \bgl[a-z]{2,5}-\w{8} | \bnpm_\w{8} | \bdo[a-z]_v1_\w | \bAIza[\w-]{8}
    """,
    re.VERBOSE | re.IGNORECASE,
)
# The end of a word after which a secret or a name follows, and words that may stand between them.
_ANNOUNCES = re.compile(
    r"(?:bearer|basic|passw(?:or)?d|pwd|passphrase|secret|token|credentials?|key|cookie|auth|sig"
    r"|signature|log(?:in|on|ged)|user(?:name)?|account|serial)[\"']?[:=]?$",
    re.IGNORECASE,
)
_BETWEEN = {"=", ":", "is", "was", "->", "as", "in", "on", "number", "no.", "No."}


@dataclass(frozen=True, slots=True)
class Guard:
    """A filter for strings that may identify this machine, its location or its user."""

    secrets: frozenset[str]  #: lower-case secrets and names of machine and user

    @classmethod
    def of_this_machine(cls, root: Path = Path("/")) -> Guard:
        """Collect the names of this machine and its user, and secrets in the environment."""
        found = {secret.strip().lower() for secret in _own_names(root)}
        return cls(frozenset(name for name in found - _COMMON_NAMES if len(name) > 1))

    def publishable(self, text: str) -> str:
        """Return ``text`` if it is publishable, else ``""``."""
        if len(text) > _LONGEST or not text.isprintable() or _FORBIDDEN.search(text):
            return ""
        folded = text.lower()
        return "" if any(self._occurs(secret, folded) for secret in self.secrets) else text

    def redacted(self, text: str) -> str:
        """Return ``text`` with each unpublishable word replaced by ``[removed]``."""
        words = " ".join(self._redacted_words(text.split()))
        whole = len(words) > _LONGEST or self.publishable(words)  # some secrets are several words
        return words if whole or not text else "[removed]"

    def _redacted_words(self, words: list[str]) -> Iterator[str]:
        announced = False  # by an earlier word, such as "password" or "bearer"
        for word in words:
            yield "[removed]" if announced else self.publishable(word) or "[removed]"
            announced = bool(_ANNOUNCES.search(word)) or (announced and word in _BETWEEN)

    def scrub(self, value: T) -> T:
        """Return a JSON-like value with every unpublishable string replaced by ``""``."""
        return cast("T", self._scrub(value))

    def _scrub(self, value: object) -> object:
        if isinstance(value, str):
            return self.publishable(value)
        if isinstance(value, dict):
            return {key: self._scrub(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._scrub(item) for item in value]
        return value

    @staticmethod
    def _occurs(secret: str, text: str) -> bool:
        if secret not in text:
            return False
        if len(secret) >= _SUBSTRING_FROM and not secret.isdigit():
            return True
        return re.search(rf"(?<![a-z0-9]){re.escape(secret)}(?![a-z0-9])", text) is not None


def allowed_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables whose names and values are on the allow-list."""
    patterns = tomllib.loads(Path(__file__).with_name("environment.toml").read_text())
    return {
        name: environment[name]
        for name, pattern in sorted(patterns.items())
        if name in environment
        and re.fullmatch(pattern, environment[name], re.IGNORECASE | re.ASCII)
    }


def _own_names(root: Path) -> Iterator[str]:
    for host in (os.uname().nodename, files.text(root / "proc/sys/kernel/hostname")):
        yield host
        yield host.partition(".")[0]
    for name, value in os.environ.items():
        if name in _NAMING_VARIABLES or (
            _SECRET_NAME.search(name) and len(value) >= _SHORTEST_SECRET
        ):
            yield value
    yield from _accounts()
    for pattern in _SERIAL_FILES:
        for path in files.children(root, pattern):
            yield files.text(path)


def _accounts() -> Iterator[str]:
    try:
        account = pwd.getpwuid(os.getuid())
    except KeyError:  # containers may use a UID without an account
        return
    yield account.pw_name
    yield account.pw_dir
    yield Path(account.pw_dir).name
    yield from re.split(r"[,;]", account.pw_gecos)
