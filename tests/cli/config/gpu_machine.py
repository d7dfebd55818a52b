"""`xl` on a machine with four GPUs that are not here: their facts stand in for NVML's, all else is real."""

from __future__ import annotations

GPU_MACHINE = """
import sys
from dataclasses import replace
from xl.cli.config import wizard
from xl.cli.main import main
from xl.launcher.gpus import GpuDetail, GpuFacts
from xl.launcher.machine import Gpu

capability, torch_cuda = (8, 0), (13, 0)
if sys.argv[1] == "old":
    capability = (7, 5)
    del sys.argv[1]
GIB = 1 << 30
gpus = tuple(Gpu(i, f"GPU-{i}{i}{i}", "NVIDIA A100-SXM4-80GB", 80 * GIB, 79 * GIB) for i in range(4))
facts = GpuFacts(gpus, (GpuDetail(capability),) * 4, (), "580.65.06", (13, 0))
read_hardware, read_software = wizard.read_hardware, wizard.read_software
wizard.read_hardware = lambda *a: replace(read_hardware(*a), gpus=facts)
wizard.read_software = lambda: replace(read_software(), torch_cuda=torch_cuda)
sys.exit(main())
"""
