"""A training script for the vendor's PyTorch interface; it runs unchanged.

$ wse-sim script examples/scripts/train_linear.py
wse_sim: captured step: 22 operators, 2 parameters (0.00 M), 2 state tensors, batch 32    0.0 s
wse_sim: pipelined on 1 x wse2: 0.227 ms/step, 1.41e+05 samples/s, 0.1 % compute, bound by input_workers    0.8 s
step 1 loss 1.0847
step 2 loss 1.2038
step 3 loss 1.0173
wse_sim: done: 3 steps, wafer 0.0007163 s, 1.34e+05 samples/s; client 2.3 s
"""

import cerebras.pytorch as cstorch
import torch

torch.manual_seed(0)
backend = cstorch.backend("CSX")
model = cstorch.compile(torch.nn.Linear(16, 3), backend)
optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1)


@cstorch.trace
def step(x, y):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


report = cstorch.step_closure(lambda i, loss: print(f"step {i} loss {loss.item():.4f}"))
data = torch.utils.data.TensorDataset(
    x := torch.randn(320, 16, generator=torch.Generator().manual_seed(0)), x[:, :3].argmax(-1)
)
loader = cstorch.utils.data.DataLoader(lambda: torch.utils.data.DataLoader(data, batch_size=32))
for i, (x, y) in enumerate(cstorch.utils.data.DataExecutor(loader, num_steps=3), 1):
    report(i, step(x, y))
