"""The hook of DistributedDataParallel between two real processes, beside training without one."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WORKER = """
import json, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fedmpdd as fm

rank, store, outcome = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
generator = torch.Generator().manual_seed(5)
inputs = torch.randn(256, 16, generator=generator)
targets = inputs @ torch.randn(16, 1, generator=generator)
mine = slice(128 * rank, 128 * rank + 128)

HOOKS = {
    "plain": lambda: None,
    "fedsgd": lambda: fm.torch.ddp_hook(fm.FedSGD()),
    "mpdd": lambda: fm.torch.ddp_hook(fm.MPDD(m=16, bits=1, family="hadamard"), seed=3),
    "topk": lambda: fm.torch.ddp_hook(fm.TopK(k=8), error_feedback=True),
}

def train(name):
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1)), bucket_cap_mb=0.00005)
    hook = HOOKS[name]()
    if hook is not None:
        net.register_comm_hook(None, hook)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05)
    losses = []
    for _ in range(150):
        optimiser.zero_grad()
        loss = nn.functional.mse_loss(net(inputs[mine]), targets[mine])
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    flat = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
    return {"losses": losses, "model": flat.tolist(), "bytes": getattr(hook, "bytes_sent", None)}

results = {name: train(name) for name in HOOKS}
with open(f"{outcome}-{rank}.json", "w") as file:
    json.dump(results, file)
dist.barrier()  # else one may be gone while the other is still at its last exchange
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ddp")
    (folder / "worker.py").write_text(WORKER, encoding="utf-8")
    command = [sys.executable, str(folder / "worker.py")]
    workers = [
        subprocess.Popen(
            [*command, str(rank), str(folder / "store"), str(folder / "outcome")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        outputs = [worker.communicate(timeout=120)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    return [json.loads(Path(folder / f"outcome-{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]


@pytest.mark.slow
def test_both_workers_have_the_same_model_to_the_bit(outcomes: list[dict[str, Any]]) -> None:
    for name in outcomes[0]:
        assert outcomes[0][name]["model"] == outcomes[1][name]["model"], name


@pytest.mark.slow
def test_whole_gradients_train_as_without_a_hook(outcomes: list[dict[str, Any]]) -> None:
    plain, hooked = outcomes[0]["plain"]["model"], outcomes[0]["fedsgd"]["model"]
    assert hooked == pytest.approx(plain, rel=1e-4, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["mpdd", "topk"])
def test_codecs_learn_the_task_for_fewer_bytes(outcomes: list[dict[str, Any]], codec: str) -> None:
    """The seeds are fixed, so that nothing here can fail by chance."""
    trained, whole = outcomes[0][codec], outcomes[0]["fedsgd"]
    assert trained["losses"][-1] < 0.1 * trained["losses"][0]
    assert 0 < trained["bytes"] < 0.5 * whole["bytes"]
