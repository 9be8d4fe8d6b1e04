"""Several machines that train together: machine 0 leads, the others come to it over TCP.

Machine 0 listens at the address they all know. Each other machine says what work it has come for
and waits for the start. The connections stay open while the ranks work: a word on one, its end, or
its silence (the kernel's keepalive) tells that another machine has failed. Lines of JSON, from
whoever reaches the port: for one's own network only, as MindSpore's own connections are.
"""

import collections
import contextlib
import json
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from artifacts.errors import BadInput, StageFailed

LONGEST = 1 << 16
"""Bytes of one line; a failure's text is cut to fit."""
LOOK_SECONDS = 0.2
CAUSE = 0
"""The blame of what nobody else can have caused: a machine is gone, somebody has stopped it."""


@dataclass(frozen=True)
class Machines:
    """How many there are, which one this is, and where machine 0 is found."""

    count: int
    rank: int
    master: str
    """host:port."""
    timeout_seconds: int
    """How long to wait for the others, and how soon one that is silent counts as gone."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of machine 0."""
        host, _, port = self.master.rpartition(":")
        return host, int(port)


@dataclass(frozen=True)
class Failure:
    """What has happened on some machine; of several the one of least blame is the cause."""

    blame: int
    text: str
    bad_input: bool = False

    def error(self) -> BadInput | StageFailed:
        """To be raised where it is heard of."""
        return BadInput(self.text) if self.bad_input else StageFailed(f"parallel: {self.text}")


