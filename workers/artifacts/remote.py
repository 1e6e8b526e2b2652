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
from jobs.hashing import SHA256
from jobs.task import Artifact
from workers.artifacts import cache as caching
from workers.artifacts import downloads, file_systems
from workers.artifacts.backend import NONEXISTENT, Marker, Soundness, Stored, expect_sha256
from workers.artifacts.cache import ArtifactCache
from workers.artifacts.locations import MARK
from workers.artifacts.objects import RemoteObjects
from workers.artifacts.parts import ByteRange, Limits, Manifest, byte_ranges, parse_manifest, ranges
from workers.artifacts.streams import prefetch
from workers.artifacts.verification_cache import VerificationCache

FILES, PARTS, ASIDE, CLOCK = "sha256", "parts", "damaged", ".clock"
MANIFEST_ENDING = ".parts"
TRANSFER_THREADS = 4  #: concurrent transfers of one file
LOOKUP_THREADS = 16  #: concurrent short requests
LINK_LIFETIME_S = 7 * 24 * 3600  #: the longest that S3 allows


class RemoteBackend:
    """A `Backend` on a remote file system. It connects on first use; threads may share it."""

    def __init__(self, url: str, cache: Path | None, verified: VerificationCache, limits: Limits) -> None:
        """`cache` is this node's folder for downloads; raises BadSetting where the cache's limit is not a number."""
        if cache is None:
            raise ValueError(f"{url} needs a folder for its cache")
        self.where = url
        self.cache = ArtifactCache(cache, verified)
        self.limits = limits
        self._objects = RemoteObjects(url)
        self._is_marked = False

    def address(self, sha256: str) -> str:
        """Return the URL of a file's object; a large file's manifest lies beside it."""
        return self._objects.address(_file(sha256))

    def missing(self, artifacts: Iterable[Artifact]) -> set[Artifact]:
        """Return the artifacts that have no object of the right size, or no manifest."""
        artifacts = list(artifacts)
        with ThreadPoolExecutor(LOOKUP_THREADS) as pool:
            are_stored = pool.map(self._has, artifacts)
            missing = {artifact for artifact, is_stored in zip(artifacts, are_stored, strict=True) if not is_stored}
        if missing:
            self._expect_root()
        return missing

    def try_to_write(self) -> None:
        """Write a marker of what no store has."""
        self.set_markers(Marker.USED, [NONEXISTENT])
        self.clear_marker(Marker.USED, NONEXISTENT)

    def publish(self, file: Path, artifact: Artifact, *, may_link: bool) -> None:
        """Upload one object, or first the parts and then the manifest; existing ones are not sent again."""
        self._expect_root()
        if not self._has(artifact):
            if artifact.size_bytes > self.limits.single_bytes:
                self._publish_parts(file, artifact)
            else:
                self._objects.send(file, self._name(artifact))
        if may_link:
            self.cache.adopt(file, artifact)

    def check(self, artifact: Artifact) -> Soundness:
        """Read all of an artifact's objects."""
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
        """Return the file in the cache."""
        with self.cache.hold(artifact, partial(self._fetch, artifact)) as path:
            return path

    def place(self, artifact: Artifact, destination: Path) -> None:
        """Make a hard link to the file in the cache, or a copy."""
        with self.cache.hold(artifact, partial(self._fetch, artifact)) as path:
            caching.place(path, destination)

    def get(self, artifact: Artifact, destination: Path) -> None:
        """Download past the cache, however large the file is."""
        if not downloads.download(artifact, destination, partial(self._blocks, artifact)):
            raise self._damaged(artifact)

    def stored(self) -> Iterator[Stored]:
        """List the objects, and read each manifest."""
        for name, info in self._listed(FILES):
            sha256 = name.rpartition("/")[2].removesuffix(MANIFEST_ENDING)
            if SHA256.fullmatch(sha256):
                size_bytes = info["size"]
                if name.endswith(MANIFEST_ENDING):
                    manifest = self._manifest(name)
                    size_bytes = manifest.size_bytes if manifest else 0
                yield Stored(sha256, size_bytes, file_systems.modified_at(info))

    def delete(self, sha256: str) -> None:
        """Remove a file's object or manifest; parts that no manifest names any more are removed by `sweep`."""
        name = _file(sha256)
        self._objects.remove(name)
        self._objects.remove(name + MANIFEST_ENDING)

    def links(self, artifact: Artifact) -> tuple[str, ...]:
        """Return the URLs of an artifact's objects, signed where the file system can do that."""
        if self.missing([artifact]):
            raise self._lost(artifact, Soundness.MISSING)
        return tuple(self._objects.link(name, LINK_LIFETIME_S) for name, _ in self._content(artifact))

    def clock(self) -> datetime:
        """Write a tiny object, and return its time."""
        self._objects.write(CLOCK, b"-")
        return file_systems.modified_at(self._objects.info(CLOCK) or {})

    def set_markers(self, marker: Marker, digests: Iterable[str]) -> None:
        """Write tiny objects, whose times are the markers'."""
        names = [f"{marker}/{expect_sha256(sha256)}" for sha256 in digests]
        with ThreadPoolExecutor(LOOKUP_THREADS) as pool:
            list(pool.map(lambda name: self._objects.write(name, b"-"), names))

    def marker_time(self, marker: Marker, sha256: str) -> datetime | None:
        """Return the time of the marker's object."""
        info = self._objects.info(f"{marker}/{expect_sha256(sha256)}")
        return file_systems.modified_at(info) if info else None

    def marker_times(self, marker: Marker) -> dict[str, datetime]:
        """Return the times of all objects of the marker."""
        return {name.rpartition("/")[2]: file_systems.modified_at(info) for name, info in self._listed(marker)}

    def clear_marker(self, marker: Marker, sha256: str) -> None:
        """Remove the marker's object."""
        self._objects.remove(f"{marker}/{expect_sha256(sha256)}")

    def sweep(self, before: datetime, *, is_dry: bool) -> int:
        """Remove parts that no manifest names, and old markers.

        Manifests are read after the parts were listed, so that manifests written meanwhile count.
        """
        parts = [(name, info["size"]) for name, info in self._listed(PARTS) if file_systems.modified_at(info) < before]
        markers = [(name, 0) for name, info in self._listed(Marker.USED) if file_systems.modified_at(info) < before]
        named = {part for manifest in self._manifests() for part in manifest.parts} if parts else set()
        freed_bytes = 0
        for name, size_bytes in (*(part for part in parts if part[0].rpartition("/")[2] not in named), *markers):
            freed_bytes += size_bytes
            if not is_dry:
                self._objects.remove(name)
        return freed_bytes

    def _fetch(self, artifact: Artifact, destination: Path) -> None:
        if not downloads.download_part(artifact, destination, partial(self._blocks, artifact)):
            raise self._damaged(artifact)

    def _publish_parts(self, file: Path, artifact: Artifact) -> None:
        """Upload the parts, again those that a collector has removed meanwhile, and then the manifest."""
        part_ranges = list(ranges(artifact.size_bytes, self.limits.part_bytes))
        uploads = [partial(self._send_part, file, low, high) for low, high in part_ranges]
        with ThreadPoolExecutor(TRANSFER_THREADS) as pool:
            parts = list(prefetch(pool, iter(uploads), TRANSFER_THREADS))
            if not self._have_parts(parts, part_ranges):
                parts = list(prefetch(pool, iter(uploads), TRANSFER_THREADS))
        manifest = Manifest(artifact.size_bytes, self.limits.part_bytes, tuple(parts))
        self._objects.write(self._name(artifact), manifest.to_json())

    def _have_parts(self, parts: list[str], part_ranges: list[tuple[int, int]]) -> bool:
        with ThreadPoolExecutor(LOOKUP_THREADS) as pool:
            sizes = pool.map(lambda part: self._objects.size(_part(part)), parts)
            return all(size == high - low for size, (low, high) in zip(sizes, part_ranges, strict=True))

    def _send_part(self, file: Path, low: int, high: int) -> str:
        """Upload a range of a file unless it is stored; returns its sha256."""
        with file.open("rb") as content:
            content.seek(low)
            data = content.read(high - low)
        sha256 = hashlib.sha256(data).hexdigest()
        if self._objects.size(_part(sha256)) != len(data):
            self._objects.write(_part(sha256), data)
        return sha256

    def _blocks(self, artifact: Artifact, start: int) -> Iterator[bytes]:
        """Yield an artifact's content from an offset on, with some requests running ahead; raises ArtifactLost."""
        requests = byte_ranges(self._content(artifact), start, self.limits.block_bytes)
        with ThreadPoolExecutor(TRANSFER_THREADS) as pool:
            yield from prefetch(
                pool, (partial(self._read, artifact, request) for request in requests), TRANSFER_THREADS
            )

    def _read(self, artifact: Artifact, request: ByteRange) -> bytes:
        try:
            return self._objects.read_range(request.path, request.start, request.end)
        except FileNotFoundError:
            self._expect_root()
            self._objects.remove(self._name(artifact))  # a part is gone: its manifest is no longer true
            raise self._lost(artifact, Soundness.MISSING) from None

    def _content(self, artifact: Artifact) -> Iterator[tuple[str, int]]:
        """Yield the names and lengths of the objects that hold an artifact's content, in order."""
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
        """Move the damaged object aside, or the manifest and each part whose content does not match its name."""
        name = self._name(artifact)
        damaged = [name]
        if artifact.size_bytes > self.limits.single_bytes:
            damaged += [part for part, length in self._parts(artifact) if not self._is_sound(part, length)]
        aside = [self._set_aside(damaged_name) for damaged_name in damaged]
        return self._lost(artifact, f"damaged: what was there lies in {', '.join(aside[-3:])}")

    def _is_sound(self, part: str, length: int) -> bool:
        try:
            content = self._objects.read_range(part, 0, length)
        except FileNotFoundError:
            return True  # there is nothing to move
        return hashlib.sha256(content).hexdigest() == part.rpartition("/")[2]

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
        """Return a manifest; None where there is none. One that can't be parsed is moved aside."""
        text = self._objects.read(name)
        if text is None:
            return None
        try:
            return parse_manifest(text)
        except ValueError:
            self._set_aside(name)
            return None

    def _listed(self, folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
        self._expect_root()
        return self._objects.list_folder(folder)

    def _expect_root(self) -> None:
        """Raise StorageUnusable where the bucket is gone or another one: that does not mean that all files are lost."""
        if self._is_marked and self._objects.read(MARK) is None:
            raise StorageUnusable(file_systems.store_name(self.where), "it is gone: restore the bucket or container")
        if not self._is_marked:
            _mark(self._objects, uuid4().hex)
            self._is_marked = True

    def _lost(self, artifact: Artifact, how: str) -> ArtifactLost:
        return ArtifactLost(artifact.name, artifact.sha256, self.where, how)


def mark(url: str, fresh: str | None = None) -> str | None:
    """Return the id of a store, from an object in it; a store without one is given `fresh`."""
    return _mark(RemoteObjects(url), fresh)


def _mark(objects: RemoteObjects, fresh: str | None) -> str | None:
    text = objects.read(MARK)
    if text is None and fresh is not None:
        objects.write(MARK, fresh.encode())
        text = objects.read(MARK)
    return None if text is None else text.decode(errors="replace")


def _file(sha256: str) -> str:
    return f"{FILES}/{expect_sha256(sha256)[:2]}/{sha256}"


def _part(sha256: str) -> str:
    return f"{PARTS}/{expect_sha256(sha256)[:2]}/{sha256}"
