"""The wizard's questions without a terminal: what is asked, offered, read, and what the answers become."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from xl.cli.config.wizard_answers import Answers, header, settings, total_line
from xl.cli.config.wizard_flow import fill, interview
from xl.cli.config.wizard_machine import Offer
from xl.cli.config.wizard_question import Question, WrongAnswerError, take
from xl.cli.config.wizard_questions import QUESTIONS
from xl.configs.resolve import resolve

GIB = 1 << 30
CPU = Offer("Fast CPU", 8, 64 * GIB, no_gpu="no NVIDIA driver found", address="10.0.0.5")
GPUS = replace(
    CPU, gpus=("A100",) * 4, no_gpu="", gpu_memory_bytes=80 * GIB, capability=(8, 0), ram_bytes=1024 * GIB
)
OLD = replace(GPUS, gpus=("T4",), capability=(7, 5), gpu_memory_bytes=16 * GIB)


def question(field: str) -> Question:
    return next(question for question in QUESTIONS if question.field == field)


def conversation(
    offer: Offer, said: Mapping[str, str], given: Mapping[str, str] | None = None
) -> tuple[Answers, list[str]]:
    """The answers, and the fields asked in their order; what is not said takes its default."""
    asked: list[str] = []

    def ask(question: Question, answers: Answers, offer: Offer) -> str:
        asked.append(question.field)
        return said.get(question.field) or question.default(answers, offer)

    return interview(offer, given or {}, ask, lambda line: None), asked


ONE_MACHINE = [
    "device",
    "num_machines",
    "num_processes_per_machine",
    "model_parameters",
    "optimizer",
    "mixed_precision",
]


def test_only_what_matters_is_asked_on_a_cpu() -> None:
    answers, asked = conversation(CPU, {})
    assert asked == [*ONE_MACHINE, "gradient_accumulation_steps", "name"]
    assert settings(answers) == {
        "num_machines": 1,
        "num_processes_per_machine": 1,
        "cpu": True,
        "mixed_precision": "no",
        "backend": "ddp",
        "gradient_accumulation_steps": 1,
    }


def test_several_processes_bring_the_question_of_the_backend() -> None:
    _, asked = conversation(CPU, {"num_processes_per_machine": "2"})
    assert asked == [*ONE_MACHINE, "backend", "gradient_accumulation_steps", "name"]


def test_several_machines_bring_rank_address_and_port() -> None:
    answers, asked = conversation(
        CPU, {"num_machines": "2", "machine_rank": "1", "main_process_ip": "node-0"}
    )
    assert asked[1:6] == [
        *("num_machines", "machine_rank", "main_process_ip", "main_process_port", "num_processes_per_machine")
    ]
    assert {"machine_rank": 1, "main_process_ip": "node-0", "main_process_port": 29500}.items() <= settings(
        answers
    ).items()


def test_gpus_elsewhere_bring_the_question_of_their_memory() -> None:
    answers, asked = conversation(
        CPU, {"device": "gpu", "gpu_memory_bytes": "80", "num_processes_per_machine": "8"}
    )
    assert asked[1] == "gpu_memory_bytes"
    assert answers.gpu_memory_bytes == 80 * GIB
    assert settings(answers)["cpu"] is False


def test_two_machines_of_one_process_are_two_processes(tmp_path: Path) -> None:
    """P10: the file must yield world size 2."""
    answers, _ = conversation(CPU, {"num_machines": "2"})
    assert total_line(answers) == "Total: 2 machines x 1 process each = 2 processes"
    resolved = resolve(settings(answers), {}, tmp_path)
    assert resolved.profile.num_machines == 2
    assert (resolved.profile.num_processes_per_machine, resolved.profile.num_processes) in ((1, 2), (1, None))


@pytest.mark.parametrize(
    ("offer", "found"),
    [
        (CPU, "Found 8 usable CPU cores here; the processes of a machine share its cores."),
        (
            replace(CPU, usable_cores=1),
            "Found 1 usable CPU core here; the processes of a machine share its cores.",
        ),
        (GPUS, "Found 4 GPUs here; each process trains on one GPU of its own."),
        (OLD, "Found 1 GPU here; each process trains on one GPU of its own."),
    ],
)
def test_the_question_of_processes_states_the_devices_and_the_total(offer: Offer, found: str) -> None:
    """P9: what is counted is said, and the total is computed."""
    asked = question("num_processes_per_machine")
    answers, _ = conversation(offer, {})
    assert list(asked.before(answers, offer)) == [found]
    each = answers.num_processes_per_machine
    total = "1 process" if each == 1 else f"{each} processes"
    assert asked.after(answers, offer)[0] == f"Total: {total} on one machine"


def test_defaults_follow_the_gpus() -> None:
    answers, _ = conversation(GPUS, {})
    assert (answers.device, answers.num_processes_per_machine) == ("gpu", 4)


@pytest.mark.parametrize(
    ("model", "precision", "offer", "backend"),
    [
        ("small", "no", GPUS, "ddp"),
        ("7B", "bf16", GPUS, "fsdp"),
        ("70B", "no", replace(GPUS, ram_bytes=2048 * GIB), "fsdp-offload"),
        ("7B", "no", OLD, "ddp"),
    ],
)
def test_the_recommendation_is_the_default(model: str, precision: str, offer: Offer, backend: str) -> None:
    said = {"model_parameters": model, "mixed_precision": precision}
    if offer is OLD:
        said["backend"] = "ddp"
    assert conversation(offer, said)[0].backend == backend


@pytest.mark.parametrize(
    ("backend", "values"),
    [
        ("fsdp-offload", {"backend": "fsdp", "fsdp.offload_params": True}),
        ("fsdp", {"backend": "fsdp"}),
        ("zero2", {"backend": "deepspeed", "deepspeed.zero_stage": 2}),
        (
            "zero3-offload",
            {
                "backend": "deepspeed",
                "deepspeed.zero_stage": 3,
                "deepspeed.offload_optimizer_device": "cpu",
                "deepspeed.offload_param_device": "cpu",
            },
        ),
    ],
)
def test_backends_become_settings(backend: str, values: dict[str, object], tmp_path: Path) -> None:
    answers, _ = conversation(replace(GPUS, deepspeed=True), {}, {"backend": backend})
    assert values.items() <= settings(answers).items()
    assert resolve(settings(answers), {}, tmp_path).profile.backend == values["backend"]


BASE = Answers(device="gpu", num_machines=2, num_processes_per_machine=4, machine_rank=0)
ONE_CPU = Answers(device="cpu")

WRONG = [
    ("device", "tpu", BASE, GPUS, "no torch_xla for torch 2.13"),
    ("device", "xpu", BASE, GPUS, "'xpu' is none of auto, gpu, cpu"),
    ("gpu_memory_bytes", "lots", BASE, CPU, "write GiB such as 80, or unknown"),
    ("num_machines", "0", BASE, CPU, "a whole number from 1 to"),
    ("num_machines", "two", BASE, CPU, "a whole number from 1 to"),
    ("num_machines", "1_0", BASE, CPU, "a whole number from 1 to"),
    ("num_machines", "²", BASE, CPU, "a whole number from 1 to"),
    ("num_machines", "", BASE, CPU, "'': the number of machines"),
    ("machine_rank", "2", BASE, CPU, "a whole number from 0 to 1"),
    ("machine_rank", "-1", BASE, CPU, "a whole number from 0 to 1"),
    ("main_process_ip", "", BASE, CPU, "is no address"),
    ("main_process_ip", "1.2.3", BASE, CPU, "is no address"),
    ("main_process_ip", "256.0.0.1", BASE, CPU, "is no address"),
    ("main_process_ip", "a host", BASE, CPU, "is no address"),
    ("main_process_ip", "http://node", BASE, CPU, "is no address"),
    ("main_process_ip", "node:29500", BASE, CPU, "is no address"),
    ("main_process_port", "0", BASE, CPU, "a whole number from 1 to 65535"),
    ("main_process_port", "65536", BASE, CPU, "a whole number from 1 to 65535"),
    ("num_processes_per_machine", "5", replace(BASE, num_machines=1), GPUS, "a whole number from 1 to 4"),
    ("num_processes_per_machine", "0", ONE_CPU, CPU, "a whole number from 1 to"),
    ("num_processes_per_machine", "2.0", ONE_CPU, CPU, "a whole number from 1 to"),
    ("model_parameters", "7 billion", ONE_CPU, CPU, "write 7B, 350M, 70000000 or small"),
    ("optimizer", "adam", ONE_CPU, CPU, "is none of adamw, adamw-8bit"),
    ("mixed_precision", "bf16", BASE, OLD, "needs an Ampere GPU (8.0), one here is 7.5"),
    ("mixed_precision", "fp8", BASE, GPUS, "cannot train in it"),
    ("mixed_precision", "float16", BASE, GPUS, "is none of no, bf16, fp16"),
    ("backend", "none", BASE, GPUS, "several processes need a backend"),
    ("backend", "fsdp", ONE_CPU, CPU, "nothing to shard over"),
    ("backend", "fsdp-offload", ONE_CPU, CPU, "a CPU has no other memory"),
    ("backend", "fsdp-offload", replace(BASE, optimizer="adamw-8bit"), GPUS, "works on GPUs only"),
    ("backend", "zero2", BASE, GPUS, "DeepSpeed is not installed"),
    ("backend", "zero2", ONE_CPU, CPU, "DeepSpeed needs GPUs"),
    ("backend", "megatron", BASE, GPUS, "is none of ddp, fsdp"),
    ("gradient_accumulation_steps", "0", ONE_CPU, CPU, "a whole number from 1 to"),
    ("name", "", ONE_CPU, CPU, "letters, digits"),
    ("name", "a/b", ONE_CPU, CPU, "letters, digits"),
    ("name", "../x", ONE_CPU, CPU, "letters, digits"),
    ("name", "train.yaml", ONE_CPU, CPU, "letters, digits"),
    ("name", "x" * 65, ONE_CPU, CPU, "at most 64 characters"),
]


@pytest.mark.parametrize(("field", "text", "answers", "offer", "message"), WRONG)
def test_wrong_answers_are_explained(
    field: str, text: str, answers: Answers, offer: Offer, message: str
) -> None:
    with pytest.raises(WrongAnswerError) as wrong:
        take(question(field), text, answers, offer)
    assert message in str(wrong.value)


def test_every_question_has_a_wrong_answer_here() -> None:
    assert {row[0] for row in WRONG} == {question.field for question in QUESTIONS}


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("device", "auto", "gpu"),
        ("gpu_memory_bytes", "unknown", None),
        ("machine_rank", "later", None),
        ("machine_rank", "1", 1),
        ("main_process_ip", "fd00::2", "fd00::2"),
        ("main_process_ip", "node-1.cluster.example", "node-1.cluster.example"),
        ("main_process_ip", " 10.0.0.1 ", "10.0.0.1"),
        ("num_processes_per_machine", "8", 8),
        ("name", "a-b_c.1", "a-b_c.1"),
    ],
)
def test_right_answers(field: str, text: str, value: object) -> None:
    assert getattr(take(question(field), text, BASE, GPUS), field) == value


def test_bf16_is_for_ampere_and_cpus() -> None:
    for answers, offer in (
        (BASE, GPUS),
        (ONE_CPU, CPU),
        (ONE_CPU, OLD),
        (BASE, replace(GPUS, capability=None)),
    ):
        assert take(question("mixed_precision"), "bf16", answers, offer).mixed_precision == "bf16"


def test_prompts_leave_room_for_answers_and_menus_fit_80_columns() -> None:
    long = replace(GPUS, capability=(7, 5), deepspeed=True, tpu="PJRT_DEVICE=TPU")
    for asked in QUESTIONS:
        assert len(asked.prompt) <= 46
        for answers in (BASE, ONE_CPU, replace(BASE, model_parameters=10**12)):
            listed = [c for c in (asked.choices(answers, long) if asked.choices else ()) if c.listed]
            width = max((len(choice.value) for choice in listed), default=0)
            for choice in listed:
                line = (
                    f"{choice.value} ({choice.refused})"
                    if choice.refused
                    else f"{'':{width}}  {choice.title}"
                )
                assert len(line) <= 76, line


def test_a_tpu_is_shown_and_refused() -> None:
    choices = question("device").choices
    assert choices is not None
    assert [c.value for c in choices(ONE_CPU, CPU) if c.listed] == ["cpu", "gpu"]
    found = [c for c in choices(ONE_CPU, replace(CPU, tpu="TPU_NAME=x")) if c.listed]
    assert (found[-1].value, found[-1].refused) == ("tpu", "there is no torch_xla for torch 2.13")


def test_a_wrong_flag_is_said_and_then_asked() -> None:
    said: list[str] = []
    asked: list[str] = []

    def ask(question: Question, answers: Answers, offer: Offer) -> str:
        asked.append(question.field)
        return question.default(answers, offer)

    given = {q.field: q.default(ONE_CPU, CPU) for q in QUESTIONS if q.field != "machine_rank"}
    given.update(num_machines="2", main_process_ip="10.0.0.1", machine_rank="7", gpu_memory_bytes="unknown")
    answers = interview(CPU, given, ask, said.append)
    assert asked == ["machine_rank"]
    assert said[0] == "--machine-rank: '7': the rank is a whole number from 0 to 1"
    assert answers.machine_rank == 0


def test_flags_are_taken_even_where_no_question_is_asked() -> None:
    answers, _ = conversation(CPU, {}, {"main_process_port": "29511", "backend": "none"})
    assert {"main_process_port": 29511, "backend": "none"}.items() <= settings(answers).items()


def test_without_asking_every_problem_is_collected() -> None:
    given = {"device": "tpu", "num_machines": "2", "machine_rank": "1", "model_parameters": "x"}
    filled = fill(CPU, given, lambda line: None)
    assert [problem.what.split()[0].rstrip(":") for problem in filled.problems] == [
        *("--device", "--main-process-ip", "--model-size")
    ]


def test_what_defaults_answered_is_known() -> None:
    filled = fill(CPU, {"device": "cpu", "name": "x"}, lambda line: None)
    assert filled.problems == []
    assert [q.field for q in filled.defaulted] == [*ONE_MACHINE[1:], "gradient_accumulation_steps"]


def test_more_processes_than_cores_is_said() -> None:
    notes = question("num_processes_per_machine").after(Answers(num_processes_per_machine=9), CPU)
    assert notes[1] == "Note: 9 processes share 8 cores here, which slows them down."


def test_a_loopback_address_is_said() -> None:
    after = question("main_process_ip").after
    assert after(replace(BASE, main_process_ip="127.0.0.1"), CPU)
    assert not after(replace(BASE, main_process_ip="10.0.0.1"), CPU)


def test_the_file_says_what_it_is_for() -> None:
    assert header(replace(BASE, model_parameters=7 * 10**9)) == (
        "Made by xl config for 7B parameters and AdamW.\nTotal: 2 machines x 4 processes each = 8 processes."
    )


def test_the_menu_says_which_backends_are_not_launched_yet() -> None:
    choices = question("backend").choices
    assert choices is not None
    titles = {it.value: it.title for it in choices(Answers(num_processes_per_machine=2), CPU)}
    later = {name for name, title in titles.items() if title.endswith("; not built yet")}
    assert later == set(titles) - {"ddp", "none"}
