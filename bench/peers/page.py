"""The page of the comparison: table, ratios and settings as Markdown, and a plot of four panels of bars as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from statistics import median
from textwrap import wrap
from typing import Final

from bench.peers.peers import NOT_COMPARED, Takeover
from bench.peers.results import ALONE, AT_ONCE, TENURE_STEP, TITLES, Result, ratios
from bench.report import number
from bench.run import Machine, Size

PANEL_WIDTH: Final = 460
LABEL_WIDTH: Final = 132
VALUE_WIDTH: Final = 92
BAR: Final = 18
GAP: Final = 8
HEAD: Final = 46
MARGIN: Final = 24
BY_BENCH: Final = " *"
OURS, OTHERS, TEXT, PAPER = "#1f5fa8", "#9aa5b1", "#24292f", "#ffffff"
FONT: Final = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar: whose it is, its value, and the text behind it."""

    engine: str
    value: float
    shown: str
    is_ours: bool


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel. `better`: which bars are better."""

    title: str
    better: str
    bars: Sequence[Bar]


def panels(results: Sequence[Result]) -> list[Panel]:
    """Returns the four panels. All engines must have results."""

    def bars(shown: Sequence[Result], values: Sequence[float], unit: str) -> list[Bar]:
        return [
            Bar(result.title.removeprefix("Tenure, "), value, f"{_shown(value)}{unit}", result.name in TITLES)
            for result, value in zip(shown, values, strict=True)
        ]

    tried = with_faults(results)

    rates = [result.spread(AT_ONCE, lambda sample: sample.rate).median for result in results]
    alone = [1000 * result.latency(ALONE, 0.5) for result in results]
    repeated = [float(max(result.repeated)) for result in tried]
    takeovers = [median(result.takeovers) for result in tried]
    killed = [
        replace(bar, shown=f"{bar.shown}{BY_BENCH}" if result.takeover != Takeover.ENGINE.value else bar.shown)
        for bar, result in zip(bars(tried, takeovers, " s"), tried, strict=True)
    ]
    return [
        Panel(f"Steps/s, {AT_ONCE} tasks at once", "longer is better", bars(results, rates, "")),
        Panel("A step of one task alone, p50", "shorter is better", bars(results, alone, " ms")),
        Panel("Effects that a woken zombie repeated", "shorter is better", bars(tried, repeated, "")),
        Panel(
            "Worker killed → effect elsewhere",
            f"shorter is better;{BY_BENCH} the bench acts at once as a supervisor",
            killed,
        ),
    ]


def svg(results: Sequence[Result]) -> str:
    """Returns the plot."""
    drawn = panels(results)
    height = HEAD + len(results) * (BAR + GAP)
    width, total = 2 * PANEL_WIDTH + 3 * MARGIN, 2 * height + 3 * MARGIN
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}" width="{width}" height="{total}" '
            f'font-family="{FONT}" font-size="13" fill="{TEXT}">'
        ),
        f'<rect width="{width}" height="{total}" fill="{PAPER}"/>',
    ]
    for index, panel in enumerate(drawn):
        x = MARGIN + index % 2 * (PANEL_WIDTH + MARGIN)
        y = MARGIN + index // 2 * (height + MARGIN)
        parts += [f'<g transform="translate({x} {y})">', *_panel(panel), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel) -> list[str]:
    longest = max(bar.value for bar in panel.bars) or 1.0
    room = PANEL_WIDTH - LABEL_WIDTH - VALUE_WIDTH
    parts = [
        f'<text y="14" font-size="15" font-weight="600">{escape(panel.title)}</text>',
        f'<text y="32" font-size="12" fill="#57606a">{escape(panel.better)}</text>',
    ]
    for number_of_bar, bar in enumerate(panel.bars):
        y = HEAD + number_of_bar * (BAR + GAP)
        width = room * bar.value / longest
        weight = ' font-weight="600"' if bar.is_ours else ""
        middle = y + BAR - 5
        parts += [
            f'<text x="{LABEL_WIDTH - 8}" y="{middle}" text-anchor="end"{weight}>{escape(bar.engine)}</text>',
            (
                f'<rect x="{LABEL_WIDTH}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2" '
                f'fill="{OURS if bar.is_ours else OTHERS}"/>'
            ),
            f'<text x="{LABEL_WIDTH + width + 6:.1f}" y="{middle}"{weight}>{escape(bar.shown)}</text>',
        ]
    return parts


def _shown(value: float) -> str:
    return str(int(value)) if value == int(value) else number(value)


WIDTH: Final = 100
WHAT: Final = (
    (
        "Every engine runs the same agent: a task of ten steps without a model. A step makes one tool effect and "
        "keeps 2,400 bytes of result, durably, before the next step starts. All engines that use Postgres use the "
        "same server, with fsync on, each in an empty database. The engines take turns in rounds. For a turn an "
        "engine starts, runs unmeasured tasks, then the measured ones, and ends, so that nothing of the others "
        "runs meanwhile."
    ),
)
FAIRNESS: Final = (
    (
        "A recorded step is the same as a step of the peers: the worker makes the effect, then one commit records its "
        "result. It is `work.step` of a function; the commit compares the fence under a row lock."
    ),
    (
        "A fenced tool effect is what only Tenure does: the answer of a model and the intent are durable before the "
        "effect, the tool service compares the fence and records the start, then the outcome is recorded. It has four "
        "durable writes, and its agent is the one in the table of faults."
    ),
    (
        "The rate counts from the submit of the tasks to the durable end of the last one. Tenure creates, grants and "
        "opens all tasks before the first step, so the page tells these apart from the steps. A step of a peer takes "
        "from its effect to the task's next effect; a step of Tenure from its start to its last durable write."
    ),
    (
        "CPU is the processor time of all processes of the engine: its workers, its services or its server, and "
        "Postgres."
    ),
    (
        "Bytes are those of the write-ahead log of Postgres; for Restate the growth of its files, for Temporal that "
        "of its database."
    ),
    (
        "The zombie: a worker freezes (SIGSTOP) just before the effect of step 5, the task ends on another worker, "
        "then the frozen one wakes (SIGCONT). The figure counts the effects beyond ten. The peers make the effect "
        "in their worker, where their documentation puts it; Tenure's worker calls the tool service, which refuses "
        "the woken worker. The peers' documentation asks for idempotent steps, and with those a repeated effect "
        "does no harm."
    ),
    (
        "Killed: from SIGKILL of the worker, just before the effect of step 5, to that effect on another worker, "
        "with the defaults of the engine. Where an engine detects no lost worker, the bench acts at once in the place "
        "of a supervisor."
    ),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the comparison. `date`: of the run, as in 2026-11-25. `missing`: sentences about what was left out."""

    machine: Machine
    date: str
    size: Size
    seconds: float
    results: Sequence[Result]
    missing: Sequence[str]


