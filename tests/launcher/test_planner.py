"""Plans as values: what runs, with which variables, and what is refused; nothing is started."""

from __future__ import annotations

from dataclasses import replace

import pytest

from xl.configs.errors import XlError
from xl.configs.profile import Profile
from xl.configs.torchrun import PLACE_VARIABLES
from xl.configs.worker import Target
from xl.launcher.capacity import Limit
from xl.launcher.machine import Gpu, Machine
from xl.launcher.plan import LaunchPlan
from xl.launcher.planner import make_plan
from xl.launcher.scan import Place, ScriptScan
from xl.launcher.streams import Streams

MACHINE = Machine(
    hostname="host",
    platform="linux",
    usable_cores=8,
    gpus=(),
    environment={"PATH": "/bin"},
    python="/usr/bin/python",
    cwd="/work",
    port=4321,
    run_id="20260101-000000-abc",
    state_folder="/state",
)
GPUS = tuple(Gpu(i, f"GPU-{i}", "X100", 80 << 30, 80 << 30) for i in range(4))
WITH_GPUS = replace(MACHINE, gpus=GPUS)
PLAIN = ScriptScan()
DISTRIBUTED = ScriptScan(distributed=Place("train.py", 3, "calls init_process_group"))
EXPLICIT = ScriptScan(explicit=Place("train.py", 1, "imports xl"))
TARGET = Target("train.py", ("--lr", "1"))


def plan(profile: Profile | None = None, machine: Machine = MACHINE, scan: ScriptScan = PLAIN) -> LaunchPlan:
    return make_plan(profile or Profile(), "test", TARGET, machine, scan)


def variables(planned: LaunchPlan, rank: int = 0) -> dict[str, str]:
    return planned.job_environment() | planned.worker(rank).env


def refusals(planned: LaunchPlan) -> str:
    return "\n".join(str(problem) for problem in planned.refusals)


def test_planning_is_pure() -> None:
    assert plan(Profile(num_processes=3)) == plan(Profile(num_processes=3))
    assert plan(Profile(num_processes=3)).render() == plan(Profile(num_processes=3)).render()


# --- how many, where -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "machine", "count"),
    [
        (Profile(), MACHINE, 1),
        (Profile(), WITH_GPUS, 4),
        (Profile(cpu=True), WITH_GPUS, 1),
        (Profile(gpu_ids="1,2"), WITH_GPUS, 2),
        (Profile(num_processes=1), WITH_GPUS, 1),  # P15: the explicit number wins over detection
        (Profile(num_processes_per_machine=3), WITH_GPUS, 3),
        (Profile(backend="none"), WITH_GPUS, 1),
        (Profile(num_processes=5, cpu=True), WITH_GPUS, 5),
    ],
)
def test_number_of_processes(profile: Profile, machine: Machine, count: int) -> None:
    planned = plan(profile, machine)
    assert len(planned.workers) == count
    assert not planned.refusals


def test_more_processes_than_gpus_is_an_error() -> None:
    text = refusals(plan(Profile(num_processes=5), WITH_GPUS))
    assert "num_processes=5 does not fit this machine" in text
    assert "pass --num-processes 4, or --cpu" in text


def test_more_processes_than_cores_is_warned_of() -> None:
    assert plan(Profile(num_processes=9)).warnings == ("9 processes share 8 usable CPU cores",)


def test_a_plain_script_sees_one_gpu_and_others_see_all() -> None:
    """P35: what CUDA_VISIBLE_DEVICES would be on a machine with GPUs."""
    plain = plan(machine=WITH_GPUS)
    assert [variables(plain, rank)["CUDA_VISIBLE_DEVICES"] for rank in range(4)] == [g.uuid for g in GPUS]
    assert "CUDA_VISIBLE_DEVICES" not in variables(plan(machine=WITH_GPUS, scan=DISTRIBUTED))
    chosen = plan(Profile(gpu_ids="2,1"), WITH_GPUS, EXPLICIT)
    assert variables(chosen)["CUDA_VISIBLE_DEVICES"] == "GPU-2,GPU-1"
    assert variables(plan(Profile(cpu=True), WITH_GPUS))["CUDA_VISIBLE_DEVICES"] == ""


def test_a_script_that_sets_its_devices_is_warned_of() -> None:
    scan = ScriptScan(sets_visible_devices=Place("train.py", 2, "sets CUDA_VISIBLE_DEVICES"))
    assert "train.py:2 sets CUDA_VISIBLE_DEVICES" in plan(machine=WITH_GPUS, scan=scan).warnings[0]


