"""The profile: every setting of a launch, with its type, its default and what it means.

A field's description is its help on the command line and in editors; `flag` in `json_schema_extra` names the
flag where it is not the key with dashes, and `path` marks a file or folder name.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from .migrations import SCHEMA_VERSION

Backend = Literal["none", "ddp", "fsdp", "deepspeed"]
Precision = Literal["no", "fp16", "bf16", "fp8"]
OffloadDevice = Literal["none", "cpu", "nvme"]

Count = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=0)]
Names = Annotated[tuple[str, ...], Field(strict=False)]
"""A list of texts; YAML and JSON have no tuples, so a list becomes one."""


class Section(BaseModel):
    """A mapping of settings: unknown keys are an error, values are not converted silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Fsdp(Section):
    """Options of `backend: fsdp`, torch's `fully_shard`; names of the older FSDP are mapped to it."""

    version: Literal[1, 2] = Field(
        default=2,
        description="Whose option names are used, FSDP1's or FSDP2's; fully_shard runs in both cases.",
    )
    sharding_strategy: (
        Literal["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"] | None
    ) = Field(default=None, description="FSDP1's word for what is sharded.")
    reshard_after_forward: bool | None = Field(
        default=None, description="Free the gathered parameters between forward and backward; default: yes."
    )
    offload_params: bool = Field(
        default=False, description="Keep parameters, gradients and optimizer in CPU memory."
    )
    min_num_params: Whole | None = Field(
        default=None, description="Parameters from which SIZE_BASED_WRAP shards a module on its own."
    )
    auto_wrap_policy: Literal["TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"] | None = Field(
        default=None,
        description="How modules are grouped for sharding; default: by the model's own block classes.",
    )
    transformer_layer_cls_to_wrap: Names = Field(
        default=(), description="Class names, with commas, that TRANSFORMER_BASED_WRAP shards."
    )
    backward_prefetch: Literal["BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"] | None = Field(
        default=None, description="When the next parameters are gathered in backward."
    )
    forward_prefetch: bool = Field(default=False, description="Gather the next parameters during forward.")
    state_dict_type: Literal["FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT"] | None = Field(
        default=None, description="Form of saved checkpoints; default: sharded."
    )
    use_orig_params: bool = Field(default=True, description="FSDP1's option; fully_shard always does this.")
    cpu_ram_efficient_loading: bool = Field(
        default=True, description="Only rank 0 holds the loaded weights; the others receive their shards."
    )
    sync_module_states: bool = Field(default=True, description="Start every rank from rank 0's weights.")
    activation_checkpointing: bool = Field(
        default=False, description="Recompute activations in backward instead of keeping them."
    )
    activation_checkpointing_offload: bool = Field(
        default=False, description="Keep activations in CPU memory."
    )
    ignored_modules: str | None = Field(
        default=None, description="Regular expression on full module names that are not sharded."
    )


def _plain(name: str) -> dict[str, JsonValue]:
    return {"flag": name}


