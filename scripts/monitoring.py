#!/usr/bin/env python3
"""What check-monitoring.sh and dashboard-picture.sh need beyond a shell: reads the files of
monitoring/, what an exporter says and what inbox_metrics() returns, and holds them against each
other. Each complaint is a line; ends with 1 when there is one.

Rows of inbox_metrics() come as JSON, an object a line.

    monitoring.py compare NAMES BEFORE AFTER SCRAPE  an exporter's page, sample by sample
    monitoring.py collector FILE                     a collector of sql_exporter, as SQL
    monitoring.py collected FILE                     what that SQL gave, as an exporter's page
    monitoring.py alerts NAMES RULES TESTS           the rules, their tests and their links
    monitoring.py dashboard NAMES FILE               the dashboard; prints its queries as rules
"""

import json
import pathlib
import re
import sys

import yaml

PREFIX = "sequential_inbox_"
METRIC = re.compile(PREFIX + r"\w+")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
SAMPLE = re.compile(r'(\w+)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? (\S+)')
ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}

# An exporter adds where it scraped; that is of the server, not of the inbox.
ADDED_LABELS = {"server"}

# To Prometheus, an info is a gauge that is 1.
TYPES = {"info": "gauge"}


def unescaped(text):
    return re.sub(r"\\.", lambda match: ESCAPES.get(match[0], match[0]), text)


def escaped(text):
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def key(name, labels):
    """A sample's identity. An empty label is none."""
    return name, frozenset((label, text) for label, text in labels.items() if text)


def shown(identity):
    name, labels = identity
    return name + json.dumps(dict(sorted(labels)), ensure_ascii=False)


def read_rows(path):
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line]


def read_names(path):
    return set(pathlib.Path(path).read_text(encoding="utf-8").split())


def read_page(path):
    """The samples, types and help texts of an exporter's page that are the inbox's."""
    samples, types, helps, complaints = {}, {}, {}, []
    for line in pathlib.Path(path).read_text(encoding="utf-8").split("\n"):
        comment = re.fullmatch(r"# (HELP|TYPE) (\w+) (.*)", line)
        if comment:
            (types if comment[1] == "TYPE" else helps)[comment[2]] = unescaped(comment[3])
        if line.startswith("#") or not line.startswith(PREFIX):
            continue
        match = SAMPLE.fullmatch(line)
        if not match:
            complaints.append(f"no sample: {line}")
            continue
        labels = {
            label: unescaped(text)
            for label, text in LABEL.findall(match[2] or "")
            if label not in ADDED_LABELS
        }
        identity = key(match[1], labels)
        if identity in samples:
            complaints.append(f"{shown(identity)} is there twice")
        samples[identity] = float(match[3])
    return samples, types, helps, complaints


def compare(names_path, before_path, after_path, page_path):
    """Each row is a sample and each sample a row; a value lies between what the function returned
    before and after. Every metric that the function knows must be among them, or nothing would
    have been compared."""
    before, after = read_rows(before_path), read_rows(after_path)
    samples, types, helps, complaints = read_page(page_path)
    bounds = {}
    for row in before + after:
        bounds.setdefault(key(row["name"], row["labels"]), []).append(row["value"])
    for identity, values in bounds.items():
        if len(values) != 2:
            complaints.append(f"{shown(identity)} came or went while it was compared")
        elif identity not in samples:
            complaints.append(f"{shown(identity)} is not exported")
        elif not min(values) <= samples[identity] <= max(values):
            complaints.append(f"{shown(identity)} is {values}, exported as {samples[identity]}")
    for identity in samples.keys() - bounds.keys():
        complaints.append(f"{shown(identity)} is exported and not returned")
    for row in {row["name"]: row for row in before}.values():
        name, kind = row["name"], TYPES.get(row["type"], row["type"])
        if name in types and types[name] != kind:
            complaints.append(f"{name} is exported as a {types[name]}, and is a {kind}")
        if name in helps and helps[name] != row["help"]:
            complaints.append(f"{name} is told of as: {helps[name]} It should be: {row['help']}")
    for name in read_names(names_path) - {row["name"] for row in before}:
        complaints.append(f"the workload of this check gives no sample of {name}")
    if not complaints:
        metrics = {name for name, _ in samples}
        print(f"{len(samples)} samples of {len(metrics)} metrics as returned", file=sys.stderr)
    return complaints


# What sql_exporter knows of a metric, as far as it is used here.
COLLECTOR_KEYS = {"collector_name", "min_interval", "metrics"}
METRIC_KEYS = {"metric_name", "type", "help", "key_labels", "values", "query"}


def read_collector(path):
    collector = yaml.safe_load(pathlib.Path(path).read_text(encoding="utf-8"))
    complaints = [f"unknown key {name}" for name in collector.keys() - COLLECTOR_KEYS]
    if not collector.get("collector_name"):
        complaints.append("no collector_name")
    for metric in collector["metrics"]:
        name = metric.get("metric_name")
        complaints += [f"{name}: unknown key {unknown}" for unknown in metric.keys() - METRIC_KEYS]
        needed = METRIC_KEYS - {"key_labels"}
        complaints += [f"{name}: no {missing}" for missing in needed - metric.keys()]
        if metric.get("type") not in ("gauge", "counter"):
            complaints.append(f"{name}: there is no type {metric.get('type')}")
        if len(metric.get("values", [])) != 1:
            complaints.append(f"{name}: expected one value")
    return collector, complaints


