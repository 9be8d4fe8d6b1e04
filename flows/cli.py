"""The command line. Heavy imports stand inside the commands, so that help comes at once.

Exit codes: 0 done, 1 failed while working, 2 bad input (nothing was done), 3 rejected by the gate.
"""

import errno
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from artifacts.errors import BadInput, MindCycleError, said_of
from artifacts.wording import counted
from flows.schema import SCHEMA_FILE, schema_text

app = typer.Typer(
    help="Text to a released model: pretrain, convert, evaluate, fine-tune, gate and export.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Config = Annotated[Path, typer.Argument(help="YAML file of the run.", metavar="CONFIG")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Replace a value of the config."),
]


def _store(text: str | Path) -> Path:
    if text == "":  # an unset variable of the shell; as a path it would be the current directory
        raise BadInput("--store: is ''; a directory would be right")
    return Path(text)


Store = Annotated[
    Path | None,
    typer.Option(
        help="Directory of the artifacts.",
        parser=_store,
        metavar="PATH",
        show_default="the config's",
    ),
]
OneStore = Annotated[
    Path, typer.Option(help="Directory of the artifacts.", parser=_store, metavar="PATH")
]
NoPrefect = Annotated[
    bool, typer.Option("--no-prefect", help="Run the same steps without a Prefect flow run.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show all that the stages say.")]
Reference = Annotated[
    str, typer.Argument(help="An artifact's directory, or 4 or more first digits of its digest.")
]
Named = Annotated[
    str,
    typer.Argument(
        help="latest (the newest release), a channel such as production, or an artifact's "
        "directory, or 4 or more first digits of its digest.",
        metavar="REFERENCE",
    ),
]
Bundle = Annotated[
    str,
    typer.Argument(
        help="latest (the newest release), a channel such as production, or a release or "
        "onnx-bundle: its directory, or the first digits of its digest."
    ),
]
Profile = Annotated[
    str, typer.Option("--sampling", help="Sampling profile: default, greedy, open, or a file.")
]
MaxTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Longest answer, in tokens.", show_default="the profile's"),
]
Stop = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="Text at which an answer ends.")
]
Adapter = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A .onnx_adapter file to answer with.")
]
Threads = Annotated[
    int, typer.Option(min=0, max=1024, help="Threads to compute with; 0 is all cores.")
]

Why = Annotated[str, typer.Option(help="The reason, for the record.")]
Who = Annotated[str | None, typer.Option(help="Your name.", show_default="the user's")]


@app.command()
def run(
    config: Config,
    overrides: Overrides = None,
    store: Store = None,
    no_prefect: NoPrefect = False,
    verbose: Verbose = False,
) -> None:
    """Run the lifecycle: every stage whose work is not done already, as a Prefect flow run."""
    from flows.running import run_work

    run_work(None, config, overrides or [], store, [], no_prefect, verbose)


@app.command()
def stage(
    name: Annotated[str, typer.Argument(help="Step to run, such as pretrain or evaluate-base.")],
    config: Config,
    overrides: Overrides = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", metavar="ROLE=ARTIFACT", help="Use this artifact instead of making it."
        ),
    ] = None,
    store: Store = None,
    no_prefect: NoPrefect = False,
    verbose: Verbose = False,
) -> None:
    """Run one stage, and before it what it needs and is not there yet."""
    from flows.running import run_work

    run_work(name, config, overrides or [], store, inputs or [], no_prefect, verbose)


@app.command(name="import")
def import_(
    directory: Annotated[
        Path, typer.Argument(help="A Hugging Face model, or an adapter that peft wrote.")
    ],
    base: Annotated[
        str | None,
        typer.Option(help="For an adapter: the model of the store that it belongs to."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Though the adapter says that it is another's.")
    ] = False,
    store: OneStore = Path("store"),
) -> None:
    """Take over a model, as a checkpoint to train from, or an adapter."""
    from flows.importing import import_directory

    import_directory(directory, store, base, force)


@app.command()
def check(config: Config, overrides: Overrides = None) -> None:
    """Check a config and the files it names; run nothing."""
    from flows.chain import check_sources
    from flows.lifecycle import load_work

    work = load_work(config, overrides or [])
    check_sources(work)
    print(f"{config}: is fine; {counted(len(work.steps), 'step')} into {work.store}")


@app.command()
def plan(
    config: Config,
    overrides: Overrides = None,
    device_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Of one device, such as 64GiB.")
    ] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Devices to propose a layout for.")
    ] = None,
    precision: Annotated[
        Literal["fp32", "fp16", "bf16"], typer.Option(help="Number format to count with.")
    ] = "fp32",
    reference_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens a step that the learning rate was found at."),
    ] = None,
) -> None:
    """Say what a pretraining takes: memory, communication, arithmetic; and propose a layout."""
    from flows.planning import print_plan

    print_plan(config, overrides or [], device_memory, devices, precision, reference_tokens)


