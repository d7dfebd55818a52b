"""`xl config` in a real terminal of 80 columns, and without one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from xl.configs.files import profile_text
from xl.configs.resolve import resolve

from ..conftest import Cli
from .gpu_machine import GPU_MACHINE
from .terminal import COLUMNS, CTRL_C, CTRL_D, CTRL_U, DOWN, ENTER, ESC, Terminal

ON_A_CPU = [
    "Train on:",
    "Number of machines:",
    "Processes on each machine:",
    "Parameters of the model",
    "Optimizer:",
    "Precision of the computation:",
    "Batches for each optimizer step:",
    "Save under the name:",
    "Save it and make it the active profile?",
]
OF_TWO_MACHINES = [
    *ON_A_CPU[:2],
    "Rank of this machine",
    "Address of machine 0:",
    "Free port on machine 0:",
    *ON_A_CPU[2:6],
    "Backend:",
    *ON_A_CPU[6:],
]


Start = Callable[..., Terminal]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `xl` in a terminal whose home is the test's folder."""
    running: list[Terminal] = []

    def run(*args: str, **options: str) -> Terminal:
        running.append(Terminal(list(args), tmp_path, **options))  # type: ignore[arg-type]
        return running[-1]

    yield run
    for terminal in running:
        terminal.child.close(force=True)


def written(home: Path) -> list[str]:
    """Every file below the config folder."""
    return sorted(str(path.relative_to(home / "xl")) for path in (home / "xl").rglob("*") if path.is_file())


def no_line_wraps_badly(terminal: Terminal) -> None:
    """No word of ours is cut at the edge, where a full line would be; the profile's path may be."""
    for line in terminal.lines():
        assert len(line) < COLUMNS or line.startswith("  /"), terminal.text()


def test_enter_at_every_question(start: Start, tmp_path: Path) -> None:
    terminal = start("config")
    for prompt in ON_A_CPU:
        terminal.answer(prompt)
    assert terminal.exit_code() == 0
    no_line_wraps_badly(terminal)
    text = terminal.text()
    assert "Total: 1 process on one machine" in text
    assert "=> it fits one device, so ddp: the fastest" in text
    assert text.endswith("Next: xl launch train.py")
    assert written(tmp_path) == ["active", "profiles/default.yaml"]
    assert (tmp_path / "xl" / "active").read_text() == "default\n"
    assert (tmp_path / "xl/profiles/default.yaml").read_text() == profile_text(
        {
            "num_machines": 1,
            "num_processes_per_machine": 1,
            "cpu": True,
            "mixed_precision": "no",
            "backend": "ddp",
            "gradient_accumulation_steps": 1,
        },
        "Made by xl config for at most 100M parameters and AdamW.\nTotal: 1 process on one machine.",
    )


def test_two_machines(start: Start, tmp_path: Path) -> None:
    terminal = start("config")
    keys = {
        "Number of machines:": CTRL_U + "2" + ENTER,
        "Rank of this machine": CTRL_U + "1" + ENTER,
        "Address of machine 0:": CTRL_U + "10.0.0.1" + ENTER,
        "Precision of the computation:": DOWN + ENTER,
        "Save under the name:": CTRL_U + "pair" + ENTER,
    }
    for prompt in OF_TWO_MACHINES:
        terminal.answer(prompt, keys.get(prompt, ENTER))
    assert terminal.exit_code() == 0
    no_line_wraps_badly(terminal)
    assert "Total: 2 machines x 1 process each = 2 processes" in terminal.text()
    environ = {"XL_CONFIG_HOME": str(tmp_path / "xl")}
    profile = resolve({}, environ, tmp_path).profile
    assert (profile.num_machines, profile.num_processes_per_machine, profile.machine_rank) == (2, 1, 1)
    assert (profile.main_process_ip, profile.main_process_port) == ("10.0.0.1", 29500)
    assert (profile.mixed_precision, profile.backend) == ("bf16", "ddp")