def page(run: Run) -> str:
    """Returns the text of docs/peers.md. All engines must have results."""
    rounds = len(run.results[0].of(AT_ONCE))
    machine = f"One run on {run.date}: {run.machine.line()}. Rounds: {rounds}; minutes: {run.seconds / 60:.0f}."
    lines = ["# Tenure beside its peers", ""]
    lines += _paragraph("`make bench-peers` installs the peers into an environment of their own and writes this page.")
    lines += _paragraph(machine)
    if run.size is not Size.FULL:
        lines += _paragraph(f"This run was only of the size {run.size.value}: do not publish its figures.")
    for text in WHAT:
        lines += _paragraph(text)
    lines += ["![The figures as bars](peers.svg)", ""]
    lines += ["## Steps", "", *steps_table(run.results), ""]
    lines += _paragraph(
        f"Figures are medians of the rounds, p50 and p99 those of all steps. “÷ recorded step” is the engine's "
        "figure ÷ that of Tenure's recorded step in the same round: above 1 the engine has more steps/s, or a longer "
        f"step. “At once” is {AT_ONCE} tasks at once."
    )
    lines += _bullets(step_sentences(run.results))
    lines += ["## Faults at the tool", "", *faults_table(run.results), ""]
    lines += ["## What is measured", ""]
    lines += _bullets(FAIRNESS)
    lines += ["## Settings", ""]
    for result in run.results:
        lines += _settings(result)
    lines += ["## Left out", ""]
    lines += _bullets([NOT_COMPARED, *run.missing])
    return "\n".join(lines).rstrip() + "\n"


def with_faults(results: Sequence[Result]) -> list[Result]:
    """Returns the results that have faults: all but the recorded step, whose effect no tool service fences."""
    return [result for result in results if result.name != TENURE_STEP]


def split(results: Sequence[Result]) -> tuple[list[Result], list[Result]]:
    """Returns Tenure's scenes, the recorded step first, and the peers."""
    ours = sorted(
        (result for result in results if result.name in TITLES), key=lambda result: list(TITLES).index(result.name)
    )
    return ours, [result for result in results if result.name not in TITLES]


