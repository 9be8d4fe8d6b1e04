"""The whole table."""

from tests.bad_input import command_line, models, requests, scoring, training
from tests.bad_input.case import Case

CASES: list[Case] = [
    *command_line.CASES,
    *requests.CASES,
    *training.CASES,
    *models.CASES,
    *scoring.CASES,
]
