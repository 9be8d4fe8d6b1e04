"""The repetition penalty is transformers' own."""

import numpy as np
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from stages.evaluate.drawing import next_token
from stages.evaluate.sampling import Sampling

PENALTY = 1.3


def test_the_penalty_chooses_the_same_tokens() -> None:
    rng = np.random.default_rng(0)
    sampling = Sampling(
        do_sample=False,
        temperature=0,
        top_p=1,
        top_k=0,
        seed=0,
        max_tokens=1,
        repetition_penalty=PENALTY,
    )
    theirs = RepetitionPenaltyLogitsProcessor(PENALTY)
    changed = 0
    for _ in range(300):
        logits = rng.standard_normal(40).astype(np.float32)
        seen = rng.integers(0, 40, 30)
        scores = theirs(torch.tensor(seen)[None], torch.tensor(logits)[None])
        found = next_token(logits, sampling, rng, seen)
        assert found == int(scores.argmax())
        changed += found != logits.argmax()
    assert changed > 30