def print_collector_sql(path):
    """The SQL that gives each query's rows as JSON: the metric's number, and the columns."""
    collector, complaints = read_collector(path)
    for number, metric in enumerate(collector["metrics"]):
        query = metric.get("query", "").rstrip().rstrip(";")
        print(f"SELECT json_build_object('metric', {number}, 'row', to_json(q)) FROM ({query}) q;")
    return complaints


def print_collected(path):
    """The page that sql_exporter makes of those rows, which come on standard input."""
    collector, complaints = read_collector(path)
    for metric in collector["metrics"]:
        print(f"# HELP {metric['metric_name']} {metric['help']}")
        print(f"# TYPE {metric['metric_name']} {metric['type']}")
    for line in sys.stdin:
        result = json.loads(line)
        metric, row = collector["metrics"][result["metric"]], result["row"]
        name, labels = metric["metric_name"], metric.get("key_labels", [])
        columns = labels + metric["values"]
        if sorted(row) != sorted(columns):
            complaints.append(f"{name}: the query gives {sorted(row)}, and needs {sorted(columns)}")
        elif any(row[column] is None for column in columns):
            complaints.append(f"{name}: NULL in {row}")
        else:
            pairs = ",".join(f'{label}="{escaped(row[label])}"' for label in labels)
            print(f"{name}{{{pairs}}} {row[metric['values'][0]]!r}")
    return complaints


def unknown_metrics(names, expression):
    return set(METRIC.findall(expression)) - names


def anchors(page):
    """What the headings of a page of Markdown can be linked by."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^a-z0-9_ -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def alerts(names_path, rules_path, tests_path):
    """Every alert says what it is about and what to do, asks for metrics that exist, and has a test
    in which it fires and one in which it does not."""
    names, complaints = read_names(names_path), []
    rules = yaml.safe_load(pathlib.Path(rules_path).read_text(encoding="utf-8"))
    tests = yaml.safe_load(pathlib.Path(tests_path).read_text(encoding="utf-8"))
    fires, silent = set(), set()
    for case in (case for test in tests["tests"] for case in test.get("alert_rule_test", [])):
        (fires if case.get("exp_alerts") else silent).add(case["alertname"])
    known = [rule for group in rules["groups"] for rule in group["rules"]]
    for rule in known:
        name = rule["alert"]
        for unknown in unknown_metrics(names, rule["expr"]):
            complaints.append(f"{name}: there is no metric {unknown}")
        if rule.get("labels", {}).get("severity") not in ("warning", "critical"):
            complaints.append(f"{name}: no severity")
        for annotation in ("summary", "description", "runbook_url"):
            if not rule.get("annotations", {}).get(annotation):
                complaints.append(f"{name}: no {annotation}")
        path, _, anchor = rule.get("annotations", {}).get("runbook_url", "").partition("#")
        page = pathlib.Path(path)
        if not page.is_file() or (anchor and anchor not in anchors(page)):
            complaints.append(f"{name}: {path}#{anchor} leads nowhere")
        if name not in pathlib.Path("docs/metrics.md").read_text(encoding="utf-8"):
            complaints.append(f"{name}: docs/metrics.md does not tell what to do")
        if name not in fires:
            complaints.append(f"{name}: no test in which it fires")
        if name not in silent:
            complaints.append(f"{name}: no test in which it does not fire")
    for name in (fires | silent) - {rule["alert"] for rule in known}:
        complaints.append(f"{name} is tested and does not exist")
    print(f"{len(known)} alerts", file=sys.stderr)
    return complaints


def read_dashboard(path):
    return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))


def panels(dashboard):
    """All panels, those in collapsed rows too, but no rows."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels", [])
        else:
            yield panel


def expression(target, rate_interval="1m"):
    """A panel's query with what Grafana would put in place of its variables."""
    text = target["expr"].replace("$__rate_interval", rate_interval)
    return text.replace("$instance", ".*")


def dashboard_rules(names_path, path):
    """Every panel asks for metrics that exist, from the data source that is chosen. The expressions
    are printed as rules, for promtool to read."""
    names, complaints, rules = read_names(names_path), [], []
    dashboard = read_dashboard(path)
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    for panel in panels(dashboard):
        title = panel["title"]
        if panel["datasource"] != {"type": "prometheus", "uid": "${datasource}"}:
            complaints.append(f"{title}: its data source is not the one that is chosen")
        if not panel.get("description"):
            complaints.append(f"{title}: no description")
        if not panel["targets"]:
            complaints.append(f"{title}: asks for nothing")
        for target in panel["targets"]:
            text = expression(target)
            if "$" in text:
                complaints.append(f"{title}: a variable that is not known: {text}")
            for unknown in unknown_metrics(names, text):
                complaints.append(f"{title}: there is no metric {unknown}")
            rules.append({"record": f"panel:{len(rules)}", "expr": text})
    asked = set(METRIC.findall("\n".join(rule["expr"] for rule in rules)))
    for name in names - asked:
        complaints.append(f"no panel shows {name}")
    for needed in {"datasource", "instance"} - variables:
        complaints.append(f"there is no variable {needed}")
    ids = [panel["id"] for panel in dashboard["panels"]]
    if len(set(ids)) != len(ids):
        complaints.append("two panels have one id")
    print(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    print(f"{len(rules)} expressions", file=sys.stderr)
    return complaints


COMMANDS = {
    "compare": compare,
    "collector": print_collector_sql,
    "collected": print_collected,
    "alerts": alerts,
    "dashboard": dashboard_rules,
}


def main():
    command, *arguments = sys.argv[1:]
    complaints = COMMANDS[command](*arguments)
    for complaint in sorted(complaints):
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
