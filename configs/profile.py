"""The profile: every setting of a launch, with its type, its default and what it means.

It is a plain dataclass and the one declaration that all else is read from. `keys.py` makes from it the flat
table by which values are checked; pydantic, which takes dataclasses as they are, makes the JSON Schema
(`schema.py`). A launch does without pydantic, whose import alone would double its start.
"""

# Without `from __future__ import annotations`: the table needs the types and not their text.

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar, cast

from .migrations import SCHEMA_VERSION

Backend = Literal["none", "ddp", "fsdp", "deepspeed"]
Precision = Literal["no", "fp16", "bf16", "fp8"]
OffloadDevice = Literal["none", "cpu", "nvme"]
Names = tuple[str, ...]

T = TypeVar("T")


def setting(
    default: T,
    description: str,
    *,
    at_least: int | None = None,
    at_most: int | None = None,
    flag: str | None = None,
    path: bool = False,
) -> T:
    """A field that is one setting; the metadata has pydantic's names.

    Args:
        description: its help on the command line and in editors.
        at_least: smallest number, itself allowed.
        at_most: largest number, itself allowed.
        flag: its flag without the dashes, where that is not the key with dashes.
        path: it names a file or folder.
    """
    metadata: dict[str, object] = {"description": description}
    if at_least is not None:
        metadata["ge"] = at_least
    if at_most is not None:
        metadata["le"] = at_most
    extra: dict[str, object] = {"flag": flag} if flag else {}
    if path:
        extra["path"] = True
    if extra:
        metadata["json_schema_extra"] = extra
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping of settings; pydantic is to refuse unknown keys and to convert nothing."""

    __pydantic_config__: ClassVar[Mapping[str, object]] = {
        "extra": "forbid",
        "strict": True,
        "allow_inf_nan": False,
        "revalidate_instances": "always",
    }


@dataclass(frozen=True, slots=True)
class Fsdp(Section):
    """Options of `backend: fsdp`, torch's `fully_shard`; names of the older FSDP are mapped to it."""

    version: Literal[1, 2] = setting(
        2, "Whose option names are used, FSDP1's or FSDP2's; fully_shard runs in both cases."
    )
    sharding_strategy: (
        Literal["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"] | None
    ) = setting(None, "FSDP1's word for what is sharded.")
    reshard_after_forward: bool | None = setting(
        None, "Free the gathered parameters between forward and backward; default: yes."
    )
    offload_params: bool = setting(False, "Keep parameters, gradients and optimizer in CPU memory.")
    min_num_params: int | None = setting(
        None, "Parameters from which SIZE_BASED_WRAP shards a module on its own.", at_least=0
    )
    auto_wrap_policy: Literal["TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"] | None = setting(
        None, "How modules are grouped for sharding; default: by the model's own block classes."
    )
    transformer_layer_cls_to_wrap: Names = setting(
        (), "Class names, with commas, that TRANSFORMER_BASED_WRAP shards."
    )
    backward_prefetch: Literal["BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"] | None = setting(
        None, "When the next parameters are gathered in backward."
    )
    forward_prefetch: bool = setting(False, "Gather the next parameters during forward.")
    state_dict_type: Literal["FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT"] | None = setting(
        None, "Form of saved checkpoints; default: sharded."
    )
    use_orig_params: bool = setting(True, "FSDP1's option; fully_shard always does this.")
    cpu_ram_efficient_loading: bool = setting(
        True, "Only rank 0 holds the loaded weights; the others receive their shards."
    )
    sync_module_states: bool = setting(True, "Start every rank from rank 0's weights.")
    activation_checkpointing: bool = setting(
        False, "Recompute activations in backward instead of keeping them."
    )
    activation_checkpointing_offload: bool = setting(False, "Keep activations in CPU memory.")
    ignored_modules: str | None = setting(
        None, "Regular expression on full module names that are not sharded."
    )


