"""Questions, scores and decisions: what evaluate, gate and release are given."""

import json

from artifacts.manifest import MANIFEST
from tests.bad_input.bench import (
    TASK,
    Bench,
    config,
    content,
    fields,
    file,
    half,
    inputs,
)
from tests.bad_input.case import Case, at


def _adapter_for_bundle(bench: Bench) -> None:
    manifest = json.loads((bench.artifact("bundle") / MANIFEST).read_bytes())
    base = {"digest": manifest["digest"], "identity": manifest["identity"]}
    (bench.artifact("adapter") / "base.json").write_text(json.dumps(base))
    bench.remade(bench.artifact("adapter"))


CSV = "mmlu/test/law_test.csv"
VAL = "ceval/val/law_val.csv"
ON_CEVAL = config({"tasks.0": {"suite": "ceval", "data": "local", "path": "ceval"}})
EVALUATE = [
    at(
        "evaluate",
        "MMLU rows that are wrong",
        (
            "law_test.csv:2: has 3 columns; 6 would be right: question, A, B, C, D, answer",
            "law_test.csv:3: the answer is 'E'; A, B, C or D would be right",
            "law_test.csv:4: option B is empty",
        ),
        file(CSV, "q,a,b,c,d,A\nq,a,b\nq,a,b,c,d,E\nq,a,,c,d,A\n"),
    ),
    at(
        "evaluate",
        "a quote that is not closed",
        "law_test.csv:2: is broken CSV: unexpected end of data; a quote is opened and not closed",
        file(CSV, 'q,a,b,c,d,A\n"q,a,b,c,d,A\n'),
    ),
    at(
        "evaluate",
        "questions in another encoding",
        "law_test.csv:1: is not UTF-8 (byte 0)",
        file(CSV, "é,a,b,c,d,A".encode("latin-1")),
    ),
    at("evaluate", "a file without questions", "law_test.csv: holds no question", file(CSV, "")),
    at(
        "evaluate",
        "C-Eval without answers",
        "law_val.csv: has no answers (C-Eval keeps those of its test split to itself); the val",
        ON_CEVAL,
        file(VAL, "id,question,A,B,C,D\n0,q,a,b,c,d\n"),
    ),
    at(
        "evaluate",
        "C-Eval under another header",
        "law_val.csv:1: header is 'number,question,A,B,C,D,answer'; id,question,A,B,C,D,answer and",
        ON_CEVAL,
        file(VAL, "number,question,A,B,C,D,answer\n0,q,a,b,c,d,A\n"),
    ),
    at(
        "evaluate",
        "C-Eval with an id twice",
        "law_val.csv:3: id is '0', which an earlier row has",
        ON_CEVAL,
        file(VAL, "id,question,A,B,C,D,answer\n0,q,a,b,c,d,A\n0,q,a,b,c,d,A\n"),
    ),
    at(
        "evaluate",
        "more examples than there are",
        "tasks.mmlu_continuation.num_fewshot: is 9, subject law has 4 examples in dev",
        config({"tasks.0.num_fewshot": 9}),
    ),
    at(
        "evaluate",
        "the world's questions without a corpus",
        "tasks.world_mmlu.data: is 'world'; that needs the corpus as an input (role corpus)",
        config({"tasks.0": {"suite": "mmlu", "data": "world"}}),
    ),
    at(
        "evaluate",
        "a suite that the world has not",
        "tasks.world_ceval.data: is 'world', but the corpus ",
        config({"tasks.0": {"suite": "ceval", "data": "world"}}),
        inputs(corpus="corpus"),
    ),
    at(
        "evaluate",
        "a saved dataset that is none",
        "tasks.mmlu.path: mmlu holds no dataset written by DatasetDict.save_to_disk",
        config({"tasks.0": {"suite": "mmlu", "data": "saved", "path": "mmlu"}}),
    ),
    at(
        "evaluate",
        "a chat template that is not there",
        "chat_template: is true; {root}/store/hf-model/2222222222222222 has no chat template",
        config({"chat_template": True}),
    ),
    at(
        "evaluate",
        "a chat template that is broken",
        "chat_template: the model's template fails: TemplateSyntaxError: ",
        config({"chat_template": True}),
        fields("model", "tokenizer_config.json", {"chat_template": "{% for %}"}),
    ),
    at(
        "evaluate",
        "a task that lm-eval has not",
        "tasks.moon.task: is 'moon'; lm-eval has no task, group or tag of this name",
        config({"tasks.0": {"task": "moon", "data": "mirror", "path": "mmlu"}}),
    ),
    at(
        "evaluate",
        "a mirror without the task's dataset",
        "tasks.arc_easy.path: mmlu has no files of allenai/ai2_arc, ARC-Easy; ",
        config({"tasks.0": {"task": "arc_easy", "data": "mirror", "path": "mmlu"}}),
    ),
    at(
        "evaluate",
        "a mirror that is not there",
        "tasks.arc_easy.path: nowhere holds no file ending in .csv, ",
        config({"tasks.0": {"task": "arc_easy", "data": "mirror", "path": "nowhere"}}),
    ),
    at(
        "evaluate",
        "a task file in no format of lm-eval's",
        "own.yaml: names no task; lm-eval's format begins with task: NAME",
        config({"tasks.0": {"task": "own.yaml", "data": "mirror", "path": "mmlu"}}),
        file("own.yaml", "questions: many\n"),
    ),
    at(
        "evaluate",
        "a task file that includes what is not there",
        "tasks.own.task: own.yaml includes base_yaml, which is no file",
        config({"tasks.0": {"task": "own.yaml", "data": "mirror", "path": "mmlu"}}),
        file("own.yaml", "include: base_yaml\ntask: own\n"),
    ),
    at(
        "evaluate",
        "held-out text that is not there",
        "tasks.text.texts: no file fits 'novels/*.txt'",
        config({"tasks.0": {"texts": ["novels/*.txt"]}}),
    ),
    at(
        "evaluate",
        "held-out text in another encoding",
        "novel.txt: is not UTF-8 (byte 0)",
        config({"tasks.0": {"texts": ["novel.txt"]}}),
        file("novel.txt", "é".encode("latin-1")),
    ),
    at(
        "evaluate",
        "an adapter that the bundle has not",
        "bundle_adapter: is 'poet'; ",
        inputs(model="bundle"),
        config({"bundle_adapter": "poet"}),
    ),
    at(
        "evaluate",
        "another model under the input's digest",
        "evaluate.lm_eval_model.args: names pretrained; the report goes by the digest",
        config({"lm_eval_model": {"name": "hf", "args": {"pretrained": "other"}}}),
    ),
    at(
        "evaluate",
        "a model that lm-eval has not",
        "lm_eval_model: moon cannot be loaded: ",
        config({"lm_eval_model": {"name": "moon"}}),
    ),
    at(
        "evaluate",
        "an adapter for another base",
        "belongs to the base with digest ",
        inputs(model="other", adapter="adapter"),
    ),
    at(
        "evaluate",
        "an adapter on a bundle",
        "inputs.adapter: an onnx-bundle takes no adapter; merge it and export the merged model",
        inputs(model="bundle", adapter="adapter"),
        lambda bench: _adapter_for_bundle(bench),
    ),
    at(
        "evaluate",
        "a bundle that is no graph",
        "model.onnx: is no ONNX graph: ",
        inputs(model="bundle"),
        content("bundle", "model.onnx", b"no graph"),
    ),
    at(
        "evaluate",
        "a bundle whose weights were cut short before it was made",
        "model.onnx_data: is cut short, tensor ",
        inputs(model="bundle"),
        content("bundle", "model.onnx_data", half),
    ),
    at(
        "evaluate",
        "a bundle whose config lacks a size",
        "genai_config.json: model.decoder.head_size: is required and missing",
        inputs(model="bundle"),
        fields("bundle", "genai_config.json", {"model.decoder.head_size": ...}),
    ),
    at(
        "evaluate",
        "questions that cannot fit",
        "4 questions are too long for the model even without examples, the first is law/0;",
        config({"max_length": 4}),
    ),
]


