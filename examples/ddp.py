"""Data-parallel training whose workers exchange a few bits: two processes on this machine, over gloo.

torchrun --nproc-per-node 2 examples/ddp.py
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import fedmpdd as fm

dist.init_process_group("gloo")
rank, workers = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)  # the same data and the same first model on every worker
inputs = torch.randn(2000, 32)
targets = torch.sin(inputs @ torch.randn(32, 1) / 4)
mine = slice(rank, None, workers)

net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
model = DistributedDataParallel(net)
hook = fm.torch.ddp_hook(fm.MPDD(m=400, bits=1, family="hadamard"))
model.register_comm_hook(None, hook)
optimiser = torch.optim.Adam(net.parameters(), lr=5e-3)

for step in range(101):
    optimiser.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs[mine]), targets[mine])
    loss.backward()  # exchanges updates while it goes
    optimiser.step()
    if rank == 0 and step % 25 == 0:
        print(f"step {step:3}  loss {loss.item():.3f}  {hook.bytes_sent:,} bytes sent by this worker")
dist.barrier()  # else one may be gone while the other is still at its last exchange
dist.destroy_process_group()