@dataclass(frozen=True, slots=True)
class DeepSpeed(Section):
    """Options of `backend: deepspeed`; DeepSpeed's own JSON file must not contradict them."""

    config_file: str | None = setting(None, "DeepSpeed's own JSON file.", path=True)
    zero_stage: int = setting(
        2,
        "What ZeRO shards: 0 nothing, 1 optimizer, 2 and gradients, 3 and parameters.",
        at_least=0,
        at_most=3,
        flag="zero-stage",
    )
    offload_optimizer_device: OffloadDevice = setting(
        "none", "Where optimizer state is kept.", flag="offload-optimizer-device"
    )
    offload_param_device: OffloadDevice = setting(
        "none", "Where parameters are kept (stage 3).", flag="offload-param-device"
    )
    offload_optimizer_nvme_path: str | None = setting(
        None, "Folder for optimizer state under nvme.", flag="offload-optimizer-nvme-path", path=True
    )
    offload_param_nvme_path: str | None = setting(
        None, "Folder for parameters under nvme.", flag="offload-param-nvme-path", path=True
    )
    gradient_clipping: float | None = setting(
        None, "Largest norm of the gradients; default: not clipped.", at_least=0, flag="gradient-clipping"
    )
    zero3_init_flag: bool | None = setting(
        None, "Shard parameters while the model is built; default: in stage 3.", flag="zero3-init-flag"
    )
    zero3_save_16bit_model: bool = setting(
        False, "Gather and save 16-bit weights in stage 3.", flag="zero3-save-16bit-model"
    )
    hostfile: str | None = setting(None, "DeepSpeed's list of machines.", path=True)
    exclusion_filter: str | None = setting(None, "Machines and devices of the hostfile left out.")
    inclusion_filter: str | None = setting(None, "Machines and devices of the hostfile used.")
    multinode_launcher: Literal["pdsh", "standard", "openmpi", "mvapich", "mpich", "slurm", "nossh"] = (
        setting("standard", "How DeepSpeed would start other machines; standard: xl does.")
    )
    moe_layer_cls_names: Names = setting((), "Class names, with commas, of mixture-of-experts layers.")


@dataclass(frozen=True, slots=True)
class Dynamo(Section):
    """Options of `torch.compile`."""

    backend: Literal[
        "no", "eager", "aot_eager", "inductor", "cudagraphs", "onnxrt", "openxla", "tensorrt", "tvm"
    ] = setting("no", "Compiler backend of torch.compile; no: models are not compiled.")
    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = setting(
        "default", "What the compiler optimises for."
    )
    use_fullgraph: bool = setting(False, "Refuse a model that needs more than one graph.")
    use_dynamic: bool = setting(False, "Compile for changing shapes.")
    use_regional_compilation: bool = setting(False, "Compile repeated blocks once each.")


@dataclass(frozen=True, slots=True)
class Parallelism(Section):
    """Sizes of the device mesh's axes; their product is the number of processes."""

    dp_replicate_size: int = setting(
        1, "Copies of the model.", at_least=1, flag="parallelism-config-dp-replicate-size"
    )
    dp_shard_size: int = setting(
        1, "Ranks that one copy is sharded over.", at_least=1, flag="parallelism-config-dp-shard-size"
    )
    tp_size: int = setting(1, "Ranks of tensor parallelism.", at_least=1, flag="parallelism-config-tp-size")
    cp_size: int = setting(1, "Ranks of context parallelism.", at_least=1, flag="parallelism-config-cp-size")
    cp_backend: Literal["torch"] = setting(
        "torch", "Who does context parallelism.", flag="parallelism-config-cp-backend"
    )
    cp_comm_strategy: Literal["allgather", "alltoall"] = setting(
        "allgather", "How keys and values are exchanged.", flag="parallelism-config-cp-comm-strategy"
    )
    sp_size: int = setting(1, "Ranks of sequence parallelism.", at_least=1, flag="parallelism-config-sp-size")
    sp_backend: Literal["deepspeed"] = setting(
        "deepspeed", "Who does sequence parallelism.", flag="parallelism-config-sp-backend"
    )
    sp_seq_length: int | None = setting(
        None, "Sequence length in tokens.", at_least=1, flag="parallelism-config-sp-seq-length"
    )
    sp_seq_length_is_variable: bool = setting(
        True, "Batches differ in length.", flag="parallelism-config-sp-seq-length-is-variable"
    )
    sp_attn_implementation: Literal["sdpa", "eager", "flash_attention_2", "flash_attention_3"] = setting(
        "sdpa", "Attention kernel.", flag="parallelism-config-sp-attn-implementation"
    )