def answers(data: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in data.splitlines()]


def written(items: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(item) + "\n" for item in items).encode()


SCORES = "report.json"
ITEMS = "items.jsonl"
CONDITIONS = {
    "backend": ("torch", "backend kind (backend): candidate 'mindspore', base 'torch'"),
    "dtype": ("bfloat16", "element type (dtype): candidate 'float32', base 'bfloat16'"),
    "sampling_hash": ("x", "sampling profile (sampling_hash): candidate 'ssss"),
    "chat_template": ("x", "chat template (chat_template): candidate None, base 'x'"),
    "lm_eval": ("0.3", "lm-eval version (lm_eval): candidate '0.4.13', base '0.3'"),
}
GATE = [
    at(
        "gate",
        "a rule on a task that the report has not",
        f"gate.rules.0.task: 'mmlu' is not in the candidate's report, which has {TASK}",
        config({"rules.0.task": "mmlu"}),
    ),
    at(
        "gate",
        "a gain without a base",
        "gate.rules.1: gain_over_base needs the input base, an eval-report of it",
        inputs(base=None),
    ),
    at(
        "gate",
        "the same rule twice",
        f"gate: rules: floor stands twice for task {TASK}; keep one of them",
        config({"rules.1": {"rule": "floor", "task": TASK, "at_least": 0.5}}),
    ),
    at(
        "gate",
        "reports made under other conditions",
        (
            "inputs.base: is not comparable with the candidate: ",
            "; score both alike",
            *(says for _, says in CONDITIONS.values()),
        ),
        fields("base", SCORES, {f"conditions.{k}": value for k, (value, _) in CONDITIONS.items()}),
    ),
    at(
        "gate",
        "reports on other prompts",
        (
            f"{TASK}: prompt hash (prompt_hash): candidate 'pppp",
            f"{TASK}: few-shot count (num_fewshot): candidate 0, base 5",
        ),
        fields("base", SCORES, {f"tasks.{TASK}.prompt_hash": "q", f"tasks.{TASK}.num_fewshot": 5}),
    ),
    at(
        "gate",
        "reports on other questions",
        f"{TASK}: 1 item stands only in the candidate's report, first item-0000",
        content("base", ITEMS, lambda data: written(answers(data)[1:])),
        fields("base", SCORES, {f"tasks.{TASK}.items": 29}),
    ),
    at(
        "gate",
        "a report that its items contradict",
        f"inputs.candidate: report.json and items.jsonl disagree on task {TASK}",
        fields("candidate", SCORES, {f"tasks.{TASK}.correct": 29}),
    ),
    at(
        "gate",
        "a broken line of items",
        "items.jsonl:30: is no JSON: ",
        content("candidate", ITEMS, lambda data: data[:-20]),
    ),
    at(
        "gate",
        "an item twice",
        f"items.jsonl:31: item item-0000 of {TASK} stands twice",
        content("candidate", ITEMS, lambda data: data + data.splitlines()[0]),
    ),
    at(
        "gate",
        "a score that is no number",
        f"report.json: tasks.{TASK}.micro: is 'high'; input should be a valid number",
        fields("candidate", SCORES, {f"tasks.{TASK}.micro": "high"}),
    ),
    at(
        "gate",
        "too few items for an error",
        f"gate.rules.0.task: '{TASK}' has fewer than two independent items",
        content("candidate", ITEMS, lambda data: written(answers(data)[:1])),
        fields("candidate", SCORES, {f"tasks.{TASK}.items": 1, f"tasks.{TASK}.correct": 1}),
        config({"rules.1": ...}),
    ),
]


