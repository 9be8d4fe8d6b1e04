"""A store elsewhere that several machines share: any place that fsspec can reach, such as S3.

`<url>/<kind>/<identity's first digits>/` holds an artifact's manifest, and its files in a folder
that is named by the manifest's hash: machines that made the same work with other bytes (of its
logs, at least) never write over each other's files. The manifest goes last, so what has one is
whole. Every file is read back after it was sent and compared with its hash, and again after it was
fetched. What an interrupted transfer has moved whole is not moved again.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec

from artifacts.digest import sha256_file
from artifacts.errors import BadInput, MindCycleError, StageFailed
from artifacts.manifest import (
    MANIFEST,
    FileEntry,
    Manifest,
    problems_with_files,
    read_manifest,
)
from artifacts.store import SHORT, artifact_path, fetch_path, lock_path
from artifacts.writing import exclusive, publish

CHUNK = 1 << 20
BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "az"})
"""Protocols without folders: making one there would make a bucket, of a mistyped name too."""
Say = Callable[[str], None]


class Remote:
    """One such store. Keys and endpoints come from where its protocol takes them: for S3 from the
    environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...) or ~/.aws."""

    def __init__(self, url: str) -> None:
        """Raises BadInput if the URL names no protocol that is installed here."""
        self.url = url.rstrip("/")
        try:
            # Anew, for its keys and endpoint may have changed since one was made in this process.
            self._files, self._root = fsspec.core.url_to_fs(self.url, skip_instance_cache=True)
        except (ImportError, ValueError) as error:
            raise BadInput(f"remote: is {url!r}; {error}") from None

    def push(self, artifact: Path, say: Say = print) -> int:
        """Send an artifact, unless it is there; returns the bytes that had to be sent.

        What is there and has a file of a wrong size is sent again. Raises BadInput if the artifact
        is not whole, StageFailed if the store fails or holds other bytes for the same work.
        """
        manifest = read_manifest(artifact)
        place = self._place(manifest.kind, manifest.identity)
        with self._speaking("send to"):
            there = self._standing(artifact, manifest, place)
            if there is not None and self._sizes_fit(_folder(place, there), there):
                return 0
            if problems := problems_with_files(artifact, manifest):
                raise BadInput(*problems)
            sent, raw = 0, (artifact / MANIFEST).read_bytes()
            folder = _folder(place, raw)
            for entry in manifest.files:
                if not self._has(f"{folder}/{entry.path}", entry):
                    self._send(artifact / entry.path, f"{folder}/{entry.path}", entry)
                    sent += entry.size
            # Another machine may have been first while the files went over; no protocol's lock is
            # to be had everywhere, so it is looked for before and after.
            self._standing(artifact, manifest, place)
            self._files.pipe_file(f"{place}/{MANIFEST}", raw)
            self._standing(artifact, manifest, place)
        say(f"sent {sent} bytes of {manifest.kind} {manifest.identity[:SHORT]} to {self.url}")
        return sent

    def fetch(self, kind: str, identity: str, store: Path, say: Say = print) -> Path | None:
        """Bring an artifact into a store, whole; None if it is not there.

        Raises StageFailed if the store fails, or if what it gives is not what the manifest says.
        """
        final = artifact_path(store, kind, identity)
        place = self._place(kind, identity)
        with self._speaking("fetch from"):
            raw = self._manifest(f"{place}/{MANIFEST}")
            if raw is None:
                return None
            final.parent.mkdir(parents=True, exist_ok=True)
            with exclusive(lock_path(store, kind, identity)):
                if not final.exists():
                    self._receive(
                        _folder(place, raw), raw, fetch_path(store, kind, identity), final
                    )
        say(f"fetched {kind} {final.name} from {self.url}")
        return final

    def fetch_by_digest(self, digest: str, store: Path, say: Say = print) -> Path | None:
        """Bring the artifact whose identity or digest begins so; None if there is none.

        Raises BadInput if several begin so, StageFailed if the store fails.
        """
        found: set[tuple[str, str]] = set()
        with self._speaking("look into"):
            for path in self._files.glob(f"{self._root}/*/*/{MANIFEST}"):
                if (raw := self._manifest(path)) is None:
                    continue
                manifest = Manifest.model_validate_json(raw)
                if manifest.digest.startswith(digest) or manifest.identity.startswith(digest):
                    found.add((manifest.kind, manifest.identity))
        if len(found) > 1:
            raise BadInput(f"{digest}: fits {len(found)} artifacts in {self.url}")
        for kind, identity in found:
            return self.fetch(kind, identity, store, say)
        return None

    def _standing(self, artifact: Path, manifest: Manifest, place: str) -> bytes | None:
        """The manifest that stands there, if any. Raises StageFailed if it names other bytes."""
        raw = self._manifest(f"{place}/{MANIFEST}")
        if raw is None:
            return None
        there = Manifest.model_validate_json(raw)
        if there.digest != manifest.digest:
            raise StageFailed(
                f"{artifact}: has the digest {manifest.digest[:SHORT]}, and {self.url} holds "
                f"{there.digest[:SHORT]} for the same work, made elsewhere; remove {artifact}, and "
                "the same command fetches that one"
            )
        return raw

    def _manifest(self, path: str) -> bytes | None:
        """A manifest's bytes; None if it is not there, or cut: where files are not replaced whole,
        one that was being written when its writer died."""
        self._files.invalidate_cache()
        try:
            raw: bytes = self._files.cat_file(path)
            json.loads(raw)
        except (FileNotFoundError, ValueError):
            return None
        return raw

    def _sizes_fit(self, folder: str, raw: bytes) -> bool:
        """Whether all of a manifest's files stand in full length; one listing tells."""
        found = self._files.find(folder, detail=True)
        sizes = {path: about["size"] for path, about in found.items()}
        files = Manifest.model_validate_json(raw).files
        return all(sizes.get(f"{folder}/{entry.path}") == entry.size for entry in files)

    def _receive(self, folder: str, raw: bytes, work: Path, final: Path) -> None:
        work.mkdir(exist_ok=True)
        (work / MANIFEST).write_bytes(raw)
        manifest = read_manifest(work)
        for entry in manifest.files:
            file = work / entry.path
            if file.is_file() and sha256_file(file) == entry.sha256:
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            self._files.get_file(f"{folder}/{entry.path}", str(file))
        if problems := problems_with_files(work, manifest):
            shutil.rmtree(work)
            said = f"{self.url} gave something else than it should:"
            todo = f"remove {folder} there, and the next run that has it whole sends it again"
            raise StageFailed("\n".join([said, *problems, todo]))
        publish(work, final)

    def _send(self, file: Path, target: str, entry: FileEntry) -> None:
        if not BUCKETS.intersection(self._protocols()):
            self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
        self._files.put_file(str(file), target)
        if not self._has(target, entry):
            raise StageFailed(
                f"{self.url}: {target} is not what was sent; it was damaged on the way"
            )

    def _has(self, target: str, entry: FileEntry) -> bool:
        """Whether the store gives back exactly this file; sizes first, for they are cheap."""
        self._files.invalidate_cache()
        try:
            if self._files.size(target) != entry.size:
                return False
            digest = hashlib.sha256()
            with self._files.open(target, "rb") as stream:
                while chunk := stream.read(CHUNK):
                    digest.update(chunk)
        except FileNotFoundError:
            return False
        return digest.hexdigest() == entry.sha256

    def _protocols(self) -> tuple[str, ...]:
        protocol = self._files.protocol
        return (protocol,) if isinstance(protocol, str) else tuple(protocol)

    def _place(self, kind: str, identity: str) -> str:
        return f"{self._root}/{kind}/{identity[:SHORT]}"

    @contextmanager
    def _speaking(self, what: str) -> Iterator[None]:
        try:
            yield
        except MindCycleError:
            raise
        except Exception as error:  # every protocol has errors of its own
            raise StageFailed(
                f"could not {what} {self.url}: {_said(error)}; what is here stays whole, and the "
                "same command goes on from there"
            ) from error


def _folder(place: str, manifest: bytes) -> str:
    """Where the files are that a manifest names."""
    return f"{place}/{hashlib.sha256(manifest).hexdigest()[:SHORT]}"


def _said(error: Any) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:300]
