"""The same numbers as other people's code: torch's losses and attention, the Hugging Face masks."""

import math

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import clm
import mlm
import prefix_lm
from clm import IGNORE, mean_nll, smooth_nll, token_nll


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


# -------------------------------------------------------- losses
def scores():
    """Logits (3, 7, 11) that take a gradient, targets (3, 7), 11 of 21 not scored."""
    logits = 4 * torch.randn(3, 7, 11, generator=rng(), dtype=torch.float32)
    targets = torch.randint(11, (3, 7), generator=rng(1))
    targets[0, 1:], targets[2, :5] = IGNORE, IGNORE
    return logits.requires_grad_(), targets


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_loss_and_gradient_are_those_of_cross_entropy_loss(smoothing):
    logits, targets = scores()
    # what is wanted, as a distribution over the classes
    share = torch.full((3, 7, 11), smoothing / 10)
    share.scatter_(2, targets.clamp(min=0)[..., None], 1 - smoothing)
    scored = targets != IGNORE
    theirs = nn.CrossEntropyLoss()(logits[scored], share[scored])
    nll = smooth_nll(logits, targets, smoothing) if smoothing else token_nll(logits, targets)
    ours = mean_nll(nll, targets)
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-6)
    assert torch.allclose(
        *(torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in (ours, theirs)),
        atol=1e-7,
    )


def test_the_plain_mean_of_cross_entropy_loss_counts_targets_as_mean_nll_does():
    logits, targets = scores()
    assert mean_nll(token_nll(logits, targets), targets).item() == pytest.approx(
        nn.CrossEntropyLoss()(logits.flatten(0, 1), targets.flatten()).item(), abs=1e-6
    )
    # a mean per row, then over rows, is something else: rows have 1, 7 and 2 targets
    rows = [nn.CrossEntropyLoss()(row, target) for row, target in zip(logits, targets)]
    assert abs(sum(rows) / 3 - mean_nll(token_nll(logits, targets), targets)) > 0.1


# -------------------------------------------------------- attention
T, DOCUMENTS = 8, torch.tensor([[1, 2, 0, 3, 4, 5, 0, 6], [0, 1, 2, 3, 4, 0, 0, 5]])
PREFIX = torch.tensor([3, 8])
MASKS = {  # the mask, and whether query i of row b may see key j, said once more
    "causal": (clm.attention_mask(T), lambda b, i, j: j <= i),
    "both sides": (mlm.attention_mask(T), lambda b, i, j: True),
    "prefix": (
        prefix_lm.prefix_mask(PREFIX, T),
        lambda b, i, j: j <= i or j < PREFIX[b],
    ),
    "documents": (
        clm.document_mask(DOCUMENTS, eot=0),
        lambda b, i, j: j <= i and 0 not in DOCUMENTS[b, j:i],
    ),
}


def by_hand(q, k, v, may_see):
    """Attention of every row, head and query by itself: softmax over the keys it may see."""
    y = torch.zeros_like(q)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                seen = [j for j in range(q.shape[2]) if may_see(b, i, j)]
                weights = [math.exp(q[b, h, i] @ k[b, h, j] / math.sqrt(q.shape[3])) for j in seen]
                for weight, j in zip(weights, seen):
                    y[b, h, i] += weight / sum(weights) * v[b, h, j]
    return y


@pytest.mark.parametrize("name", MASKS)
def test_attention_with_our_masks_is_the_softmax_by_hand(name):
    mask, may_see = MASKS[name]
    # as many rows as heads: a mask read per head instead of per row would show
    q, k, v = torch.randn(3, 2, 2, T, 4, generator=rng(), dtype=torch.float64)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert torch.allclose(y, by_hand(q, k, v, may_see), atol=1e-12, rtol=0)
    # True = may attend, rows are queries: neither may be turned round
    for wrong in (~mask, mask.mT):
        if not torch.equal(wrong, mask):
            other = F.scaled_dot_product_attention(q, k, v, attn_mask=wrong)
            assert not torch.allclose(y, other, atol=1e-3)


