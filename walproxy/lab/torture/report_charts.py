"""The charts of a run. All have the same axis of time, in seconds or minutes since the run began. Pure."""

from collections.abc import Callable
from typing import Any, Final

from walproxy.html_page.charts import OTHER_SLOT, SLOTS, Chart, duration_text, label_of, rounded
from walproxy.lab.load.history import Outcome
from walproxy.lab.torture.record import Run, Sample
from walproxy.lab.torture.report_figures import Figures, fault_end_s

_MINUTES_FROM_S: Final = 600.0
_OUTCOME_SLOTS: Final[dict[Outcome, int]] = {"ok": 3, "fail": 1, "unknown": 2}
_OUTCOME_NAMES: Final[dict[Outcome, str]] = {"ok": "acknowledged", "fail": "failed", "unknown": "unknown"}
_OUTCOME_SYMBOLS: Final[dict[Outcome, str]] = {"fail": "x", "unknown": "diamond"}
# A fault of half a second in a run of hours would not be seen.
_FAULT_SHARE_MIN: Final = 1 / 400
_MIB: Final = 1 << 20


def charts_of(run: Run, figures: Figures) -> list[Chart]:
    """Return all charts, also those with nothing to draw."""
    drawing = _Drawing(run, figures)
    return [drawing.faults(), drawing.latencies(), drawing.commits(), drawing.memory(), drawing.descriptors()]


