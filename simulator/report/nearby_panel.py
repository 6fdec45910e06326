"""The panel on which a reader changes one thing: selectors that move between answers that were simulated."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files

from simulator.analysis.metrics import PARTS
from simulator.answer import MEMORY_PARTS
from simulator.explore.nearby_answers import NearbyAnswer
from simulator.plan import SETTINGS, ParallelPlan
from simulator.report.charts import MEMORY_COLOURS, PART_COLOURS, packed
from simulator.report.markup import Markup, element

_LABELS = {"gpus": "number of GPUs", "GPU": "kind of GPU"}


def nearby_choices(answers: Sequence[NearbyAnswer], plan: ParallelPlan) -> Markup:
    """Return the panel with its data and its program, which find an answer by what is chosen; the first is the page's."""
    words: dict[str, list[str]] = {}
    for answer in answers:
        for setting, word in answer["choices"].items():
            if word not in (known := words.setdefault(setting, [])):
                known.append(word)
    data = {
        "answers": answers,
        "settings": [
            {
                "key": key,
                "label": _LABELS.get(key) or (key.replace("_", "-") if key in SETTINGS else key),
                "now": _now(getattr(plan, key)) if key in SETTINGS else "as it is",
                "words": sorted(words[key], key=_natural),
            }
            for key in sorted(words, key=_place)
        ],
        "parts": [{"key": key, "label": label, "colour": PART_COLOURS[key]} for key, label in PARTS.items()],
        "memory": [{"key": key, "label": label, "colour": MEMORY_COLOURS[key]} for key, label in MEMORY_PARTS.items()],
    }
    intro = (
        f"{len(answers) - 1:,} answers around this one were simulated: one setting changed, or two. Choose, and see what comes of it; "
        "what was not simulated cannot be chosen. The address of the page holds the choice. A copied file holds "
        "the plan alone: under another framework it takes that framework's time."
    )
    script = (files("simulator.report") / "assets" / "nearby.js").read_text(encoding="utf-8")
    return Markup(
        element("p", intro)
        + element("div", id="nearby-choices", class_="choices")
        + element("div", id="nearby-answer", aria_live="polite")
        + element("div", id="nearby-tools", class_="tools")
        + Markup(
            f'<script type="text/plain" id="nearby-data">{packed(json.dumps(data, separators=(",", ":")))}</script>'
        )
        + Markup(f"<script>{script}</script>")
    )


def _now(value: object) -> str:
    return "default" if value is None else str(value).lower()


def _place(key: str) -> tuple[int, int]:
    """Return where a selector stands: settings that all know, the machine, the finer settings."""
    if key not in SETTINGS:
        return 1, 0
    return (0 if SETTINGS[key].is_common else 2), list(SETTINGS).index(key)


def _natural(word: str) -> tuple[float, str]:
    number = word.removeprefix("x ")
    try:
        return float(number), ""
    except ValueError:
        return float("inf"), word
