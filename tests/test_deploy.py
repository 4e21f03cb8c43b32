"""What is in deploy/ is what its readers accept, and speaks of nothing that does not exist."""

import re
import shutil
import subprocess
import tomllib
from importlib import resources
from pathlib import Path

import jsonschema_rs
import orjson
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from proxy.app.configuration import parse
from proxy.telemetry.series import Series
from tests.fronts import found

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "toolproxy.json"
KUBERNETES = DEPLOY / "kubernetes"
MANIFESTS = [
    made
    for path in sorted(KUBERNETES.rglob("*.yaml"))
    if path.name not in {"kustomization.yaml", "config.yaml"}
    for made in yaml.safe_load_all(path.read_text())
]
CUSTOM = {"PodMonitor", "HTTPRoute"}  # of operators, not of Kubernetes itself
METRIC = re.compile(r"\btoolproxy_\w+")


def named(made):
    return f"{made['kind']} {made['metadata']['name']}"


def names_that_exist():
    """Every name that a scrape can have."""
    text = Series().registry.collect()
    names = set()
    for metric in text:
        counted = {f"{metric.name}_total"} if metric.type == "counter" else {metric.name}
        parts = (
            {f"{metric.name}_{part}" for part in ("bucket", "sum", "count")} if metric.type == "histogram" else set()
        )
        names |= parts or counted
    return names


def alerts():
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def queries():
    panels = orjson.loads(DASHBOARD.read_bytes())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def test_alerts_and_dashboard_speak_only_of_metrics_that_exist():
    spoken_of = set(METRIC.findall(" ".join([*queries(), *(rule["expr"] for rule in alerts())])))
    assert len(spoken_of) > 20
    assert spoken_of - names_that_exist() == set()


def test_the_dashboard_leaves_no_metric_out():
    spoken_of = set(METRIC.findall(" ".join(queries())))
    shown = {name.removesuffix(part) for name in spoken_of for part in ("_bucket", "_sum", "_count", "")}
    left_out = {"toolproxy_info"}
    assert {
        metric for metric in names_that_exist() if not {metric, re.sub(r"_(bucket|sum|count)$", "", metric)} & shown
    } == left_out


def test_what_the_autoscaler_scales_by_exists():
    scaler = manifest("HorizontalPodAutoscaler toolproxy")
    assert scaler["spec"]["metrics"][0]["pods"]["metric"]["name"] in names_that_exist()


