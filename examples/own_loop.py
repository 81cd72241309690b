"""A training loop of one's own: ten clients learn a regression, and each sends 45 bytes a round instead of 8,716.

python examples/own_loop.py
"""

import torch
from torch.nn.functional import mse_loss

import fedmpdd as fm

torch.manual_seed(0)
inputs = torch.randn(1000, 32)
targets = torch.sin(inputs @ torch.randn(32, 1) / 4)

net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
# From here to the step of the server: the ten lines that make a training federated.
codec = fm.MPDD(m=200, bits=1, family="hadamard")
client = fm.torch.Client(net, codec)
server = fm.torch.Server(net, codec, torch.optim.Adam(net.parameters(), lr=5e-3))
for round_number in range(101):
    frames = []
    for mine in torch.randperm(len(inputs)).chunk(10):  # what each of ten clients holds
        net.zero_grad()
        mse_loss(net(inputs[mine]), targets[mine]).backward()
        frames.append(client.frame())  # bytes, for any transport
    server.step(frames)

    if round_number % 25 == 0:
        loss = mse_loss(net(inputs), targets).item()
        print(f"round {round_number:3}  loss {loss:.3f}  {len(frames[0])} bytes from each client")