class DeepSpeed(Section):
    """Options of `backend: deepspeed`; DeepSpeed's own JSON file must not contradict them."""

    config_file: str | None = Field(
        default=None, description="DeepSpeed's own JSON file.", json_schema_extra={"path": True}
    )
    zero_stage: Annotated[int, Field(ge=0, le=3)] = Field(
        default=2,
        description="What ZeRO shards: 0 nothing, 1 optimizer, 2 and gradients, 3 and parameters.",
        json_schema_extra=_plain("zero-stage"),
    )
    offload_optimizer_device: OffloadDevice = Field(
        default="none",
        description="Where optimizer state is kept.",
        json_schema_extra=_plain("offload-optimizer-device"),
    )
    offload_param_device: OffloadDevice = Field(
        default="none",
        description="Where parameters are kept (stage 3).",
        json_schema_extra=_plain("offload-param-device"),
    )
    offload_optimizer_nvme_path: str | None = Field(
        default=None,
        description="Folder for optimizer state under nvme.",
        json_schema_extra={"flag": "offload-optimizer-nvme-path", "path": True},
    )
    offload_param_nvme_path: str | None = Field(
        default=None,
        description="Folder for parameters under nvme.",
        json_schema_extra={"flag": "offload-param-nvme-path", "path": True},
    )
    gradient_clipping: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        default=None,
        description="Largest norm of the gradients; default: not clipped.",
        json_schema_extra=_plain("gradient-clipping"),
    )
    zero3_init_flag: bool | None = Field(
        default=None,
        description="Shard parameters while the model is built; default: in stage 3.",
        json_schema_extra=_plain("zero3-init-flag"),
    )
    zero3_save_16bit_model: bool = Field(
        default=False,
        description="Gather and save 16-bit weights in stage 3.",
        json_schema_extra=_plain("zero3-save-16bit-model"),
    )
    hostfile: str | None = Field(
        default=None, description="DeepSpeed's list of machines.", json_schema_extra={"path": True}
    )
    exclusion_filter: str | None = Field(
        default=None, description="Machines and devices of the hostfile left out."
    )
    inclusion_filter: str | None = Field(
        default=None, description="Machines and devices of the hostfile used."
    )
    multinode_launcher: Literal["pdsh", "standard", "openmpi", "mvapich", "mpich", "slurm", "nossh"] = Field(
        default="standard", description="How DeepSpeed would start other machines; standard: xl does."
    )
    moe_layer_cls_names: Names = Field(
        default=(), description="Class names, with commas, of mixture-of-experts layers."
    )


class Dynamo(Section):
    """Options of `torch.compile`."""

    backend: Literal[
        "no", "eager", "aot_eager", "inductor", "cudagraphs", "onnxrt", "openxla", "tensorrt", "tvm"
    ] = Field(default="no", description="Compiler backend of torch.compile; no: models are not compiled.")
    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = Field(
        default="default", description="What the compiler optimises for."
    )
    use_fullgraph: bool = Field(default=False, description="Refuse a model that needs more than one graph.")
    use_dynamic: bool = Field(default=False, description="Compile for changing shapes.")
    use_regional_compilation: bool = Field(default=False, description="Compile repeated blocks once each.")


def _mesh(name: str) -> dict[str, JsonValue]:
    return _plain(f"parallelism-config-{name}")


class Parallelism(Section):
    """Sizes of the device mesh's axes; their product is the number of processes."""

    dp_replicate_size: Count = Field(
        default=1, description="Copies of the model.", json_schema_extra=_mesh("dp-replicate-size")
    )
    dp_shard_size: Count = Field(
        default=1,
        description="Ranks that one copy is sharded over.",
        json_schema_extra=_mesh("dp-shard-size"),
    )
    tp_size: Count = Field(
        default=1, description="Ranks of tensor parallelism.", json_schema_extra=_mesh("tp-size")
    )
    cp_size: Count = Field(
        default=1, description="Ranks of context parallelism.", json_schema_extra=_mesh("cp-size")
    )
    cp_backend: Literal["torch"] = Field(
        default="torch", description="Who does context parallelism.", json_schema_extra=_mesh("cp-backend")
    )
    cp_comm_strategy: Literal["allgather", "alltoall"] = Field(
        default="allgather",
        description="How keys and values are exchanged.",
        json_schema_extra=_mesh("cp-comm-strategy"),
    )
    sp_size: Count = Field(
        default=1, description="Ranks of sequence parallelism.", json_schema_extra=_mesh("sp-size")
    )
    sp_backend: Literal["deepspeed"] = Field(
        default="deepspeed",
        description="Who does sequence parallelism.",
        json_schema_extra=_mesh("sp-backend"),
    )
    sp_seq_length: Count | None = Field(
        default=None, description="Sequence length in tokens.", json_schema_extra=_mesh("sp-seq-length")
    )
    sp_seq_length_is_variable: bool = Field(
        default=True,
        description="Batches differ in length.",
        json_schema_extra=_mesh("sp-seq-length-is-variable"),
    )
    sp_attn_implementation: Literal["sdpa", "eager", "flash_attention_2", "flash_attention_3"] = Field(
        default="sdpa", description="Attention kernel.", json_schema_extra=_mesh("sp-attn-implementation")
    )


