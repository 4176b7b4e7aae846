"""Derive from a configuration what its index is: encoder, chunks, settings, and the files that it is made from."""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import kohaku_ray.documents as documents_room
import kohaku_ray.values as values_room
from kohaku_ray.collection.captions import caption_settings
from kohaku_ray.collection.sources import document_format, find_sources, first_of, resolve
from kohaku_ray.config import Config
from kohaku_ray.config.load import encoder_preset, missing_encoder
from kohaku_ray.documents.read import digest_of
from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.index import gpu
from kohaku_ray.index.arrays import F32
from kohaku_ray.index.build import IndexSettings
from kohaku_ray.index.chunks import Chunks
from kohaku_ray.index.cuda import has_gpus
from kohaku_ray.index.encoder import SentenceEncoder
from kohaku_ray.index.endpoint import PROBE_FILE, EndpointEncoder
from kohaku_ray.index.flatten import flatten
from kohaku_ray.index.identity import check_faiss, encoder_identity, vector_length
from kohaku_ray.index.queries import KeptQueries
from kohaku_ray.index.settings import EncoderConfig, EndpointConfig
from kohaku_ray.index.store import Index
from kohaku_ray.index.vectors import FLAT, LISTS_PER_QUERY
from kohaku_ray.index.views import IMAGE, View
from kohaku_ray.models.endpoint import Endpoint
from kohaku_ray.models.openai import Limiter
from kohaku_ray.records import digest, pluralize
from kohaku_ray.store.storage import AT_ONCE, Directory, checksum, without_options
from kohaku_ray.version import code_version

TextEncoder = SentenceEncoder | EndpointEncoder
"""Encodes passages and queries."""


def make_encoder(
    config: Config,
    encoder: EncoderConfig | None = None,
    limiter: Limiter | None = None,
    *,
    on_gpu: bool | None = None,
) -> TextEncoder:
    """Load an encoder, or name its server. Default: that of texts, on the device that is configured.

    Args:
        config: The index's settings.
        encoder: Another encoder than that of texts.
        limiter: Holds back requests to a server.
        on_gpu: Whether Ray gave this process a GPU: then an encoder of ``device: auto`` runs there or is refused. A GPU
            that Ray was only told of is none.
    """
    settings = encoder or config.index.encoder
    if isinstance(settings, EndpointConfig):
        server = Endpoint.of_encoder(settings, limiter)
        return EndpointEncoder(settings, server, config.index.path, context_header=config.index.context_header)
    if on_gpu is False or (on_gpu and settings.device == "auto" and has_gpus()):
        settings = settings.model_copy(update={"device": "cuda" if on_gpu else "cpu"})
    return SentenceEncoder(settings, context_header=config.index.context_header)


def make_query_encoder(
    config: Config, encoder: EncoderConfig | None = None, limiter: Limiter | None = None
) -> TextEncoder:
    """Load an encoder for queries: on the retriever's GPU if it has one. Default: that of texts."""
    return make_encoder(config, encoder, limiter, on_gpu=bool(config.cluster.retriever.gpus))


class QueryEncoder:
    """Encodes queries; those that runs of the same ledger asked for before keep their vectors.

    The model is loaded when it is needed: at once where nothing is kept yet.
    """

    def __init__(self, config: Config, encoder: EncoderConfig | None = None, limiter: Limiter | None = None) -> None:
        """Open what is kept. Default: the encoder of texts."""
        self._kept = KeptQueries(config.ledger.path, _query_identity(config, encoder))
        self._load = functools.cache(lambda: make_query_encoder(config, encoder, limiter))
        if not len(self._kept):
            self._load()

    def encode_queries(self, texts: Sequence[str]) -> list[F32]:
        """See ``SentenceEncoder.encode_queries``."""
        return self._kept.encode(texts, lambda new: self._load().encode_queries(new))


