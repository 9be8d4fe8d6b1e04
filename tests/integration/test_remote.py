"""A store elsewhere: sent whole or not taken for whole, gone on with, fetched by digest."""

import contextlib
import os
import shutil
import socket
import threading
from pathlib import Path

import fsspec
import pytest
from moto.server import ThreadedMotoServer

from artifacts.errors import BadInput, StageFailed
from artifacts.manifest import MANIFEST, problems_with_files, read_manifest
from artifacts.remote import Remote, _folder
from artifacts.store import list_artifacts
from flows.chain import run_chain
from flows.lifecycle import find_or_fetch
from flows.stage_process import StageOutcome
from tests.command import ROOT, mindcycle
from tests.fakes.chain import fake_work


def quiet(text):
    pass


def plain(call):
    return call.run(quiet)


@pytest.fixture(autouse=True)
def _importable_fakes(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture(params=["file", "s3"])
def url(request, tmp_path):
    """A folder, and a bucket on a real S3-compatible server on loopback."""
    if request.param == "file":
        yield f"file://{tmp_path}/elsewhere"
        return
    yield request.getfixturevalue("bucket")


@pytest.fixture(scope="module")
def s3_server():
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def bucket(s3_server, monkeypatch):
    for name, value in {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    name = f"bucket-{os.urandom(4).hex()}"
    fsspec.filesystem("s3", skip_instance_cache=True).mkdir(name)
    return f"s3://{name}/shared"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> StageOutcome:
    """A checkpoint of a few bytes and the corpus it is made from."""
    os.environ["PYTHONPATH"] = str(ROOT)
    store = tmp_path_factory.mktemp("made")
    return run_chain(fake_work(store).needed("press"), plain).outcomes["press"]


def test_what_is_sent_is_fetched_with_the_same_bytes_and_sent_once(url, made, tmp_path):
    remote = Remote(url)
    assert remote.push(made.path, quiet) == made.manifest.files[0].size
    assert remote.push(made.path, quiet) == 0
    store = tmp_path / "there"
    path = remote.fetch("checkpoint", made.manifest.identity, store, quiet)
    assert path == store / "checkpoint" / made.path.name
    assert read_manifest(path) == made.manifest
    assert problems_with_files(path, made.manifest) == []
    assert remote.fetch("checkpoint", "f" * 64, store, quiet) is None
    assert find_or_fetch(tmp_path / "new", made.manifest.digest[:12], url).name == made.path.name
    with pytest.raises(BadInput, match="is neither"):
        find_or_fetch(tmp_path / "new", "ffff", url)


def test_two_machines_share_it_training_here_and_judging_there(url, tmp_path):
    here = fake_work(tmp_path / "here")
    there = fake_work(tmp_path / "there")
    object.__setattr__(here, "remote", url)
    object.__setattr__(there, "remote", url)
    first = run_chain(here.needed("press"), plain)
    assert [o.skipped for o in first.outcomes.values()] == [False, False]
    second = run_chain(there, plain)
    assert [n for n, o in second.outcomes.items() if not o.skipped] == ["judge"]
    # And back: nothing is left to do where the training was.
    third = run_chain(here, plain)
    assert all(outcome.skipped for outcome in third.outcomes.values())
    assert {m.digest for _, m in list_artifacts(tmp_path / "here")} == {
        m.digest for _, m in list_artifacts(tmp_path / "there")
    }


class Around:
    """A file system that is another one, but for what a subclass does in `put_file`."""

    def __init__(self, files):
        self._files = files

    def __getattr__(self, name):
        return getattr(self._files, name)


class Breaking(Around):
    """A file system whose `put_file` fails after so many files."""

    def __init__(self, files, good):
        super().__init__(files)
        self._left = good

    def put_file(self, source, target):
        if self._left == 0:
            raise ConnectionResetError("connection reset by peer")
        self._left -= 1
        self._files.put_file(source, target)


def files_of(remote, artifact) -> str:
    """Where the store keeps an artifact's files."""
    manifest = read_manifest(artifact)
    place = remote._place(manifest.kind, manifest.identity)
    return _folder(place, (artifact / MANIFEST).read_bytes())


def several(made, tmp_path, count=4, folder="", fill=b"") -> Path:
    """The artifact with more files in it."""
    from artifacts.manifest import content_digest, list_files, write_manifest

    path = Path(shutil.copytree(made.path, tmp_path / "store" / "checkpoint" / made.path.name))
    for i in range(count - 1):
        (path / folder).mkdir(exist_ok=True)
        (path / f"{folder}part-{i}").write_bytes((fill or bytes([i])) * 1000)
    files = list_files(path)
    about = {"files": files, "digest": content_digest("checkpoint", files)}
    write_manifest(path, made.manifest.model_copy(update=about))
    return path


def test_a_transfer_that_broke_goes_on_where_it_stood(url, made, tmp_path):
    path = several(made, tmp_path)
    total = sum(entry.size for entry in read_manifest(path).files)
    remote = Remote(url)
    whole = remote._files
    remote._files = Breaking(whole, good=2)
    with pytest.raises(StageFailed, match=r"could not send to .*connection reset.*stays whole"):
        remote.push(path, quiet)
    remote._files = whole
    # No manifest: nobody takes what is there for an artifact.
    assert remote.fetch("checkpoint", made.manifest.identity, tmp_path / "x", quiet) is None
    sent = remote.push(path, quiet)
    assert 0 < sent < total
    fetched = remote.fetch("checkpoint", made.manifest.identity, tmp_path / "x", quiet)
    assert problems_with_files(fetched, read_manifest(path)) == []


def test_what_was_cut_on_the_way_is_sent_again(url, made, tmp_path):
    path = several(made, tmp_path)
    remote = Remote(url)
    entry = read_manifest(path).files[0]
    place = f"{files_of(remote, path)}/{entry.path}"
    remote._files.makedirs(place.rpartition("/")[0], exist_ok=True)
    remote._files.pipe_file(place, b"?" * entry.size)  # right size, wrong bytes
    remote.push(path, quiet)
    fetched = remote.fetch("checkpoint", made.manifest.identity, tmp_path / "x", quiet)
    assert problems_with_files(fetched, read_manifest(path)) == []


def test_what_the_store_damages_is_never_taken(url, made, tmp_path):
    remote = Remote(url)
    remote.push(made.path, quiet)
    entry = made.manifest.files[0]
    folder = files_of(remote, made.path)
    remote._files.pipe_file(f"{folder}/{entry.path}", b"?" * entry.size)
    with pytest.raises(StageFailed, match=r"something else than it should:\n.*has changed"):
        remote.fetch("checkpoint", made.manifest.identity, tmp_path / "x", quiet)
    assert list_artifacts(tmp_path / "x") == []
    # What the error says helps.
    remote._files.rm(folder, recursive=True)
    assert remote.push(made.path, quiet) > 0
    assert remote.fetch("checkpoint", made.manifest.identity, tmp_path / "x", quiet)


def test_other_bytes_for_the_same_work_are_refused_and_the_first_stay(url, made, tmp_path):
    remote, other = Remote(url), several(made, tmp_path)
    remote.push(made.path, quiet)
    with pytest.raises(StageFailed, match=rf"{other}: has the digest .* remove {other}, and the "):
        remote.push(other, quiet)
    shutil.rmtree(other)
    fetched = remote.fetch("checkpoint", made.manifest.identity, tmp_path / "store", quiet)
    assert read_manifest(fetched).digest == made.manifest.digest
    assert remote.push(fetched, quiet) == 0


@pytest.mark.parametrize("cut", [MANIFEST, "file"])
def test_what_stands_there_cut_is_sent_again(url, made, tmp_path, cut):
    remote = Remote(url)
    remote.push(made.path, quiet)
    place = remote._place("checkpoint", made.manifest.identity)
    file = f"{files_of(remote, made.path)}/{made.manifest.files[0].path}"
    remote._files.pipe_file(f"{place}/{MANIFEST}" if cut == MANIFEST else file, b"{")
    remote.push(made.path, quiet)
    fetched = remote.fetch("checkpoint", made.manifest.identity, tmp_path, quiet)
    assert problems_with_files(fetched, made.manifest) == []


class Meeting(Around):
    """A file system that lets another machine work just before this one writes its manifest."""

    def __init__(self, files, meanwhile):
        super().__init__(files)
        self._meanwhile = meanwhile

    def put_file(self, source, target):
        self._files.put_file(source, target)
        self._meanwhile()


@pytest.mark.parametrize("other_logs_only", [True, False])
def test_two_machines_that_send_the_same_work_at_once_leave_one_whole(
    url, made, tmp_path, other_logs_only
):
    """Of the same bytes, apart from the logs', both have sent it; of others the second has not."""
    folder = "logs/" if other_logs_only else ""
    first = several(made, tmp_path / "first", 2, folder)
    second = several(made, tmp_path / "second", 2, folder, fill=b"?")
    remote = Remote(url)
    remote._files = Meeting(remote._files, lambda: Remote(url).push(first, quiet))
    if other_logs_only:
        assert remote.push(second, quiet) > 0
    else:
        with pytest.raises(StageFailed, match="for the same work, made elsewhere"):
            remote.push(second, quiet)
    fetched = Remote(url).fetch("checkpoint", made.manifest.identity, tmp_path / "x", quiet)
    assert read_manifest(fetched).digest == read_manifest(first).digest
    assert problems_with_files(fetched, read_manifest(fetched)) == []


class Wire:
    """A way to the server that breaks, with all connections on it, after so many bytes to it."""

    def __init__(self, server: str, good: int | None, port: int = 0):
        host, _, to = server.removeprefix("http://").rpartition(":")
        self._server, self._left = (host, int(to)), good
        self._lock, self._open = threading.Lock(), []
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._server)
                self._open += [near, far]
                for source, target, counts in ((near, far, True), (far, near, False)):
                    way = (source, target, counts)
                    threading.Thread(target=self._carry, args=way, daemon=True).start()

    def _carry(self, source, target, counts):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 12):
                with self._lock:
                    if counts and self._left is not None:
                        self._left -= len(data)
                        if self._left < 0:
                            self.stop()
                            return
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def stop(self):
        """As when the server's machine loses its network or the server is killed."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def test_the_store_goes_away_in_mid_file_the_command_says_so_and_goes_on(
    bucket, s3_server, tmp_path, monkeypatch
):
    """As when the server is killed: every connection ends, and no new one is taken."""
    wire = Wire(s3_server, good=14_000)  # in the middle of the tokenizer's bytes
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{wire.port}")
    command = ["stage", "corpus", "configs/tiny.yaml", "--no-prefect", "--verbose"]
    command += ["--set", f"remote={bucket}", "--store", tmp_path / "here"]
    broken = mindcycle(*command)
    assert broken.returncode == 1
    assert broken.stderr.startswith(f"could not send to {bucket}: ")
    assert broken.stderr.endswith(
        "; what is here stays whole, and the same command goes on from there\n"
    )
    assert broken.stderr.count("\n") == 1
    ((made, manifest),) = list_artifacts(tmp_path / "here")
    assert problems_with_files(made, manifest) == []
    whole = Wire(s3_server, good=None, port=wire.port)
    try:
        # Nobody takes for an artifact what is there.
        assert Remote(bucket).fetch("corpus", manifest.identity, tmp_path / "x", quiet) is None
        there = {path.rpartition("/")[2] for path in Remote(bucket)._files.find(bucket)}
        assert there == {"corpus.json", "special_tokens_map.json"}
        resumed = mindcycle(*command)
        assert resumed.returncode == 0, resumed.stderr
        assert "1 of them done already" in resumed.stdout
        fetched = Remote(bucket).fetch("corpus", manifest.identity, tmp_path / "x", quiet)
        assert problems_with_files(fetched, manifest) == []
        # What had gone over whole was not sent again.
        sent = sum(entry.size for entry in manifest.files if entry.path not in there)
        assert f"sent {sent} bytes of corpus" in resumed.stdout
    finally:
        whole.stop()


def test_a_store_that_does_not_answer_fails_the_run_and_what_is_made_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    work = fake_work(tmp_path / "store").needed("grow")
    object.__setattr__(work, "remote", "s3://bucket/x")
    with pytest.raises(StageFailed, match="could not fetch from s3://bucket/x"):
        run_chain(work, plain)


@pytest.mark.parametrize("url", ["nosuch://x/y", "s4://x"])
def test_an_unknown_protocol_is_bad_input(url):
    with pytest.raises(BadInput, match="remote: is "):
        Remote(url)


def test_two_fetches_at_once_bring_one(url, made, tmp_path):
    Remote(url).push(made.path, quiet)
    found = []

    def go():
        found.append(Remote(url).fetch("checkpoint", made.manifest.identity, tmp_path, quiet))

    threads = [threading.Thread(target=go) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert len(list_artifacts(tmp_path)) == 1