@found("promtool")
def test_promtool_accepts_the_scrape_the_alerts_and_every_query_of_the_dashboard(tmp_path):
    rules = [
        {"record": f"panel:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(queries())
    ]
    as_rules = tmp_path / "dashboard.yml"
    as_rules.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    for command in (["config", DEPLOY / "prometheus" / "prometheus.yml"], ["rules", ALERTS], ["rules", as_rules]):
        done = subprocess.run(["promtool", "check", *command], capture_output=True, text=True, check=False)  # noqa: S607
        assert done.returncode == 0, done.stdout + done.stderr


@found("promtool")
def test_an_upstream_and_a_tool_that_never_worked_raise_their_alerts(tmp_path):
    failing = {
        "ToolproxyUpstreamFailing": ('toolproxy_upstream_errors_total{upstream="up",error="server_error"}', "up"),
        "ToolproxyToolFailing": ('toolproxy_tool_calls_total{tool="web_search",outcome="unavailable"}', "web_search"),
    }
    labels = {"up": {"upstream": "up", "error": "server_error"}, "web_search": {"tool": "web_search"}}
    summaries = {"up": "up: 100% of all calls end in server_error", "web_search": "web_search: 100% of all calls fail"}
    raised = [
        {
            "eval_time": "25m",
            "alertname": alert,
            "exp_alerts": [
                {"exp_labels": {"severity": "warning", **labels[name]}, "exp_annotations": {"summary": summaries[name]}}
            ],
        }
        for alert, (_, name) in failing.items()
    ]
    series = [{"series": one, "values": "0+10x30"} for one, _ in failing.values()]
    case = {"interval": "1m", "input_series": series, "alert_rule_test": raised}
    page = tmp_path / "alerts_test.yml"
    page.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [case]}))
    done = subprocess.run(["promtool", "test", "rules", page], capture_output=True, text=True, check=False)  # noqa: S607
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_is_one_that_grafana_can_provision():
    dashboard = orjson.loads(DASHBOARD.read_bytes())
    assert {"uid", "title", "schemaVersion", "panels"} <= dashboard.keys()
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    (source,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    chosen, *_ = dashboard["templating"]["list"]
    assert (chosen["name"], chosen["query"]) == ("datasource", source["type"])
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert panel["type"] == "row" or panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_every_panel_of_clients_or_models_shows_those_that_are_chosen_and_groups_by_labels_that_exist():
    labels = Series().labels
    for query in queries():
        grouped = {label for by in re.findall(r"by \(([\w, ]+)\)", query) for label in by.split(", ")}
        for full, selector in re.findall(r"(toolproxy_\w+)(\{[^}]*\})?", query):
            name = full if full in labels else re.sub(r"_(total|bucket|sum|count)$", "", full)
            chosen = [f'{label}=~"${label}"' for label in ("client", "model") if label in labels[name]]
            assert selector == ("{" + ",".join(chosen) + "}" if chosen else ""), query
            assert grouped - {"le", "instance"} <= set(labels[name]), query  # the second is of Prometheus itself


def test_the_composition_fits_the_schema_of_compose():
    pytest.importorskip("check_jsonschema", reason="the extra deploy is not installed")
    vendored = resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    composition = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    validator = jsonschema_rs.validator_for(orjson.loads(vendored.read_bytes()))
    assert [f"{error.instance_path}: {error.message}" for error in validator.iter_errors(composition)] == []


def test_every_file_that_the_composition_mounts_exists():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    mounted = [volume.split(":")[0] for service in services.values() for volume in service.get("volumes", ())]
    files = [path for path in mounted if path.startswith(".")]
    assert len(files) == 5
    assert [path for path in files if not (DEPLOY / path).exists()] == []


@pytest.mark.parametrize("made", [made for made in MANIFESTS if made["kind"] not in CUSTOM], ids=named)
def test_every_manifest_fits_the_schema_of_kubernetes(made):
    validate = pytest.importorskip("kubernetes_validate", reason="the extra deploy is not installed")
    assert validate.validate(made, "1.30", strict=True) == "1.30"  # where it has no such schema, it takes an older one


@found("kubectl")
def test_kustomize_puts_everything_together_and_a_change_of_keys_or_configuration_rolls_the_pods(tmp_path):
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")

    def referred_to():
        command = ["kubectl", "kustomize", tmp_path / "kubernetes" / "example"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        made = list(yaml.safe_load_all(done.stdout))
        assert {one["kind"] for one in made} > CUSTOM | {"ConfigMap", "Secret", "StatefulSet"}
        assert {one["metadata"].get("namespace", "toolproxy") for one in made} == {"toolproxy"}
        names = {one["metadata"]["name"] for one in made if one["kind"] in {"ConfigMap", "Secret"}}
        pod = next(one for one in made if named(one) == "Deployment toolproxy")["spec"]["template"]["spec"]
        configuration, keys = (
            pod["volumes"][0]["configMap"]["name"],
            pod["containers"][0]["envFrom"][0]["secretRef"]["name"],
        )
        assert {configuration, keys} == names
        return configuration, keys

    before = referred_to()
    (tmp_path / "kubernetes" / "example" / "keys.env").write_text("TOOLPROXY_KEY=another\n")
    (tmp_path / "kubernetes" / "base" / "config.yaml").write_text("models: {}\n")
    after = referred_to()
    assert set(before) & set(after) == set()


def manifest(name):
    return next(made for made in MANIFESTS if named(made) == name)


def test_the_manifests_fit_each_other():
    deployment = manifest("Deployment toolproxy")
    pod = deployment["spec"]["template"]
    labels = pod["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert manifest("Service toolproxy")["spec"]["selector"] == labels
    assert manifest("PodDisruptionBudget toolproxy")["spec"]["selector"]["matchLabels"] == labels
    assert manifest("NetworkPolicy toolproxy")["spec"]["podSelector"]["matchLabels"] == labels
    assert manifest("PodMonitor toolproxy")["spec"]["selector"]["matchLabels"] == labels
    target = manifest("HorizontalPodAutoscaler toolproxy")["spec"]["scaleTargetRef"]
    assert target["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"]  # each `kubectl apply` would undo what the autoscaler did
    listed = yaml.safe_load((KUBERNETES / "base" / "kustomization.yaml").read_text())["resources"]
    assert {*listed, "kustomization.yaml", "config.yaml"} == {
        path.name for path in (KUBERNETES / "base").glob("*.yaml")
    }


def test_no_service_of_the_namespace_becomes_an_environment_variable_of_the_pod():
    """Kubernetes would set TOOLPROXY_PORT, which is the port that the proxy listens on, to tcp://ADDRESS:80."""
    pod = manifest("Deployment toolproxy")["spec"]["template"]["spec"]
    assert pod["enableServiceLinks"] is False


@pytest.mark.parametrize("folder", ["base", "example"])
def test_the_configuration_in_the_manifests_is_good_and_gets_every_key_that_it_wants(folder):
    text = (KUBERNETES / "base" / "config.yaml").read_text()
    wanted = set(re.findall(r"\$\{(\w+)\}", text))
    keys = re.findall(r"^(\w+)=", (KUBERNETES / folder / "keys.env").read_text(), re.MULTILINE)
    assert wanted == set(keys)
    loaded = parse(text, {name: f"key-of-{name}" for name in wanted})
    assert loaded.disabled == {}
    pod = manifest("Deployment toolproxy")["spec"]["template"]["spec"]
    pause = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > loaded.config.server.shutdown_grace_seconds + pause


def test_with_nothing_but_a_variable_the_shipped_configuration_has_an_administrator():
    text = (ROOT / "config.yaml").read_text()
    admins = [
        client.name
        for client in parse(text, {"TOOLPROXY_ADMIN_KEY": "a-key-of-the-admin"}).config.clients
        if client.admin
    ]
    assert admins == ["admin"]
    assert [client.name for client in parse(text, {"TOOLPROXY_KEY": "a-key-of-the-app"}).config.clients] == ["app"]
    settings = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["proxy"]["environment"]
    assert set(re.findall(r"\$\{(\w+_\w+)", text)) - settings.keys() == {"TOOLPROXY_ALLOW_ANONYMOUS"}


def test_the_lock_file_has_hashes_and_what_the_image_needs_in_versions_that_fit():
    locked = re.findall(
        r"^([\w.-]+)==([^ ;]+)[^\n]*\\\n +--hash=sha256:", (ROOT / "requirements.lock").read_text(), re.MULTILINE
    )
    versions = {canonicalize_name(name): version for name, version in locked}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = (project["optional-dependencies"][extra] for extra in ("mcp", "otel", "pdf", "redis", "web"))
    every = [Requirement(text) for texts in (project["dependencies"], *extras) for text in texts]
    wanted = [one for one in every if one.marker is None or one.marker.evaluate({"sys_platform": "linux"})]
    assert len(wanted) > 25
    assert [str(one) for one in wanted if versions.get(canonicalize_name(one.name), "0") not in one.specifier] == []


@found("caddy")
def test_caddy_accepts_the_snippet(tmp_path):
    command = ["caddy", "validate", "--adapter", "caddyfile", "--config", str(DEPLOY / "caddy" / "Caddyfile")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 0, done.stderr


CHART = DEPLOY / "helm" / "toolproxy"
VALUES = {
    "as shipped": {},
    "with everything": {
        "autoscaling": {"enabled": True},
        "podMonitor": {"enabled": True},
        "keys": {"ZAI_API_KEY": "a-key"},
        "networkPolicy": {"egress": [{"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 6379}]}]},
        "imagePullSecrets": [{"name": "registry"}],
    },
    "with a secret and nothing else": {
        "existingSecret": "mine",
        "networkPolicy": {"enabled": False},
        "config": "upstreams: {}\n",
    },
}


@pytest.fixture
def charted():
    """The manifests that Helm makes of the chart with some values."""
    helm = pytest.importorskip("helm_python", reason="the extra deploy is not installed")

    def render(values):
        with helm.Chart.load(str(CHART)) as chart:
            made = chart.render(values, name="demo", namespace="prod")
        texts = [text for name, text in made.items() if name.endswith(".yaml")]
        return [one for text in texts for one in yaml.safe_load_all(text) if one]

    return render


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_chart_renders_manifests_that_fit_the_schemas_of_kubernetes(charted, values):
    validate = pytest.importorskip("kubernetes_validate", reason="the extra deploy is not installed")
    made = charted(values)
    assert {"ConfigMap", "Deployment", "PodDisruptionBudget", "Service"} <= {one["kind"] for one in made}
    for one in made:
        if one["kind"] not in CUSTOM:
            assert validate.validate(one, "1.30", strict=True) == "1.30"


def test_the_chart_and_the_kustomization_run_the_same_pod(charted):
    ours = next(one for one in charted({}) if one["kind"] == "Deployment")["spec"]["template"]["spec"]
    theirs = next(one for one in MANIFESTS if named(one) == "Deployment toolproxy")["spec"]["template"]["spec"]
    differ = {"containers", "volumes", "topologySpreadConstraints"}
    assert {key: ours[key] for key in ours.keys() - differ} == {key: theirs[key] for key in theirs.keys() - differ}
    (our, their) = (ours["containers"][0], theirs["containers"][0])
    set_by_values = {"image", "imagePullPolicy", "env", "envFrom"}
    assert {key: our[key] for key in our.keys() - set_by_values} == {
        key: their[key] for key in their.keys() - set_by_values
    }


def test_a_change_of_the_chart_s_keys_or_configuration_rolls_the_pods(charted):
    def annotations(values):
        deployment = next(one for one in charted(values) if one["kind"] == "Deployment")
        return deployment["spec"]["template"]["metadata"]["annotations"]

    first, same = annotations({}), annotations({})
    assert first == same
    assert annotations({"keys": {"A": "b"}}) != first != annotations({"config": "upstreams: {}"})