@dataclass(frozen=True, slots=True)
class Profile(Section):
    """What a launch wants. `None` means: not said here, decided from the machine."""

    schema_version: int = setting(SCHEMA_VERSION, "Version of the file's keys.")
    preset: str | None = setting(None, "Preset that every other source overrides.")

    num_processes: int | None = setting(None, "Processes of the whole job, on all machines.", at_least=1)
    num_processes_per_machine: int | None = setting(
        None, "Processes on each machine; default: visible GPUs, else 1.", at_least=1
    )
    num_machines: int = setting(1, "Machines of the job.", at_least=1)
    machine_rank: int | None = setting(None, "Position of this machine, from 0.", at_least=0)
    main_process_ip: str | None = setting(None, "Address of machine 0.")
    main_process_port: int | None = setting(
        None, "Port on machine 0; 0 or unset: a free one.", at_least=0, at_most=65535
    )
    rdzv_backend: Literal["static", "c10d"] = setting("static", "How machines find each other.")
    rdzv_conf: str | None = setting(None, "Options of the rendezvous, as key=value,key=value.")
    same_network: bool = setting(True, "All machines reach each other directly.")
    hosts: Names = setting((), "Machines, with commas, to start over ssh; the first is machine 0.")
    ssh_options: Names = setting((), "Values, with commas, given to ssh as -o VALUE.")
    role: str = setting("default", "Name of the workers in torch's elastic agent.")

    cpu: bool = setting(False, "Train on the CPU even where a GPU is visible.")
    gpu_ids: str | None = setting(None, "GPUs to use: numbers or UUIDs with commas, or all.")
    num_cpu_threads_per_process: int | None = setting(
        None,
        "CPU threads of a process; default: usable cores / processes of the machine.",
        at_least=1,
        at_most=4096,
    )
    enable_cpu_affinity: bool = setting(False, "Bind each process to the cores nearest its GPU.")

    backend: Backend = setting("ddp", "How several processes train one model.")
    mixed_precision: Precision = setting("no", "Type of the inner computation; no: float32.")
    gradient_accumulation_steps: int = setting(1, "Batches for each optimizer step.", at_least=1)
    gradient_accumulation_divide_by: Literal["window", "num_steps"] = setting(
        "window", "What gradients are divided by: batches really in the window, or always the set number."
    )
    fsdp: Fsdp = field(default_factory=Fsdp, metadata={"description": "Options of backend fsdp."})
    deepspeed: DeepSpeed = field(
        default_factory=DeepSpeed, metadata={"description": "Options of backend deepspeed."}
    )
    dynamo: Dynamo = field(default_factory=Dynamo, metadata={"description": "Options of torch.compile."})
    parallelism: Parallelism = field(
        default_factory=Parallelism, metadata={"description": "Axes of the device mesh."}
    )

    seed: int | None = setting(None, "Seed of a script that sets none itself.", at_least=0, at_most=2**64 - 1)
    exact_random: bool = setting(
        False, "Random numbers inside the model as in one process, at some cost in speed."
    )
    distributed_by: Literal["auto", "script", "xl"] = setting(
        "auto", "Who distributes the training: the script itself or xl; auto: read the script."
    )
    data: Literal["replicated", "sharded", "exchanged"] = setting(
        "replicated", "How the data of a plain script is spread over the processes."
    )
    start: Literal["auto", "zygote", "fresh"] = setting(
        "auto", "Fork processes from one that has imported torch, or start each anew."
    )
    debug: bool = setting(False, "Check the arguments of collectives on every call.")

    max_restarts: int = setting(0, "Restarts of the job after a failure.", at_least=0)
    monitor_interval: float = setting(0.1, "Seconds between looks of torch's agent at workers.", at_least=0)
    grace_period_s: float = setting(
        10.0, "Seconds from asking a process to end to killing it.", at_least=0, at_most=1_000_000
    )
    log_dir: str | None = setting(None, "Folder of the log files, one for each rank.", path=True)
    tee: str | None = setting(
        None, "Log streams also shown: 0 none, 1 out, 2 err, 3 both, or local_rank:stream,..."
    )
    show_ranks: str = setting("0", "Global ranks shown on the terminal, as 0,2,4-7, or all.")
    env: dict[str, str] = field(
        default_factory=dict[str, str], metadata={"description": "Variables of the processes, NAME=VALUE."}
    )


SECTIONS: Mapping[str, type[Section]] = {
    "fsdp": Fsdp,
    "deepspeed": DeepSpeed,
    "dynamo": Dynamo,
    "parallelism": Parallelism,
}
"""The class of each key that holds further keys."""


def make_profile(nested: Mapping[str, object]) -> Profile:
    """The profile of checked values; what is not among them keeps its default."""
    made: dict[str, Any] = dict(nested)
    for name, section in SECTIONS.items():
        if name in made:
            made[name] = cast("Any", section)(**made[name])
    return Profile(**made)