def _query_identity(config: Config, encoder: EncoderConfig | None) -> dict[str, Any]:
    """Return an encoder's identity, of a server with the probe's vector that the index notes: names do not tell it."""
    identity = encoder_settings(config, encoder)
    if encoder is None and isinstance(config.index.encoder, EndpointConfig):
        identity["probe"] = Directory(config.index.path).checksum(PROBE_FILE)
    return identity


def check_endpoint(config: Config) -> None:
    """Compare what the encoder's server returns with what the index holds, or note it for an index to come."""
    encoder = make_encoder(config)
    if isinstance(encoder, EndpointEncoder):
        encoder.check(writes=True)


def make_image_query_encoder(config: Config) -> QueryEncoder | None:
    """Make the encoder for queries of images; None: they have none of their own, or the run searches none."""
    encoder = config.index.image_encoder
    return QueryEncoder(config, encoder) if encoder is not None and _image_views(config) else None


def _image_views(config: Config) -> list[str]:
    """List the views of images that the run searches."""
    views = config.declaration.views
    return [name for name, view in views.items() if IMAGE in view.kinds and name in config.uses.views]


def searches_on_gpu(config: Config) -> bool:
    """Return whether FAISS searches on a retriever's GPU; raises a ``ConfigError`` if it should and there is none."""
    device = config.index.search_device
    if device == "cpu" or not config.cluster.retriever.gpus:
        return False
    if reason := gpu.missing():
        if device == "cuda":
            raise ConfigError(f"index.search_device is cuda, but {reason}; or set it to auto or cpu")
        return False
    return True


def preferred_note(config: Config) -> str:
    """Say that no encoder of ``index.prefer`` is on this machine; empty where one is, or another was chosen."""
    index = config.index
    presets = {name: encoder_preset(name) for name in index.prefer}
    if not presets or index.encoder.model != EncoderConfig().model or not all(map(missing_encoder, presets.values())):
        return ""
    wanted = " or ".join(f"{settings['model']} ({name})" for name, settings in presets.items())
    return (
        f"Texts are encoded by {index.encoder.model}: preferred is {wanted}, which this machine does not have "
        "(index.prefer)."
    )


def encoder_length(config: Config) -> int:
    """Return the length of the encoder's vectors without loading it; of a model that does not say it, 1,024."""
    encoder = config.index.encoder
    return encoder.dim or (1024 if isinstance(encoder, EndpointConfig) else vector_length(encoder) or 1024)


def encoder_settings(config: Config, encoder: EncoderConfig | None = None) -> dict[str, Any]:
    """Return the identity of an encoder without loading it. Default: that of texts."""
    return encoder_identity(encoder or config.index.encoder)


def index_settings(config: Config) -> IndexSettings:
    """Collect what an index's fingerprint is made of.

    Raises:
        ConfigError: There is no such encoder, or the system searches chunks or images that the index does not have.
    """
    index = config.index
    bm25 = index.bm25.model_copy(update={"language": index.bm25.language or config.declaration.language})
    resolved = index.model_copy(update={"bm25": bm25, "chunks": chunks_of(config)})
    return IndexSettings(encoder_settings(config), resolved, image_settings(config))


def image_settings(config: Config) -> dict[str, Any] | None:
    """Collect what decides the images of an index; None: it has none.

    Raises:
        ConfigError: The run searches images, and the index has none.
    """
    index = config.index
    if not index.images:
        if searched := _image_views(config):
            raise ConfigError(
                f"the run searches images (view {searched[0]}) but index.images is false: set it to true, and index "
                "again"
            )
        return None
    settings: dict[str, Any] = {"captions": index.captions}
    if config.index_roles:
        settings["caption"] = caption_settings(config)
    if index.image_vectors != "caption":
        settings["vectors"] = index.image_vectors
    if index.image_encoder is not None:
        settings["encoder"] = encoder_settings(config, index.image_encoder)
    return settings


