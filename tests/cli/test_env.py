"""`xl env`: its three forms, on this machine and on facts that stand in for others."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pexpect
import pytest

from xl.cli.env import for_terminal, pasteable
from xl.cli.env_report import Report, as_data, links_text, size
from xl.cli.env_settings import settings_files, wishes_of
from xl.launcher.findings import Finding
from xl.launcher.gpus import GpuDetail, GpuFacts
from xl.launcher.hardware.cpu import Cpu, NumaNode
from xl.launcher.hardware.disk import Disk
from xl.launcher.hardware.gpu_links import GpuLink
from xl.launcher.hardware.memory import Memory
from xl.launcher.hardware.network import Interface, Network
from xl.launcher.hardware.snapshot import Hardware
from xl.launcher.hardware.software import Software
from xl.launcher.machine import Gpu

from .conftest import Cli

GIB = 1 << 30
ALL = frozenset(range(8))

REPORT = Report(
    Hardware(
        cpu=Cpu("Fast CPU", 16, 8, ALL, 4.0, (NumaNode(0, ALL, 64 * GIB),)),
        memory=Memory(64 * GIB, 60 * GIB, 0, 32 * GIB, GIB, 64 << 20, 64 << 20),
        gpus=GpuFacts(
            (
                Gpu(
                    0, "GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee", "NVIDIA H100 80GB HBM3", 80 * GIB, 79 * GIB
                ),
                Gpu(1, "GPU-2", "NVIDIA H100 80GB HBM3", 80 * GIB, 79 * GIB, ("MIG-1",)),
            ),
            (GpuDetail((9, 0)), GpuDetail((9, 0), (20 * GIB,))),
            (GpuLink(0, 1, "NV", 18),),
            "580.65.06",
            (13, 0),
        ),
        disks=(Disk("temporary files", "/tmp", 100 * GIB, 50 * GIB, writable=True),),
        network=Network("node-1", ("127.0.1.1",), (Interface("eth0", ("10.0.0.5",), True, False, 25000),)),
        open_files=(1024, 4096),
    ),
    Software("3.11.7 (CPython)", "/venv/bin/python", "Linux", (("torch", "2.13.0"),), (13, 0)),
    (),
    (("NCCL_DEBUG", "INFO\n### forged"),),
    (
        Finding(
            "shm-small", "warning", "shared memory (/dev/shm) is 64 MiB", "workers die", "pass --shm-size=8g"
        ),
    ),
)


def test_json_on_this_machine(cli: Cli) -> None:
    outcome = cli.run("env", "--json")
    assert outcome.code == 0
    data: dict[str, Any] = json.loads(outcome.out)
    assert list(data) == ["schema_version", "hardware", "software", "settings", "variables", "findings"]
    assert data["schema_version"] == 1
    assert data["hardware"]["cpu"]["usable_cores"] >= 1
    assert data["software"]["packages"]["torch"].startswith("2.")


def test_the_names_of_the_json_form_are_kept() -> None:
    data: Any = json.loads(json.dumps(as_data(REPORT)))
    hardware = data["hardware"]
    assert set(hardware) == {
        *("cpu", "memory", "gpus", "gpu_links", "nvidia_driver", "gpu_problems"),
        *("disks", "network", "open_files", "tpu"),
    }
    assert set(hardware["cpu"]) == {
        *(
            "model",
            "logical_cores",
            "physical_cores",
            "usable_cores",
            "allowed_cpus",
            "quota_cores",
            "numa_nodes",
        ),
    }
    assert hardware["gpus"][1] == {
        "index": 1,
        "uuid": "GPU-2",
        "name": "NVIDIA H100 80GB HBM3",
        "memory_total_bytes": 80 * GIB,
        "memory_free_bytes": 79 * GIB,
        "compute_capability": "9.0",
        "mig": [{"uuid": "MIG-1", "memory_total_bytes": 20 * GIB}],
    }
    assert hardware["gpu_links"] == [{"first": 0, "second": 1, "kind": "NV", "nvlinks": 18}]
    assert hardware["nvidia_driver"] == {"version": "580.65.06", "cuda": "13.0"}
    assert set(hardware["memory"]) == {
        *("total_bytes", "available_bytes", "swap_total_bytes", "limit_bytes", "limit_used_bytes"),
        *("shm_total_bytes", "shm_free_bytes"),
    }
    assert data["software"] == {
        "python": "3.11.7 (CPython)",
        "executable": "/venv/bin/python",
        "platform": "Linux",
        "torch_cuda": "13.0",
        "packages": {"torch": "2.13.0"},
    }
    assert set(data["findings"][0]) == {"code", "severity", "what", "why", "fix"}


def test_pasteable_text() -> None:
    text = "\n".join(pasteable(REPORT))
    assert "- CPU: Fast CPU, 16 cores (8 physical), 4 usable\n- NUMA: node 0: CPUs 0-7\n" in text
    assert "- RAM: 64.0 GiB, 60.0 GiB available, no swap\n- RAM limit: 32.0 GiB by control group" in text
    assert (
        "- GPU 0: NVIDIA H100 80GB HBM3, 79.0 GiB of 80.0 GiB free, compute capability 9.0, GPU-aaaa" in text
    )
    assert "  - MIG: 20.0 GiB, MIG-1\n- GPU links: all pairs: NV x18 (NVLink)\n" in text
    assert "- Driver: NVIDIA 580.65.06, runs CUDA up to 13.0" in text
    assert "- torch: 2.13.0, built for CUDA 13.0" in text
    assert "- NCCL_DEBUG: INFO\\n### forged\n" in text
    assert (
        "- warning: shared memory (/dev/shm) is 64 MiB\n  - why: workers die\n  - fix: pass --shm-size=8g"
        in text
    )
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [80, 60, 40])
def test_lines_fit_the_terminal(width: int) -> None:
    import click

    lines = [click.unstyle(line) for line in for_terminal(REPORT, width)]
    assert max(map(len, lines)) <= width
    assert any(line.startswith("Findings") for line in lines)


def test_links_by_kind() -> None:
    links = [GpuLink(0, 1, "SYS"), GpuLink(0, 2, "NV", 12), GpuLink(1, 2, "SYS"), GpuLink(1, 3, "NV", 12)]
    assert links_text(links) == "0-2 1-3: NV x12 (NVLink); 0-1 1-2: SYS (the link between processors)"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1 << 20, "1.0 MiB"),
        (3 << 29, "1.5 GiB"),
        (1 << 41, "2.0 TiB"),
    ],
)
def test_sizes(count: int | None, text: str) -> None:
    assert size(count) == text


def test_the_active_profile_is_named_with_its_file(cli: Cli) -> None:
    path = cli.profile(
        "big", "num_processes_per_machine: 3\ncpu: true\nenv:\n  API_KEY: s3cr3t\n", active=True
    )
    out = cli.run("env").out
    assert f"- Active profile: big, {path} (by xl config use)" in out
    assert "  - num_processes_per_machine: 3\n  - cpu: True\n  - env.API_KEY: ***\n" in out
    assert "s3cr3t" not in out


def test_files_in_their_order(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.profile("mine", "preset: ddp\ncpu: true\n", active=True)
    cli.write("xl.yaml", "num_processes_per_machine: 2\n")
    environ = {"XL_CONFIG_HOME": str(cli.home), "XL_CONFIG_FILE": "absent.yaml"}
    files = settings_files(environ, cli.cwd)
    assert [(file.role, file.name) for file in files] == [
        ("file", ""),
        ("project file", ""),
        ("active profile", "mine"),
        ("preset", "ddp"),
    ]
    assert "does not exist" in (files[0].problem or "")
    wishes = wishes_of(files)
    assert wishes is not None
    assert (wishes.processes_here, wishes.cpu) == (2, True)


def test_a_profile_that_is_gone_is_a_line_and_no_crash(cli: Cli) -> None:
    cli.profile("gone", "cpu: true\n", active=True).unlink()
    outcome = cli.run("env")
    assert outcome.code == 0
    assert "there is no profile gone" in outcome.out


def test_a_broken_profile_is_a_line_and_no_crash(cli: Cli) -> None:
    cli.profile("broken", "cpu: [true\n", active=True)
    outcome = cli.run("env")
    assert outcome.code == 0
    assert "  - problem: " in outcome.out


def findings(cli: Cli, code: str) -> list[dict[str, str]]:
    outcome = cli.run("env", "--json")
    assert outcome.code == 0
    found: list[dict[str, str]] = json.loads(outcome.out)["findings"]
    assert all(finding["what"] and finding["why"] and finding["fix"] for finding in found)
    return [finding for finding in found if finding["code"] == code]


@pytest.mark.parametrize("where", ["project", "active"])
@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("sed: 1\n", "unknown setting sed", "did you mean seed?"),
        ("cpu: true\nnum_processes: x\n", "num_processes: 'x' is not", "a whole number"),
        ("a: [\n", "is not YAML", "correct that line"),
        ("preset: zero9\n", "there is no preset zero9", "did you mean"),
        ("cpu: true\ngpu_ids: all\n", "contradict each other", "leave gpu_ids out"),
    ],
)
def test_settings_that_a_launch_refuses_are_errors(
    cli: Cli, where: str, text: str, what: str, fix: str
) -> None:
    if where == "project":
        cli.write("xl.yaml", text)
    else:
        cli.profile("big", text, active=True)
    (finding,) = findings(cli, "settings-invalid")
    assert finding["severity"] == "error"
    assert what in finding["what"]
    assert fix in finding["fix"]


def test_unknown_variables_are_errors_with_a_guess(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XL_SEDE", "1")
    monkeypatch.setenv("XL_NUM_PROCESSES", "many")
    monkeypatch.setenv("XL_WORKER_ANYTHING", "1")
    found = {finding["what"]: finding["fix"] for finding in findings(cli, "settings-invalid")}
    assert found["unknown variable XL_SEDE"] == "did you mean XL_SEED?"
    assert any(what.startswith("num_processes: 'many'") for what in found)
    assert len(found) == 2
    assert "- error: unknown variable XL_SEDE\n" in cli.run("env", "--text").out


def test_a_project_file_that_is_ignored_is_a_warning(cli: Cli) -> None:
    path = cli.write("xl.yaml", "seed: 1\n")
    assert not findings(cli, "project-file-ignored")
    path.chmod(0o664)
    (finding,) = findings(cli, "project-file-ignored")
    assert (finding["severity"], finding["why"]) == ("warning", "others may write to it")
    assert finding["fix"] == f"chmod go-w {path}"


def test_settings_that_are_not_launched_yet_are_warnings(cli: Cli) -> None:
    cli.write("xl.yaml", "preset: zero3\nmixed_precision: fp8\n")
    found = findings(cli, "settings-not-launched")
    assert {finding["what"].partition(" ")[0] for finding in found} == {
        "backend=deepspeed",
        "mixed_precision=fp8",
    }
    assert not findings(cli, "settings-invalid")


def test_a_total_is_spread_over_the_machines(cli: Cli) -> None:
    cli.profile("total", "num_processes: 8\nnum_machines: 2\n", active=True)
    wishes = wishes_of(settings_files({"XL_CONFIG_HOME": str(cli.home)}, cli.cwd))
    assert wishes is not None
    assert (wishes.processes_here, wishes.num_machines) == (4, 2)


def test_without_any_profile(cli: Cli) -> None:
    assert "no profile is active" in cli.run("env").out
    assert wishes_of(()) is None


def test_variables_and_findings(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "no number")
    monkeypatch.setenv("HF_TOKEN", "s3cr3t")
    out = cli.run("env").out
    assert "- OMP_NUM_THREADS: no number\n" in out
    assert "- HF_TOKEN: ***\n" in out
    assert "- warning: OMP_NUM_THREADS=no number is no number" in out


def test_two_forms_at_once_are_refused(cli: Cli) -> None:
    outcome = cli.run("env", "--json", "--text")
    assert outcome.code == 2
    assert "pass one of them" in outcome.err


@pytest.mark.parametrize("option", [[], ["--text"]])
def test_on_a_terminal(tmp_path: Path, option: list[str]) -> None:
    child: pexpect.spawn[bytes] = pexpect.spawn(
        sys.executable, ["-m", "xl.cli", "env", *option], cwd=str(tmp_path), dimensions=(24, 80), timeout=30
    )
    output = child.read().decode()
    child.close()
    assert child.exitstatus == 0
    assert ("### Hardware" in output) == bool(option)
    assert ("\x1b[1mHardware\x1b[0m" in output) == (not option)


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from xl.cli.main import main; main(['env']);"
        "heavy = {'torch', 'pydantic', 'rich', 'psutil', 'numpy', 'yaml', 'questionary'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    environ = {"PATH": "/bin", "HOME": "/nonexistent"}
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ
    )
    assert out.stdout.splitlines()[-1] == "[]"
