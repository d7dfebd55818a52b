"""Picks the environment variables that steer training and hides the secrets in them."""

from __future__ import annotations

import re
from collections.abc import Mapping

MASK = "***"

_PREFIXES = (
    *("XL_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "TORCH_", "TORCHELASTIC_", "PYTORCH_", "MASTER_", "PET_"),
    *(
        "OMP_",
        "MKL_",
        "KMP_",
        "SLURM_",
        "OMPI_",
        "PMI_",
        "UCX_",
        "FI_",
        "TPU_",
        "PJRT_",
        "ACCELERATE_",
        "HF_",
    ),
)
_NAMES = frozenset(
    (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "GROUP_RANK",
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
    )
    + ("PYTHONPATH", "PYTHONHASHSEED", "VIRTUAL_ENV", "CONDA_PREFIX", "TMPDIR", "TOKENIZERS_PARALLELISM")
)

_SECRET_WORD = (
    r"(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|(?<!BY)PASS|PWD|CREDENTIAL|JWT|AUTH|COOKIE|SIGNATURE)"
)
_SECRET_NAME = re.compile(_SECRET_WORD, re.IGNORECASE)
_SETTINGS = frozenset(("TOKENIZERS_PARALLELISM",))  # a name that holds a secret's word and no secret
_IN_VALUE = (
    # user and password of a URL
    (re.compile(r"(?<=://)[^/\s@]+(?=@)"), MASK),
    # NAME=value, "NAME": "value" and ?name=value inside a value
    (
        re.compile(
            rf"([\w-]*{_SECRET_WORD}[\w-]*[\"']?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;&\"']+)", re.IGNORECASE
        ),
        rf"\g<1>{MASK}",
    ),
    # --password value
    (re.compile(rf"(--[\w-]*{_SECRET_WORD}[\w-]*\s+)[^\s-]\S*", re.IGNORECASE), rf"\g<1>{MASK}"),
    # tokens known by their form, whatever they are called
    (
        re.compile(r"\b(?:hf_|gh[pousr]_|github_pat_|sk-|xox[abprs]-|glpat-|AKIA|eyJ)[A-Za-z0-9_.=-]{12,}"),
        MASK,
    ),
)


def training_variables(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """(name, value with secrets masked) of the variables that steer training, by name."""
    return tuple(
        (name, masked(name, value))
        for name, value in sorted(environment.items())
        if name in _NAMES or name.startswith(_PREFIXES)
    )


def masked(name: str, value: str) -> str:
    """The value, or the mask where its name says that it is secret; secrets inside it are masked alone."""
    if value and name not in _SETTINGS and _SECRET_NAME.search(name):
        return MASK
    for pattern, replacement in _IN_VALUE:
        value = pattern.sub(replacement, value)
    return value