@app.command()
def verify(reference: Named, store: OneStore = Path("store")) -> None:
    """Check every byte of an artifact, and of all it was made from, back to the data."""
    from flows.inspection import print_verification

    if not print_verification(reference, store):
        raise SystemExit(1)


@app.command()
def ls(
    store: OneStore = Path("store"),
    kind: Annotated[str | None, typer.Option(help="Only this kind, such as checkpoint.")] = None,
) -> None:
    """List the artifacts of a store, oldest first."""
    from flows.inspection import print_list

    print_list(store, kind)


@app.command()
def show(reference: Named, store: OneStore = Path("store")) -> None:
    """Show an artifact: what it is, what it was made from, its figures and files."""
    from flows.inspection import print_artifact

    print_artifact(reference, store)


@app.command()
def lineage(reference: Named, store: OneStore = Path("store")) -> None:
    """Show what an artifact was made from, step by step back to the files."""
    from flows.inspection import print_lineage

    print_lineage(reference, store)


@app.command()
def report(
    reference: Named,
    to: Annotated[
        Path | None, typer.Option(help="File to write.", show_default="KIND-IDENTITY.html")
    ] = None,
    store: OneStore = Path("store"),
) -> None:
    """Write one HTML file about an artifact, such as a release, and all it was made from."""
    from flows.report import write_report

    print(f"wrote {write_report(reference, store, to)}")


@app.command()
def gc(
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="CONFIG|ARTIFACT", help="Keep this, and all it is made from."),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(min=0, metavar="GB", help="Remove only until the store takes this much."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it; else it is only shown.")] = False,
    store: OneStore = Path("store"),
) -> None:
    """Remove artifacts and half-done work that no release, channel or running flow needs."""
    from flows.cleaning import collect_garbage

    collect_garbage(store, keep or [], budget, yes)


@app.command()
def compare(
    references: Annotated[
        list[str], typer.Argument(help="Eval-reports; the others are paired with the first.")
    ],
    store: OneStore = Path("store"),
) -> None:
    """Compare models item by item: wins, losses, McNemar's p and an interval, by group."""
    from flows.promotion import print_comparison

    print_comparison(references, store)


@app.command()
def approve(
    reference: Reference,
    why: Why,
    who: Who = None,
    no: Annotated[bool, typer.Option("--no", help="Turn it down instead.")] = False,
    store: OneStore = Path("store"),
) -> None:
    """Approve a decision of the gate that waits for a person, or turn it down."""
    from flows.promotion import print_approval

    print_approval(reference, store, not no, why, who)


@app.command()
def promote(
    reference: Reference,
    to: Annotated[str, typer.Option(help="candidate, staging or production.")],
    why: Why,
    who: Who = None,
    store: OneStore = Path("store"),
) -> None:
    """Move a channel to an artifact; its history keeps who, when, why and by which decision."""
    from flows.promotion import print_promotion

    print_promotion(reference, store, to, why, who)


@app.command()
def rollback(
    channel: Annotated[str, typer.Argument(help="candidate, staging or production.")],
    why: Why,
    who: Who = None,
    store: OneStore = Path("store"),
) -> None:
    """Move a channel back to what stood there before."""
    from flows.promotion import print_rollback

    print_rollback(channel, store, why, who)


@app.command()
def channels(store: OneStore = Path("store")) -> None:
    """Show what every channel stands for, and how it came there."""
    from flows.promotion import print_channels

    print_channels(store)


@app.command()
def doctor(store: OneStore = Path("store")) -> None:
    """Check whether this machine can run MindCycle, and say what to do where it cannot."""
    from flows.doctor import examine

    if not examine(store):
        raise SystemExit(1)


@app.command()
def up(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 4200,
    runs: Annotated[int, typer.Option(min=1, help="Flow runs that go on at once.")] = 1,
) -> None:
    """Start Prefect's server and user interface with all deployments; Ctrl-C ends all of it."""
    from flows import up as everything

    everything.up(host, port, runs)