def chunks_of(config: Config) -> Chunks | None:
    """How documents are cut into chunks: as configured, else as the system wants them; None: they are not.

    Raises:
        ConfigError: The system searches chunks, and neither says how to cut them.
    """
    system = config.declaration
    chunks = system.chunks if config.index.chunks is None else config.index.chunks
    searching = [name for name, view in system.views.items() if "chunk" in view.kinds]
    if searching and chunks is None:
        raise ConfigError(
            f"system {system.name} searches chunks (view {searching[0]}) but index.chunks is null and so are its own: "
            "set index.chunks, such as {unit: chars, size: 500, overlap: 50}, or chunks of the System"
        )
    return chunks


def open_index(config: Config) -> Index:
    """Open the configured index, and check that it can be searched as the system searches.

    Raises:
        IndexMismatchError: The index was built with other settings, or lacks a view.
        DataError: There is no index at that path.
    """
    check_faiss()
    index = Index.open(config.index.path, index_settings(config).as_mapping())
    index.require(views_of(config))
    return index


def views_of(config: Config) -> list[View]:
    """List the system's views that the configured index has: of images where it has any, on demand where used."""
    return [
        view
        for name, view in config.declaration.views.items()
        if (config.index.images or IMAGE not in view.kinds) and (name in config.uses.views or not view.on_demand)
    ]


def searched_views(config: Config) -> list[View]:
    """List the views whose vectors the run searches."""
    views, indexed = config.declaration.views, views_of(config)
    return [views[name] for name in config.uses.views if views[name].dense and views[name] in indexed]


SLOW_MS = 4.0
"""CPU time of a query from which another factory is suggested: a quarter of what the rest of a question takes."""


def slow_search_note(config: Config) -> str:
    """Say that a flat index takes long to search on CPUs, as measured now on its largest shard; empty: it does not."""
    if config.index.factory != FLAT or config.index.search_device == "cuda":
        return ""
    index = Index.open(config.index.path)
    shard = max(index.shards, key=lambda shard: int(index.manifest["shards"][shard.number]["counts"]["n_vectors"]))
    dense = [shard.vectors(view.kinds) for view in index.views if view.dense]
    vectors = max(dense, key=len, default=None)
    if vectors is None or len(vectors) < FEW_VECTORS or (ms := vectors.query_ms()) < SLOW_MS:
        return ""
    lists = round(math.sqrt(len(vectors)))
    return (
        f"a query takes {ms:.1f} ms of CPU in a flat index of {pluralize(len(vectors), 'vector')} per shard: "
        f"index.factory=IVF{lists},Flat searches {LISTS_PER_QUERY} of {lists} lists in a fraction "
        "of it and may miss some; or set index.shards higher, or search on a GPU (cluster.retriever.gpus)"
    )


FEW_VECTORS = 50_000
"""Vectors of a shard up to which no query is slow, and none is measured."""


def source_names(config: Config, files: Sequence[str]) -> list[str]:
    """Name files as an index does: relative to the configured directory, so that one that has moved is the same.

    Those that have one name in several directories, as one firm's reports of two years, are named with as few of the
    folders above as tell them apart.
    """
    roots = [without_options(resolve(path)).rstrip("/") for path in config.documents.paths]
    folders: dict[str, list[str]] = {}
    named = []
    for file in map(without_options, files):
        root = next((folder for folder in roots if file.startswith(f"{folder}/")), os.path.dirname(file))
        named.append((root, file.removeprefix(f"{root}/")))
        folders.setdefault(named[-1][1], []).append(root)
    names = []
    for root, name in named:
        others, n = set(folders[name]), 0
        while len({tuple(folder.split("/")[-n:] if n else ()) for folder in others}) < len(others):
            n += 1
        names.append("/".join([*(root.split("/")[-n:] if n else ()), name]))
    return names


def source_bytes(files: Sequence[str]) -> int | None:
    """Sum the sizes of files; None: one is on an object store."""
    sizes = [os.path.getsize(file) if os.path.exists(file) else None for file in files]
    return sum(size for size in sizes if size is not None) if None not in sizes else None