@pytest.mark.parametrize("place", range(len(OF_TWO_MACHINES)))
def test_esc_leaves_nothing_at_any_question(start: Start, tmp_path: Path, place: int) -> None:
    terminal = start("config", "--num-machines", "2") if place > 1 else start("config")
    prompts = [p for p in OF_TWO_MACHINES if place <= 1 or p != "Number of machines:"]
    stop = OF_TWO_MACHINES[place]
    for prompt in prompts:
        if prompt == stop:
            break
        terminal.answer(prompt)
    terminal.answer(stop, ESC)
    assert terminal.exit_code() == 1
    assert terminal.text().endswith("\nNothing was written.")
    assert written(tmp_path) == []
    no_line_wraps_badly(terminal)


@pytest.mark.parametrize("place", [0, 1, 4, 8])
def test_ctrl_c_leaves_nothing(start: Start, tmp_path: Path, place: int) -> None:
    terminal = start("config")
    for prompt in ON_A_CPU[:place]:
        terminal.answer(prompt)
    terminal.answer(ON_A_CPU[place], CTRL_C)
    assert terminal.exit_code() == 130
    assert terminal.text().endswith("\nNothing was written.")
    assert "Traceback" not in terminal.text()
    assert written(tmp_path) == []


def test_ctrl_d_on_an_empty_line_leaves(start: Start, tmp_path: Path) -> None:
    terminal = start("config")
    terminal.answer("Train on:")
    terminal.answer("Number of machines:", CTRL_U + CTRL_D)
    assert terminal.exit_code() == 1
    assert written(tmp_path) == []


def test_no_at_the_end_leaves_nothing(start: Start, tmp_path: Path) -> None:
    terminal = start("config")
    for prompt in ON_A_CPU[:-1]:
        terminal.answer(prompt)
    terminal.answer(ON_A_CPU[-1], "n")
    assert terminal.exit_code() == 1
    assert written(tmp_path) == []


WRONG_TEXTS = {
    "Number of machines:": ("many", "a whole number from 1 to", "2"),
    "Rank of this machine": ("2", "a whole number from 0 to 1", "0"),
    "Address of machine 0:": ("http://x", "is no address", "node-0"),
    "Free port on machine 0:": ("99999", "a whole number from 1 to 65535", "29501"),
    "Processes on each machine:": ("x" * 200, "a whole number from 1 to", "1"),
    "Parameters of the model": ("7 billion", "write 7B, 350M, 70000000 or small", "125m"),
    "Batches for each optimizer step:": ("0", "a whole number from 1 to", "4"),
    "Save under the name:": ("../../etc/x", "letters, digits", "right"),
}
MENUS = ("Train on:", "Optimizer:", "Precision of the computation:", "Backend:")


def test_wrong_input_at_every_question(start: Start, tmp_path: Path) -> None:
    terminal = start("config")
    for prompt in OF_TWO_MACHINES[:-1]:
        if prompt in MENUS:  # keys that mean nothing there
            terminal.answer(prompt, "x9 \t" + ENTER)
            continue
        wrong, message, right = WRONG_TEXTS[prompt]
        terminal.answer(prompt, CTRL_U + wrong + ENTER)
        terminal.wait_for(message)
        terminal.answer(prompt, CTRL_U + right + ENTER, times=2)
    terminal.wait_for_prompt(OF_TWO_MACHINES[-1])
    terminal.send("x")  # neither yes nor no
    terminal.send(ENTER)
    assert terminal.exit_code() == 0
    assert written(tmp_path) == ["active", "profiles/right.yaml"]
    profile = resolve({}, {"XL_CONFIG_HOME": str(tmp_path / "xl")}, tmp_path).profile
    assert (profile.num_machines, profile.gradient_accumulation_steps) == (2, 4)
    assert (profile.main_process_ip, profile.main_process_port) == ("node-0", 29501)