@app.command()
def generate(
    bundle: Bundle,
    prompt: Annotated[
        str | None, typer.Argument(help="Text to go on from.", show_default="read from stdin")
    ] = None,
    sampling: Profile = "default",
    max_tokens: MaxTokens = None,
    stop: Stop = None,
    adapter: Adapter = None,
    threads: Threads = 0,
    store: OneStore = Path("store"),
) -> None:
    """Go on from a prompt, with onnxruntime alone; the text comes as it is written."""
    from serving.sampling import adapted, named
    from serving.terminal import generate, load

    profile = adapted(named(sampling), {"max_tokens": max_tokens, "stop": stop})
    served, name = load(bundle, store, adapter, threads)
    generate(served, name, sys.stdin.read() if prompt is None else prompt, profile)


@app.command()
def chat(
    bundle: Bundle,
    sampling: Profile = "default",
    max_tokens: MaxTokens = None,
    stop: Stop = None,
    adapter: Adapter = None,
    threads: Threads = 0,
    store: OneStore = Path("store"),
) -> None:
    """Talk with a model that has a chat template, with onnxruntime alone."""
    from serving.sampling import adapted, named
    from serving.terminal import chat, load

    profile = adapted(named(sampling), {"max_tokens": max_tokens, "stop": stop})
    served, name = load(bundle, store, adapter, threads)
    chat(served, name, profile)


@app.command()
def serve(
    bundle: Bundle,
    name: Annotated[
        str | None, typer.Option(help="Name to ask for.", show_default="the directory's")
    ] = None,
    adapters: Annotated[
        list[str] | None,
        typer.Option("--adapter", metavar="NAME=FILE", help="A .onnx_adapter file, asked by NAME."),
    ] = None,
    sampling: Profile = "default",
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Longest answer, in tokens; the profile's at most where none is asked for.",
            show_default="as long as fits",
        ),
    ] = None,
    max_body: Annotated[int, typer.Option(min=1, help="Longest request, in bytes.")] = 1 << 20,
    rows: Annotated[int, typer.Option(min=1, help="Answers written at once.")] = 16,
    waiting: Annotated[int, typer.Option(min=1, help="Requests that may wait besides.")] = 128,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds that answers have to end at a stop.")
    ] = 10.0,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 is a free one.")] = 8000,
    threads: Threads = 0,
    store: OneStore = Path("store"),
) -> None:
    """Answer over HTTP as OpenAI's clients ask, with onnxruntime alone; Ctrl-C ends it."""
    from serving.app import Limits
    from serving.run import Place, serve
    from serving.sampling import named

    serve(
        bundle,
        store,
        name,
        adapters or [],
        named(sampling),
        Limits(max_body, max_tokens),
        Place(host, port, rows, waiting, grace),
        threads,
    )


@app.command()
def schema(
    file: Annotated[Path, typer.Option(help="File to write.")] = SCHEMA_FILE,
) -> None:
    """Write the JSON schema of the config, which editors check configs with."""
    try:
        file.write_text(schema_text(), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{file}: cannot be written: {error.strerror}") from None
    print(f"wrote {file}")


GO_ON = ("run", "stage", "import")
"""Commands that, said once more, go on from where they were stopped."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command; errors end it with a sentence and their exit code."""
    from flows.stopping import Ended, end_on_signals
    from flows.streams import open_streams

    open_streams()
    end_on_signals()
    given = sys.argv[1:] if arguments is None else arguments
    try:
        _check_text(given)
        app(arguments, prog_name="mindcycle", standalone_mode=True)
    except MindCycleError as error:
        print(error, file=sys.stderr, flush=True)
        code = error.exit_code
    except Ended as ended:
        more = "; the same command goes on from here" if set(given[:1]) & set(GO_ON) else ""
        print(f"\nStopped{more}.", file=sys.stderr)
        code = 128 + ended.signal_number
    except OSError as error:
        print(said_of(error, "error"), file=sys.stderr)
        code = 2 if error.errno == errno.ENAMETOOLONG else 1
    else:
        code = 0
    sys.exit(code)


def _check_text(arguments: list[str]) -> None:
    """Raise BadInput for arguments whose bytes are no text, which no file could hold later."""
    encoding = sys.getfilesystemencoding()
    problems = [
        f"{text!a}: is no text in {encoding}, as arguments are read here; "
        "UTF-8 in a UTF-8 locale (such as LC_ALL=C.UTF-8) would be right"
        for text in arguments
        if any("\ud800" <= char <= "\udfff" for char in text)
    ]
    if problems:
        raise BadInput(*problems)
