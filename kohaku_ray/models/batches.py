"""Gather calls to files for a provider's batch API, follow the batches, and find them again after a kill.

Beside the ledger's segments, `batches/` has a record of each batch, written before its file is sent: with the keys of
its calls, and after its creation with the provider's id. A call whose key is in one waits for that batch and is not
sent again. A record without an id is looked for in the provider's list by its name, so that what was created in the
moment of a kill is not paid twice.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from typing import IO, Any, TypeVar

from kohaku_ray.errors import (
    DataError,
    KohakuRayError,
    ModelError,
    StorageError,
    TransientModelError,
    UnfinishedReplyError,
)
from kohaku_ray.models.batch_api import (
    CANCELLING,
    PARTIAL,
    TOKEN_LIMIT,
    BatchApi,
    BatchState,
    LineResult,
    UnansweredError,
    batch_line,
)
from kohaku_ray.models.openai import MOST_BYTES, MOST_LINES, OpenAIBackend, OpenAIConfig, Writing
from kohaku_ray.models.request import ChatRequest, request_key, with_other_seed
from kohaku_ray.records import Reply, digest, pluralize
from kohaku_ray.store.segments import Entry, SegmentStore
from kohaku_ray.store.storage import TEMPORARY, Directory

T = TypeVar("T")

FOLDER = "batches"

FILE_TRIES = 3
"""Files that ask one call before it fails: a line that three batches did not answer is no accident of one."""

CANCEL_S = 3600.0
"""Longest wait for a batch that is cancelled: OpenAI promises its end within ten minutes, and one took 25
(litellm#37205)."""

YOUNG_S = 1.0
"""Shortest pause between two looks at a batch."""

KEPT_S = 120.0
"""Seconds for which replies that were handed out are kept: a shard of the ledger writes its own within `flush_s`."""

_LOOKED_S = 2.0
"""Seconds between two looks which of them are written."""

UNSEEN_TRIES = 8
"""Answers that a server does not know a batch or file of its own before it is believed, over three minutes: new ones
are not seen at once (curator#116, anthropic-sdk-python#1432), and an ended batch may lack its file (litellm#37715)."""

MOST_CREATIONS = 2
"""Creations of one record whose answers were lost: each may be paid."""

BREATH = 256
"""Lines that are written or read before other calls of the event loop have their turn."""

_ACCOUNT = "with the key and headers of the account that sent it"
_NOBODYS = ChatRequest("", (), 0.0, 1.0, 1, seed=0)  # of a reply that nobody waits for


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch on disk.

    Attributes:
        name: Its own, also in the provider's metadata.
        server: Its ``server_digest``: other deployments leave it.
        model: Identity of the model in the ledger's keys.
        keys: Of its calls; once it is read, of those that got a reply.
        created: Time of ``time.time`` when it was written.
        batch_id: The provider's id; None: the file is about to be sent.
        is_read: Whether its replies were handed out: they count until the ledger has written them.
        n_lines: Of its file; 0: a record of version 0.1.
    """

    name: str
    server: str
    model: str
    keys: tuple[str, ...]
    created: float
    batch_id: str | None = None
    is_read: bool = False
    n_lines: int = 0


def server_digest(deployment: OpenAIConfig) -> str:
    """Return what tells the batches of a deployment from others': not what it is called, or how calls are gathered."""
    return digest([deployment.base_url, deployment.model_identity], 8)


class BatchRecords:
    """The records of a ledger's batches, and the segments that say which of their calls are recorded."""

    def __init__(self, path: str) -> None:
        """Name the ledger's directory."""
        self._directory, self._store = Directory(path), SegmentStore(path)

    def write(self, record: BatchRecord) -> None:
        """Write a record in one step.

        Raises:
            DataError: It cannot be written.
        """
        self._directory.replace(f"{FOLDER}/{record.name}.json", json.dumps(asdict(record)).encode())

    def remove(self, record: BatchRecord) -> None:
        """Delete a record, if it is there."""
        self._directory.remove(f"{FOLDER}/{record.name}.json")

    def record_replies(self, replies: Sequence[tuple[str, Entry]]) -> None:
        """Write replies that nobody asks for any more to a segment: shards that open the ledger later have them."""
        if replies:
            self._store.write(replies)

    def open(self, server: str) -> list[BatchRecord]:
        """Read a server's records, the oldest first; those whose replies the ledger has written are deleted.

        Raises:
            DataError: One cannot be read, so that its calls might be paid twice.
        """
        names = [name for name in self._directory.names(FOLDER) if not name.endswith(TEMPORARY)]
        records = [record for record in map(self._read, names) if record.server == server]
        records.sort(key=attrgetter("created"))
        recorded = self.recorded({key for record in records if record.is_read for key in record.keys})
        left = []
        for record in records:
            keys = tuple(key for key in record.keys if not (record.is_read and key in recorded))
            if keys:
                left.append(replace(record, keys=keys))
            else:
                self.remove(record)
        return left

    def recorded(self, keys: Collection[str]) -> AbstractSet[str]:
        """Return those of some keys that are in a segment now."""
        return self._store.index(keys.__contains__).keys() if keys else frozenset()

    def _read(self, name: str) -> BatchRecord:
        try:
            values = json.loads(self._directory.read(name).to_pybytes())
            return BatchRecord(**{**values, "keys": tuple(values["keys"])})
        except StorageError:
            raise
        except (DataError, ValueError, TypeError, LookupError) as error:
            raise DataError(
                f"{self._directory.full(name)} says which calls are in a batch of the provider's and cannot be read "
                f"({error}): if that batch is done or cancelled there, delete the file, which makes its calls again"
            ) from None


@dataclass(slots=True)
class _Line:
    """A call that somebody waits for."""

    request: ChatRequest
    writing: Writing
    reply: asyncio.Future[Reply]
    n_files: int = 0
    n_failed: int = 0  # replies that another seed may mend
    began: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class _Batch:
    """A batch under way; ``file_id`` None: found again, and this process has not sent its file."""

    record: BatchRecord
    file_id: str | None = None
    n_done: int = 0
    is_late: bool = False  # cancelled at its deadline
    left: dict[str, str] = field(default_factory=dict)  # keys without an outcome, and why so far

    @property
    def age_s(self) -> float:
        return time.time() - self.record.created


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """What batches do now: the calls that wait for a file, and files, lines and age of those that were sent."""

    n_gathered: int = 0
    n_batches: int = 0
    n_lines: int = 0
    n_done: int = 0
    age_s: float = 0.0
    trouble: str = ""  # why the provider was not reached the last time

    def __str__(self) -> str:
        """Say it in a few words; empty where nothing is asked."""
        sent = (
            f"{self.n_batches:,} batch{'' if self.n_batches == 1 else 'es'}, {self.n_done:,} of {self.n_lines:,} lines "
            f"done, {self.age_s / 60:.0f} min since"
        )
        gathered = f"{pluralize(self.n_gathered, 'call')} gathered"
        parts = (sent if self.n_batches else "", gathered if self.n_gathered else "", self.trouble)
        return ", ".join(filter(None, parts))


class BatchBackend:
    """Answers calls by batches, for one event loop; a ``Backend`` whose calls wait for hours."""

    def __init__(self, deployment: OpenAIConfig, server: OpenAIBackend, records: BatchRecords) -> None:
        """Take a deployment with batches, its client, and the ledger's records."""
        self.identity, self._records, self._name = deployment.model_identity, records, server_digest(deployment)
        self._server, self._dialect = server, server.writing.dialect
        self.use(deployment, server)
        self._lines: dict[str, _Line] = {}  # somebody waits for them
        self._gathered: deque[str] = deque()  # of these, those that wait for a file
        self._under_way: dict[str, _Batch] = {}  # by key
        self._batches: dict[str, _Batch] = {}  # by name
        self._left_over: dict[str, Reply] = {}  # of found batches, for calls that come later
        self._handed_out: dict[str, Reply] = {}  # for KEPT_S: a shard may die before it has written them
        self._looked_s, self._looking = 0.0, asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening: asyncio.Task[None] | None = None
        self._gathering: asyncio.Task[None] | None = None
        self._last_s = 0.0  # when the last call came
        self._is_crowded = False  # the account takes no more tokens at once: one file after the other
        self._trouble = ""

    def use(self, deployment: OpenAIConfig, server: OpenAIBackend) -> None:
        """Follow other settings of the same server from now on: a job's, which this process outlives."""
        assert deployment.batch is not None
        self._dialect |= self._server.writing.dialect  # refusals have taught it, of which each costs a file
        self._server, self._settings = server, deployment.batch
        self._api = BatchApi(server, self._settings)
        self._singles = asyncio.Semaphore(deployment.max_ongoing)
        self._most_lines = MOST_LINES

    async def chat(self, request: ChatRequest) -> Reply:
        """Answer one request: by the batch that has it already, or by the next one.

        Raises:
            ContextOverflowError: The prompt is longer than the model takes.
            TransientModelError: ``FILE_TRIES`` batches did not answer it, or one had not ended at its deadline.
            ModelError: The server refuses it, or all of its file, or what it calls its replies cannot be read.
            DataError: The ledger's records cannot be read or written.
        """
        await self.open()
        self._server.check_length(request)
        key = request_key(request)
        if (known := self._left_over.pop(key, None)) is not None:
            return known
        if key in self._handed_out and (lost := await self._find_lost(key)) is not None:
            return lost
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(request, self._server.writing, asyncio.get_running_loop().create_future())
            if key not in self._under_way:
                self._gather(key)
        return await asyncio.shield(line.reply)

    async def _find_lost(self, key: str) -> Reply | None:
        """Return a reply that was handed out and is in no segment; None: it is in one, and is asked for again."""
        async with self._looking:
            if time.monotonic() - self._looked_s > _LOOKED_S:
                for recorded in await asyncio.to_thread(self._records.recorded, {*self._handed_out}):
                    self._handed_out.pop(recorded, None)
                self._looked_s = time.monotonic()
        return self._handed_out.get(key)

    async def open(self) -> None:
        """Find the batches that the ledger's records tell of, and follow them: once, and again after one broke."""
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.create_task(self._find_batches())
        await asyncio.shield(self._opening)

    async def close(self) -> None:
        """Stop following; the batches go on, and are found again."""
        for task in [*self._tasks, self._gathering, self._opening]:
            if task is not None:
                task.cancel()
        await self._api.close()
        await self._server.close()

    @property
    def is_idle(self) -> bool:
        """Whether no batch is under way and nobody waits."""
        return not (self._lines or self._batches)

    def progress(self) -> BatchProgress:
        """Say what is under way."""
        batches = self._batches.values()
        n_lines, n_done = sum(len(batch.record.keys) for batch in batches), sum(batch.n_done for batch in batches)
        age_s = max((batch.age_s for batch in batches), default=0.0)
        return BatchProgress(len(self._gathered), len(batches), n_lines, n_done, age_s, self._trouble)

    async def _find_batches(self) -> None:
        for record in await asyncio.to_thread(self._records.open, self._name):
            if record.name not in self._batches:
                self._start(self._follow_safely(self._take(_Batch(record))))

    def _gather(self, key: str) -> None:
        self._gathered.append(key)
        self._last_s = time.monotonic()
        if self._gathering is None or self._gathering.done():
            self._gathering = asyncio.create_task(self._send_gathered())

    async def _send_gathered(self) -> None:
        """Send what was gathered whenever no call came for ``gather_s``, or a file is full."""
        while self._gathered:
            while len(self._gathered) < self._most_lines:
                wait_s = self._last_s + self._settings.gather_s - time.monotonic()
                if wait_s <= 0:
                    break
                await asyncio.sleep(min(wait_s, YOUNG_S))  # or until the file is full
            while self._is_crowded and self._batches:
                await asyncio.sleep(min(YOUNG_S, self._settings.poll_s))
            try:
                await self._send_file()
            except Exception as error:  # such as a full disk
                told = f"{self.identity}: a batch's file cannot be made ({type(error).__name__}: {error})"
                self._gathered.clear()
                self._fail(ModelError(told), *(key for key in self._lines if key not in self._under_way))

    async def _send_file(self) -> None:
        """Write calls to a file and send it, up to its bounds; what is beyond them stays gathered."""
        with tempfile.TemporaryFile() as file:
            keys = await self._write_lines(file)
            if not keys:
                return
            given = (self._name, self.identity, tuple(keys), time.time())
            record = BatchRecord(uuid.uuid4().hex, *given, n_lines=len(keys))
            batch = self._take(_Batch(record))
            try:
                await asyncio.to_thread(self._records.write, record)
                batch.file_id = await self._repeat(batch, lambda: self._api.upload(record.name, file))
            except KohakuRayError as error:
                await self._forget(batch)
                return self._fail(error, *keys)
        return self._start(self._follow_safely(batch))

    async def _write_lines(self, file: IO[bytes]) -> list[str]:
        """Write gathered calls as lines, and return their keys; a call that cannot be written fails."""
        keys, n_bytes = list[str](), 0
        while self._gathered and len(keys) < self._most_lines:
            key = self._gathered[0]
            line = self._lines[key]
            known = self._dialect | self._server.writing.dialect
            line.writing = replace(line.writing, dialect=line.writing.dialect | known)
            try:
                fields = await self._server.fields_of(with_other_seed(line.request, line.n_failed))
                data = batch_line(key, line.writing.write(fields))
                if len(data) > MOST_BYTES:
                    raise ModelError(f"its line has {len(data):,} bytes, and a batch's file at most {MOST_BYTES:,}")
            except ModelError as error:
                self._fail(error, self._gathered.popleft())
                continue
            if n_bytes + len(data) > MOST_BYTES:
                break
            n_bytes += file.write(data)
            keys.append(self._gathered.popleft())
            if len(keys) % BREATH == 0:
                await asyncio.sleep(0)
        return keys

    def _take(self, batch: _Batch) -> _Batch:
        self._batches[batch.record.name] = batch
        for key in batch.record.keys:
            self._under_way[key] = batch
            if (line := self._lines.get(key)) is not None:
                line.n_files += 1
        return batch

    def _release(self, batch: _Batch) -> list[str]:
        """Follow a batch no longer; returns its keys for which somebody still waits."""
        self._batches.pop(batch.record.name, None)
        for key in batch.record.keys:
            if self._under_way.get(key) is batch:
                del self._under_way[key]
        return [key for key in batch.record.keys if key in self._lines]

    async def _forget(self, batch: _Batch) -> list[str]:
        """Release a batch that the provider does not have, with its record."""
        with suppress(KohakuRayError):  # looked for again, then
            await asyncio.to_thread(self._records.remove, batch.record)
        return self._release(batch)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow_safely(self, batch: _Batch) -> None:
        """Follow a batch; if that fails it may go on, and its record stays, by which the next call finds it again."""
        try:
            await self._follow_to_end(batch)
        except Exception as error:
            told = f"{self.identity}: batch {batch.record.batch_id} broke: {type(error).__name__}: {error}"
            self._opening = None
            self._fail(error if isinstance(error, KohakuRayError) else ModelError(told), *self._release(batch))

    async def _follow_to_end(self, batch: _Batch) -> None:
        """Create a batch, or find it; wait for its end, hand out its replies, and ask again what has none."""
        if batch.record.batch_id is None:
            batch_id = await self._create_or_find(batch)
            if batch_id is None:  # of a process that was killed before it created it
                return self._ask_again(await self._forget(batch), batch, "")
            batch.record = replace(batch.record, batch_id=batch_id)
            await asyncio.to_thread(self._records.write, batch.record)
        state = await self._wait(batch, batch.record.batch_id or "")
        replied = await self._hand_out(batch, state)
        # Now and not before: a kill on the way finds the batch again, and reads it again.
        if replied:
            self._most_lines = min(2 * self._most_lines, MOST_LINES)
            await asyncio.to_thread(self._records.write, replace(batch.record, keys=tuple(replied), is_read=True))
        else:
            await asyncio.to_thread(self._records.remove, batch.record)
        is_alone, left = len(self._batches) == 1, self._release(batch)
        if state.status == "failed":
            await self._refused_file(batch, state, left, is_alone=is_alone)
        elif batch.is_late:
            self._end_late(left)
        else:
            self._ask_again(left, batch, f"its batch ended as {state.status} without a line of it")
        return None

    async def _create_or_find(self, batch: _Batch) -> str | None:
        """Create a batch once, whatever becomes of the answer; None: there is none of a record that was found."""
        record, file_id, n_unseen, lost = batch.record, batch.file_id, 0, list[str]()
        while True:
            if file_id is None or lost:
                for n_looks in range(UNSEEN_TRIES):
                    found = await self._repeat(batch, lambda: self._api.find(record.name, record.created))
                    if found is not None:
                        return found
                    await self._pause_unseen(n_looks)
            if file_id is None:
                return None
            if len(lost) == MOST_CREATIONS:
                raise self._kept(
                    batch,
                    f"{len(lost)} creations of a batch were not answered and none is in the server's list ({lost[-1]})",
                )
            try:
                return await self._repeat(batch, lambda: self._api.create(file_id, record.name))
            except UnansweredError as error:
                lost.append(str(error))
            except ModelError as error:
                if file_id not in str(error) or n_unseen == UNSEEN_TRIES:
                    raise
                await self._pause_unseen(n_unseen)
                n_unseen += 1

    async def _repeat(self, batch: _Batch, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call while it fails for a moment, until the batch's deadline."""
        while True:
            try:
                return await call()
            except TransientModelError as error:
                self._trouble = str(error)
                if batch.age_s > self._settings.deadline_s:
                    raise
                await self._pause(batch)
                self._trouble = ""

    async def _pause(self, batch: _Batch) -> None:
        await asyncio.sleep(min(max(batch.age_s / 10, YOUNG_S), self._settings.poll_s))

    async def _pause_unseen(self, n_unseen: int) -> None:
        await asyncio.sleep(min(YOUNG_S * 2**n_unseen, max(self._settings.poll_s, YOUNG_S)))

    async def _wait(self, batch: _Batch, batch_id: str) -> BatchState:
        """Look at a batch until it has ended, and cancel it at its deadline.

        Only an ended one has its replies, which are paid: one that is cancelled for ``CANCEL_S`` and has not ended is
        asked by single calls where they are allowed, and otherwise fails.

        Raises:
            TransientModelError: It has not ended, or cannot be seen. Its record stays, and the next start reads it.
        """
        late_s, n_unseen = 0.0, 0
        while True:
            status = "not to be seen"
            try:
                state = await self._api.retrieve(batch_id)
            except TransientModelError as error:
                self._trouble = str(error)
            else:
                self._trouble = ""
                if state is None or (state.is_ended and not state.has_output and n_unseen < UNSEEN_TRIES):
                    if n_unseen == UNSEEN_TRIES:
                        raise self._kept(batch, f"the server has no batch {batch_id}", _ACCOUNT)
                    await self._pause_unseen(n_unseen)
                    n_unseen += 1
                    continue
                if state.is_ended:
                    return state
                status, batch.n_done = state.status, state.n_done
            now = time.monotonic()
            if batch.age_s > self._settings.deadline_s and not batch.is_late:
                batch.is_late, late_s = True, now
            if batch.is_late and now - late_s > CANCEL_S:
                if status == CANCELLING and self._settings.single_after_deadline:
                    return BatchState(batch_id, status)
                told = f"batch {batch_id} is {status} {CANCEL_S / 60:.0f} minutes after it was cancelled at its"
                raise self._kept(batch, f"{told} deadline_s of {self._settings.deadline_s:,.0f} s {self._trouble}")
            if batch.is_late and status != CANCELLING:
                with suppress(ModelError):  # asked again at the next look
                    await self._api.cancel(batch_id)
            await self._pause(batch)

    def _kept(self, batch: _Batch, told: str, when: str = "later") -> TransientModelError:
        """Return the error of a batch whose record stays, with the ways out."""
        return TransientModelError(
            f"{self.identity}: {told}: repeat the command {when}, which reads what was done, or delete "
            f"{FOLDER}/{batch.record.name}.json in the ledger's directory, and its calls are made, and may be paid, "
            "again"
        )

    async def _hand_out(self, batch: _Batch, state: BatchState) -> list[str]:
        """Give replies to who waits for them, and record those that nobody waits for; returns their keys.

        Raises:
            ModelError: A batch is done, and what the server calls its replies cannot be read.
        """
        replied: dict[str, None] = {}
        left_over: dict[str, Reply] = {}
        n_read, unread = 0, list[str]()
        for file_id in state.files:
            with tempfile.TemporaryFile() as file:
                await self._download(batch, file_id, file)
                n_before, starts = n_read, list[str]()
                for number, result in enumerate(self._api.read_results(file), 1):
                    if number % BREATH == 0:
                        await asyncio.sleep(0)
                    if isinstance(result, str):
                        starts = starts or [result]
                        continue
                    key, n_read = result.custom_id, n_read + 1
                    if key in replied or self._under_way.get(key) is not batch:
                        continue  # a line that came twice, or is none of the batch
                    if (reply := await self._read_result(batch, key, result)) is not None:
                        replied[key] = None
                        if key in self._lines:
                            self._deliver(key, reply)
                        else:
                            left_over[key] = reply
                unread += starts if n_read == n_before else []
        entries = [(key, Entry(reply, batch.record.model, batch.age_s)) for key, reply in left_over.items()]
        await asyncio.to_thread(self._records.record_replies, entries)
        for key, reply in left_over.items():
            if key in self._lines:  # asked meanwhile
                self._deliver(key, reply)
            else:
                self._left_over[key] = reply
        if state.files and state.status not in PARTIAL and (unread or not n_read):
            told = f"batch {state.batch_id} is {state.status}, and paid, and no line of its file can be read, which"
            raise ModelError(str(self._kept(batch, f"{told} begins with {''.join(unread[:1])!r}")))
        return list(replied)

    async def _download(self, batch: _Batch, file_id: str, file: IO[bytes]) -> None:
        n_lines = batch.record.n_lines or MOST_LINES
        for n_unseen in range(UNSEEN_TRIES + 1):
            if await self._repeat(batch, lambda: self._api.download(file_id, file, n_lines)):
                return
            await self._pause_unseen(n_unseen)
        raise self._kept(batch, f"the server has no file {file_id}", _ACCOUNT)

    async def _read_result(self, batch: _Batch, key: str, result: LineResult) -> Reply | None:
        """Return a line's reply; where there is none, its call fails or is asked again."""
        line = self._lines.get(key)
        if result.is_final:
            self._fail(ModelError(f"{self.identity}: {result.error}"), key)
        elif result.status is None:
            batch.left[key] = result.error or "its line has neither response nor error"
        if result.status is None or (line is None and not 200 <= result.status < 300):
            return None
        writing = self._server.writing if line is None else line.writing
        request = _NOBODYS if line is None else with_other_seed(line.request, line.n_failed)
        try:
            outcome = await self._server.read_outcome(request, writing, result.status, result.values)
        except TransientModelError as error:
            batch.left[key] = str(error)
            if line is not None:
                line.n_failed += isinstance(error, UnfinishedReplyError)
        except ModelError as error:
            self._fail(error, key)
        else:
            if isinstance(outcome, Reply):
                return outcome
            batch.left[key] = "the server refuses how it was written"
            if line is not None:
                line.writing = outcome
                line.n_files -= 1  # it was not asked: a refusal taught how to
        return None

    async def _refused_file(self, batch: _Batch, state: BatchState, left: Sequence[str], *, is_alone: bool) -> None:
        """Fail the lines for which a file was refused, and ask the others again; in halves, if they are too many."""
        keys = batch.record.keys
        if any(code == TOKEN_LIMIT for _, code, _ in state.errors):
            self._is_crowded = True
            if is_alone:
                self._most_lines = max(len(keys) // 2, 1)
            age_s = max((time.monotonic() - self._lines[key].began for key in left), default=0.0)
            if is_alone and len(keys) == 1:  # another user of the account has its tokens
                if age_s > self._settings.deadline_s:
                    return self._fail(TransientModelError(f"{self.identity}: {state.errors[0][2]}"), *left)
                await asyncio.sleep(max(self._settings.poll_s, age_s / 10))
            for key in left:
                self._lines[key].n_files -= 1
            return self._ask_again(left, batch, "")
        for number, code, message in state.errors:
            if number is not None and number <= len(keys):
                told = f"{self.identity}: line {number} of a batch's file is refused: {code}: {message}"
                self._fail(ModelError(told), keys[number - 1])
        if all(number is None for number, _, _ in state.errors):
            told = "; ".join(f"{code}: {message}" for _, code, message in state.errors[:3]) or "no reason given"
            return self._fail(ModelError(f"{self.identity}: a batch's file is refused: {told}"), *left)
        return self._ask_again([key for key in left if key in self._lines], batch, "its file was refused")

    def _end_late(self, left: Sequence[str]) -> None:
        """Fail what a batch had not done at its deadline, or ask it by single calls."""
        if not self._settings.single_after_deadline:
            told = (
                f"{self.identity}: its batch had not ended after deadline_s of {self._settings.deadline_s:,.0f} s and "
                "was cancelled: repeat the command, which asks only what is left, or set "
                "deployments.*.batch.single_after_deadline to true"
            )
            return self._fail(TransientModelError(told), *left)
        for key in left:
            self._start(self._ask_singly(key))
        return None

    async def _ask_singly(self, key: str) -> None:
        async with self._singles:
            line = self._lines[key]
            try:
                self._deliver(key, await self._server.chat(with_other_seed(line.request, line.n_failed)))
            except ModelError as error:
                self._fail(error, key)

    def _ask_again(self, keys: Sequence[str], batch: _Batch, otherwise: str) -> None:
        """Gather lines again; one that ``FILE_TRIES`` files have asked fails with the last reason."""
        for key in keys:
            if self._lines[key].n_files < FILE_TRIES:
                self._gather(key)
                continue
            why = batch.left.get(key, otherwise)
            told = f"{self.identity}: gave up after {FILE_TRIES} batches, the last one: {why}"
            self._fail(TransientModelError(told), key)

    def _deliver(self, key: str, reply: Reply) -> None:
        self._handed_out[key] = reply
        asyncio.get_running_loop().call_later(KEPT_S, self._handed_out.pop, key, None)
        future = self._lines.pop(key).reply
        if not future.done():
            future.set_result(reply)

    def _fail(self, error: KohakuRayError, *keys: str) -> None:
        for key in keys:
            line = self._lines.pop(key, None)
            if line is not None and not line.reply.done():
                line.reply.set_exception(error)
                line.reply.exception()  # who waited may be gone