NO_LOSS = {"rule": "no_loss", "task": TASK, "margin": 0.3}
GATE_BUNDLE = [
    at(
        "gate_bundle",
        "a rule on a task that the reports have not",
        f"gate_bundle.rules.0.task: 'mmlu' is not in the candidate's report, which has {TASK}",
        config({"rules": [{**NO_LOSS, "task": "mmlu"}]}),
    ),
    at(
        "gate_bundle",
        "a margin below nothing",
        "gate_bundle.rules.0.margin: is -0.1; ",
        config({"rules": [{**NO_LOSS, "margin": -0.1}]}),
    ),
    at(
        "gate_bundle",
        "a rule that is for models",
        "gate_bundle.rules.0: input tag 'gain_over_base' found using 'rule' does not match any of",
        config({"rules": [{"rule": "gain_over_base", "task": TASK}]}),
    ),
    at(
        "gate_bundle",
        "no rule at all",
        "gate_bundle.rules: list should have at least 1 item",
        config({"rules": []}),
    ),
    at(
        "gate_bundle",
        "the same rule twice",
        f"gate_bundle: rules: no_loss stands twice for {TASK}; keep one of them",
        config({"rules": [NO_LOSS, {**NO_LOSS, "margin": 0.1}]}),
    ),
    at(
        "gate_bundle",
        "a bundle scored otherwise than its model",
        f"{TASK}: few-shot count (num_fewshot): candidate 5, base 0; score both alike",
        fields("bundle_scores", SCORES, {f"tasks.{TASK}.num_fewshot": 5}),
    ),
    at(
        "gate_bundle",
        "scores of other questions",
        f"{TASK}: 1 item stands only in the base's report, first item-0000",
        content("bundle_scores", ITEMS, lambda data: written(answers(data)[1:])),
        fields("bundle_scores", SCORES, {f"tasks.{TASK}.items": 29, f"tasks.{TASK}.correct": 29}),
    ),
    at(
        "gate_bundle",
        "answers that are not chosen, for same_choices",
        "gate_bundle.rules.0: same_choices looks at questions with choices; the reports have none",
        content("bundle_scores", ITEMS, lambda data: written(_unchosen(answers(data)))),
        content("candidate", ITEMS, lambda data: written(_unchosen(answers(data)))),
    ),
]


