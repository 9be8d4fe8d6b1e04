"""A server under load: every answer is compared with the greedy text alone.

    python -m benchmarks.serving_load BUNDLE --clients 64 --seconds 60

Starts `mindcycle serve` as a process of its own. Half of the clients stream, a tenth leave in the
middle of an answer. At the end the server is stopped while answers stream. Prints a summary as
JSON; the exit code is 1 if an answer was wrong, mixed or missing.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from serving.bundle import Served
from serving.sampling import named
from serving.terminal import draw

MODEL = "model"
PROMPTS, SHORTEST, LONGEST = 40, 3, 60
"""How many different prompts, and their lengths in tokens."""
LEAVES = 0.1
"""Share of requests whose client leaves before the end."""


@dataclass
class Outcome:
    """What a load run saw."""

    clients: int
    seconds: float
    answers: int = 0
    wrong: list[str] = field(default_factory=list)
    left: int = 0
    tokens_per_second: float = 0.0
    first_token_median_ms: float = 0.0
    statuses: dict[str, int] = field(default_factory=dict)
    memory_mb: list[float] = field(default_factory=list)
    """Resident size of the server, one value a second."""
    stop_seconds: float = 0.0
    stop_code: int | None = None
    cut_streams: list[str] = field(default_factory=list)
    """How streams ended that ran when the server was stopped: done, error (it says that it is not
    whole), refused (503), or anything else, which is wrong."""

    @property
    def growth_mb(self) -> float:
        """Median memory of the last quarter less that of the second."""
        parts = np.array_split(np.asarray(self.memory_mb), 4)
        return float(np.median(parts[3]) - np.median(parts[1]))


class ServerProcess:
    """`mindcycle serve` on a free port."""

    def __init__(self, bundle: Path, *arguments: str):
        command = [sys.executable, "-c", "from flows.cli import main; main()", "serve"]
        self.process = subprocess.Popen(
            [*command, str(bundle), "--name", MODEL, "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if " at http://" not in line:
            raise RuntimeError(f"the server did not start: {line}")
        self.url = line.partition(" at ")[2].partition("/v1")[0]

    def memory_mb(self) -> float:
        """Resident memory."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0]) / 1024

    def stop(self, seconds: float = 30) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


def prompts_of(served: Served, count: int, seed: int) -> list[list[int]]:
    """Random prompts of many lengths, as token ids."""
    rng = np.random.default_rng(seed)
    longest = min(LONGEST, served.longest // 2)
    lengths = rng.integers(SHORTEST, longest + 1, count)
    return [rng.integers(4, served.model.vocab_size, length).tolist() for length in lengths]


def greedy_alone(served: Served, prompt: list[int], tokens: int) -> str:
    """The text that the bundle writes by itself, one answer at a time."""
    sampling = named("greedy").model_copy(update={"max_tokens": tokens})
    return "".join(draw(served, served.answer(served.ids(prompt), sampling)))


def run_load(bundle: Path, clients: int, seconds: float, tokens: int, *arguments: str) -> Outcome:
    """Load a server of its own with `clients`, each asking again as soon as it is answered."""
    served = Served(bundle, threads=1)
    prompts = prompts_of(served, PROMPTS, seed=0)
    wanted = [greedy_alone(served, prompt, tokens) for prompt in prompts]
    outcome = Outcome(clients, seconds)
    server = ServerProcess(bundle, "--waiting", str(clients), *arguments)
    try:
        asyncio.run(_load(server, prompts, wanted, tokens, outcome))
    finally:
        if server.process.poll() is None:
            server.process.kill()
    return outcome


async def _load(
    server: ServerProcess,
    prompts: list[list[int]],
    wanted: list[str],
    tokens: int,
    outcome: Outcome,
) -> None:
    limits = httpx.Limits(max_connections=None)
    statuses: Counter[str] = Counter()
    waits: list[float] = []
    end = time.monotonic() + outcome.seconds

    async def whole(body: dict[str, Any]) -> str | None:
        response = await http.post("/v1/completions", json=body)
        statuses[str(response.status_code)] += 1
        return str(response.json()["choices"][0]["text"]) if response.is_success else None

    async def streamed(body: dict[str, Any], leave: bool) -> str:
        text, begin = "", time.monotonic()
        async with http.stream("POST", "/v1/completions", json=body) as response:
            statuses[str(response.status_code)] += 1
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    if not text:
                        waits.append(time.monotonic() - begin)
                    piece = json.loads(line[6:])
                    text += piece["choices"][0]["text"] if "choices" in piece else line
                    if leave and len(text) > 3:
                        break
        return text

    async def client(number: int) -> None:
        rng = np.random.default_rng(number)
        while time.monotonic() < end:
            which = int(rng.integers(len(prompts)))
            leave = bool(rng.random() < LEAVES)
            stream = leave or number % 2 == 0
            body = {"model": MODEL, "prompt": prompts[which], "temperature": 0}
            body |= {"max_tokens": tokens, "stream": stream}
            try:
                text = await (streamed(body, leave) if stream else whole(body))
            except httpx.TransportError as error:
                outcome.wrong.append(f"{prompts[which]}: no answer: {error!r}")
                continue
            outcome.left += leave
            outcome.answers += not leave
            if leave and not wanted[which].startswith(text or ""):
                outcome.wrong.append(f"{prompts[which]}: {text!r} begins otherwise")
            if not leave and text != wanted[which]:
                outcome.wrong.append(f"{prompts[which]}: {text!r}, alone {wanted[which]!r}")

    async def watch() -> None:
        while time.monotonic() < end:
            outcome.memory_mb.append(round(server.memory_mb(), 1))
            await asyncio.sleep(min(1.0, outcome.seconds / 20))

    async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as http:
        begin = time.monotonic()
        await asyncio.gather(watch(), *(client(i) for i in range(outcome.clients)))
        seconds = time.monotonic() - begin
        page = (await http.get("/metrics")).text
        drawn = page.partition("\nmindcycle_answer_tokens_total ")[2].partition("\n")[0]
        outcome.tokens_per_second = float(drawn) / seconds
        outcome.first_token_median_ms = float(np.median(waits) * 1000) if waits else 0.0
        outcome.statuses = dict(statuses)
        await _stop_while_streaming(server, http, prompts[0], outcome)


async def _stop_while_streaming(
    server: ServerProcess, http: httpx.AsyncClient, prompt: list[int], outcome: Outcome
) -> None:
    """Stop the server under three streams; each must end whole, or say that it does not."""
    begun = asyncio.Event()

    async def stream() -> str:
        body = {"model": MODEL, "prompt": prompt, "temperature": 0, "stream": True}
        last = "nothing"
        async with http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code == 503:
                return "refused"
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    begun.set()
                    last = "done" if line == "data: [DONE]" else "piece"
                    if '"error"' in line:
                        last = "error"
        return last

    streams = [asyncio.create_task(stream()) for _ in range(3)]
    await begun.wait()
    begin = time.monotonic()
    outcome.stop_code = await asyncio.to_thread(server.stop)
    outcome.stop_seconds = time.monotonic() - begin
    outcome.cut_streams = list(await asyncio.gather(*streams))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--tokens", type=int, default=32)
    given = parser.parse_args()
    outcome = run_load(given.bundle, given.clients, given.seconds, given.tokens)
    shown = asdict(outcome) | {"wrong": outcome.wrong[:5], "growth_mb": outcome.growth_mb}
    print(json.dumps(shown, indent=1))
    ends = {"done", "error", "refused"}
    sys.exit(bool(outcome.wrong or outcome.stop_code or set(outcome.cut_streams) - ends))


if __name__ == "__main__":
    main()
