"""The files in ``deploy/`` are such as their tools accept, and say what the service understands."""

from __future__ import annotations

import argparse
import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from headgate.cli.__main__ import main
from headgate.cli.serve import add_options, options, settings_of, unknown_variables
from headgate.server.settings import Settings
from tests.server.process.service import SECONDS, Service, service
from tests.servers import until

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
KUBERNETES: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
UNIT = DEPLOY / "headgate.service"
DEFAULTS = Settings()
APP = {"app.kubernetes.io/name": "headgate"}


def settings(environment: dict[str, str], *arguments: str) -> Settings:
    """What the service makes of an environment and arguments."""
    assert unknown_variables(environment) == []
    parser = argparse.ArgumentParser()
    add_options(parser)
    return settings_of(parser.parse_args(arguments), environment)


def instructions(name: str) -> list[str]:
    """What follows an instruction of the Dockerfile, each time that it is there."""
    joined = DOCKERFILE.replace("\\\n", " ")
    return re.findall(rf"^{name} (.*)$", joined, re.MULTILINE)


def image_environment() -> dict[str, str]:
    words = [word.split("=", 1) for line in instructions("ENV") for word in shlex.split(line)]
    return {name: value for name, value in words if name.startswith("HEADGATE_")}


def of_kind(kind: str, name: str = "headgate") -> dict[str, Any]:
    (found,) = [each for each in KUBERNETES if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def container() -> dict[str, Any]:
    (found,) = of_kind("Deployment")["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def served() -> Any:
    with service() as found:
        yield found.started()


class TestDockerfile:
    def test_hadolint_finds_nothing(self) -> None:
        subprocess.run([str(BIN / "hadolint"), str(DEPLOY / "Dockerfile")], check=True)

    def test_all_that_is_copied_is_there_and_not_ignored(self) -> None:
        ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
        copied = [word for line in instructions("COPY") if "--from" not in line for word in line.split()[:-1]]
        assert {f"!{word}" for word in copied} <= set(ignored)
        assert all((ROOT / word).exists() for word in copied)

    def test_its_command_could_start_with_its_environment(self, capsys: pytest.CaptureFixture[str]) -> None:
        words = [*json.loads(instructions("ENTRYPOINT")[0]), *json.loads(instructions("CMD")[-1])]
        assert words == ["headgate", "serve"]
        asked = settings(image_environment())
        assert (asked.host, asked.log_format) == ("0.0.0.0", "json")  # noqa: S104  in a container
        assert main([*words[1:], "--http-port", "0", "--grpc-port", "0", "--check"]) == 0
        assert "it could start" in capsys.readouterr().out

    def test_without_rules_it_begins_with_a_database_where_it_may_write(self, tmp_path: Path) -> None:
        (folder,) = instructions("WORKDIR")[1:]
        assert image_environment()["HEADGATE_DATA_DIR"] == folder
        assert instructions("VOLUME") == [folder]
        assert f"chown {instructions('USER')[0]} {folder}" in instructions("RUN")
        assert "'.[admin,otel]'" in instructions("RUN")[0]
        here = {"HEADGATE_DATA_DIR": str(tmp_path), "HEADGATE_HOST": "127.0.0.1", "HEADGATE_RULES": ""}
        with service(environment={**image_environment(), **here}, cwd=tmp_path) as found:
            until(lambda: "the first key" in found.said and "hg_" in found.said, "it serves", SECONDS)
            assert "hg_" not in found.complained
            assert {path.name for path in tmp_path.iterdir()} >= {"headgate.db"}
            assert list(tmp_path.glob("*/rules.json"))

    def test_it_exposes_the_ports_and_asks_for_a_page_that_there_is(self, served: Service) -> None:
        assert instructions("EXPOSE") == [f"{DEFAULTS.http_port} {DEFAULTS.grpc_port}"]
        program = json.loads(re.findall(r"CMD (\[\"python\".*\])", DOCKERFILE)[0])
        asked = [sys.executable, *program[1:]]
        asked[-1] = asked[-1].replace(f":{DEFAULTS.http_port}/", f":{served.http_port}/")
        subprocess.run(asked, check=True)


class TestCompose:
    def test_the_service_understands_its_options(self) -> None:
        ours = COMPOSE["services"]["headgate"]
        (mount,) = ours["volumes"]
        environment = dict(ours["environment"])
        rules = DEPLOY / mount["source"] / Path(environment["HEADGATE_RULES"]).relative_to(mount["target"])
        asked = settings({**image_environment(), **environment, "HEADGATE_RULES": str(rules)})
        assert asked.workers == 2
        assert main(["rules", "validate", str(rules)]) == 0
        assert int(ours["stop_grace_period"].removesuffix("s")) > asked.drain_delay + asked.drain_seconds + 5
        assert asked.store == "redis://redis:6379/0"

    def test_the_store_keeps_what_it_is_given(self) -> None:
        command = COMPOSE["services"]["redis"]["command"]
        options = dict(zip(command[1::2], command[2::2], strict=True))
        assert options["--maxmemory-policy"] == "noeviction"
        assert options["--appendonly"] == "yes"

    def test_what_is_mounted_and_configured_is_there(self) -> None:
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

    def test_only_this_machine_reaches_its_ports(self) -> None:
        ports = [port for each in COMPOSE["services"].values() for port in each.get("ports", [])]
        assert all(port.startswith("127.0.0.1:") for port in ports)
        assert f"127.0.0.1:{DEFAULTS.http_port}:{DEFAULTS.http_port}" in ports

    def test_prometheus_has_our_alerts_and_asks_our_service(self) -> None:
        asked = yaml.safe_load(COMPOSE["configs"]["prometheus"]["content"])
        (job,) = asked["scrape_configs"]
        assert job["job_name"] == "headgate"  # as the alerts have it
        assert job["static_configs"] == [{"targets": [f"headgate:{DEFAULTS.http_port}"]}]
        targets = [mount["target"] for mount in COMPOSE["services"]["prometheus"]["volumes"] if isinstance(mount, dict)]
        assert asked["rule_files"] == targets

    def test_grafana_has_our_dashboard_and_where_its_data_are(self) -> None:
        (source,) = yaml.safe_load(COMPOSE["configs"]["datasource"]["content"])["datasources"]
        assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
        (provider,) = yaml.safe_load(COMPOSE["configs"]["dashboards"]["content"])["providers"]
        (mount,) = COMPOSE["services"]["grafana"]["volumes"]
        assert provider["options"]["path"] == mount["target"]
        assert (DEPLOY / mount["source"] / "headgate.json").exists()


class TestKubernetes:
    @pytest.mark.parametrize("each", KUBERNETES, ids=lambda each: f"{each['kind']} {each['metadata']['name']}")
    def test_each_object_is_valid(self, each: dict[str, Any]) -> None:
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)

    def test_the_service_understands_its_options(self, tmp_path: Path) -> None:
        text, secret = of_kind("ConfigMap")["data"]["rules.yaml"], of_kind("Secret")["stringData"]
        (tmp_path / "rules.yaml").write_text(text)
        assert main(["rules", "validate", str(tmp_path / "rules.yaml")]) == 0
        environment = {}
        for each in container()["env"]:
            environment[each["name"]] = each.get("value") or secret[each["valueFrom"]["secretKeyRef"]["key"]]
        mounts = {mount["name"]: mount["mountPath"] for mount in container()["volumeMounts"]}
        assert environment["HEADGATE_RULES"] == f"{mounts['rules']}/rules.yaml"
        asked = settings({**image_environment(), **environment, "HEADGATE_RULES": str(tmp_path / "rules.yaml")})
        spec = of_kind("Deployment")["spec"]
        assert asked.nodes == spec["replicas"]
        grace = spec["template"]["spec"]["terminationGracePeriodSeconds"]
        assert grace > asked.drain_delay + asked.drain_seconds + 5

    def test_names_and_labels_fit_together(self) -> None:
        spec = of_kind("Deployment")["spec"]
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"] == APP
        assert of_kind("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == APP
        ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
        assert ports == {"http": DEFAULTS.http_port, "grpc": DEFAULTS.grpc_port}
        for name in ("headgate", "headgate-pods"):
            found = of_kind("Service", name)["spec"]
            assert found["selector"] == APP
            assert all(ports[port["targetPort"]] == port["port"] for port in found["ports"])
        volumes = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
        assert {mount["name"] for mount in container()["volumeMounts"]} == volumes

    def test_probes_ask_for_pages_that_there_are(self, served: Service) -> None:
        notes = of_kind("Deployment")["spec"]["template"]["metadata"]["annotations"]
        paths = {container()[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "readiness", "liveness")}
        assert all(served.get(path)[0] == 200 for path in {*paths, notes["prometheus.io/path"]})


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
        asked = settings(environment)
        assert int(ours["TimeoutStopSec"]) > asked.drain_delay + asked.drain_seconds + 5
        assert environment["HEADGATE_DATA_DIR"] == ours["WorkingDirectory"] == f"/var/lib/{ours['StateDirectory']}"
        assert settings({**environment, "HEADGATE_RULES": "", "HEADGATE_DATABASE": "postgresql://db/headgate"}).database
        assert int(ours["LimitNOFILE"]) > DEFAULTS.max_connections
        for name, value in re.findall(r"^# .*(HEADGATE_\w+)=(\S+)", UNIT.read_text(), re.MULTILINE):
            settings({name: value})


def test_options_that_stand_for_those_of_envoyproxy_ratelimit_are_ours() -> None:
    page = (ROOT / "docs" / "envoy.md").read_text()
    mapping = page[page.index("## Its environment variables") :]
    rows = [line.strip("| ").split(" | ") for line in mapping.splitlines() if line.startswith("| `")]
    theirs = [name for row in rows for name in re.findall(r"`([A-Z_]+)`", row[0])]
    assert len(theirs) == len(set(theirs)) == 114
    ours = {option.argument for option in options()}
    named = set(re.findall(r"`(--[a-z-]+)", mapping))
    assert named
    assert named <= ours
    for option in re.findall(r"`\?(\w+)=`", " ".join(row[1] for row in rows)):
        assert f"`{option}`" in (ROOT / "docs" / "deploy.md").read_text()
