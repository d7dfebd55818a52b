"""Each finding appears on the machine that has the fault, and on no sound one."""

import pytest

from xl.launcher.findings import Facts, Finding, Wishes, find_problems
from xl.launcher.hardware.disk import Disk

from .machines import (
    ETH0,
    ETH1,
    GIB,
    LO,
    facts,
    gpu_facts,
    sound_cpu,
    sound_hardware,
    sound_memory,
    sound_network,
    sound_software,
)

MIB = 1 << 20
machine = sound_hardware


def codes(facts: Facts) -> list[str]:
    return [finding.code for finding in find_problems(facts)]


def only(facts: Facts) -> Finding:
    (finding,) = find_problems(facts)
    return finding


def test_a_sound_machine_has_none() -> None:
    assert find_problems(facts()) == ()
    assert find_problems(facts(machine(gpus=gpu_facts(0)), sound_software(cuda=None))) == ()


SPOILED: dict[str, tuple[str, Facts]] = {
    "no torch": ("torch-missing", facts(software=sound_software(None))),
    "old torch": ("torch-old", facts(software=sound_software("2.9.1"))),
    "cpu torch": ("torch-without-cuda", facts(software=sound_software("2.13.0+cpu", None))),
    "old driver": ("driver-old", facts(machine(gpus=gpu_facts(cuda=(12, 8))))),
    "lost gpu": ("gpu-broken", facts(machine(gpus=gpu_facts(problems=("GPU 2 does not answer: lost",))))),
    "dead driver": (
        "driver-broken",
        facts(machine(gpus=gpu_facts(0, problems=("the NVIDIA driver does not answer: mismatch",)))),
    ),
    "busy gpus": ("gpu-memory-taken", facts(machine(gpus=gpu_facts(1, free=10 * GIB)))),
    "docker's shm": ("shm-small", facts(machine(memory=sound_memory(shm=(64 * MIB, 64 * MIB))))),
    "full shm": ("shm-full", facts(machine(memory=sound_memory(shm=(8 * GIB, 100 * MIB))))),
    "one thread": ("omp-one-thread", facts(environment={"OMP_NUM_THREADS": "1"})),
    "too many threads": ("omp-too-many", facts(environment={"OMP_NUM_THREADS": "64"})),
    "odd threads": ("omp-odd", facts(environment={"OMP_NUM_THREADS": "auto"})),
    "cores limited": ("cores-limited", facts(machine(cpu=sound_cpu(64)))),
    "cores by quota": ("cores-limited", facts(machine(cpu=sound_cpu(quota=2.0)))),
    "ram limited": ("memory-limited", facts(machine(memory=sound_memory(limit=8 * GIB, used=GIB)))),
    "ram limit near": (
        "memory-limit-near",
        facts(machine(memory=sound_memory(limit=8 * GIB, used=79 * GIB // 10))),
    ),
    "ram low": ("memory-low", facts(machine(memory=sound_memory(available=2 * GIB, swap=0)))),
    "disk low": (
        "disk-low",
        facts(machine(disks=(Disk("logs", "/logs", 9 * GIB, 100 * MIB, writable=True),))),
    ),
    "disk shut": (
        "disk-read-only",
        facts(machine(disks=(Disk("logs", "/logs", 9 * GIB, GIB, writable=False),))),
    ),
    "few files": ("open-files-low", facts(machine(open_files=(1024, 1048576)))),
    "loopback": (
        "hostname-loopback",
        facts(machine(network=sound_network(ETH0, ETH1, LO, addresses=("127.0.1.1",)))),
    ),
    "unknown interface": ("interface-unknown", facts(environment={"GLOO_SOCKET_IFNAME": "ib0"})),
    "no p2p": ("nccl-slow", facts(environment={"NCCL_P2P_DISABLE": "1"})),
    "p2p level": ("nccl-slow", facts(environment={"NCCL_P2P_LEVEL": "LOC"})),
    "no ib": (
        "nccl-slow",
        facts(machine(network=sound_network(infiniband=("mlx5_0:1",))), environment={"NCCL_IB_DISABLE": "1"}),
    ),
    "blocking": ("cuda-blocking", facts(environment={"CUDA_LAUNCH_BLOCKING": "1"})),
    "hidden gpus": ("cuda-visible-devices", facts(environment={"CUDA_VISIBLE_DEVICES": ""})),
    "profile too big": ("profile-gpus", facts(wishes=Wishes("profile big", processes_here=8))),
    "profile without gpus": (
        "profile-gpus",
        facts(machine(gpus=gpu_facts(0)), sound_software(cuda=None), wishes=Wishes("profile g", cpu=False)),
    ),
    "profile's ids": ("profile-gpus", facts(wishes=Wishes("profile ids", gpu_ids="0,5"))),
    "profile's bf16": (
        "profile-bf16",
        facts(machine(gpus=gpu_facts(capability=(7, 5))), wishes=Wishes("profile p", mixed_precision="bf16")),
    ),
}


@pytest.mark.parametrize("name", SPOILED)
def test_each_fault_gives_its_finding_and_no_other(name: str) -> None:
    code, spoiled = SPOILED[name]
    finding = only(spoiled)
    assert finding.code == code
    assert finding.what
    assert finding.why
    assert finding.fix
    assert not finding.what.endswith(".")


HARMLESS: dict[str, Facts] = {
    "newer driver": facts(machine(gpus=gpu_facts(cuda=(13, 2)))),
    "same major": facts(machine(gpus=gpu_facts(cuda=(13, 0))), sound_software(cuda=(13, 9))),
    "ib off without ib": facts(environment={"NCCL_IB_DISABLE": "1"}),
    "p2p off with one gpu": facts(machine(gpus=gpu_facts(1)), environment={"NCCL_P2P_DISABLE": "1"}),
    "p2p on": facts(environment={"NCCL_P2P_DISABLE": "0"}),
    "threads": facts(environment={"OMP_NUM_THREADS": "4"}),
    "nested threads": facts(environment={"OMP_NUM_THREADS": "4,2"}),
    "one interface": facts(machine(network=sound_network(addresses=("127.0.1.1",)))),
    "interface named": facts(
        machine(network=sound_network(ETH0, ETH1, LO, addresses=("127.0.1.1",))),
        environment={"GLOO_SOCKET_IFNAME": "eth1"},
    ),
    "nccl prefix": facts(environment={"NCCL_SOCKET_IFNAME": "eth"}),
    "nccl exclusion": facts(environment={"NCCL_SOCKET_IFNAME": "^docker"}),
    "nccl exact": facts(environment={"NCCL_SOCKET_IFNAME": "=eth0"}),
    "visible": facts(environment={"CUDA_VISIBLE_DEVICES": "1,0"}),
    "visible uuid": facts(environment={"CUDA_VISIBLE_DEVICES": "GPU-1"}),
    "no gpus to hide": facts(
        machine(gpus=gpu_facts(0)), sound_software(cuda=None), {"CUDA_VISIBLE_DEVICES": ""}
    ),
    "open profile": facts(machine(gpus=gpu_facts(0)), sound_software(cuda=None), wishes=Wishes("p")),
    "cpu profile": facts(wishes=Wishes("profile cpu", processes_here=64, cpu=True)),
    "profile fits": facts(
        wishes=Wishes("profile p", processes_here=2, mixed_precision="bf16", gpu_ids="all")
    ),
    "mig profile": facts(
        machine(gpus=gpu_facts(1, mig=("MIG-1", "MIG-2"))), wishes=Wishes("p", processes_here=2)
    ),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_fine_gives_no_finding(name: str) -> None:
    assert codes(HARMLESS[name]) == []


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "hides every GPU"),
        ("-1", "hides every GPU"),
        ("0,0", "names a GPU twice"),
        ("0,7", "names '7'"),
        ("GPU-9", "names 'GPU-9'"),
        ("GPU-", "names 'GPU-'"),
        ("0;1", "names '0;1'"),
    ],
)
def test_visible_devices(value: str, reason: str) -> None:
    finding = only(facts(environment={"CUDA_VISIBLE_DEVICES": value}))
    assert finding.code == "cuda-visible-devices"
    assert reason in finding.what


def test_how_many_gpus_remain_visible() -> None:
    assert ": 1 of 2 GPUs" in only(facts(environment={"CUDA_VISIBLE_DEVICES": "1,9"})).why
    assert ": 0 of 2 GPUs" in only(facts(environment={"CUDA_VISIBLE_DEVICES": "1,1"})).why


def test_gloo_takes_exact_names_where_nccl_takes_prefixes() -> None:
    assert codes(facts(environment={"GLOO_SOCKET_IFNAME": "eth"})) == ["interface-unknown"]
    assert codes(facts(environment={"NCCL_SOCKET_IFNAME": "=eth"})) == ["interface-unknown"]


def test_the_loopback_matters_more_on_several_machines() -> None:
    hardware = machine(network=sound_network(ETH0, LO, addresses=("127.0.1.1",)))
    finding = only(facts(hardware, wishes=Wishes("profile p", num_machines=2)))
    assert (finding.code, finding.severity) == ("hostname-loopback", "warning")
    assert finding.fix == "export GLOO_SOCKET_IFNAME=eth0"


def test_errors_come_first() -> None:
    spoiled = facts(machine(cpu=sound_cpu(64), open_files=(1024, 1024)), sound_software(None))
    assert [finding.severity for finding in find_problems(spoiled)] == ["error", "warning", "note"]