class _Drawing:
    """The charts of one run."""

    def __init__(self, run: Run, figures: Figures) -> None:
        self._run = run
        self._figures = figures
        self._unit, self._unit_s = ("minutes", 60.0) if run.seconds >= _MINUTES_FROM_S else ("seconds", 1.0)

    def faults(self) -> Chart:
        run = self._run
        summary = f"{self._figures.fault_count} faults over time."
        chart = Chart(id="faults", title="Faults over time", summary=summary)
        if not run.faults:
            chart.empty = "No faults."
            return chart
        kinds = [row.kind for row in self._figures.faults]
        for slot, kind in enumerate(kinds):
            mine = [fault for fault in run.faults if fault.kind == kind]
            lengths_s = [fault_end_s(fault, run.seconds) - fault.begun_s for fault in mine]
            chart.traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": label_of(kind),
                    "y": [fault.target for fault in mine],
                    "base": [self._x(fault.begun_s) for fault in mine],
                    "x": [self._x(max(length_s, run.seconds * _FAULT_SHARE_MIN)) for length_s in lengths_s],
                    "customdata": [
                        f"{fault.begun_s:.2f} s, for {length_s:.2f} s"
                        for fault, length_s in zip(mine, lengths_s, strict=True)
                    ],
                    "hovertemplate": f"{label_of(kind)} %{{y}} at %{{customdata}}<extra></extra>",
                    "slot": slot if slot < SLOTS else OTHER_SLOT,
                    "opacity": 0.75,
                }
            )
        targets = sorted({fault.target for fault in run.faults})
        chart.layout = self._over_time("") | {
            "barmode": "overlay",
            "height": 110 + 34 * len(targets),
            "hovermode": "closest",
            "bargap": 0.25,
            "yaxis": {"type": "category", "automargin": True, "categoryorder": "array", "categoryarray": targets[::-1]},
        }
        return chart

    def latencies(self) -> Chart:
        bins = self._figures.bins
        chart = Chart(id="latencies", title="Durations of commits", summary="Durations of commits over time.")
        if not self._run.operations:
            chart.empty = "No operations."
            return chart
        x = [self._x(each.begin_s) for each in bins]
        lines = (
            ("half of them within", 0, [each.p50_s for each in bins]),
            ("99 of 100 within", 4, [each.p99_s for each in bins]),
            ("the longest", OTHER_SLOT, [each.max_s for each in bins]),
        )
        for name, slot, values_s in lines:
            chart.traces.append(
                {
                    "type": "scatter",
                    # A bin with nothing on either side is a point, which no line shows.
                    "mode": "lines+markers",
                    "marker": {"size": 3},
                    "line": {"width": 1.5},
                    "name": name,
                    "x": x,
                    "y": [_ms(value_s) for value_s in values_s],
                    "hovertemplate": "%{y:.4~r} ms",
                    "slot": slot,
                }
            )
        for outcome, symbol in _OUTCOME_SYMBOLS.items():
            found = [each for each in bins if outcome in each.other_max_s]
            if found:
                chart.traces.append(
                    {
                        "type": "scatter",
                        "mode": "markers",
                        "marker": {"symbol": symbol, "size": 7},
                        "name": _OUTCOME_NAMES[outcome],
                        "x": [self._x(each.begin_s) for each in found],
                        "y": [_ms(each.other_max_s[outcome]) for each in found],
                        "customdata": [each.counts[outcome] for each in found],
                        "hovertemplate": "%{customdata}, the longest %{y:.4~r} ms",
                        "slot": _OUTCOME_SLOTS[outcome],
                    }
                )
        chart.layout = self._over_time("ms")
        chart.layout["yaxis"] |= {"type": "log", "exponentformat": "none", "dtick": 1}
        return chart

    def commits(self) -> Chart:
        figures = self._figures
        chart = Chart(id="commits", title="Commits a second", summary="Commits a second over time, by their outcome.")
        if not self._run.operations:
            chart.empty = "No operations."
            return chart
        for outcome, name in _OUTCOME_NAMES.items():
            counts = [each.counts[outcome] for each in figures.bins]
            if outcome == "ok" or any(counts):
                chart.traces.append(
                    {
                        "type": "bar",
                        "name": name,
                        "x": [self._x(each.begin_s) for each in figures.bins],
                        "y": [rounded(count / figures.width_s) for count in counts],
                        "hovertemplate": "%{y:.4~r} a second",
                        "slot": _OUTCOME_SLOTS[outcome],
                        "width": self._x(figures.width_s),
                        "offset": 0,
                    }
                )
        chart.title += f", in steps of {duration_text(figures.width_s * 1e6)}"
        chart.layout = self._over_time("a second") | {"barmode": "stack", "bargap": 0}
        return chart

    def memory(self) -> Chart:
        chart = self._by_process("memory", "Memory in RAM", "MiB", lambda sample: sample.resident_bytes / _MIB)
        chart.summary = "Resident memory of each process over time."
        return chart

    def descriptors(self) -> Chart:
        chart = self._by_process("descriptors", "Open file descriptors", "", lambda sample: sample.file_descriptors)
        chart.summary = "Open file descriptors of each process over time."
        return chart

    def _by_process(self, id: str, title: str, unit: str, value_of: Callable[[Sample], float]) -> Chart:
        chart = Chart(id=id, title=title, summary="")
        if not self._run.samples:
            chart.empty = "No samples were taken."
            return chart
        for slot, process in enumerate(dict.fromkeys(sample.process for sample in self._run.samples)):
            mine = [sample for sample in self._run.samples if sample.process == process]
            chart.traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": label_of(process),
                    "x": [self._x(sample.at_s) for sample in mine],
                    "y": [rounded(value_of(sample)) for sample in mine],
                    "hovertemplate": f"%{{y:.4~r}} {unit}",
                    "line": {"width": 1.5},
                    "slot": slot if slot < SLOTS else OTHER_SLOT,
                }
            )
        chart.layout = self._over_time(unit)
        return chart

    def _over_time(self, y_title: str) -> dict[str, Any]:
        return {
            "xaxis": {"title": {"text": self._unit}, "range": [0, self._x(self._run.seconds)]},
            "yaxis": {"title": {"text": y_title}, "rangemode": "tozero"},
            "hovermode": "x unified",
        }

    def _x(self, seconds: float) -> float:
        return rounded(seconds / self._unit_s)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else rounded(1000 * seconds)
