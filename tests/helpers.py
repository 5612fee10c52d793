"""What several test files use."""

import math

import torch


def scramble(model):
    """Overwrite all weights with N(0, 0.2): a fresh model answers 0, and no leak would show."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.2 * torch.randn(p.shape, generator=generator))
    return model


def entropies(ids):
    """Entropies of a text in nats: of a character, and of one given the previous one."""
    V = int(ids.max()) + 1
    pairs = torch.bincount(ids[:-1] * V + ids[1:], minlength=V * V).double().view(V, V) / (
        len(ids) - 1
    )

    def entropy(p):
        return -(p[p > 0] * p[p > 0].log()).sum().item()

    return entropy(pairs.sum(0)), entropy(pairs) - entropy(pairs.sum(1))


def standard_error(nll):
    """Of the mean of independent terms."""
    return nll.std().item() / math.sqrt(nll.numel())
