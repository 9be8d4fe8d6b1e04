"""What is typed, and what stands in the YAML file."""

from tests.bad_input.bench import (
    Bench,
    content,
    fields,
    file,
    flipped,
    half,
    listening,
    tampered,
)
from tests.bad_input.case import Case, config, typed


def taken_port(bench: Bench) -> int:
    """The port of the server that `listening` has started."""
    assert bench.taken is not None
    port: int = bench.taken.getsockname()[1]
    return port


BOMB = ["k0: &k0 [a, a]"]
BOMB += [f"k{i}: &k{i} [{', '.join([f'*k{i - 1}'] * 10)}]" for i in range(1, 10)]
BOMB += ["corpus: *k9"]

FILES = [
    typed(
        "config", "no such file", "nowhere.yaml: cannot be read: No such file", "run nowhere.yaml"
    ),
    typed("config", "a directory for a file", "mmlu: cannot be read: Is a directory", "run mmlu"),
    typed(
        "config",
        "an empty file",
        "run.yaml: is empty, a config is a mapping of sections",
        "run run.yaml",
        file("run.yaml", b""),
    ),
    typed(
        "config",
        "a file in another encoding",
        "run.yaml: is not UTF-8 at byte 6",
        "run run.yaml",
        file("run.yaml", "name: é".encode("latin-1") + b"x"),
    ),
    typed(
        "config",
        "a list instead of sections",
        "run.yaml: must be a mapping of sections, not list",
        "run run.yaml",
        file("run.yaml", "- corpus\n"),
    ),
    typed(
        "config",
        "a key said twice",
        "run.yaml: line 3: steps is said twice, first in line 2",
        "check run.yaml",
        file("run.yaml", "pretrain:\n  steps: 1\n  steps: 2\n"),
    ),
    typed(
        "config",
        "a tag that would run code",
        (
            "run.yaml: line 1: holds the tag !!python/object/apply:os.system; tags are not allowed",
            "write plain values",
        ),
        "check run.yaml",
        file("run.yaml", "name: !!python/object/apply:os.system ['touch canary']\n"),
    ),
    typed(
        "config",
        "YAML that is none",
        "run.yaml: line 2: is no YAML: ",
        "check run.yaml",
        file("run.yaml", "name: [tiny,\ncorpus: }"),
    ),
    typed(
        "config",
        "lists within lists without end",
        "run.yaml: line 1: is nested too deeply",
        "check run.yaml",
        file("run.yaml", "[" * 5000),
    ),
    typed(
        "config",
        "aliases that stand for billions of values",
        "run.yaml: holds more than 100000 values, its aliases written out",
        "check run.yaml",
        file("run.yaml", "\n".join(BOMB)),
    ),
    typed(
        "config",
        "a file of megabytes",
        "run.yaml: is longer than 1 MiB; a config is a page or two",
        "check run.yaml",
        file("run.yaml", lambda data: data + b"# nothing\n" * 200_000),
    ),
    typed(
        "config",
        "a number of thousands of digits",
        "run.yaml: line 1: a number has 5000 digits",
        "check run.yaml",
        file("run.yaml", "name: " + "9" * 5000),
    ),
    typed(
        "config",
        "several problems at once",
        (
            "pretrain.steps: is 'many'; input should be a valid integer",
            "finetune.lora.rnk: is no known key; did you mean rank?",
            "gate.rules.0.at_least: is 80; input should be less than or equal to 1",
        ),
        "check run.yaml --set pretrain.steps=many --set finetune.lora.rnk=2 "
        "--set gate.rules.0.at_least=80",
    ),
]

