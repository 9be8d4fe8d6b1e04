"""`mindcycle doctor`: is this machine fit, and if not, what to do.

Every check runs, each finding is printed as it comes, and what may crash runs in a process of its
own.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from flows.doctor_probe import SECONDS
from flows.stage_process import run_supervised

PROBE = Path(__file__).with_name("doctor_probe.py")
CLONE = Path(__file__).resolve().parent.parent
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
        ("venv", lambda: check_environment(os.environ, Path(sys.prefix), CLONE)),
        ("jupyter", lambda: check_kernels(kernel_folders(os.environ), Path(sys.prefix))),
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


def check_environment(
    environment: Mapping[str, str], prefix: Path, clone: Path, here: Path | None = None
) -> list[Finding]:
    """Whether Python is that of the activated environment, and the code that of this clone.

    A shell, an editor or a notebook often starts another Python than the one that was set up.
    """
    findings = []
    active = environment.get("VIRTUAL_ENV") or environment.get("CONDA_PREFIX")
    if active and Path(active).resolve() != prefix.resolve():
        findings.append(
            Finding(
                False,
                f"this Python belongs to {prefix}, but {active} is activated",
                f"run {Path(active) / 'bin' / 'mindcycle'}, or activate the other: "
                f"source {prefix / 'bin' / 'activate'}",
            )
        )
    here = here or Path.cwd()
    if (here / "flows" / "lifecycle.py").is_file() and here.resolve() != clone.resolve():
        findings.append(
            Finding(
                False,
                f"this directory is a clone of MindCycle, but the code that runs is in {clone}",
                f"install this one: {prefix / 'bin' / 'pip'} install --no-deps --editable {here}",
            )
        )
    return findings or [Finding(True, f"{prefix}, code in {clone}")]


def kernel_folders(environment: Mapping[str, str]) -> list[Path]:
    """Where Jupyter looks for kernels: of the user, and of this environment."""
    data = environment.get("JUPYTER_DATA_DIR")
    home = Path(environment.get("HOME", "/"))
    user = Path(data) if data else home / ".local" / "share" / "jupyter"
    return [user / "kernels", Path(sys.prefix) / "share" / "jupyter" / "kernels"]


def check_kernels(folders: Iterable[Path], prefix: Path) -> list[Finding]:
    """Whether a notebook can run in this environment, and which kernel does."""
    right, others = [], []
    for file in sorted(file for folder in folders for file in folder.glob("*/kernel.json")):
        try:
            program = json.loads(file.read_text(encoding="utf-8"))["argv"][0]
        except (OSError, ValueError, KeyError, IndexError, TypeError):
            others.append(f"{file} cannot be read")
            continue
        name = file.parent.name
        # Not resolved: the interpreter of an environment is a link to that of the system.
        if Path(program).parent == prefix / "bin" or "/" not in program:
            right.append(name)
        else:
            gone = "" if Path(program).exists() else ", which is gone"
            others.append(f"{name} starts {program}{gone}")
    if right:
        return [Finding(True, f"kernel {', '.join(right)} runs in this environment")]
    if not others:
        return [Finding(True, "no kernel is registered; only notebooks need one")]
    python = prefix / "bin" / "python"
    return [
        Finding(
            False,
            f"no kernel runs in this environment: {'; '.join(others)}",
            f"for notebooks: {python} -m pip install ipykernel, then {python} -m ipykernel "
            "install --user --name mindcycle, and choose the kernel mindcycle",
        )
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
    """Whether the store can be written where it is or will be, and room there."""
    place = store.absolute()
    while not place.exists():
        place = place.parent
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        text = f"{place} cannot be written: {error.strerror}"
        return [Finding(False, text, "choose another place: --store")]
    free = shutil.disk_usage(place).free / 1e9
    text = f"{free:.1f} GB free at {place}"
    if free >= DISK_GB:
        return [Finding(True, text)]
    return [Finding(False, text, f"make {DISK_GB:.0f} GB free, or choose another place: --store")]


def check_memory(meminfo: Path) -> list[Finding]:
    """Memory that programs can have without swapping."""
    try:
        lines = meminfo.read_text("utf-8").splitlines()
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