def _unchosen(items: list[dict[str, object]]) -> list[dict[str, object]]:
    return [item | {"choice": -1, "gold": -1} for item in items]


def _judge_again(bench: Bench) -> None:
    """The bundle's decision is about its scores as they are now."""
    scores = json.loads((bench.artifact("bundle_scores") / MANIFEST).read_bytes())
    path = bench.artifact("bundle_decision") / "decision.json"
    decision = json.loads(path.read_bytes())
    decision["candidate"]["report_digest"] = scores["digest"]
    path.write_text(json.dumps(decision))
    bench.remade(bench.artifact("bundle_decision"))


def _rejected(bench: Bench) -> None:
    """The bundle chooses otherwise on one question, and its gate said so."""
    path = bench.artifact("bundle_decision") / "decision.json"
    decision = json.loads(path.read_bytes())
    decision["outcome"], decision["rules"][0]["passed"] = "rejected", False
    path.write_text(json.dumps(decision))
    bench.remade(bench.artifact("bundle_decision"))


RELEASE = [
    at(
        "release",
        "a model that was rejected",
        f"the gate rejected this model (floor on {TASK}); only approved ones ship",
        fields("decision", "decision.json", {"outcome": "rejected", "rules.0.passed": False}),
    ),
    at(
        "release",
        "a decision about another report",
        "is about the report with digest ",
        inputs(candidate="base"),
    ),
    at(
        "release",
        "another model than was scored",
        "scores the hf-model with digest ",
        inputs(model="other"),
    ),
    at(
        "release",
        "a bundle made from another model",
        "was made from the model with digest none",
        fields("bundle", MANIFEST, {"inputs": {}}),
    ),
    at(
        "release",
        "a proof of another bundle",
        "was made from the bundle with digest none",
        fields("proof", MANIFEST, {"inputs": {}}),
    ),
    at(
        "release",
        "scores of another bundle",
        "scores the hf-model with digest ",
        inputs(bundle_scores="candidate"),
    ),
    at(
        "release",
        "a proof that failed",
        "agreement.json: does not say that the proof passed",
        fields("proof", "agreement.json", {"passed": False}),
    ),
    at(
        "release",
        "a proof without its figures",
        "agreement.json: max_scaled: is required and missing",
        fields("proof", "agreement.json", {"max_scaled": ...}),
    ),
    at(
        "release",
        "a bundle that its gate rejected",
        "the gate rejected this bundle (same_choices on all tasks); only approved ones ship",
        lambda bench: _rejected(bench),
    ),
    at(
        "release",
        "a bundle judged by too little",
        "has no rule same_choices; a bundle in fp32 must choose as the model on every item",
        fields("bundle_decision", "decision.json", {"rules.0.rule": "no_loss"}),
    ),
    at(
        "release",
        "a decision about another bundle",
        "is about the report with digest ",
        fields("bundle_decision", "decision.json", {"candidate.report_digest": "0" * 64}),
    ),
    at(
        "release",
        "a bundle scored otherwise",
        "conditions.max_length is 32, the candidate was scored with 64",
        fields("bundle_scores", SCORES, {"conditions.max_length": 32}),
        lambda bench: _judge_again(bench),
    ),
    at(
        "release",
        "a decision that is none",
        "decision.json: outcome: is 'perhaps'; input should be 'approved' or 'rejected'",
        fields("decision", "decision.json", {"outcome": "perhaps"}),
    ),
]


CASES: list[Case] = [*EVALUATE, *GATE, *GATE_BUNDLE, *RELEASE]