VALUES = [
    config(
        "a truth for a number",
        "pretrain.batch.global_size: is true; a number would be right",
        "pretrain.batch.global_size=true",
    ),
    config("an unknown section", "convrt: is no known key; did you mean convert?", "convrt={}"),
    config("a section missing", "gate: is null; a mapping of settings would be right", "gate="),
    config(
        "not a number",
        "pretrain.optimizer.eps: is 'nan'; input should be greater than 0",
        "pretrain.optimizer.eps=nan",
    ),
    config(
        "a number without end",
        "pretrain.optimizer.clip_norm: is inf; must be a finite number",
        "pretrain.optimizer.clip_norm=inf",
    ),
    config(
        "a size without a unit",
        (
            "convert.max_shard_size: is '2 potatoes'; ",
            "a number above 0 and a unit from KB to TB or KiB to TiB would be right",
        ),
        "convert.max_shard_size=2 potatoes",
    ),
    config(
        "a name that no file may have",
        "name: is '../out'; string should match pattern",
        "name=../out",
    ),
    config(
        "key/value heads that do not divide the heads",
        "pretrain.model: kv_heads 3 does not divide heads 2",
        "pretrain.model.kv_heads=3",
    ),
    config(
        "a width that the heads do not divide",
        "pretrain.model: hidden_size 33 is no multiple of heads 2; change one of them",
        "pretrain.model.hidden_size=33",
    ),
    config(
        "heads that tensor processes cannot divide",
        "pretrain: parallel.tensor: is 3, which does not divide model.heads 2",
        "pretrain.parallel.tensor=3",
    ),
    config(
        "more pipeline stages than layers",
        "parallel.pipeline: is 9; the model has only 2 layers, and every stage needs one",
        "pretrain.parallel.pipeline=9",
    ),
    config(
        "stages of a pipeline computed again twice",
        "recompute: is true; the stages of parallel.pipeline 2 are computed again already",
        "pretrain.parallel.pipeline=2",
        "pretrain.recompute=true",
    ),
    config(
        "AdamW's state divided over one process",
        "pretrain.parallel: zero 1 divides AdamW's state over data processes, and data is 1",
        "pretrain.parallel.zero=1",
    ),
    config(
        "a machine that is none of those counted",
        "pretrain.parallel: node_rank 2 is none of the 2 nodes, which are counted from 0",
        "pretrain.parallel={data: 2, nodes: 2, node_rank: 2, master: 'host:7077'}",
    ),
    config(
        "several machines and no place to meet",
        "pretrain.parallel: master is missing; 2 nodes meet at its host:port",
        "pretrain.parallel={data: 2, nodes: 2}",
    ),
    config(
        "processes that the machines do not divide",
        (
            "pretrain.parallel: 2 processes (data x tensor x pipeline) do not divide over 4 nodes; "
            "a multiple of 4 would"
        ),
        "pretrain.parallel={data: 2, nodes: 4, master: 'host:7077'}",
    ),
    config(
        "a place to meet without a port",
        "pretrain.parallel.master: is 'host'; ",
        "pretrain.parallel={data: 2, nodes: 2, master: host}",
    ),
    config(
        "a place to meet at a port that is none",
        "pretrain.parallel: master host:70777 has no port of 1 to 65535",
        "pretrain.parallel={data: 2, nodes: 2, master: 'host:70777'}",
    ),
    config(
        "bf16 on CPU",
        "pretrain: precision: is 'bf16', in which MindSpore has no matrix product on CPU",
        "pretrain.precision=bf16",
        "pretrain.device=CPU",
    ),
    config(
        "an odd head size",
        "pretrain.model: head_dim 7 must be even for the rotary embedding",
        "pretrain.model.head_dim=7",
    ),
    config(
        "more layers than any model has",
        "pretrain.model: layers: is 1000000000; input should be less than or equal to 10000",
        "pretrain.model.layers=1000000000",
    ),
    config(
        "sequences longer than the model",
        "pretrain: model.max_positions 16 is less than batch.sequence_length 32",
        "pretrain.model.max_positions=16",
        "finetune.max_length=16",
    ),
    config(
        "tokens a step that make no whole sequences",
        (
            "pretrain.batch: global_tokens 100 is no multiple of sequence_length 32; "
            "96 or 128 would be"
        ),
        "pretrain.batch={sequence_length: 32, global_tokens: 100}",
    ),
    config(
        "a batch that the processes do not divide",
        "pretrain: batch: 8 sequences a step do not divide over parallel.data 3 processes; 6 or 9",
        "pretrain.parallel.data=3",
    ),
    config(
        "a batch that accumulation does not divide",
        "8 sequences a step are no multiple of parallel.data 1 x per_device_size 3 = 3; 6 or 9",
        "pretrain.batch.per_device_size=3",
    ),
    config(
        "both sizes of the batch",
        "pretrain.batch: state exactly one of global_tokens and global_size",
        "pretrain.batch.global_tokens=256",
    ),
    config(
        "a fine-tuning batch that accumulation does not divide",
        "finetune.batch: per_device_size 3 does not divide global_size 4; 2 would",
        "finetune.batch.per_device_size=3",
    ),
    config(
        "steps and epochs",
        "finetune: steps and epochs: both is set; one of them would be right",
        "finetune.epochs=2",
    ),
    config(
        "examples longer than the model will be",
        "finetune.max_length: is 256; the model will have 128 positions",
        "finetune.max_length=256",
    ),
    config(
        "a proof longer than the model will be",
        "prove.longest: is 500; the model will have 128 positions",
        "prove.longest=500",
    ),
    config(
        "rounded weights without a word on what they may cost",
        (
            "gate_bundle.rules: is not set; rounding weights (export.precision: int8) changes some "
            "choices, so say what it may cost",
        ),
        "export.precision=int8",
    ),
    config(
        "a bundle in fp32 that may choose otherwise",
        "gate_bundle.rules: has no same_choices; a bundle in fp32 must choose as the model on",
        "gate_bundle.rules=[{rule: no_loss, task: world_mmlu_continuation}]",
    ),
    config(
        "a rule for the bundle on a task that nobody asks",
        "gate_bundle.rules.1.task: is 'mmlu'; evaluate asks world_mmlu_continuation",
        "gate_bundle.rules=[{rule: same_choices}, {rule: no_loss, task: mmlu}]",
    ),
    config(
        "an engine that cannot run the graph",
        "prove.engines: names reference, which lacks com.microsoft's operators",
        "export.operators=microsoft",
        "prove.engines=[onnxruntime, reference]",
    ),
    config(
        "a chat template that no trained tokenizer has",
        "evaluate.chat_template: is true; a tokenizer that is trained here has no chat template",
        "evaluate.chat_template=true",
    ),
    config(
        "a base and a tuned model under different chat templates",
        "evaluate.chat_template: is true; finetune.template chatml gives the tuned model a chat "
        "template of its own, so gain_over_base would compare unlike prompts",
        "evaluate.chat_template=true",
        "finetune.template=chatml",
        "corpus.tokenizer={file: tokenizer.json}",
        "gate.rules.0={rule: gain_over_base, task: world_mmlu_continuation}",
    ),
    config(
        "a LoRA target that no model has",
        "finetune.lora.targets.1: is 'c_attn'; input should be 'q_proj', 'k_proj'",
        "finetune.lora.targets=[q_proj, c_attn]",
    ),
    config(
        "an unknown kind of source",
        "corpus.sources.0: kind must be world, files, saved or hub",
        "corpus.sources.0.kind=script",
    ),
    config(
        "a hub dataset without the network",
        "corpus: sources 1 come from the hub; set allow_network: true",
        "corpus.sources=[{kind: world}, {kind: hub, name: some/script}]",
    ),
    config(
        "a pattern that fits no file",
        "corpus.sources.1.paths.0: 'no/*.txt' fits no file (looked from ",
        "corpus.sources=[{kind: world}, {kind: files, paths: ['no/*.txt']}]",
    ),
    config(
        "tasks on a world that is not made",
        "evaluate.tasks.0.data: is 'world', but the corpus has none; add a source of kind world",
        "corpus.sources=[{kind: files, paths: [text.txt]}]",
    ),
    config(
        "C-Eval's test split",
        "C-Eval keeps the answers of its test split to itself, so only val can be scored",
        "evaluate.tasks.1.split=test",
    ),
    config(
        "two tasks of one name",
        "evaluate: tasks: two are called 'world_mmlu_continuation'; give one a name of its own",
        "evaluate.tasks.1.name=world_mmlu_continuation",
    ),
    config(
        "a folder without the split",
        "tasks.mmlu.path: ceval has no folder test (and no data/test)",
        "evaluate.tasks.1={suite: mmlu, data: local, path: ceval}",
    ),
    config(
        "a subject that is not there",
        "tasks.mmlu.subjects: mmlu/test has no physics; it has law",
        "evaluate.tasks.1={suite: mmlu, data: local, path: mmlu, subjects: [physics]}",
    ),
    config(
        "an unknown sampling profile",
        "evaluate.sampling: is 'wild'; no such profile; deepseek-r1, default, greedy, ",
        "evaluate.sampling=wild",
    ),
    config(
        "drawing at temperature 0",
        "evaluate.sampling: do_sample with temperature 0 draws nothing; set do_sample: false",
        "evaluate.sampling={do_sample: true, temperature: 0, top_p: 1, top_k: 0, seed: 0, "
        "max_tokens: 9}",
    ),
    config(
        "a rule on a task that is not asked",
        "gate.rules.0.task: is 'mmlu'; evaluate asks world_mmlu_continuation, world_ceval",
        "gate.rules.0.task=mmlu",
    ),
    config(
        "a rule that needs a baseline, without one",
        "gate.rules.0: no_regression needs scores to compare with; set baseline",
        "gate.rules=[{rule: no_regression, task: world_mmlu_continuation}]",
    ),
    config(
        "a number of steps that no run reaches",
        "pretrain.steps: is 1000000000000000000000000000000; input should be less than or equal to",
        f"pretrain.steps={10**30}",
    ),
    config(
        "a batch that no memory holds",
        "pretrain.batch.global_size: is 100000000000; input should be less than or equal to",
        f"pretrain.batch.global_size={10**11}",
    ),
    config(
        "a part of a batch larger than any batch",
        "finetune.batch: per_device_size 1000000000 does not divide global_size 4; 4 would",
        f"finetune.batch.per_device_size={10**9}",
    ),
    config(
        "a rank beyond any width",
        "finetune.lora.rank: is 1000000000000000000000000000000; input should be less than",
        f"finetune.lora.rank={10**30}",
    ),
    config(
        "a limit without end",
        "evaluate.tasks.1.limit: is inf; a whole number from 1 or a share between 0 and 1 would do",
        "evaluate.tasks.1.limit=1e999",
    ),
    config(
        "texts of no name",
        "evaluate: tasks.text.texts: no file fits ''",
        "evaluate.tasks.1={texts: ['']}",
    ),
    config(
        "a path too long for any disk",
        "/state.json: File name too long",
        "pretrain.resume_from=" + "x" * 300,
    ),
    config("no rule at all", "gate.rules: list should have at least 1 item", "gate.rules=[]"),
    config(
        "an unknown rule",
        "gate.rules.0: input tag 'luck'",
        "gate.rules.0.rule=luck",
    ),
    config(
        "a baseline that is not there",
        "baseline: 0123abcd: is neither an artifact's directory nor the beginning of",
        "baseline=0123abcd",
    ),
    config(
        "a baseline that is no report",
        "gate: input baseline: store/adapter/4444444444444444 is of kind adapter, "
        "needed is eval-report",
        "baseline=store/adapter/4444444444444444",
    ),
]