class Link:
    """A connection to another machine."""

    def __init__(self, connection: socket.socket, machine: int, timeout_seconds: int):
        """Raises OSError if the other has ended it already."""
        self.connection, self.machine = connection, machine
        self.peer: str = connection.getpeername()[0]
        self._held = b""
        self._words: collections.deque[dict[str, Any]] = collections.deque()
        self._gone: str | None = None
        half = max(timeout_seconds // 2, 4)
        connection.settimeout(half)
        # Together half the timeout: the loss is told in our words, before MindSpore's own end.
        for option, value in (
            (socket.TCP_KEEPIDLE, half // 2),
            (socket.TCP_KEEPINTVL, max(half // 8, 1)),
            (socket.TCP_KEEPCNT, 4),
            (socket.TCP_USER_TIMEOUT, half * 1000),
        ):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def say(self, **word: Any) -> None:
        """Send a word; if the other has gone, `word` will tell."""
        with contextlib.suppress(OSError):
            self.connection.sendall(json.dumps(word).encode() + b"\n")

    def word(self) -> dict[str, Any] | None:
        """The next word, None if none has come. After the end `{"gone": why}`, each time."""
        while not self._words and self._gone is None and self._readable():
            try:
                data = self.connection.recv(LONGEST)
            except OSError as error:
                self._gone = error.strerror or str(error)
                break
            *lines, self._held = (self._held + data).split(b"\n")
            try:
                self._words.extend(dict(json.loads(line)) for line in lines)
            except (ValueError, TypeError):
                self._gone = "it speaks something else"
            if not data:
                self._gone = "its connection has ended"
            elif len(self._held) > LONGEST:
                self._gone = "it speaks something else"
        if self._words:
            return self._words.popleft()
        return None if self._gone is None else {"gone": self._gone}

    def awaited(self) -> dict[str, Any]:
        """The next word, waited for. Raises the other's failure if that is what comes."""
        while (word := self.word()) is None:
            time.sleep(LOOK_SECONDS / 4)
        if failure := self.failure(word):
            raise failure.error()
        return word

    def _readable(self) -> bool:
        return bool(select.select([self.connection], [], [], 0)[0])

    def failure(self, word: dict[str, Any]) -> Failure | None:
        """What a word says of the other's end; None if it is another word."""
        about = f"machine {self.machine} ({self.peer})"
        if "gone" in word:
            return Failure(CAUSE, f"{about} is gone: {word['gone']}")
        if "failed" in word:
            text = f"{about}: {word['failed']}"
            return Failure(int(word["blame"]), text, bool(word["bad_input"]))
        return None


class Team:
    """The machines once they have come together, as one of them sees the others."""

    def __init__(self, machines: Machines, links: list[Link]):
        self.machines, self.links = machines, links
        self.here: str = links[0].connection.getsockname()[0]
        """This machine's address, as the others reach it."""
        self._ended: set[int] = set()

    @property
    def leads(self) -> bool:
        """Whether this is machine 0."""
        return self.machines.rank == 0

    def start(self, port: int, mark: str) -> None:
        """Machine 0 says where MindSpore's scheduler listens, and a file it has made in scratch."""
        for link in self.links:
            link.say(scheduler=port, mark=mark)

    def wait_for_start(self) -> tuple[str, int, str]:
        """The scheduler's host and port, and the file. Raises StageFailed if there is no start."""
        (link,) = self.links
        while "scheduler" not in (word := link.awaited()):
            pass
        return link.peer, int(word["scheduler"]), str(word["mark"])

    def failure(self, seconds: float = 0.0) -> Failure | None:
        """What has failed elsewhere, waiting for such news at most so long."""
        deadline = time.monotonic() + seconds
        while True:
            found = [failure for link in self.links if (failure := self._heard(link))]
            if found:
                return min(found, key=lambda failure: failure.blame)
            if time.monotonic() >= deadline:
                return None
            time.sleep(LOOK_SECONDS / 4)

    def _heard(self, link: Link) -> Failure | None:
        """Listen to one machine; who has said that it has done its part may leave."""
        while (word := link.word()) and link.machine not in self._ended:
            if "ended" in word:
                self._ended.add(link.machine)
            elif failure := link.failure(word):
                return failure
        return None

    def tell(self, failure: Failure) -> None:
        """Tell the others what has failed here, or what machine 0 has heard."""
        for link in self.links:
            text = failure.text[-LONGEST // 8 :]  # a character may take six in JSON
            link.say(failed=text, blame=failure.blame, bad_input=failure.bad_input)

    def end(self) -> None:
        """All is done here: wait until it is elsewhere. Raises StageFailed if somebody fails."""
        for link in self.links:
            link.say(ended=True)
        while len(self._ended) < len(self.links):
            if failure := self.failure(LOOK_SECONDS):
                raise failure.error()


@contextlib.contextmanager
def together(
    machines: Machines, work: str, done: Callable[[], bool] = lambda: False
) -> Iterator[Team | None]:
    """Come together for `work`, all machines or none; connections end with the block.

    Yields None if `done()` comes true while machine 0 is awaited. Raises BadInput if the address
    cannot be used or machine 0 is at other work, StageFailed if some machine does not come.
    """
    links: list[Link] = []
    try:
        if machines.rank == 0:
            _gather(machines, work, links)
        elif not _find(machines, work, done, links):
            yield None
            return
        yield Team(machines, links)
    finally:
        for link in links:
            link.connection.close()


def _gather(machines: Machines, work: str, links: list[Link]) -> None:
    """Machine 0: wait for all others; those who come for something else are sent away."""
    deadline = time.monotonic() + machines.timeout_seconds
    greeted: list[Link] = []
    try:
        with _listening(machines) as listener:
            _say_waiting(machines, f"for {machines.count - 1} more to come to {machines.master}")
            while len(links) < machines.count - 1:
                if time.monotonic() > deadline:
                    raise _missing(machines, links)
                # Whoever resets the connection again, such as a port scanner, is not waited for.
                with contextlib.suppress(TimeoutError, ConnectionError):
                    connection, _ = listener.accept()
                    with contextlib.suppress(OSError):
                        greeted.append(Link(connection, -1, machines.timeout_seconds))
                for link in list(greeted):
                    if word := link.word():
                        greeted.remove(link)
                        _welcome(machines, work, links, link, word)
                for link in list(links):
                    if link.word():  # it has failed while it waited; it may come again
                        links.remove(link)
                        link.connection.close()
    finally:
        for link in greeted:
            link.connection.close()


def _missing(machines: Machines, links: list[Link]) -> StageFailed:
    first = min(set(range(1, machines.count)) - {link.machine for link in links})
    return StageFailed(
        f"parallel: machine {first} has not come to {machines.master} within "
        f"{machines.timeout_seconds} seconds; give it the same command with "
        f"--set pretrain.parallel.node_rank={first}"
    )


def _welcome(
    machines: Machines, work: str, links: list[Link], link: Link, word: dict[str, Any]
) -> None:
    """Take a machine among `links`, or tell it why not."""
    if not {"machine", "of", "work"} <= word.keys():
        link.connection.close()  # whoever it was
        return
    rank, problem = word["machine"], None
    if word["of"] != machines.count:
        problem = f"parallel.nodes: is {word['of']} there and {machines.count} on machine 0"
    elif word["work"] != work:
        problem = (
            "parallel: machine 0 is at other work; config, corpus and MindCycle must be the same "
            "on all machines"
        )
    elif rank not in range(1, machines.count) or rank in {other.machine for other in links}:
        problem = f"parallel.node_rank: is {rank}, and so is another machine's"
    if problem is not None:
        print(f"parallel: sent {link.peer} away: {problem}", flush=True)
        link.say(refused=problem)
        link.connection.close()
        return
    link.machine = rank
    links.append(link)
    link.say(welcome=True)
    print(f"parallel: machine {rank} has come from {link.peer}", flush=True)


def _find(machines: Machines, work: str, done: Callable[[], bool], links: list[Link]) -> bool:
    """Another machine: go to machine 0, which may not be there yet; False if all is done."""
    deadline = time.monotonic() + machines.timeout_seconds
    _say_waiting(machines, f"for machine 0 at {machines.master}")
    while True:
        if done():
            return False
        try:
            connection = socket.create_connection(machines.address, timeout=5)
            link = Link(connection, 0, machines.timeout_seconds)
            break
        except socket.gaierror as error:
            raise _unusable(machines, error) from None
        except OSError as error:
            if time.monotonic() > deadline:
                raise StageFailed(
                    f"parallel: machine 0 has not listened at {machines.master} within "
                    f"{machines.timeout_seconds} seconds ({error.strerror or error})"
                ) from None
            time.sleep(LOOK_SECONDS)
    links.append(link)
    link.say(machine=machines.rank, of=machines.count, work=work)
    word = link.awaited()
    if "refused" in word:
        raise BadInput(f"pretrain.{word['refused']}")
    return True


@contextlib.contextmanager
def _listening(machines: Machines) -> Iterator[socket.socket]:
    try:
        listener = socket.create_server(machines.address)
    except OSError as error:
        raise _unusable(machines, error) from None
    with listener:
        listener.settimeout(LOOK_SECONDS)
        yield listener


def _unusable(machines: Machines, error: OSError) -> BadInput:
    return BadInput(
        f"pretrain.parallel.master: {machines.master} cannot be used: {error.strerror or error}; "
        "an address of machine 0 and a port that is free there would be right"
    )


def _say_waiting(machines: Machines, what: str) -> None:
    print(
        f"parallel: machine {machines.rank} of {machines.count} waits {what}, at most "
        f"{machines.timeout_seconds} seconds",
        flush=True,
    )
