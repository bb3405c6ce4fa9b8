"""The PromQL of our dashboard and of our alert rules, parsed: which series each query asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from promql_parser import AggregateExpr, Expr, MatrixSelector, VectorSelector, parse, walk

MONITORING = Path(__file__).resolve().parents[2] / "compose" / "monitoring"
DASHBOARD = MONITORING / "dashboards" / "flare.json"
RULES = MONITORING / "alerts.yml"
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


@dataclass(frozen=True)
class Query:
    """One expression and where it stands."""

    place: str
    text: str

    @property
    def parsed(self) -> Expr:
        """With Grafana's variables put in. Raises `ValueError` for what is no PromQL."""
        return parse(self.text.replace("$__rate_interval", "1m").replace("$model", ".*"))

    def selectors(self) -> list[VectorSelector]:
        """All series that it reads."""
        return [expression for expression in nodes(self.parsed) if isinstance(expression, VectorSelector)]


def nodes(expression: Expr) -> list[Expr]:
    """An expression and all within it."""
    found: list[Expr] = []
    walk(expression, found.append)
    return found + [each.vector_selector for each in found if isinstance(each, MatrixSelector)]


def labels_of(selector: VectorSelector) -> set[str]:
    """Labels that a selector matches."""
    return {matcher.name for matcher in selector.matchers.matchers}


def grouped(expression: Expr) -> Iterator[tuple[list[str], list[VectorSelector]]]:
    """Each aggregation's labels, with the selectors below it."""
    for node in nodes(expression):
        if isinstance(node, AggregateExpr) and node.modifier is not None:
            below = [each for each in nodes(node.expr) if isinstance(each, VectorSelector)]
            yield list(node.modifier.labels), below


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_bytes())
    return found


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def queries() -> list[Query]:
    """Every one of both."""
    panels = [
        Query(panel["title"], target["expr"]) for panel in dashboard()["panels"] for target in panel.get("targets", ())
    ]
    return panels + [Query(rule["alert"], rule["expr"]) for rule in rules()]