OWN = "finetune.data={files: [sft.jsonl], format: alpaca}"


def source(handed: str, says: str, name: str, data: bytes | str, *overrides: str) -> Case:
    """`mindcycle check` looks into a file that the tiny run's config names."""
    arguments = ["check", "run.yaml"]
    for override in overrides:
        arguments += ["--set", override]
    return typed("config", handed, says, arguments, file(name, data))


SOURCES = [
    config(
        "more worked examples than the world has",
        "evaluate.tasks.0.num_fewshot: is 50; the world has 4 examples a subject",
        "evaluate.tasks.0.num_fewshot=50",
    ),
    config(
        "more worked examples than the files have",
        "evaluate: tasks.mmlu.num_fewshot: is 50, subject law has 4 examples in dev",
        "evaluate.tasks.1={suite: mmlu, data: local, path: mmlu, num_fewshot: 50}",
        "gate.rules=[{rule: floor, task: mmlu, at_least: 0.5}]",
    ),
    config(
        "a rule on held-out text",
        "gate.rules.0.task: is 'held', text, measured in bits per byte; rules look at tasks whose",
        "evaluate.tasks.1={texts: [text.txt], name: held}",
        "gate.rules=[{rule: floor, task: held, at_least: 0.5}]",
    ),
    config(
        "a rule for the bundle on held-out text",
        "gate_bundle.rules.1.task: is 'held', text, measured in bits per byte; rules look at tasks",
        "evaluate.tasks.1={texts: [text.txt], name: held}",
        "gate.rules=[{rule: floor, task: world_mmlu_continuation, at_least: 0.5}]",
        "gate_bundle.rules=[{rule: same_choices}, {rule: floor, task: held, at_least: 0.5}]",
    ),
    source(
        "instructions that are binary",
        "finetune: sft.jsonl:1: is not UTF-8",
        "sft.jsonl",
        b"\x89PNG\r\n\xff",
        OWN,
    ),
    source(
        "instructions in an empty list",
        "finetune: sft.jsonl: holds no example",
        "sft.jsonl",
        "[]",
        OWN,
    ),
    source(
        "instructions in another format",
        "finetune: sft.jsonl:1: instruction must be a text, as in {instruction, input, output}",
        "sft.jsonl",
        '{"prompt": "a", "completion": "b"}',
        OWN,
    ),
    source(
        "instructions without an answer",
        "finetune.data: none of 1 example can be used: empty answer (1)",
        "sft.jsonl",
        '{"instruction": "a", "output": " "}',
        OWN,
    ),
    source(
        "an empty text of the corpus",
        "corpus: text.txt: is empty; remove it from sources, or give it text",
        "text.txt",
        "",
        "corpus.sources=[{kind: world}, {kind: files, paths: [text.txt]}]",
    ),
    source(
        "a text of the corpus that is binary",
        "corpus: text.txt: is not UTF-8 at byte 0 (line 1, value 0x89)",
        "text.txt",
        b"\x89PNG\r\n\xff",
        "corpus.sources=[{kind: world}, {kind: files, paths: [text.txt]}]",
    ),
    source(
        "a held-out text that is binary",
        "evaluate: text.txt: is not UTF-8 (byte 0)",
        "text.txt",
        b"\x89PNG\r\n\xff",
        "evaluate.tasks=[{suite: mmlu, form: continuation, data: world}, {texts: [text.txt]}]",
        "gate.rules=[{rule: floor, task: world_mmlu_continuation, at_least: 0.5}]",
    ),
    source(
        "a corpus's tokenizer that is none",
        "corpus: tokenizer/tokenizer.json: is no tokenizer: ",
        "tokenizer/tokenizer.json",
        "{}",
        "corpus.tokenizer={file: tokenizer/tokenizer.json}",
    ),
]

