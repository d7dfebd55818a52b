"""Only variables that steer training are shown, and no secret is."""

import pytest

from xl.launcher.hardware.variables import MASK, masked, training_variables


def test_which_variables() -> None:
    environment = {
        "XL_SEED": "1",
        "NCCL_DEBUG": "INFO",
        "CUDA_VISIBLE_DEVICES": "",
        "SLURM_JOB_ID": "5",
        "WORLD_SIZE": "2",
        "HOME": "/home/me",
        "PATH": "/bin",
        "HF_TOKEN": "abc",
        "WANDB_API_KEY": "abc",
        "OMP_NUM_THREADS": "4",
    }
    assert training_variables(environment) == (
        ("CUDA_VISIBLE_DEVICES", ""),
        ("HF_TOKEN", MASK),
        ("NCCL_DEBUG", "INFO"),
        ("OMP_NUM_THREADS", "4"),
        ("SLURM_JOB_ID", "5"),
        ("WORLD_SIZE", "2"),
        ("XL_SEED", "1"),
    )


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "XL_API_KEY",
        "SLURM_JWT",
        "MASTER_PASSWORD",
        "XL_PASS",
        "NCCL_SECRET",
        "hf_token",
        "TORCH_AUTH",
    ],
)
def test_secret_names(name: str) -> None:
    assert masked(name, "s3cr3t") == MASK
    assert masked(name, "") == ""


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("http://user:pw@proxy:8080/x", "http://***@proxy:8080/x"),
        ("https://tok@host/path", "https://***@host/path"),
        ("https://host/x?token=abc&b=1", "https://host/x?token=***&b=1"),
        ("A=1,WANDB_API_KEY=abc,B=2", "A=1,WANDB_API_KEY=***,B=2"),
        ('{"password": "a b", "x": 1}', '{"password": ***, "x": 1}'),
        ("run --api-key hunter2 --steps 3", "run --api-key *** --steps 3"),
        ("key hf_abcdefghijklmnopqrst end", "key *** end"),
        ("/data/tokens/train", "/data/tokens/train"),
        ("0,1,2", "0,1,2"),
        ("10.0.0.1:29500", "10.0.0.1:29500"),
    ],
)
def test_secrets_inside_values(value: str, shown: str) -> None:
    assert masked("XL_LOG_DIR", value) == shown


def test_settings_with_a_secrets_word_in_their_name() -> None:
    assert masked("ACCELERATE_BYPASS_DEVICE_MAP", "true") == "true"
    assert masked("TOKENIZERS_PARALLELISM", "false") == "false"