def test_multihead_attention_wants_the_opposite_of_our_masks():
    x = torch.randn(2, T, 8, generator=rng(), dtype=torch.float64)
    attention = nn.MultiheadAttention(8, 2, bias=False, batch_first=True, dtype=torch.float64)
    qkv = F.linear(x, attention.in_proj_weight).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(*qkv, attn_mask=clm.attention_mask(T))
    y = F.linear(y.transpose(1, 2).flatten(2), attention.out_proj.weight)
    theirs = attention(x, x, x, attn_mask=~clm.attention_mask(T), need_weights=False)[0]
    assert torch.allclose(y, theirs, atol=1e-12, rtol=0)


# -------------------------------------------------------- masking
SHARES = (0.8, 0.1, 0.1), (0.81, 0.1, 0.09)  # of the fates; and where draws overlap
CRITICAL = 16.27  # chi-square of four classes is above it once in a thousand


def homogeneity(a, b):
    """Chi-square of two lists of counts, whether they may be of one distribution."""
    total = [x + y for x, y in zip(a, b)]
    expected = [[sum(counts) * t / sum(total) for t in total] for counts in (a, b)]
    return sum((x - e) ** 2 / e for c, row in zip((a, b), expected) for x, e in zip(c, row))


def outcomes(ids, idx, targets, mask_id):
    """How many are plain, MASK, another token, the same token but scored."""
    scored = targets != IGNORE
    masked, same = scored & (idx == mask_id), scored & (idx == ids)
    return [int(part.sum()) for part in (~scored, masked, scored & ~masked & ~same, same)]


def test_homogeneity_notices_a_hundredth_of_the_targets():
    n, targets = 1_000_000, 150_000
    right, overlapping = ([int(targets * share) for share in shares] for shares in SHARES)
    assert homogeneity([n - targets, *right], [n - targets, *overlapping]) > CRITICAL
    assert homogeneity([n - targets, *right], [n - targets + 400, *right]) < CRITICAL


@pytest.fixture(scope="module")
def collator():
    """DataCollatorForLanguageModeling over 65 words, MASK is 65, CLS 66, PAD 67."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models

    names = [*(f"w{i}" for i in range(65)), "[MASK]", "[CLS]", "[PAD]"]
    words = {name: i for i, name in enumerate(names)}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")),
        mask_token="[MASK]",
        cls_token="[CLS]",
        pad_token="[PAD]",
    )
    return transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, seed=0)


def masked_by(collator):
    """Tokens, and what the collator makes of them."""
    ids = torch.randint(65, (1000, 1000), generator=rng())
    collator.generator = rng(2)
    plain = torch.zeros_like(ids)
    return ids, *collator.torch_mask_tokens(ids.clone(), special_tokens_mask=plain)


def test_rates_are_those_of_the_hugging_face_collator(collator):
    ids, inputs, labels = masked_by(collator)
    fates = mlm.draw_fates(ids.shape, 0.15, rng(1))
    random_ids = torch.randint(65, ids.shape, generator=rng(3))
    idx, targets = mlm.mask_tokens(ids, fates, random_ids, 65)
    theirs, ours = outcomes(ids, inputs, labels, 65), outcomes(ids, idx, targets, 65)
    assert homogeneity(theirs, ours) < CRITICAL, (theirs, ours)
    # one difference: among its random tokens are MASK, CLS and PAD; ours are characters
    assert idx[idx != 65].max() < 65 < inputs.max() == 67


def test_mask_tokens_gives_what_the_hugging_face_collator_gives_where_the_draws_agree(collator):
    ids, inputs, labels = masked_by(collator)
    fates = torch.where(inputs == 65, 1, torch.where(inputs == ids, 3, 2))
    fates = fates.where(labels != -100, 0)
    idx, targets = mlm.mask_tokens(ids, fates, inputs, 65)
    assert torch.equal(idx, inputs) and torch.equal(targets, labels)