OVERRIDES = [
    config("an override without a value", "--set pretrain.steps: has no '='", "pretrain.steps"),
    config("an override without a path", "--set =3: '' is no path, write key.path=value", "=3"),
    config(
        "an override beyond a list",
        "--set evaluate.tasks.7.limit=1: evaluate.tasks is a list, '7' is none of 0 to 1",
        "evaluate.tasks.7.limit=1",
    ),
    config(
        "an override below a plain value",
        "--set pretrain.steps.more=1: pretrain.steps is 12, so it has no 'more'",
        "pretrain.steps.more=1",
    ),
    config(
        "an override with a tag",
        "--set name=!!python/name:os.system: line 1: holds the tag !!python/name:os.system",
        "name=!!python/name:os.system",
    ),
]

COMMANDS = [
    typed("command line", "an unknown command", "No such command 'fly'", "fly"),
    typed("command line", "an unknown option", "No such option: --bogus", "run run.yaml --bogus"),
    typed("command line", "no config", "Missing argument 'CONFIG'", "run"),
    typed(
        "command line",
        "an unknown stage",
        "pretrian: is no step, the steps are corpus, pretrain, convert, evaluate-base",
        "stage pretrian run.yaml --no-prefect",
    ),
    typed(
        "command line",
        "an input that the stage does not take",
        "input corpus: merge takes no such input, only model, adapter",
        "stage merge run.yaml --no-prefect --input corpus={corpus}",
    ),
    typed(
        "command line",
        "an input of another kind",
        "merge: input adapter: {root}/store/corpus/0000000000000000 is of kind corpus, needed is",
        "stage merge run.yaml --no-prefect --input model={model} --input adapter={corpus}",
    ),
    typed(
        "command line",
        "an input without its role",
        "input {root}/store/hf-model/2222222222222222: write role=directory or role=digest",
        "stage merge run.yaml --no-prefect --input {model}",
    ),
    typed(
        "command line",
        "an input given twice",
        "input model: is given twice",
        "stage merge run.yaml --no-prefect --input model={model} --input model={other}",
    ),
    typed(
        "command line",
        "a reference to nothing",
        "deadbeef: is neither an artifact's directory nor the beginning of (4 digits or more)",
        "show deadbeef",
    ),
    typed(
        "command line",
        "a reference too short",
        "222: is neither an artifact's directory nor the beginning of (4 digits or more)",
        "show 222",
    ),
    typed(
        "command line",
        "a reference to several",
        "2222: fits 2 artifacts: ",
        "verify 2222",
        fields("adapter", "manifest.json", {"identity": "2222" + "4" * 60}),
    ),
    typed(
        "command line",
        "a directory that is no artifact",
        "mmlu: is no artifact, it has no manifest.json",
        "verify mmlu",
    ),
    typed(
        "command line",
        "a store that is not there",
        "store: none is no directory",
        "ls --store none",
    ),
    typed(
        "command line",
        "a kind that is none",
        "kind: is 'model'; corpus, checkpoint, hf-model, adapter, eval-report, decision",
        "ls --kind model",
    ),
    typed(
        "command line",
        "a store with a broken manifest",
        "store/hf-model/2222222222222222/manifest.json: is no JSON: ",
        "ls",
        content("model", "manifest.json", lambda data: data[: len(data) // 2]),
    ),
    typed(
        "command line",
        "an empty store, as of an unset variable",
        "--store: is ''; a directory would be right",
        ["ls", "--store", ""],
    ),
    typed(
        "command line",
        "`channels` of a store that is not there",
        "store: none is no directory",
        "channels --store none",
    ),
    typed(
        "command line",
        "bytes that are no text",
        "'s\\udcff': is no text in utf-8, as arguments are read here; UTF-8 in a UTF-8 locale",
        ["ls", "--store", "s\udcff"],
    ),
    typed(
        "command line",
        "a report into no directory",
        "--to: none/x.html cannot be written: No such file or directory",
        "report {model} --to none/x.html",
    ),
    typed(
        "command line",
        "a report onto a directory",
        "--to: mmlu is a directory; a file would be right",
        "report {model} --to mmlu",
    ),
    typed(
        "command line",
        "a report into an artifact",
        "x.html lies inside the artifact {root}/store/hf-model/2222222222222222, whose files are",
        "report {model} --to {model}/x.html",
    ),
    typed(
        "command line",
        "a store that is a file",
        "store: text.txt is a file; a directory would be right",
        "run run.yaml --no-prefect --store text.txt",
    ),
    typed(
        "command line",
        "a schema into no directory",
        "none/schema.json: cannot be written: No such file or directory",
        "schema --file none/schema.json",
    ),
    typed(
        "command line",
        "a port that is none",
        "Invalid value for '--port': ",
        "up --port 70000",
    ),
    typed(
        "command line",
        "`up` outside of the clone",
        "prefect.yaml: is not here; run this in MindCycle's clone",
        "up",
    ),
    Case(
        "command line",
        "`up` on a port that is taken",
        ("on 127.0.0.1: Address already in use; stop what listens there, or choose another with",),
        lambda bench: bench.mindcycle("up", "--port", str(taken_port(bench))),
        (file("prefect.yaml", "x: 1"), listening),
    ),
    typed(
        "command line",
        "`up` on an address of another machine",
        "port 4200 on 192.0.2.1: Cannot assign requested address; --host takes an address of this",
        "up --host 192.0.2.1",
        file("prefect.yaml", "x: 1"),
    ),
]

STORES = [
    typed(
        "command line",
        "`verify` of a model that was changed",
        (
            "model.safetensors: has changed, its sha256 is not the manifest's",
            "1 artifact checked, 1 problem",
        ),
        "verify {model}",
        tampered("model", "model.safetensors", flipped),
        code=1,
    ),
    typed(
        "command line",
        "`verify` of a bundle whose model was changed",
        ("hf-model/2222222222222222/config.json: has ", "2 artifacts checked, 1 problem"),
        "verify {bundle}",
        tampered("model", "config.json", half),
        code=1,
    ),
    typed(
        "command line",
        "`verify` of a decision about a report that was made anew",
        "eval-report/5555555555555555: is not what {root}/store/decision/8888888888888888 was made",
        "verify {decision}",
        fields("candidate", "report.json", {"conditions.dtype": "fp16"}),
        code=1,
    ),
    typed(
        "command line",
        "a stage on a model that was changed",
        "model.safetensors: has changed, its sha256 is not the manifest's",
        "stage merge run.yaml --no-prefect --store store --input model={model} "
        "--input adapter={adapter}",
        tampered("model", "model.safetensors", flipped),
    ),
]

CASES: list[Case] = [*FILES, *VALUES, *SOURCES, *OVERRIDES, *COMMANDS, *STORES]
