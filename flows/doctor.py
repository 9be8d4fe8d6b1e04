"""`mindcycle doctor`: is this machine fit, and if not, what to do.

Every check runs, each finding is printed as it comes, and what may crash runs in a process of its
own.
"""

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from flows.doctor_probe import SECONDS
from flows.stage_process import run_supervised

PROBE = Path(__file__).with_name("doctor_probe.py")
DISK_GB = 2.0
"""The quickstart's store takes under 0.1 GB; checkpoints of larger models need more."""
MEMORY_GB = 3.0
REFUSED = {
    "numpy": "MindSpore 2.10's eager operators fail under numpy 2 "
    "(numpy.core.multiarray failed to import)",
    "pyarrow": "pyarrow 26 refuses numpy 1.26, which MindSpore needs",
    "ml-dtypes": "ml-dtypes 0.6 needs numpy 2, under which MindSpore fails",
    "mindspore": "the engine is written and tested for this version",
}
"""Packages that are often wrong, and why the pinned version is the right one."""
EXPLANATIONS = (
    ("No module named 'mindspore'", "MindSpore is not installed here: run make quickstart"),
    ("numpy.core.multiarray", f"{REFUSED['numpy']}: pip install numpy==1.26.4"),
    ("libgomp", "GNU OpenMP is missing: install the system's package libgomp1"),
    ("libnuma", "libnuma is missing: install the system's package libnuma1"),
    ("GLIBC", "the system's C library is too old for this MindSpore: use a newer system"),
    ("CXXABI", "the system's C++ library is too old for this MindSpore: use a newer system"),
    ("cannot open shared object", "a system library is missing: install the one named above"),
    ("timed out", "the processes did not find each other: is loopback blocked by a firewall?"),
    ("Illegal instruction", "this processor lacks instructions that MindSpore was built with"),
    ("No space left", "the disk is full: free some space"),
)
"""What stands in a failure's output -> what it means and what to do."""


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    right: bool
    text: str
    remedy: str = ""


def examine(store: Path) -> bool:
    """Run every check and print its findings; whether all are right."""
    all_right = True
    for title, check in checks(store):
        begin = time.monotonic()
        for finding in check():
            all_right &= finding.right
            word = "right" if finding.right else "WRONG"
            print(f"{word}  {title:<10} {finding.text}  ({time.monotonic() - begin:.1f} s)")
            if finding.remedy:
                print(f"{'':<18}{finding.remedy}")
            sys.stdout.flush()
    print("This machine is fit." if all_right else "Something is wrong; see above.")
    return all_right


Check = Callable[[], Iterable[Finding]]


def checks(store: Path) -> list[tuple[str, Check]]:
    """Every check with its title, the quick ones first."""
    return [
        ("python", check_python),
        ("packages", lambda: check_packages(metadata.version)),
        ("disk", lambda: check_disk(store)),
        ("memory", lambda: check_memory(Path("/proc/meminfo"))),
        ("mindspore", lambda: [probe("operator")]),
        ("collective", lambda: [probe("collective")]),
    ]


def check_python(version: tuple[int, int] = sys.version_info[:2]) -> list[Finding]:
    """MindSpore 2.10 is built for some versions of Python only."""
    text = f"{version[0]}.{version[1]} at {sys.executable}"
    if (3, 10) <= version <= (3, 12):
        return [Finding(True, text)]
    return [
        Finding(False, text, "use Python 3.10, 3.11 or 3.12: make quickstart PYTHON=python3.11")
    ]


def check_packages(installed: Callable[[str], str]) -> list[Finding]:
    """Installed versions against those that the project pins, MindSpore's enemies explained."""
    try:
        wanted = [Requirement(text) for text in metadata.requires("mindcycle") or []]
    except metadata.PackageNotFoundError:
        return [Finding(False, "mindcycle is not installed", "run make quickstart")]
    wrong = []
    needed = [item for item in wanted if item.marker is None or item.marker.evaluate({"extra": ""})]
    for item in needed:
        try:
            version = installed(item.name)
        except metadata.PackageNotFoundError:
            version = None
        if version is None or not item.specifier.contains(version, prereleases=True):
            reason = REFUSED.get(item.name.lower().replace("_", "-"), "the project pins it")
            found = f"{item.name} {version}" if version else f"{item.name} is missing"
            wrong.append(
                Finding(
                    False,
                    f"{found}, needed is {item.specifier}",
                    f"{reason}: .venv/bin/pip install -r requirements.lock",
                )
            )
    return wrong or [Finding(True, f"{len(needed)} as pinned, {_named(installed)}")]


def _named(installed: Callable[[str], str]) -> str:
    return ", ".join(f"{name} {installed(name)}" for name in REFUSED)


def check_disk(store: Path) -> list[Finding]:
    """Room where the store is, or will be."""
    place = store.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free / 1e9
    text = f"{free:.1f} GB free at {place}"
    if free >= DISK_GB:
        return [Finding(True, text)]
    return [Finding(False, text, f"make {DISK_GB:.0f} GB free, or choose another place: --store")]


def check_memory(meminfo: Path) -> list[Finding]:
    """Memory that programs can have without swapping."""
    try:
        lines = meminfo.read_text().splitlines()
        available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError, IndexError):
        return [Finding(True, "unknown: this system does not say")]
    text = f"{available / 1e6:.1f} GB available"
    if available / 1e6 >= MEMORY_GB:
        return [Finding(True, text)]
    return [Finding(False, text, f"free {MEMORY_GB:.0f} GB: end other programs, or add memory")]


def probe(name: str) -> Finding:
    """Run one of the probe's programs; explain its failure."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(PROBE), name]
        code = run_supervised(command, lines.append, Path(folder) / "log")
    if code == 0:
        return Finding(True, ", ".join(lines[-2:]))
    if code == 128 + signal.SIGALRM:
        return Finding(False, f"no result after {SECONDS} s", explain(lines))
    last = lines[-1] if lines else "silence"
    return Finding(False, f"ended with exit code {code}: {last}", explain(lines))


def explain(lines: list[str]) -> str:
    """What a failing program's output means, as far as it is known."""
    output = "\n".join(lines)
    for words, meaning in EXPLANATIONS:
        if words in output:
            return meaning
    return "\n                  ".join(["its last lines:", *lines[-8:]])
