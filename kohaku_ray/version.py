"""The version of this package, a module alone so that every room may import it."""

import functools
import hashlib
from pathlib import Path

__version__ = "0.2.0"


@functools.cache
def code_version() -> str:
    """Return the version with a digest of the package's code, which tells two commits of one version apart."""
    whole = hashlib.blake2b(digest_size=4)
    for file in sorted(file for file in Path(__file__).parent.rglob("*") if file.suffix in (".py", ".j2")):
        whole.update(file.read_bytes())
    return f"{__version__}+{whole.hexdigest()}"


def versioned_name(stem: str) -> str:
    """Return a name that processes of other code do not share.

    Jobs of two versions on one cluster must not call each other's actors: Ray sends dataclasses as the positions of
    their fields, so that a field more shifts the values of those behind it, without an error.
    """
    return f"{stem}-{code_version().rpartition('+')[2]}"
