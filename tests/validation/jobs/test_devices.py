"""Which device a rank takes, who launched it, and what NVML says, with torch.cuda and NVML played."""

import time
from types import SimpleNamespace

import pytest

from simulator.errors import ConfigError
from validation.jobs.job_settings import Settings
from validation.jobs.launch import Launch, find_launch

torch = pytest.importorskip("torch", reason="real jobs need PyTorch")

from validation.jobs.run_command import choose_device, describe_run  # noqa: E402
from validation.jobs.timing import GpuMonitor  # noqa: E402


def launched(by, local_rank=2):
    return Launch(rank=6, world_size=8, local_rank=local_rank, local_world_size=4, launcher=by)


@pytest.mark.parametrize(
    ("n_gpus", "by", "environment", "device"),
    [
        (4, "torchrun", {}, "cuda:2"),
        (1, "slurm", {"SLURM_GPUS_PER_TASK": "1"}, "cuda:0"),
        (1, "mpi", {"CUDA_VISIBLE_DEVICES": "GPU-7f1c"}, "cuda:0"),
        (1, "slurm", {}, "cpu"),
        (1, "torchrun", {"CUDA_VISIBLE_DEVICES": "0"}, "cpu"),
        (0, "slurm", {"SLURM_GPUS_PER_TASK": "1"}, "cpu"),
    ],
)
def test_a_rank_takes_its_own_gpu(monkeypatch, n_gpus, by, environment, device):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    assert str(choose_device(Settings(job="ddp"), launched(by), environment)) == device
    if device == "cpu":
        with pytest.raises(ConfigError, match=f"{n_gpus} GPUs"):
            choose_device(Settings(job="ddp", device="cuda"), launched(by), environment)


def test_computing_on_the_cpu_beside_gpus_is_said(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    choose_device(Settings(job="ddp"), launched("torchrun"), {})
    assert "2 GPUs for 4 ranks" in capsys.readouterr().err


def test_a_dry_run_says_what_would_run_where(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    said = describe_run(Settings(job="ddp", model="gpt2-large"), launched("torchrun"))
    assert "rank 6 of 8" in said
    assert "cuda:2" in said
    assert "gpt2-large (36 layers)" in said
    with pytest.raises(ConfigError, match="heads"):
        describe_run(Settings(job="tp", model="gpt2-xl"), launched("torchrun"))


@pytest.mark.parametrize(
    "environment",
    [
        {"PALS_RANKID": "5", "PMI_SIZE": "8", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "4"},
        {
            "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
        },
        {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"},
        {"PMI_RANK": "5", "PMI_SIZE": "8", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "4"},
    ],
)  # fmt: skip
def test_mpi_launchers_are_recognised(environment):
    launch = find_launch({**environment, "MASTER_ADDR": "x3001"})
    assert (launch.rank, launch.world_size, launch.local_rank, launch.n_nodes) == (5, 8, 1, 2)
    assert launch.launcher == "mpi"
    with pytest.raises(ConfigError, match="MASTER_ADDR"):
        find_launch(environment)


def test_an_allocation_without_tasks_launched_no_process():
    assert find_launch({"SLURM_PROCID": "0", "SLURM_NTASKS": ""}) is None


class Nvml:
    """Two GPUs, of which the second does not tell its power."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1

    def __init__(self):
        self.asked = []

    def nvmlInit(self):
        pass

    def nvmlShutdown(self):
        pass

    def nvmlDeviceGetHandleByIndex(self, index):
        if index > 1:
            raise ValueError("no such GPU")
        return self._handle(index)

    def nvmlDeviceGetHandleByUUID(self, name):
        return self._handle({"GPU-a": 0, "MIG-b": 1}[name])

    def _handle(self, index):
        self.asked.append(index)
        return SimpleNamespace(index=index)

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return 1410 if kind == self.NVML_CLOCK_SM else 1593

    def nvmlDeviceGetPowerUsage(self, handle):
        if handle.index == 1:
            raise RuntimeError("not supported")
        return 400_000


@pytest.mark.parametrize(
    ("visible", "index", "asked", "said"),
    [
        ("", 1, [1], "SM 1410 MHz, memory 1593 MHz (NVML"),
        ("1,0", 1, [0], "SM 1410 MHz, memory 1593 MHz, 400 W (NVML"),
        ("GPU-a", 0, [0], "400 W"),
        ("MIG-b", 0, [1], "SM 1410 MHz"),
        ("7", 0, [], ""),
    ],
)
def test_nvml_is_asked_about_the_gpu_that_cuda_means(monkeypatch, visible, index, asked, said):
    nvml = Nvml()
    monkeypatch.setitem(__import__("sys").modules, "pynvml", nvml)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with GpuMonitor(index) as monitor:
        time.sleep(0.25)
    assert nvml.asked == asked
    assert said in monitor.describe()
    assert bool(monitor.describe()) == bool(asked)
