"""A store on a remote file system: `sha256/<first two digits>/<sha256>`, a large file in parts with a manifest."""

import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from jobs.errors import ArtifactLost, StorageUnusable
from jobs.task import Artifact
from workers.artifacts import cache as caching
from workers.artifacts import downloads, file_systems
from workers.artifacts.cache import Cache
from workers.artifacts.locations import MARK
from workers.artifacts.objects import Objects
from workers.artifacts.parts import Limits, Manifest, Piece, cuts, pieces, read_manifest
from workers.artifacts.shelf import SHA256, Note, Soundness, Stored, expect_sha256
from workers.artifacts.stamps import Stamps
from workers.artifacts.streams import ahead

FILES, PARTS, ASIDE = "sha256", "parts", "damaged"
MANIFEST_ENDING = ".parts"
STREAMS = 4  #: requests at a time for one file
QUESTIONS = 16  #: short requests at a time
LINK_S = 7 * 24 * 3600  #: the longest that S3 allows


class Remote:
    """Implements `shelf.Shelf`. It is reached when it is used; threads may share it."""

    def __init__(self, url: str, cache: Path | None, stamps: Stamps, limits: Limits) -> None:
        """`cache` is this node's folder for it; raises BadSetting for a limit of the cache that is no number."""
        if cache is None:
            raise ValueError(f"{url} needs a folder for its cache")
        self.where = url
        self.cache = Cache(cache, stamps)
        self.limits = limits
        self._objects = Objects(url)
        self._is_marked = False

    def address(self, sha256: str) -> str:
        """Its URL; of a large file its manifest's lies beside."""
        return self._objects.address(_file(sha256))

    def missing(self, artifacts: Iterable[Artifact]) -> set[Artifact]:
        """Those without an object of the right size, or without a manifest."""
        wanted = list(artifacts)
        with ThreadPoolExecutor(QUESTIONS) as pool:
            found = {one for one, has in zip(wanted, pool.map(self._has, wanted), strict=True) if not has}
        if found:
            self._expect_root()
        return found

    def publish(self, file: Path, artifact: Artifact, *, may_link: bool) -> None:
        """One object, or parts first and the manifest last; those that are there already are not sent again."""
        self._expect_root()
        if not self._has(artifact):
            if artifact.size_bytes > self.limits.single_bytes:
                self._publish_parts(file, artifact)
            else:
                self._objects.send(file, self._name(artifact))
        if may_link:
            self.cache.adopt(file, artifact)

    def check(self, artifact: Artifact) -> Soundness:
        """Read all of it from there."""
        digest = hashlib.sha256()
        try:
            for block in self._blocks(artifact, 0):
                digest.update(block)
            if digest.hexdigest() != artifact.sha256:
                raise self._damaged(artifact)
        except ArtifactLost as lost:
            return Soundness.MISSING if lost.how == Soundness.MISSING else Soundness.DAMAGED
        return Soundness.SOUND

    def local(self, artifact: Artifact) -> Path:
        """The cache's file."""
        with self.cache.held(artifact, partial(self._fetch, artifact)) as path:
            return path

    def place(self, artifact: Artifact, destination: Path) -> None:
        """A hard link to the cache's file, or a copy."""
        with self.cache.held(artifact, partial(self._fetch, artifact)) as path:
            caching.place(path, destination)

    def get(self, artifact: Artifact, destination: Path) -> None:
        """Straight from there, however large."""
        if not downloads.fetched(artifact, destination, partial(self._blocks, artifact)):
            raise self._damaged(artifact)

    def stored(self) -> Iterator[Stored]:
        """Found by listing; each manifest is read."""
        for name, info in self._listed(FILES):
            sha256 = name.rpartition("/")[2].removesuffix(MANIFEST_ENDING)
            if SHA256.fullmatch(sha256):
                size_bytes = info["size"]
                if name.endswith(MANIFEST_ENDING):
                    manifest = self._manifest(name)
                    size_bytes = manifest.size_bytes if manifest else 0
                yield Stored(sha256, size_bytes, file_systems.moment(info))

    def delete(self, sha256: str) -> None:
        """Its object or manifest; parts that no manifest names any more go by `sweep`."""
        name = _file(sha256)
        self._objects.remove(name)
        self._objects.remove(name + MANIFEST_ENDING)

    def links(self, artifact: Artifact) -> tuple[str, ...]:
        """Signed, where the file system can."""
        if self.missing([artifact]):
            raise self._lost(artifact, Soundness.MISSING)
        return tuple(self._objects.link(name, LINK_S) for name, _ in self._content(artifact))

    def note(self, what: Note, sha256: str) -> None:
        """An empty object, whose time is the note's."""
        self._objects.write(f"{what}/{expect_sha256(sha256)}", b"-")

    def noted(self, what: Note, sha256: str) -> datetime | None:
        """The time of that object."""
        info = self._objects.info(f"{what}/{expect_sha256(sha256)}")
        return file_systems.moment(info) if info else None

    def notes(self, what: Note) -> dict[str, datetime]:
        """The times of all such objects."""
        return {name.rpartition("/")[2]: file_systems.moment(info) for name, info in self._listed(what)}

    def unnote(self, what: Note, sha256: str) -> None:
        """Remove that object."""
        self._objects.remove(f"{what}/{expect_sha256(sha256)}")

    def sweep(self, before: datetime, *, is_dry: bool) -> int:
        """Parts that no manifest names. Manifests are read after parts were listed: those of new ones count."""
        parts = [(name, info["size"]) for name, info in self._listed(PARTS) if file_systems.moment(info) < before]
        notes = [(name, 0) for name, info in self._listed(Note.USED) if file_systems.moment(info) < before]
        named = {part for manifest in self._manifests() for part in manifest.parts} if parts else set()
        freed_bytes = 0
        for name, size_bytes in (*(one for one in parts if one[0].rpartition("/")[2] not in named), *notes):
            freed_bytes += size_bytes
            if not is_dry:
                self._objects.remove(name)
        return freed_bytes

    def _fetch(self, artifact: Artifact, destination: Path) -> None:
        if not downloads.brought(artifact, destination, partial(self._blocks, artifact)):
            raise self._damaged(artifact)

    def _publish_parts(self, file: Path, artifact: Artifact) -> None:
        """Four at a time. What a collector took meanwhile is sent again before the manifest tells of it."""
        ranges = list(cuts(artifact.size_bytes, self.limits.part_bytes))
        with ThreadPoolExecutor(STREAMS) as pool:
            parts = list(ahead(pool, (partial(self._send_part, file, low, high) for low, high in ranges), STREAMS))
            again = (partial(self._send_part, file, low, high) for low, high in ranges)
            parts = list(ahead(pool, again, STREAMS)) if not self._have_parts(parts, ranges) else parts
        manifest = Manifest(artifact.size_bytes, self.limits.part_bytes, tuple(parts))
        self._objects.write(self._name(artifact), manifest.to_json())

    def _have_parts(self, parts: list[str], ranges: list[tuple[int, int]]) -> bool:
        with ThreadPoolExecutor(QUESTIONS) as pool:
            sizes = pool.map(lambda part: self._objects.size(_part(part)), parts)
            return all(size == high - low for size, (low, high) in zip(sizes, ranges, strict=True))

    def _send_part(self, file: Path, low: int, high: int) -> str:
        """Send a range of a file, unless it is there; returns its sha256."""
        with file.open("rb") as content:
            content.seek(low)
            data = content.read(high - low)
        sha256 = hashlib.sha256(data).hexdigest()
        if self._objects.size(_part(sha256)) != len(data):
            self._objects.write(_part(sha256), data)
        return sha256

    def _blocks(self, artifact: Artifact, start: int) -> Iterator[bytes]:
        """Its content from an offset on, some requests ahead; raises ArtifactLost."""
        wanted = pieces(self._content(artifact), start, self.limits.block_bytes)
        with ThreadPoolExecutor(STREAMS) as pool:
            yield from ahead(pool, (partial(self._block, artifact, piece) for piece in wanted), STREAMS)

    def _block(self, artifact: Artifact, piece: Piece) -> bytes:
        try:
            return self._objects.read_range(piece.path, piece.start, piece.end)
        except FileNotFoundError:
            self._expect_root()
            self._objects.remove(self._name(artifact))  # of a part that is gone: the manifest says what is not
            raise self._lost(artifact, Soundness.MISSING) from None

    def _content(self, artifact: Artifact) -> Iterator[tuple[str, int]]:
        """The names and lengths of what its content lies in, in order."""
        name = self._name(artifact)
        if artifact.size_bytes <= self.limits.single_bytes:
            size_bytes = self._objects.size(name)
            if size_bytes is None:
                self._expect_root()
                raise self._lost(artifact, Soundness.MISSING)
            if size_bytes != artifact.size_bytes:
                raise self._damaged(artifact)
            yield name, size_bytes
            return
        yield from self._parts(artifact)

    def _parts(self, artifact: Artifact) -> Iterator[tuple[str, int]]:
        manifest = self._manifest(self._name(artifact))
        if manifest is None:
            self._expect_root()
            raise self._lost(artifact, Soundness.MISSING)
        for number, part in enumerate(manifest.parts):
            yield _part(part), manifest.length(number)

    def _damaged(self, artifact: Artifact) -> ArtifactLost:
        """Move what is damaged aside: the one object, or the manifest and each part that is not what its name says."""
        name = self._name(artifact)
        bad = [name]
        if artifact.size_bytes > self.limits.single_bytes:
            bad += [part for part, length in self._parts(artifact) if not self._is_sound(part, length)]
        aside = [self._set_aside(one) for one in bad]
        return self._lost(artifact, f"damaged: what was there lies in {', '.join(aside[-3:])}")

    def _is_sound(self, part: str, length: int) -> bool:
        try:
            found = self._objects.read_range(part, 0, length)
        except FileNotFoundError:
            return True  # there is nothing to move
        return hashlib.sha256(found).hexdigest() == part.rpartition("/")[2]

    def _set_aside(self, name: str) -> str:
        aside = f"{ASIDE}/{name.rpartition('/')[2]}-{uuid4().hex[:8]}"
        self._objects.move(name, aside)
        return self._objects.address(aside)

    def _has(self, artifact: Artifact) -> bool:
        size_bytes = self._objects.size(self._name(artifact))
        is_large = artifact.size_bytes > self.limits.single_bytes
        return size_bytes is not None and (is_large or size_bytes == artifact.size_bytes)

    def _name(self, artifact: Artifact) -> str:
        ending = MANIFEST_ENDING if artifact.size_bytes > self.limits.single_bytes else ""
        return _file(artifact.sha256) + ending

    def _manifests(self) -> Iterator[Manifest]:
        for name, _ in self._listed(FILES):
            if name.endswith(MANIFEST_ENDING) and (manifest := self._manifest(name)):
                yield manifest

    def _manifest(self, name: str) -> Manifest | None:
        """None where there is none; what is there and can't be read is moved aside."""
        text = self._objects.read(name)
        if text is None:
            return None
        try:
            return read_manifest(text)
        except ValueError:
            self._set_aside(name)
            return None

    def _listed(self, folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
        self._expect_root()
        return self._objects.listed(folder)

    def _expect_root(self) -> None:
        """A bucket that is gone, or another one, is no reason to take everything for lost."""
        if self._is_marked and self._objects.read(MARK) is None:
            raise StorageUnusable(file_systems.shown(self.where), "it is gone: what was there is not any more")
        if not self._is_marked:
            _mark(self._objects, uuid4().hex)
            self._is_marked = True

    def _lost(self, artifact: Artifact, how: str) -> ArtifactLost:
        return ArtifactLost(artifact.name, artifact.sha256, self.where, how)


def mark(url: str, fresh: str | None = None) -> str | None:
    """The text in an object that only this store has; where it has none it is given `fresh`."""
    return _mark(Objects(url), fresh)


def _mark(objects: Objects, fresh: str | None) -> str | None:
    found = objects.read(MARK)
    if found is None and fresh is not None:
        objects.write(MARK, fresh.encode())
        found = objects.read(MARK)
    return None if found is None else found.decode(errors="replace")


def _file(sha256: str) -> str:
    return f"{FILES}/{expect_sha256(sha256)[:2]}/{sha256}"


def _part(sha256: str) -> str:
    return f"{PARTS}/{expect_sha256(sha256)[:2]}/{sha256}"