def steps_table(results: Sequence[Result]) -> list[str]:
    """Returns the table of rates, latencies, processor time and bytes."""
    heading: tuple[str, ...] = ("engine", "steps/s at once", "÷ recorded step")
    heading += ("step alone, p50 / p99", "÷ recorded step, p50")
    heading += ("step at once, p50 / p99", "CPU a step at once", "bytes a step")
    ours, peers = split(results)
    rows = [heading, *(_steps_row(result, ours[0]) for result in (*ours, *peers))]
    return _table(rows)


def _steps_row(result: Result, tenure: Result) -> tuple[str, ...]:
    rate = result.spread(AT_ONCE, lambda sample: sample.rate)
    return (
        result.title,
        f"{number(rate.median)} ({number(rate.low)} to {number(rate.high)})",
        number(ratios(result, tenure, AT_ONCE).rate),
        _percentiles(result, ALONE),
        number(ratios(result, tenure, ALONE).p50),
        _percentiles(result, AT_ONCE),
        f"{number(result.spread(AT_ONCE, lambda sample: sample.cpu_us).median)} µs",
        number(result.spread(AT_ONCE, lambda sample: sample.step_bytes).median),
    )


def _percentiles(result: Result, at_once: int) -> str:
    p50, p99 = (number(1000 * result.latency(at_once, share)) for share in (0.5, 0.99))
    return f"{p50} / {p99} ms"


def step_sentences(results: Sequence[Result]) -> Iterator[str]:
    """Yields the ratios of each scene as sentences, against the best peer and each; then the cost of tasks."""
    ours, peers = split(results)
    for scene in ours:
        rates = {peer.title: 1 / ratios(peer, scene, AT_ONCE).rate for peer in peers}
        best = min(rates, key=lambda title: rates[title])
        yield (
            f"{scene.title}, {AT_ONCE} at once: {number(rates[best])} times the steps/s of {best}, the fastest peer. "
            + _against(rates)
        )
        times = {peer.title: 1 / ratios(peer, scene, ALONE).p50 for peer in peers}
        quickest = max(times, key=lambda title: times[title])
        yield (
            f"{scene.title}, alone: {number(times[quickest])} times as long as a step of {quickest}, the quickest "
            f"peer. {_against(times)}"
        )
    yield _cost_of_tasks(ours[0])


def _against(ratio: Mapping[str, float]) -> str:
    listed = ", ".join(f"{title} {number(ratio[title])}" for title in sorted(ratio, key=lambda title: ratio[title]))
    return f"Against each peer, in times: {listed}."


def _cost_of_tasks(scene: Result) -> str:
    """Returns how much of a sample the tasks cost before their first step."""
    made = [(sample, sample.making) for sample in scene.of(AT_ONCE) if sample.making is not None]
    cpu = median(1000 * making.cpu_seconds / making.tasks for _, making in made)
    share = median(100 * making.seconds / sample.seconds for sample, making in made)
    rate = median(sample.steps / (sample.seconds - making.seconds) for sample, making in made)
    return (
        f"To create, grant and open a task takes {number(cpu)} ms of processor time, and {number(share)} % of the "
        f"time of the recorded steps at once; without it they are {number(rate)} steps/s."
    )


def faults_table(results: Sequence[Result]) -> list[str]:
    """Returns the table of repeated effects and takeovers."""
    heading = ("engine", "effects that a zombie repeated", "killed → effect elsewhere", "what takes over")
    return _table([heading, *(_faults_row(result) for result in with_faults(results))])


def _faults_row(result: Result) -> tuple[str, ...]:
    return (result.title, span(result.repeated), f"{span(result.takeovers)} s", result.takeover)


def span(values: Sequence[float]) -> str:
    """Returns the lowest and the highest value, or the only one."""
    shown = [str(value) if isinstance(value, int) else number(value) for value in (min(values), max(values))]
    return shown[0] if shown[0] == shown[1] else f"{shown[0]} to {shown[1]}"


def _settings(result: Result) -> list[str]:
    version = f" {result.version}" if result.version else ""
    lines = [f"### {result.title}{version}", "", *wrap(f"State: {result.store}.", WIDTH), ""]
    rows = [(one.what, one.value, _link(one.source)) for one in result.settings]
    return [*lines, *_table([("setting", "value", "documented in"), *rows]), ""]


def _link(source: str) -> str:
    """Returns a link. A page of this project is named relative to docs/."""
    if source.startswith("docs/"):
        page = source.removeprefix("docs/")
        return f"[{page}]({page})"
    return f"<{source}>"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [lines[0], f"|{'---|' * len(rows[0])}", *lines[1:]]


def _paragraph(text: str) -> list[str]:
    return [*wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False), ""]


def _bullets(texts: Sequence[str] | Iterator[str]) -> list[str]:
    lines = []
    for text in texts:
        lines += wrap(
            text, WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    return [*lines, ""]
