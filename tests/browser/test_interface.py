"""A person at Prefect's interface, in a real browser against a real server: `make browser`.

Needs Chromium (on the path, or named by CHROMIUM) and Playwright. What was seen is left in
build/browser as pictures, of which docs/images has some.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import psutil
import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, expect, sync_playwright

from tests.command import ROOT, processes_about
from tests.up import Server, start_up, wait_for

PICTURES = ROOT / "build" / "browser"
STORE = "build/browser/store"
"""Relative to the clone, so that no picture shows a folder of this machine."""
SECONDS = 600
"""For what takes as long as the machine is slow."""
# About a minute of work for the corpus stage, of which none will be finished.
LONG = "corpus.sources.0.documents=5000000"

pytestmark = pytest.mark.timeout(6 * SECONDS)


class Interface:
    """The interface as somebody sees and uses it."""

    def __init__(self, page: Page, server: Server):
        self.page = page
        self.server = server
        self.base = server.url.removesuffix("/api")
        self.elsewhere: set[str] = set()
        page.context.on("request", lambda request: self._note(request.url))

    def _note(self, url: str) -> None:
        if not url.startswith((self.base, f"blob:{self.base}", "data:")):
            self.elsewhere.add(url)

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait for something, while the page goes on; returns what the condition gave."""
        deadline = time.monotonic() + SECONDS
        while not (found := condition()):
            if time.monotonic() > deadline:
                self.take_picture("failure")
                raise AssertionError("see failure.png")
            self.page.wait_for_timeout(500)
        return found

    def open(self, path: str) -> None:
        self.page.goto(f"{self.base}{path}")

    def deployment(self, name: str) -> Any:
        return self.server.call(f"/deployments/name/{name}")

    def field(self, name: str) -> Locator:
        """A parameter of the form; the innermost one that bears this name."""
        label = self.page.get_by_text(name, exact=True)
        return self.page.locator(".schema-form-property", has=label).last

    def choose(self, name: str, option: str) -> None:
        """Take an option of a field's list, by the keyboard."""
        control = self.field(name).locator(".p-select-button__control")
        offered = self.page.locator(".p-select-option", has_text=option)

        def opened() -> int:
            control.press("Space")
            self.page.wait_for_timeout(1000)
            return offered.count()

        self.until(opened)
        offered.click()
        expect(control).to_contain_text(option)

    def submitted(self) -> Any:
        """Send the form, once more if nothing came of it; the runs that there are."""
        self.page.get_by_role("button", name="Submit").click()
        for _ in range(40):
            if runs := self.server.call("/flow_runs/filter", {}):
                return runs
            self.page.wait_for_timeout(500)
        return []

    def sees(self, text: str, seconds: float = SECONDS) -> Locator:
        found = self.page.get_by_text(text).first
        expect(found).to_be_visible(timeout=1000 * seconds)
        return found

    def state(self, text: str) -> None:
        """Wait until the page of a run shows this state."""
        badge = self.page.locator(".page-heading-flow-run .state-badge", has_text=text)
        expect(badge).to_be_visible(timeout=1000 * SECONDS)

    def shows_picture(self, name: str) -> bool:
        """Whether a picture is there, and is one, within seconds."""
        self.page.wait_for_timeout(3000)
        picture = self.page.get_by_alt_text(name)
        drawn = "image => image.complete && image.naturalWidth > 100"
        return bool(picture.count() and picture.first.evaluate(drawn))

    def artifact(self, run: str, key: str) -> None:
        """Open a page that a run has made, as soon as it is there."""
        about = {"artifacts": {"flow_run_id": {"any_": [run]}, "key": {"any_": [key]}}}
        found = self.until(lambda: self.server.call("/artifacts/filter", about))
        self.open(f"/artifacts/artifact/{found[-1]['id']}")

    def follow(self, link: str) -> None:
        """Click on a link in a page; Prefect opens it in a tab of its own, where we go on."""
        with self.page.context.expect_page() as opened:
            self.page.get_by_role("link", name=link, exact=True).first.click()
        self.page = opened.value

    def take_picture(self, name: str) -> None:
        """What is seen now, in 64 colours."""
        self.page.wait_for_timeout(1500)  # what slides and fades has come to rest
        seen = Image.open(BytesIO(self.page.screenshot())).convert("RGB")
        seen.quantize(64, dither=Image.Dither.NONE).save(PICTURES / f"{name}.png", optimize=True)


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interface]:
    shutil.rmtree(ROOT / STORE, ignore_errors=True)
    PICTURES.mkdir(parents=True, exist_ok=True)
    process, server = start_up(tmp_path_factory.mktemp("prefect"))
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            context = browser.new_context(viewport={"width": 1100, "height": 760})
            context.set_default_timeout(1000 * SECONDS)
            yield Interface(context.new_page(), server)
            browser.close()
    finally:
        process.terminate()
        process.wait(60)
        for child in psutil.Process().children(recursive=True):
            child.kill()


