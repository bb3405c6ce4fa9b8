"""The dashboard and the rules against what the services declare: no query can be empty because of a name.

That each series is there in a running server is tested in tests/system/test_metrics.py. Grafana and Prometheus
themselves were not started here.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from promql_parser import Call, MatrixSelector, VectorSelector

from shared.metrics import BY_NAME, FAMILIES, Family
from tests.compose.queries import (
    MONITORING,
    SUFFIXES,
    Query,
    dashboard,
    grouped,
    labels_of,
    nodes,
    queries,
    rules,
)

TARGET_LABELS = {"job", "instance", "model_name"}
SERVICES = {"frontend": 8000, "scheduler": 9101, "worker": 9102}
SAMPLES = {family.name + suffix: family for family in FAMILIES for suffix in SUFFIXES[family.type]}


def family_of(selector: VectorSelector) -> Family | None:
    """What a selector asks for; None for `up`, which Prometheus makes itself."""
    assert selector.name is not None, "a query names its metric"
    return None if selector.name == "up" else SAMPLES[selector.name]


@pytest.mark.parametrize("query", queries(), ids=lambda query: query.place)
def test_a_query_asks_for_what_is_declared(query: Query) -> None:
    assert query.selectors()
    for selector in query.selectors():
        family = family_of(selector)
        known = TARGET_LABELS if family is None else {*TARGET_LABELS, *family.labels, "le"}
        assert labels_of(selector) <= known, selector.name
    for labels, below in grouped(query.parsed):
        for selector in below:
            family = family_of(selector)
            known = {*TARGET_LABELS, *(family.labels if family else ())}
            assert set(labels) <= known | ({"le"} if str(selector.name).endswith("_bucket") else set()), selector.name


@pytest.mark.parametrize("query", queries(), ids=lambda query: query.place)
def test_counters_are_read_as_rates_and_gauges_as_they_are(query: Query) -> None:
    ranged = {
        argument.vector_selector.name
        for node in nodes(query.parsed)
        if isinstance(node, Call) and node.func.name in ("rate", "increase")
        for argument in node.args
        if isinstance(argument, MatrixSelector)
    }
    for selector in query.selectors():
        family = family_of(selector)
        assert (selector.name in ranged) == (family is not None and family.type != "gauge"), selector.name


def test_every_quantile_is_taken_over_buckets() -> None:
    taken = 0
    for query in queries():
        for node in nodes(query.parsed):
            if isinstance(node, Call) and node.func.name == "histogram_quantile":
                taken += 1
                below = [each for each in nodes(node.args[1]) if isinstance(each, VectorSelector)]
                assert below
                assert all(str(each.name).endswith("_bucket") for each in below)
                assert any("le" in labels for labels, _ in grouped(node.args[1]))
    assert taken > 20


def test_the_dashboard_shows_every_metric_of_ours() -> None:
    shown = {family.name for query in queries() for each in query.selectors() if (family := family_of(each))}
    standard = {name for name in BY_NAME if name.startswith("process_")}
    assert set(BY_NAME) - shown - standard == set()


def test_the_dashboard_can_be_loaded() -> None:
    board = dashboard()
    sources = yaml.safe_load((MONITORING / "grafana/provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    [source] = sources
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    used = {
        json.dumps(place["datasource"])
        for panel in panels
        if "targets" in panel
        for place in (panel, *panel["targets"])
    }
    assert used == {json.dumps({"type": source["type"], "uid": source["uid"]})}
    assert [variable["name"] for variable in board["templating"]["list"]] == ["model"]
    for panel in panels:
        if panel["type"] != "row":
            assert panel["targets"], panel["title"]
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    assert {panel["title"] for panel in panels if panel["type"] == "row"} == {
        "Traffic", "Latency", "Speculation", "Device", "Capacity", "Processes", "Errors",
    }  # fmt: skip


def test_panels_lie_beside_one_another() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


def test_rules_say_what_is_wrong_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) >= 5
    for rule in rules():
        assert {"summary", "description"} <= set(rule["annotations"]), rule["alert"]
        assert re.fullmatch(r"Flare[A-Za-z]+", rule["alert"])


def test_prometheus_scrapes_the_three_services_and_reads_the_rules() -> None:
    found = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    targets = {job["job_name"]: job["static_configs"] for job in found["scrape_configs"]}
    assert targets == {name: [{"targets": [f"{name}:{port}"]}] for name, port in SERVICES.items()}
    assert found["rule_files"] == ["alerts.yml"]
    [provider] = yaml.safe_load((MONITORING / "grafana/provisioning/dashboards/flare.yml").read_text())["providers"]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"


def test_the_override_mounts_what_lies_here() -> None:
    """Whatever Prometheus and Grafana read is mounted where they look for it."""
    services = yaml.safe_load((MONITORING.parent / "monitoring.yaml").read_text())["services"]
    mounted: dict[str, Path] = {}
    for name in ("prometheus", "grafana"):
        for volume in services[name]["volumes"]:
            source, target = volume.split(":")[:2]
            mounted[target] = (MONITORING.parent / source).resolve()

    def seen(path: str) -> Path:
        target = max((target for target in mounted if path.startswith(target)), key=len)
        return mounted[target] / path.removeprefix(target).lstrip("/")

    assert seen("/etc/prometheus/prometheus.yml") == MONITORING / "prometheus.yml"
    assert seen("/etc/prometheus/alerts.yml") == MONITORING / "alerts.yml"
    provisioning = MONITORING / "grafana/provisioning"
    assert seen("/etc/grafana/provisioning/datasources") == provisioning / "datasources"
    assert seen("/etc/grafana/provisioning/dashboards") == provisioning / "dashboards"
    assert seen("/var/lib/grafana/dashboards/flare.json") == MONITORING / "dashboards" / "flare.json"