def test_wrong_flags_are_explained_and_asked(start: Start, tmp_path: Path) -> None:
    terminal = start("config", "--device", "tpu", "--model_size", "huge")
    terminal.answer("Train on:")
    assert "--device: tpu: there is no torch_xla for torch 2.13" in terminal.text()
    terminal.answer("Number of machines:")
    terminal.answer("Processes on each machine:")
    terminal.wait_for_prompt("Parameters of the model")
    assert "--model-size: 'huge': write 7B, 350M, 70000000 or small" in terminal.text()
    terminal.send(ESC)
    assert terminal.exit_code() == 1


def test_long_names(start: Start, tmp_path: Path) -> None:
    terminal = start("config")
    for prompt in ON_A_CPU[:-2]:
        terminal.answer(prompt)
    terminal.answer("Save under the name:", CTRL_U + "n" * 65 + ENTER)
    terminal.wait_for("at most 64 characters")
    terminal.answer("Save under the name:", CTRL_U + "n" * 64 + ENTER, times=2)
    terminal.answer(ON_A_CPU[-1])
    assert terminal.exit_code() == 0
    assert f"profiles/{'n' * 64}.yaml" in written(tmp_path)


def test_a_profile_of_that_name_is_asked_about(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "xl" / "profiles" / "default.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("seed: 7\n")
    terminal = start("config")
    for prompt in ON_A_CPU[:-1]:
        terminal.answer(prompt)
    terminal.answer("The profile default is there already. Replace it?", "n")
    terminal.answer("Save under the name:", CTRL_U + "other" + ENTER, times=2)
    terminal.answer(ON_A_CPU[-1])
    assert terminal.exit_code() == 0
    assert path.read_text() == "seed: 7\n"
    assert (tmp_path / "xl" / "active").read_text() == "other\n"


def test_gpus(start: Start, tmp_path: Path) -> None:
    """There is no GPU here: the facts of four stand in for NVML's."""
    terminal = start("config", program=GPU_MACHINE)
    terminal.answer("Train on:")
    terminal.answer("Number of machines:")
    terminal.answer("Processes on each machine:")
    terminal.answer("Parameters of the model", CTRL_U + "7B" + ENTER)
    terminal.answer("Optimizer:")
    terminal.answer("Precision of the computation:", DOWN + ENTER)
    terminal.answer("Backend:")
    for prompt in ON_A_CPU[-3:]:
        terminal.answer(prompt)
    assert terminal.exit_code() == 0
    no_line_wraps_badly(terminal)
    text = terminal.text()
    assert "GPU: 4 x NVIDIA A100-SXM4-80GB, 80.0 GiB each" in text
    assert "Total: 4 processes on one machine" in text
    assert "fsdp over 4 devices: 16 B / 4 each = 26.1 GiB" in text
    assert "=> it does not fit one device, sharded it does, so fsdp" in text
    profile = resolve({}, {"XL_CONFIG_HOME": str(tmp_path / "xl")}, tmp_path).profile
    assert (profile.backend, profile.num_processes_per_machine, profile.cpu) == ("fsdp", 4, False)


def test_bf16_is_refused_on_old_gpus(start: Start) -> None:
    """There is no GPU here: the facts of four older ones stand in for NVML's."""
    terminal = start("old", "config", program=GPU_MACHINE)
    for prompt in ON_A_CPU[:5]:
        terminal.answer(prompt)
    terminal.wait_for("- bf16 (needs an Ampere GPU (8.0), one here is 7.5)")
    terminal.answer("Precision of the computation:", DOWN + ENTER)  # passes over bf16
    terminal.wait_for("? Precision of the computation: fp16")
    terminal.send(ESC)
    assert terminal.exit_code() == 1


def test_a_tpu_is_recognised_and_refused(start: Start) -> None:
    terminal = start("config", PJRT_DEVICE="TPU")
    terminal.wait_for("- tpu (there is no torch_xla for torch 2.13)")
    assert "TPU: PJRT_DEVICE=TPU; it cannot be used" in terminal.text()
    terminal.send(ESC)
    assert terminal.exit_code() == 1


ALL_FLAGS = [
    *("--device", "cpu", "--num-machines", "1", "--num-processes-per-machine", "2", "--model-size", "125M"),
    *("--optimizer", "sgd", "--precision", "bf16", "--backend", "ddp", "--gradient-accumulation-steps", "4"),
    *("--name", "ci"),
]


def without_terminal(home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("XL_")}
    return subprocess.run(
        [sys.executable, "-m", "xl.cli", "config", *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=home,
        env={**environ, "XL_CONFIG_HOME": str(home / "xl")},
        check=False,
    )


def test_every_answer_as_a_flag_and_stdin_closed(tmp_path: Path) -> None:
    """P7: a profile can be made in a container or CI."""
    outcome = without_terminal(tmp_path, *ALL_FLAGS)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    profile = resolve({}, {"XL_CONFIG_HOME": str(tmp_path / "xl")}, tmp_path).profile
    assert (profile.num_processes_per_machine, profile.cpu, profile.backend) == (2, True, "ddp")
    assert (profile.mixed_precision, profile.gradient_accumulation_steps) == ("bf16", 4)


def test_without_a_terminal_an_error_names_the_missing_flags(tmp_path: Path) -> None:
    """P8: no traceback, no prompt that nobody can answer."""
    outcome = without_terminal(tmp_path, "--cpu", "--name", "x")
    assert outcome.returncode == 2
    assert outcome.stdout == ""
    what, why, fix = outcome.stderr.splitlines()
    assert what == "error: there is no terminal to ask on"
    assert "--model-size" in why
    assert "--device" not in why
    assert "--yes" in fix
    assert "xl config --help" in fix
    assert written(tmp_path) == []


def test_yes_takes_the_defaults(tmp_path: Path) -> None:
    outcome = without_terminal(tmp_path, "--yes")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert written(tmp_path) == ["active", "profiles/default.yaml"]


def test_an_existing_profile_needs_overwrite(cli: Cli) -> None:
    path = cli.profile("default", "seed: 7\n")
    refused = cli.run("config", "--yes", "--cpu")
    assert refused.code == 2
    assert "pass --overwrite" in refused.err
    assert path.read_text() == "seed: 7\n"
    assert cli.run("config", "--yes", "--cpu", "--overwrite").code == 0
    assert "seed" not in path.read_text()


def test_flags_take_underscores(cli: Cli) -> None:
    assert (
        cli.run("config", "-y", "--cpu", "--num_processes_per_machine", "2", "--mixed_precision=bf16").code
        == 0
    )
    assert "num_processes_per_machine: 2" in (cli.home / "profiles/default.yaml").read_text()


def test_all_wrong_flags_at_once(cli: Cli) -> None:
    outcome = cli.run("config", "-y", "--device", "tpu", "--model-size", "x", "--name", "a/b")
    assert outcome.code == 2
    assert outcome.err.count("error: ") == 3
    assert "no torch_xla" in outcome.err
    assert not (cli.home / "profiles").exists()


def test_cpu_contradicts_another_device(cli: Cli) -> None:
    outcome = cli.run("config", "-y", "--cpu", "--device", "gpu")
    assert outcome.code == 2
    assert "contradict" in outcome.err


def test_what_ranks_above_the_active_profile_is_said(cli: Cli) -> None:
    path = cli.write("xl.yaml", "seed: 1\n")
    assert f"Note: {path} ranks above" in cli.run("config", "-y", "--cpu").out.replace("\n", " ")


def test_what_cannot_be_launched_yet_is_said(cli: Cli) -> None:
    out = cli.run("config", "-y", "--cpu", "--num-machines", "2", "--main-process-ip", "node-0").out
    assert "this version of xl does not launch num_machines=2 yet" in out.replace("\n", " ")


def test_an_unwritable_folder_is_an_error_and_leaves_nothing(cli: Cli) -> None:
    cli.home.write_text("a file where the folder should be")
    outcome = cli.run("config", "-y", "--cpu")
    assert outcome.code == 1
    assert "cannot be written" in outcome.err


def test_help_lists_every_answer(cli: Cli) -> None:
    out = cli.run("config", "--help").out
    for flag in ("--device", "--model-size", "--precision", "--main-process-ip", "--yes", "--overwrite"):
        assert flag in out