def test_a_form_is_filled_a_person_approves_and_it_is_released(ui: Interface) -> None:
    ui.open(f"/deployments/deployment/{ui.deployment('lifecycle/default')['id']}/run")
    ui.sees("pretrain.steps")
    ui.choose("config (Optional)", "configs/tiny.yaml")
    ui.field("pretrain.steps (Optional)").locator("input").fill("60")
    ui.field("gate.approval (Optional)").get_by_role("switch").click()
    ui.field("store (Optional)").get_by_role("button", name="str").click()
    ui.field("store (Optional)").locator("textarea").fill(STORE)
    upper = ui.field("corpus.tokenizer.vocab_size (Optional)")
    upper.evaluate("field => field.scrollIntoView({block: 'center'})")
    ui.take_picture("form")
    (run,) = ui.until(ui.submitted)
    sent = {"pretrain_steps": 60, "gate_approval": True}
    assert run["parameters"]["changes"] == sent  # what is left empty is not sent

    ui.artifact(run["id"], "pretrain-live")
    ui.sees("pretrain, while it works")
    ui.until(lambda: ui.page.reload() and ui.shows_picture("loss"))
    ui.sees("time left")
    ui.take_picture("progress")

    ui.open(f"/runs/flow-run/{run['id']}")
    ui.state("Waiting for approval")
    ui.page.get_by_role("button", name="Resume").click()
    ui.sees("Whether what the rules have approved may be released.")
    ui.choose("Answer", "approve")
    ui.field("Who").locator("textarea").fill("release manager")
    ui.field("Why").locator("textarea").fill("Read the answers, they are fine.")
    ui.take_picture("approval")
    ui.page.get_by_role("button", name="Submit").click()
    ui.state("Released")
    ui.take_picture("released")
    (approval,) = (ROOT / STORE / "approvals").iterdir()
    assert '"who": "release manager"' in approval.read_text("utf-8")

    ui.artifact(run["id"], "evaluate-tuned")
    ui.sees("evaluate-tuned")
    ui.artifact(run["id"], "run")
    ui.follow("pretrain")
    ui.until(lambda: ui.shows_picture("loss"))
    ui.take_picture("artifact")
    assert ui.elsewhere == set()


def test_a_schedule_is_switched_on_and_its_run_starts_and_is_cancelled(ui: Interface) -> None:
    deployment = ui.deployment("lifecycle/default")
    nightly = next(one for one in deployment["schedules"] if one["slug"] == "nightly")
    parameters = {"config": "configs/tiny.yaml", "store": STORE, "overrides": [LONG]}
    path = f"/deployments/{deployment['id']}/schedules/{nightly['id']}"
    every_minute = {"schedule": {"cron": "* * * * *"}, "parameters": parameters}
    ui.server.call(path, every_minute, "PATCH")

    ui.open(f"/deployments/deployment/{deployment['id']}")
    card = ui.page.locator(".deployment-schedule-card", has_text="nightly")
    card.get_by_role("switch").click()

    def begun() -> list[Any]:
        about = {"flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}}}
        return [one for one in ui.server.call("/flow_runs/filter", about) if one["auto_scheduled"]]

    (run, *_) = ui.until(begun)
    ui.take_picture("schedule")
    card.get_by_role("switch").click()

    ui.open(f"/runs/flow-run/{run['id']}")
    ui.state("Running")
    ui.until(lambda: any("stages.corpus" in line for line in processes_about(STORE)))
    ui.page.get_by_role("button", name="Cancel").click()
    ui.page.get_by_role("button", name="Confirm").click()
    ui.state("Cancelled")
    wait_for(lambda: not processes_about(STORE), 20)
    assert ui.elsewhere == set()
