import subprocess
import sys

import torch

from estr.embedded.optimizer import AdamW


def models():
    for _ in range(2):
        torch.manual_seed(0)
        yield torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))


def test_is_torchs_adamw_bit_for_bit():
    ours, theirs = models()
    mine = AdamW(ours.parameters(), lr=0.03, weight_decay=0.1)
    reference = torch.optim.AdamW(theirs.parameters(), lr=0.03, weight_decay=0.1)
    inputs = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    for step in range(20):
        for model, optimizer in ((ours, mine), (theirs, reference)):
            optimizer.zero_grad()
            if step == 3:  # a parameter without gradient is left alone
                model[0](inputs).square().sum().backward()
            else:
                model(inputs).square().sum().backward()
            optimizer.step()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(a, b)
            assert {k: v.tolist() for k, v in mine.state[a].items()} == {
                k: v.tolist() for k, v in reference.state[b].items()
            }


def test_does_not_import_the_compiler():
    code = (
        "import sys, torch; from estr.embedded.optimizer import AdamW; w = torch.zeros(3, requires_grad=True); "
        "o = AdamW([w], lr=0.1, weight_decay=0.0); o.zero_grad(); w.sum().backward(); o.step(); "
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
