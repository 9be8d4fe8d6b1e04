"""What is measured of a server, in Prometheus' form."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)


class Meters:
    """The figures of one server."""

    def __init__(self) -> None:
        self._registry = at = CollectorRegistry()
        self.requests = Counter(
            "mindcycle_requests", "Requests answered", ["path", "status"], registry=at
        )
        self.read = Counter("mindcycle_prompt_tokens", "Tokens of prompts read", registry=at)
        self.written = Counter("mindcycle_answer_tokens", "Tokens drawn", registry=at)
        self.waiting = Gauge("mindcycle_waiting", "Requests that wait", registry=at)
        self.running = Gauge("mindcycle_running", "Requests read or answered now", registry=at)
        self.first_token = Histogram(
            "mindcycle_first_token_seconds",
            "From a request to its first token",
            buckets=SECONDS,
            registry=at,
        )
        self.seconds = Histogram(
            "mindcycle_request_seconds",
            "From a request to the end of its response",
            ["path"],
            buckets=SECONDS,
            registry=at,
        )

    def page(self) -> bytes:
        """All of it as text."""
        return generate_latest(self._registry)
