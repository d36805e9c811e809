"""The files in ``deploy/`` are valid for their tools, and for the service."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement

import headgate
from headgate.cli.__main__ import main
from headgate.cli.serve import options, unknown_variables
from headgate.server.settings import Settings
from tests.cli.test_serve import settings as parsed_settings
from tests.server.process.service import SECONDS, Service, service
from tests.servers import until

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
KUBERNETES: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
CHART, HELM = str(DEPLOY / "helm" / "headgate"), str(BIN / "helm")
VALUES: dict[str, dict[str, Any]] = {
    "database": {"database": {"url": "postgresql://headgate:password@db/headgate"}, "workers": 2},
    "files": {
        "envoy": {
            "files": {
                "edge.yaml": {
                    "domain": "edge",
                    "descriptors": [{"key": "path", "rate_limit": {"unit": "minute", "requests_per_unit": 100}}],
                }
            }
        },
        "options": {"log_denials": 5, "log_access": True, "tracing": False},
    },
    "all": {
        "image": {"pullSecrets": ["registry"], "tag": "0.1.0"},
        "store": {"existingSecret": "store"},
        "database": {"existingSecret": "database"},
        "admin": {"expose": True, "existingSecret": "admin"},
        "tls": {"existingSecret": "certificate", "clientCa": True},
        "autoscaling": {"enabled": True},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True},
        "networkPolicy": {
            "enabled": True,
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
            "adminFrom": [{"podSelector": {"matchLabels": {"app": "vpn"}}}],
        },
        "serviceAccount": {"create": True, "annotations": {"owner": "platform"}},
        "podAnnotations": {"owner": "platform"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        "drain": {"delayS": 10, "finishS": 60},
    },
}
ELSEWHERE = {"store": "redis://redis:6379/0", "database": "postgresql://db/headgate", "admin-key": "hg_key"}
"""Content of Secrets that the values name."""
UNIT = DEPLOY / "headgate.service"
DEFAULTS = Settings()


def settings(environment: dict[str, str]) -> Settings:
    """Return the settings of an environment."""
    assert unknown_variables(environment) == []
    return parsed_settings(**environment)


def instructions(name: str) -> list[str]:
    """Return the arguments of an instruction of the Dockerfile, each time that it occurs."""
    joined = DOCKERFILE.replace("\\\n", " ")
    return re.findall(rf"^{name} (.*)$", joined, re.MULTILINE)


def image_environment() -> dict[str, str]:
    words = [word.split("=", 1) for line in instructions("ENV") for word in shlex.split(line)]
    return {name: value for name, value in words if name.startswith("HEADGATE_")}


def rendered(values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the objects of the chart: as release `headgate` without values, `edge` with them."""
    command = [HELM, "template", "edge" if values else "headgate", CHART, "--values", "-"]
    done = subprocess.run(command, input=json.dumps(values or {}), capture_output=True, text=True, check=True)
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def of_kind(objects: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    (found,) = [each for each in objects if each["kind"] == kind and name in {"", each["metadata"]["name"]}]
    return found


def deployment(objects: list[dict[str, Any]]) -> dict[str, Any]:
    found = of_kind(objects, "Deployment")["spec"]
    assert isinstance(found, dict)
    return found


def container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = deployment(objects)["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def environment_of(objects: list[dict[str, Any]]) -> dict[str, str]:
    """Return the variables of the container, with values for those from Secrets of the user."""
    made = {each["metadata"]["name"]: each["stringData"] for each in objects if each["kind"] == "Secret"}
    found = {}
    for each in container(objects)["env"]:
        secret = each.get("valueFrom", {}).get("secretKeyRef")
        found[each["name"]] = each["value"] if not secret else made.get(secret["name"], ELSEWHERE).get(secret["key"])
        assert isinstance(found[each["name"]], str), each
    return found


def here(environment: dict[str, str], folder: Path) -> dict[str, str]:
    """Return the same with mounted files and folders created here."""
    found = {}
    for name, value in environment.items():
        path = folder / value.removeprefix("/etc/headgate/")
        if value.startswith("/etc/headgate/"):
            path.parent.mkdir(exist_ok=True)
            path.mkdir() if name == "HEADGATE_ENVOY_CONFIG" else path.touch()
        found[name] = str(path) if value.startswith("/etc/headgate/") else value
    found.pop("HEADGATE_ADMIN_KEY", None)
    return found


@pytest.fixture(scope="module")
def served() -> Any:
    with service() as found:
        yield found.started()


class TestDockerfile:
    def test_hadolint_finds_nothing(self) -> None:
        subprocess.run([str(BIN / "hadolint"), str(DEPLOY / "Dockerfile")], check=True)

    def test_copied_files_exist_and_are_not_ignored(self) -> None:
        ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
        copied = [word for line in instructions("COPY") if "--from" not in line for word in line.split()[:-1]]
        assert {f"!{word}" for word in copied if word != "/dist/*.whl"} <= set(ignored)
        assert all((ROOT / word).exists() for word in copied)

    def test_its_command_could_start_with_its_environment(self, capsys: pytest.CaptureFixture[str]) -> None:
        words = [*json.loads(instructions("ENTRYPOINT")[0]), *json.loads(instructions("CMD")[-1])]
        assert words == ["headgate", "serve"]
        given = settings(image_environment())
        assert (given.host, given.log_format) == ("0.0.0.0", "json")  # noqa: S104  in a container
        assert main([*words[1:], "--http-port", "0", "--grpc-port", "0", "--check"]) == 0
        assert "it could start" in capsys.readouterr().out

    def test_without_rules_it_creates_a_database_in_its_volume(self, tmp_path: Path) -> None:
        (folder,) = instructions("WORKDIR")[1:]
        assert image_environment()["HEADGATE_DATA_DIR"] == folder
        assert instructions("VOLUME") == [folder]
        assert f"chown {instructions('USER')[0]} {folder}" in instructions("RUN")
        here = {"HEADGATE_DATA_DIR": str(tmp_path), "HEADGATE_HOST": "127.0.0.1", "HEADGATE_RULES": ""}
        with service(environment={**image_environment(), **here}, cwd=tmp_path) as found:
            until(lambda: "the first key" in found.said and "hg_" in found.said, "it serves", SECONDS)
            assert "hg_" not in found.complained
            assert {path.name for path in tmp_path.iterdir()} >= {"headgate.db"}
            assert list(tmp_path.glob("*/rules.jsonl"))

    def test_it_exposes_the_ports_and_its_health_check_succeeds(self, served: Service) -> None:
        assert instructions("EXPOSE") == [f"{DEFAULTS.http_port} {DEFAULTS.grpc_port}"]
        program = json.loads(re.findall(r"CMD (\[\"python\".*\])", DOCKERFILE)[0])
        given = [sys.executable, *program[1:]]
        given[-1] = given[-1].replace(f":{DEFAULTS.http_port}/", f":{served.http_port}/")
        subprocess.run(given, check=True)


class TestCompose:
    def test_its_options_are_valid(self) -> None:
        ours = COMPOSE["services"]["headgate"]
        (mount,) = ours["volumes"]
        environment = dict(ours["environment"])
        rules = DEPLOY / mount["source"] / Path(environment["HEADGATE_RULES"]).relative_to(mount["target"])
        given = settings({**image_environment(), **environment, "HEADGATE_RULES": str(rules)})
        assert given.workers == 2
        assert main(["rules", "validate", str(rules)]) == 0
        assert int(ours["stop_grace_period"].removesuffix("s")) > given.drain_delay + given.drain_seconds + 5
        assert given.store == "redis://redis:6379/0"

    def test_the_store_is_durable(self) -> None:
        command = COMPOSE["services"]["redis"]["command"]
        options = dict(zip(command[1::2], command[2::2], strict=True))
        assert options["--maxmemory-policy"] == "noeviction"
        assert options["--appendonly"] == "yes"

    def test_mounts_and_configs_exist(self) -> None:
        used = set()
        for each in COMPOSE["services"].values():
            for mount in each.get("volumes", []):
                if isinstance(mount, dict):
                    assert (DEPLOY / mount["source"]).exists()
                else:
                    assert mount.partition(":")[0] in COMPOSE["volumes"]
            used |= {config["source"] for config in each.get("configs", [])}
            assert set(each.get("depends_on", [])) <= COMPOSE["services"].keys()
        assert used == COMPOSE["configs"].keys()

    def test_ports_are_local(self) -> None:
        ports = [port for each in COMPOSE["services"].values() for port in each.get("ports", [])]
        assert all(port.startswith("127.0.0.1:") for port in ports)
        assert f"127.0.0.1:{DEFAULTS.http_port}:{DEFAULTS.http_port}" in ports

    def test_prometheus_has_our_alerts_and_our_target(self) -> None:
        given = yaml.safe_load(COMPOSE["configs"]["prometheus"]["content"])
        (job,) = given["scrape_configs"]
        assert job["job_name"] == "headgate"  # as the alerts have it
        assert job["static_configs"] == [{"targets": [f"headgate:{DEFAULTS.http_port}"]}]
        targets = [mount["target"] for mount in COMPOSE["services"]["prometheus"]["volumes"] if isinstance(mount, dict)]
        assert given["rule_files"] == targets

    def test_grafana_has_our_dashboard_and_its_data_source(self) -> None:
        (source,) = yaml.safe_load(COMPOSE["configs"]["datasource"]["content"])["datasources"]
        assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
        (provider,) = yaml.safe_load(COMPOSE["configs"]["dashboards"]["content"])["providers"]
        (mount,) = COMPOSE["services"]["grafana"]["volumes"]
        assert provider["options"]["path"] == mount["target"]
        assert (DEPLOY / mount["source"] / "headgate.json").exists()


class TestLocks:
    def test_the_image_installs_the_requirements_of_the_package(self) -> None:
        """All direct requirements of the image's extras, in accepted versions, with digests."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        locked = {name: text for name in ("requirements", "build") for text in [(DEPLOY / f"{name}.lock").read_text()]}
        given = {"requirements": requirements(project["project"], "admin", "otel"), "build": ["hatchling"]}
        for name, text in locked.items():
            versions = dict(re.findall(r"^([a-z0-9-]+)==([^ ;]+)", text, re.MULTILINE))
            for each in map(Requirement, given[name]):
                assert versions[each.name.lower()] in each.specifier, each
            assert len(re.findall("^[a-z0-9-]+", text, re.MULTILINE)) == len(versions)
            assert all("--hash=sha256:" in part for part in re.split("^(?=[a-z])", text, flags=re.MULTILINE) if part)

    def test_omitted_dependencies_of_litestar_are_not_imported(self) -> None:
        assert not re.search("^(polyfactory|faker)==", (DEPLOY / "requirements.lock").read_text(), re.MULTILINE)
        blocked = "import sys; sys.modules |= {'polyfactory': None, 'faker': None}"
        program = f"{blocked}; from headgate.admin import api, listener, plane"
        subprocess.run([sys.executable, "-c", program], check=True)


def requirements(project: dict[str, Any], *extras: str) -> list[str]:
    """Return the requirements of a package with some extras, including nested ones."""
    found = list(project["dependencies"])
    for extra in extras:
        for each in project["optional-dependencies"][extra]:
            own = re.fullmatch(r"headgate\[(.*)\]", each)
            found += requirements(project, *own[1].split(",")) if own else [each]
    return [each for each in found if "win32" not in each]


class TestKubernetes:
    def test_the_manifest_is_the_chart_with_default_values(self) -> None:
        text = (DEPLOY / "kubernetes.yaml").read_text()
        for each in (made := rendered()):
            for name in ("helm.sh/chart", "app.kubernetes.io/managed-by"):
                del each["metadata"]["labels"][name]
        assert made == list(yaml.safe_load_all(text)), "make manifest renews deploy/kubernetes.yaml"

    def test_its_options_are_valid(self, tmp_path: Path) -> None:
        found = of_kind(KUBERNETES, "ConfigMap", "headgate-rules")["data"]["rules.yaml"]
        (tmp_path / "rules.yaml").write_text(found)
        assert main(["rules", "validate", str(tmp_path / "rules.yaml")]) == 0
        environment = environment_of(KUBERNETES)
        mounts = {mount["name"]: mount["mountPath"] for mount in container(KUBERNETES)["volumeMounts"]}
        assert environment["HEADGATE_RULES"] == f"{mounts['rules']}/rules.yaml"
        given = settings({**image_environment(), **environment, "HEADGATE_RULES": str(tmp_path / "rules.yaml")})
        assert given.shares is None, "any number of pods is counted"

    def test_the_pages_of_probes_exist(self, served: Service) -> None:
        notes = deployment(KUBERNETES)["template"]["metadata"]["annotations"]
        probes = [container(KUBERNETES)[f"{probe}Probe"] for probe in ("startup", "readiness", "liveness")]
        assert all(served.get(probe["httpGet"]["path"])[0] == 200 for probe in probes)
        assert served.get(notes["prometheus.io/path"])[0] == 200
        assert all(probe["failureThreshold"] >= 3 for probe in probes)


class TestChart:
    """The chart as rendered by Helm."""

    def test_helm_finds_nothing(self) -> None:
        found = subprocess.run([HELM, "lint", "--strict", CHART], capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stdout

    @pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
    def test_its_objects_are_valid_and_fit_together(self, values: dict[str, Any], tmp_path: Path) -> None:
        objects = rendered(values)
        for each in objects:
            if not each["apiVersion"].startswith("monitoring.coreos.com/"):
                kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
        spec = deployment(objects)
        labels = spec["template"]["metadata"]["labels"].items()
        assert spec["selector"]["matchLabels"].items() <= labels
        ports = {port["name"]: port["containerPort"] for port in container(objects)["ports"]}
        assert ports.items() >= {("http", DEFAULTS.http_port), ("grpc", DEFAULTS.grpc_port)}
        for each in [each["spec"] for each in objects if each["kind"] == "Service"]:
            assert each["selector"].items() <= labels
            assert all(ports[port["targetPort"]] == port["port"] for port in each["ports"])
        volumes = {volume["name"]: volume for volume in spec["template"]["spec"]["volumes"]}
        assert {mount["name"] for mount in container(objects)["volumeMounts"]} == volumes.keys()
        made = {each["metadata"]["name"] for each in objects if each["kind"] == "ConfigMap"}
        assert {volume["configMap"]["name"] for volume in volumes.values() if "configMap" in volume} == made
        given = settings(here(environment_of(objects), tmp_path))
        grace = spec["template"]["spec"]["terminationGracePeriodSeconds"]
        assert grace > given.drain_delay + given.drain_seconds + 5

    def test_metrics_have_the_job_of_the_alerts(self) -> None:
        """Whatever the release is called; and one Service alone is scraped, so that nothing counts twice."""
        objects = rendered(VALUES["all"])
        monitor = of_kind(objects, "ServiceMonitor")["spec"]
        wanted = monitor["selector"]["matchLabels"].items()
        (service,) = [
            each for each in objects if each["kind"] == "Service" and wanted <= each["metadata"]["labels"].items()
        ]
        assert service["metadata"]["labels"][monitor["jobLabel"]] == "headgate"
        assert {each["port"] for each in monitor["endpoints"]} <= {port["name"] for port in service["spec"]["ports"]}
        alerts = yaml.safe_load((ROOT / "docs" / "prometheus" / "alerts.yaml").read_text())
        assert of_kind(objects, "PrometheusRule")["spec"] == alerts
        assert 'up{job="headgate"}' in str(alerts)

    def test_files_of_rules_and_of_envoy_arrive_as_they_are(self) -> None:
        rules = (ROOT / "docs" / "examples" / "rules.yaml").read_text()
        objects = rendered({"rules": rules, **VALUES["files"]})
        assert of_kind(objects, "ConfigMap", "edge-headgate-rules")["data"]["rules.yaml"].strip() == rules.strip()
        files = of_kind(objects, "ConfigMap", "edge-headgate-envoy")["data"]
        assert yaml.safe_load(files["edge.yaml"]) == VALUES["files"]["envoy"]["files"]["edge.yaml"]

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"replica": 2}, "replica"),
            ({"store": {"address": "memory"}}, "store.address"),
            ({"store": {"address": ""}}, "store.address or store.existingSecret is needed"),
            ({"admin": {"expose": True}}, "admin.expose needs tls.existingSecret"),
        ],
    )
    def test_wrong_values_are_refused(self, wrong: dict[str, Any], message: str) -> None:
        with pytest.raises(subprocess.CalledProcessError) as error:
            rendered(wrong)
        assert message in error.value.stderr


class TestSystemd:
    def test_systemd_finds_nothing(self, tmp_path: Path) -> None:
        """With the command where it is here, as it has to be there."""
        program = shutil.which("systemd-analyze")
        assert program, "systemd-analyze is needed: apt-get install systemd"
        unit = tmp_path / UNIT.name
        unit.write_text(UNIT.read_text().replace("/opt/headgate/bin/headgate", str(BIN / "headgate")))
        found = subprocess.run([program, "--man=no", "verify", str(unit)], capture_output=True, text=True, check=False)
        assert (found.returncode, found.stderr) == (0, "")

    def test_the_service_understands_its_options_and_has_time_to_drain(self) -> None:
        unit = configparser.ConfigParser(strict=False, interpolation=None)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read(UNIT)
        ours = unit["Service"]
        words = shlex.split(ours["ExecStart"])
        assert words == ["/opt/headgate/bin/headgate", "serve"]
        text = ours["Environment"].replace("/etc/headgate", str(ROOT / "docs" / "examples"))
        environment = dict(word.split("=", 1) for word in shlex.split(text))
        given = settings(environment)
        assert int(ours["TimeoutStopSec"]) > given.drain_delay + given.drain_seconds + 5
        assert environment["HEADGATE_DATA_DIR"] == ours["WorkingDirectory"] == f"/var/lib/{ours['StateDirectory']}"
        assert settings({**environment, "HEADGATE_RULES": "", "HEADGATE_DATABASE": "postgresql://db/headgate"}).database
        assert int(ours["LimitNOFILE"]) > DEFAULTS.max_connections
        for name, value in re.findall(r"^# .*(HEADGATE_\w+)=(\S+)", UNIT.read_text(), re.MULTILINE):
            settings({name: value})


def test_options_that_stand_for_those_of_envoyproxy_ratelimit_are_ours() -> None:
    page = (ROOT / "docs" / "migrating-ratelimit.md").read_text()
    mapping = page[page.index("## Environment variables") :]
    rows = [line.strip("| ").split(" | ") for line in mapping.splitlines() if line.startswith("| `")]
    theirs = [name for row in rows for name in re.findall(r"`([A-Z_]+)`", row[0])]
    assert len(theirs) == len(set(theirs)) == 114
    ours = {option.argument for option in options()}
    named = set(re.findall(r"`(--[a-z-]+)", mapping))
    assert named
    assert named <= ours
    for option in re.findall(r"`\?(\w+)=`", " ".join(row[1] for row in rows)):
        assert f"`{option}`" in (ROOT / "docs" / "deploy.md").read_text()


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load(Path(CHART, "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == headgate.__version__