PARSING = (
    *("docutils", "filetype", "lxml", "markdown-it-py", "nltk", "openpyxl", "pillow", "pylatexenc", "pymupdf"),
    *("mammoth", "python-pptx", "selectolax"),
)
"""Distributions by which ``documents`` reads files."""


def parsing_digest(config: Config) -> str:
    """Digest by what files are parsed: this package's code for it, the format's own, and the libraries."""
    return _parsing_digest(inspect.getsourcefile(document_format(config).parse))


@functools.cache
def _parsing_digest(format_file: str | None) -> str:
    rooms = [Path(place) for room in (documents_room, values_room) for place in room.__path__]
    code = [file for room in rooms for file in sorted(room.rglob("*.py"))]
    code += map(Path, filter(None, [inspect.getfile(flatten), inspect.getfile(Chunks), format_file]))
    libraries = {}
    for name in PARSING:
        with suppress(PackageNotFoundError):
            libraries[name] = version(name)
    return digest([[checksum(file.read_bytes()) for file in code], libraries])


def parsing_of(index: Index) -> str:
    """Return the ``parsing_digest`` that an index was made with; empty: one before it was recorded."""
    return str(index.manifest["versions"].get("parsing", ""))


def parser_note(index: Index, config: Config) -> str:
    """Say that an index was made by another parser; empty: it was not, or was not made from files."""
    if index.sources is None or parsing_of(index) == parsing_digest(config):
        return ""
    return (
        f"The index at {config.index.path} was made by another parser (of kohaku_ray "
        f"{index.manifest['versions'].get('kohaku_ray')}; this is {code_version()}): it is used as it is; `kohaku-ray "
        f"index` parses its {pluralize(len(index.sources), 'file')} again, `validate --deep` counts what that changes."
    )


MOST_ASKED = 2000
"""Most objects of a store whose ETags are compared: some seconds at 20 ms each, eight at a time."""


def difference(index: Index, config: Config) -> str:
    """Say how the configured documents differ from those an index was made from; empty where they do not.

    Files are compared by their content, objects on a store by their ETags, of up to ``MOST_ASKED``. Empty too where
    they cannot be compared: an index may be used without its documents.
    """
    if index.sources is None:
        return ""
    try:
        files = find_sources(config)
    except DataError:
        return ""
    now = dict(zip(source_names(config, files), files, strict=True))
    then = {row["name"]: row for row in index.sources.to_pylist()}
    common = now.keys() & then.keys()
    differing = {
        "of the configured files are not in it": now.keys() - common,
        "of its files are not there now": then.keys() - common,
        "have changed since": _changed({now[name]: then[name] for name in common}),
    }
    differences = [f"{len(names)} {what} ({first_of(sorted(names))})" for what, names in differing.items() if names]
    if not differences:
        return ""
    return (
        f"the index at {config.index.path} was made from other documents than {', '.join(config.documents.paths)}: "
        f"{', '.join(differences)}; run `kohaku-ray index CONFIG`, or set index.path"
    )


def _changed(files: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Find the files whose content is not that of their row of ``SOURCES_SCHEMA``; returns the names in these."""
    remote = [file for file in files if not os.path.exists(file)]
    skipped = set(remote if len(remote) > MOST_ASKED else ())

    def is_changed(file: str) -> bool:
        row = files[file]
        if row["bytes"] is not None and os.path.exists(file) and os.path.getsize(file) != row["bytes"]:
            return True
        was = row.get("digest")  # an index of an earlier version has none
        now = digest_of(file) if was is not None and file not in skipped else None
        return now is not None and now != was

    with ThreadPoolExecutor(AT_ONCE) as threads:
        changed = list(threads.map(is_changed, files))
    return {row["name"] for row, is_other in zip(files.values(), changed, strict=True) if is_other}