class Profile(Section):
    """What a launch wants. `None` means: not said here, decided from the machine."""

    schema_version: int = Field(default=SCHEMA_VERSION, description="Version of the file's keys.")
    preset: str | None = Field(default=None, description="Preset that every other source overrides.")

    num_processes: Count | None = Field(
        default=None, description="Processes of the whole job, on all machines."
    )
    num_processes_per_machine: Count | None = Field(
        default=None, description="Processes on each machine; default: visible GPUs, else 1."
    )
    num_machines: Count = Field(default=1, description="Machines of the job.")
    machine_rank: Whole | None = Field(default=None, description="Position of this machine, from 0.")
    main_process_ip: str | None = Field(default=None, description="Address of machine 0.")
    main_process_port: Port | None = Field(
        default=None, description="Port on machine 0; 0 or unset: a free one."
    )
    rdzv_backend: Literal["static", "c10d"] = Field(
        default="static", description="How machines find each other."
    )
    rdzv_conf: str | None = Field(
        default=None, description="Options of the rendezvous, as key=value,key=value."
    )
    same_network: bool = Field(default=True, description="All machines reach each other directly.")
    hosts: Names = Field(
        default=(), description="Machines, with commas, to start over ssh; the first is machine 0."
    )
    ssh_options: Names = Field(default=(), description="Values, with commas, given to ssh as -o VALUE.")
    role: str = Field(default="default", description="Name of the workers in torch's elastic agent.")

    cpu: bool = Field(default=False, description="Train on the CPU even where a GPU is visible.")
    gpu_ids: str | None = Field(
        default=None, description="GPUs to use: numbers or UUIDs with commas, or all."
    )
    num_cpu_threads_per_process: Count | None = Field(
        default=None,
        description="CPU threads of a process; default: usable cores / processes of the machine.",
    )
    enable_cpu_affinity: bool = Field(
        default=False, description="Bind each process to the cores nearest its GPU."
    )

    backend: Backend = Field(default="ddp", description="How several processes train one model.")
    mixed_precision: Precision = Field(
        default="no", description="Type of the inner computation; no: float32."
    )
    gradient_accumulation_steps: Count = Field(default=1, description="Batches for each optimizer step.")
    gradient_accumulation_divide_by: Literal["window", "num_steps"] = Field(
        default="window",
        description="What gradients are divided by: batches really in the window, or always the set number.",
    )
    fsdp: Fsdp = Field(default_factory=Fsdp, description="Options of backend fsdp.")
    deepspeed: DeepSpeed = Field(default_factory=DeepSpeed, description="Options of backend deepspeed.")
    dynamo: Dynamo = Field(default_factory=Dynamo, description="Options of torch.compile.")
    parallelism: Parallelism = Field(default_factory=Parallelism, description="Axes of the device mesh.")

    seed: Whole | None = Field(default=None, description="Seed of a script that sets none itself.")
    exact_random: bool = Field(
        default=False, description="Random numbers inside the model as in one process, at some cost in speed."
    )
    distributed_by: Literal["auto", "script", "xl"] = Field(
        default="auto",
        description="Who distributes the training: the script itself or xl; auto: read the script.",
    )
    data: Literal["replicated", "sharded", "exchanged"] = Field(
        default="replicated", description="How the data of a plain script is spread over the processes."
    )
    start: Literal["auto", "zygote", "fresh"] = Field(
        default="auto", description="Fork processes from one that has imported torch, or start each anew."
    )
    debug: bool = Field(default=False, description="Check the arguments of collectives on every call.")

    max_restarts: Whole = Field(default=0, description="Restarts of the job after a failure.")
    monitor_interval: Seconds = Field(default=0.1, description="Seconds between looks at the processes.")
    grace_period_s: Seconds = Field(
        default=10.0, description="Seconds from asking a process to end to killing it."
    )
    log_dir: str | None = Field(
        default=None,
        description="Folder of the log files, one for each rank.",
        json_schema_extra={"path": True},
    )
    tee: str | None = Field(
        default=None,
        description="Log streams also shown: 0 none, 1 out, 2 err, 3 both, or local_rank:stream,...",
    )
    show_ranks: str = Field(
        default="0", description="Global ranks shown on the terminal, as 0,2,4-7, or all."
    )
    env: dict[str, str] = Field(default_factory=dict, description="Variables of the processes, NAME=VALUE.")
