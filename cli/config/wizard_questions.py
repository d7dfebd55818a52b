"""The wizard's questions in their order: when each is asked, what it offers, and what is said around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

from ...configs.sizing import (
    OPTIMIZER_NAMES,
    STATE_BYTES,
    Optimizer,
    gib,
    host_need,
    memory_need,
    usable,
)
from ...configs.unbuilt import unbuilt
from .wizard_answers import (
    BACKEND_SETTINGS,
    STRATEGIES,
    Answers,
    BackendChoice,
    devices_of,
    recommendation,
    total_line,
)
from .wizard_machine import NO_TPU, Offer
from .wizard_question import Choice, Question
from .wizard_reading import (
    read_accumulation,
    read_address,
    read_device,
    read_gpu_memory,
    read_machines,
    read_model_size,
    read_name,
    read_port,
    read_processes,
    read_rank,
    read_text,
)


def _fixed(text: str) -> Callable[[Answers, Offer], str]:
    return lambda _answers, _offer: text


# --- what is offered ---


def _device_choices(_answers: Answers, offer: Offer) -> Sequence[Choice]:
    found = f"{len(offer.gpus)} found here" if offer.gpus else "none here: a profile for another machine"
    gpu, cpu = Choice("gpu", f"GPU ({found})"), Choice("cpu", f"CPU ({offer.usable_cores} usable cores)")
    tpu = Choice("tpu", "TPU", NO_TPU, listed=offer.tpu is not None)
    auto = Choice("auto", "GPU if there is one", listed=False)
    return (auto, gpu, cpu, tpu) if offer.gpus else (auto, cpu, gpu, tpu)


def _optimizer_choices(_answers: Answers, _offer: Offer) -> Sequence[Choice]:
    return [
        Choice(name, f"{OPTIMIZER_NAMES[name]}: {STATE_BYTES[name]} bytes of state for each parameter")
        for name in get_args(Optimizer)
    ]


def _precision_choices(answers: Answers, offer: Offer) -> Sequence[Choice]:
    why, oldest = None, offer.capability
    if answers.device == "gpu" and oldest is not None and oldest < (8, 0):
        why = f"needs an Ampere GPU (8.0), one here is {oldest[0]}.{oldest[1]}"
    slow = "; slow on a CPU" if answers.device == "cpu" else ""
    return (
        Choice("no", "float32 throughout: the numbers that plain Python gives"),
        Choice("bf16", "bfloat16: the range of float32, fewer digits", why),
        Choice("fp16", f"float16 with loss scaling: narrow range{slow}"),
        Choice("fp8", "", "this version of xl cannot train in it", listed=False),
    )


def _backend_choices(answers: Answers, offer: Offer) -> Sequence[Choice]:
    return [
        Choice(name, _backend_title(name, answers, offer), why, listed=why is None)
        for name in _BACKENDS
        for why in [_why_not(name, answers, offer)]
    ]


def _why_not(name: BackendChoice, answers: Answers, offer: Offer) -> str | None:
    """Why the backend cannot be chosen after these answers."""
    several, on_gpu = answers.num_processes > 1, answers.device == "gpu"
    reasons = {
        "none": "several processes need a backend to train one model" if several else None,
        "fsdp": None if several else "one process has nothing to shard over",
    }
    if name in reasons:
        return reasons[name]
    if name.startswith("zero") and not (on_gpu and offer.deepspeed):
        return "DeepSpeed is not installed" if on_gpu else "DeepSpeed needs GPUs here"
    if name.endswith("-offload") and not on_gpu:
        return "a CPU has no other memory to use"
    if name.endswith("-offload") and answers.optimizer == "adamw-8bit":
        return "8-bit AdamW works on GPUs only"
    return None


_BACKENDS: dict[BackendChoice, str] = {
    "ddp": "whole model on each device",
    "fsdp": "sharded on devices",
    "fsdp-offload": "sharded, in RAM",
    "zero2": "DeepSpeed ZeRO 2",
    "zero3": "DeepSpeed ZeRO 3",
    "zero3-offload": "DeepSpeed ZeRO 3 in RAM",
    "none": "one process, nothing to distribute",
}


def _backend_title(name: BackendChoice, answers: Answers, offer: Offer) -> str:
    devices = devices_of(answers, offer)
    if name.endswith("-offload"):
        need, memory, where = host_need(answers.model, devices), devices.host_bytes, ""
    else:
        need = memory_need(answers.model, STRATEGIES[name], answers.num_processes).total
        memory, where = devices.memory_bytes, " each"
    verdict = "" if memory is None or need <= usable(memory) else ", too much"
    later = "; not built yet" if unbuilt(BACKEND_SETTINGS[name]) else ""
    return f"{_BACKENDS[name]}: {gib(need)}{where}{verdict}{later}"


def _recommended(answers: Answers, offer: Offer) -> str:
    found = recommendation(answers, offer)
    offered = found.backend if answers.num_processes > 1 or found.backend == "ddp" else "ddp"
    return f"{found.backend}-offload" if found.offload else offered


def _matters(answers: Answers, offer: Offer) -> bool:
    """One process whose model fits has nothing to choose between."""
    return answers.num_processes > 1 or recommendation(answers, offer).fits is not True


# --- what is said around the questions ---


def _machines_shared(_answers: Answers, _offer: Offer) -> Sequence[str]:
    return ('"later": the rank is said at each launch, by --machine-rank or by Slurm.',)


def _processes_found(answers: Answers, offer: Offer) -> Sequence[str]:
    if answers.device == "cpu":
        cores = f"{offer.usable_cores} usable CPU cores" if offer.usable_cores != 1 else "1 usable CPU core"
        return (f"Found {cores} here; the processes of a machine share its cores.",)
    if not offer.gpus:
        return ("Each process trains on one GPU of its own.",)
    found = f"{len(offer.gpus)} GPUs" if len(offer.gpus) != 1 else "1 GPU"
    return (f"Found {found} here; each process trains on one GPU of its own.",)


def _processes_total(answers: Answers, offer: Offer) -> Sequence[str]:
    each = answers.num_processes_per_machine
    notes: list[str] = [total_line(answers)]
    if answers.device == "cpu" and each > offer.usable_cores:
        notes.append(f"Note: {each} processes share {offer.usable_cores} cores here, which slows them down.")
    if answers.device == "gpu" and 0 < len(offer.gpus) < each:
        notes.append(f"Note: only {len(offer.gpus)} GPUs are here; this machine cannot be one of them.")
    return notes


def _address_note(answers: Answers, _offer: Offer) -> Sequence[str]:
    address = answers.main_process_ip or ""
    if address.startswith("127.") or address in ("::1", "localhost"):
        return (f"Note: {address} is reached from this machine only.",)
    return ()


def _memory_sum(answers: Answers, offer: Offer) -> Sequence[str]:
    found = recommendation(answers, offer)
    return ("", *found.lines, f"=> {found.reason}", "")


QUESTIONS: tuple[Question, ...] = (
    Question(
        "device",
        "--device",
        "Train on:",
        "auto, gpu or cpu; tpu is refused.",
        read_device,
        lambda _, offer: "gpu" if offer.gpus else "cpu",
        choices=_device_choices,
    ),
    Question(
        "gpu_memory_bytes",
        "--gpu-memory",
        "Memory of each GPU in GiB, or unknown:",
        "Memory of a GPU in GiB, for GPUs that are not here.",
        read_gpu_memory,
        _fixed("unknown"),
        relevant=lambda answers, offer: answers.device == "gpu" and not offer.gpu_memory_bytes,
    ),
    Question(
        "num_machines",
        "--num-machines",
        "Number of machines:",
        "Machines of the job.",
        read_machines,
        _fixed("1"),
    ),
    Question(
        "machine_rank",
        "--machine-rank",
        "Rank of this machine, from 0, or later:",
        "Position of this machine, from 0; later: said at each launch.",
        read_rank,
        _fixed("0"),
        relevant=lambda answers, _: answers.num_machines > 1,
        before=_machines_shared,
    ),
    Question(
        "main_process_ip",
        "--main-process-ip",
        "Address of machine 0:",
        "Address of machine 0.",
        read_address,
        lambda answers, offer: "" if answers.machine_rank else offer.address or "",
        relevant=lambda answers, _: answers.num_machines > 1,
        after=_address_note,
    ),
    Question(
        "main_process_port",
        "--main-process-port",
        "Free port on machine 0:",
        "Port on machine 0.",
        read_port,
        _fixed("29500"),
        relevant=lambda answers, _: answers.num_machines > 1,
    ),
    Question(
        "num_processes_per_machine",
        "--num-processes-per-machine",
        "Processes on each machine:",
        "Processes on each machine.",
        read_processes,
        lambda answers, offer: str(len(offer.gpus) or 1) if answers.device == "gpu" else "1",
        before=_processes_found,
        after=_processes_total,
    ),
    Question(
        "model_parameters",
        "--model-size",
        "Parameters of the model (7B, 350M, small):",
        "Parameters, as 7B or 350M; small: at most 100M.",
        read_model_size,
        _fixed("small"),
    ),
    Question(
        "optimizer",
        "--optimizer",
        "Optimizer:",
        f"One of {', '.join(get_args(Optimizer))}.",
        read_text,
        _fixed("adamw"),
        choices=_optimizer_choices,
    ),
    Question(
        "mixed_precision",
        "--mixed-precision",
        "Precision of the computation:",
        "no, bf16 or fp16.",
        read_text,
        _fixed("no"),
        choices=_precision_choices,
        after=_memory_sum,
    ),
    Question(
        "backend",
        "--backend",
        "Backend:",
        "ddp, fsdp, fsdp-offload, none; with DeepSpeed installed zero2, zero3, zero3-offload.",
        read_text,
        _recommended,
        relevant=_matters,
        choices=_backend_choices,
    ),
    Question(
        "gradient_accumulation_steps",
        "--gradient-accumulation-steps",
        "Batches for each optimizer step:",
        "Batches for each optimizer step.",
        read_accumulation,
        _fixed("1"),
    ),
    Question(
        "name",
        "--name",
        "Save under the name:",
        "Name of the profile.",
        read_name,
        _fixed("default"),
    ),
)