def test_several_mig_instances_are_refused_for_scripts_that_expect_all_devices() -> None:
    machine = replace(MACHINE, gpus=(replace(GPUS[0], mig=("MIG-1", "MIG-2")),))
    assert "MIG" in refusals(plan(machine=machine, scan=DISTRIBUTED))
    assert not plan(machine=machine).refusals


# --- variables -------------------------------------------------------------------------------------


def test_plain_scripts_do_not_see_their_place() -> None:
    machine = replace(MACHINE, environment={"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "there", "A": "b"})
    seen = variables(plan(Profile(num_processes=2), machine))
    assert not set(seen) & set(PLACE_VARIABLES)
    assert seen["A"] == "b"
    assert "RANK removed" in plan(Profile(num_processes=2), machine).render()


@pytest.mark.parametrize("scan", [DISTRIBUTED, EXPLICIT])
def test_others_see_torchruns_whole_set(scan: ScriptScan) -> None:
    planned = plan(Profile(num_processes=2, max_restarts=1), scan=scan)
    seen = variables(planned, 1)
    assert set(PLACE_VARIABLES) <= set(seen)
    assert (seen["RANK"], seen["WORLD_SIZE"], seen["MASTER_PORT"]) == ("1", "2", "4321")
    assert planned.worker(1, attempt=1).env["TORCHELASTIC_RESTART_COUNT"] == "1"


def test_threads_are_shared_out() -> None:
    assert variables(plan(Profile(num_processes=3)))["OMP_NUM_THREADS"] == "2"
    assert variables(plan(Profile(num_processes=20)))["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in variables(plan())
    users = replace(MACHINE, environment={"OMP_NUM_THREADS": "5"})
    assert variables(plan(Profile(num_processes=3), users))["OMP_NUM_THREADS"] == "5"
    said = plan(Profile(num_processes=3, num_cpu_threads_per_process=4), users)
    assert variables(said)["OMP_NUM_THREADS"] == "4"
    assert "overrides OMP_NUM_THREADS=5" in said.warnings[0]


def test_sets_are_ordered_alike_on_all_ranks() -> None:
    assert variables(plan(Profile(num_processes=2)))["PYTHONHASHSEED"] == "0"
    users = replace(MACHINE, environment={"PYTHONHASHSEED": "7"})
    assert variables(plan(Profile(num_processes=2), users))["PYTHONHASHSEED"] == "7"
    assert "PYTHONHASHSEED" not in variables(plan(Profile(num_processes=2), scan=DISTRIBUTED))
    assert "PYTHONHASHSEED" not in variables(plan())


def test_every_variable_is_listed() -> None:
    """P36: the dry run names whatever differs from the environment that the user had."""
    planned = plan(Profile(num_processes=2, env={"MINE": "1"}), WITH_GPUS, DISTRIBUTED)
    text = planned.render()
    for rank in (0, 1):
        for name, value in variables(planned, rank).items():
            if planned.environment.get(name) != value:
                assert f"  {name}={value}" in text


def test_windows_gets_no_libuv() -> None:
    """P37: what would be set there."""
    planned = plan(Profile(num_processes=2), replace(MACHINE, platform="win32"))
    assert variables(planned)["USE_LIBUV"] == "0"
    assert planned.executor == "fresh"


# --- executors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "machine", "scan", "executor"),
    [
        (Profile(), MACHINE, PLAIN, "exec"),
        (Profile(), MACHINE, DISTRIBUTED, "exec"),
        (Profile(mixed_precision="bf16"), MACHINE, PLAIN, "exec"),
        (Profile(max_restarts=1), MACHINE, PLAIN, "zygote"),
        (Profile(log_dir="logs"), MACHINE, PLAIN, "zygote"),
        (Profile(tee="3"), MACHINE, PLAIN, "zygote"),
        (Profile(num_processes=2), MACHINE, PLAIN, "zygote"),
        (Profile(num_processes=2, start="fresh"), MACHINE, PLAIN, "fresh"),
        (Profile(num_processes=2), replace(MACHINE, platform="darwin"), PLAIN, "fresh"),
        (Profile(), replace(MACHINE, platform="win32"), PLAIN, "fresh"),
        (
            Profile(num_processes=2),
            MACHINE,
            ScriptScan(early_variable=Place("train.py", 1, "sets OMP_NUM_THREADS")),
            "fresh",
        ),
    ],
)
def test_executor(profile: Profile, machine: Machine, scan: ScriptScan, executor: str) -> None:
    planned = plan(profile, machine, scan)
    assert planned.executor == executor
    assert (planned.log_folder is None) == (executor == "exec")


def test_one_process_with_nothing_to_apply_is_python_itself() -> None:
    assert plan().command() == ["/usr/bin/python", "train.py", "--lr", "1"]
    assert plan().job_environment() == MACHINE.environment
    assert plan(Profile(mixed_precision="bf16")).command()[1] == "-c"


def test_other_ranks_of_plain_scripts_write_elsewhere() -> None:
    planned = plan(Profile(num_processes=2))
    assert planned.worker(0).settings.overlay == "/state/20260101-000000-abc/overlay/rank0"
    assert planned.worker(1).settings.overlay == "/state/20260101-000000-abc/overlay/rank1"
    assert plan(Profile(num_processes=2), scan=DISTRIBUTED).worker(1).settings.overlay is None


def test_one_seed_for_all_ranks_and_another_for_each_launch() -> None:
    seeds = {plan(Profile(num_processes=2)).worker(rank).settings.seed for rank in (0, 1)}
    assert len(seeds) == 1
    other = plan(Profile(num_processes=2), replace(MACHINE, run_id="other"))
    assert other.worker(0).settings.seed not in seeds
    assert plan(Profile(num_processes=2, seed=7)).worker(1).settings.seed == 7


def test_shown_streams() -> None:
    assert plan(Profile(num_processes=2)).shown == (Streams(True, True), Streams())
    assert plan(Profile(num_processes=2, tee="1:2")).shown == (Streams(True, True), Streams(err=True))
    assert plan(Profile(num_processes=2, show_ranks="1")).shown == (Streams(), Streams(True, True))


# --- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "scan", "text"),
    [
        (Profile(backend="fsdp"), PLAIN, "backend=fsdp is not there yet"),
        (Profile(backend="deepspeed"), PLAIN, "backend=deepspeed is not there yet"),
        (Profile(data="sharded"), PLAIN, "data=sharded is not there yet"),
        (Profile(mixed_precision="fp8"), PLAIN, "mixed_precision=fp8 is not there yet"),
        (Profile(num_machines=2), PLAIN, "num_machines=2 is not there yet"),
        (Profile(hosts=("a", "b")), PLAIN, "hosts="),
        (Profile(debug=True), PLAIN, "debug=true is not there yet"),
        (Profile(mixed_precision="bf16"), DISTRIBUTED, "mixed_precision=bf16 cannot be applied"),
        (Profile(gradient_accumulation_steps=4), DISTRIBUTED, "gradient_accumulation_steps=4 cannot be"),
        (Profile(backend="none", num_processes=2), PLAIN, "contradicts backend=none"),
        (Profile(gpu_ids="0"), PLAIN, "gpu_ids=0"),
        (Profile(show_ranks="5"), PLAIN, "show_ranks=5"),
    ],
)
def test_what_is_refused_is_planned_all_the_same(profile: Profile, scan: ScriptScan, text: str) -> None:
    planned = plan(profile, scan=scan)
    assert text in refusals(planned)
    assert "refused" in planned.render()


def test_distributed_by() -> None:
    assert plan(Profile(distributed_by="xl"), scan=DISTRIBUTED).kind == "plain"
    assert plan(Profile(distributed_by="script")).kind == "distributed"
    assert plan(Profile(distributed_by="script"), scan=EXPLICIT).kind == "explicit"


def test_the_rendered_plan_tells_settings_from_variables() -> None:
    """What xl tells a worker is no variable of a forked one, and no script sees it."""
    forked = plan(Profile(num_processes=2)).render()
    assert "environment of rank 0: unchanged\nsettings of rank 0 (told when it is forked):\n  {" in forked
    assert "XL_WORKER" not in forked
    alone = plan(Profile(seed=1)).render()
    assert "settings of rank 0 (in XL_WORKER, which is gone before the script starts):\n  {" in alone


def test_more_than_the_machine_holds_is_not_planned() -> None:
    machine = replace(MACHINE, limits=(Limit("open files", 1024, "ulimit -n", 3, 16),))
    with pytest.raises(XlError, match="num_processes=1000000000 does not fit this machine") as caught:
        make_plan(
            Profile(num_processes=10**9), "test", TARGET, machine, PLAIN, {"num_processes": "--num-processes"}
        )
    assert "--num-processes asks for 1000000000" in caught.value.why
