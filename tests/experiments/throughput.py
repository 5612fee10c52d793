"""Throughput: how many tokens per second of one core the transforms corrupt, windows of 2048.

Draws included, the attention mask not: it is made once for all batches. Beside them, in the same
run, the collator of Hugging Face for masked language models, where transformers is installed
(requirements-test-extra.txt): as it is called on plain rows, and with the mask of special tokens
given, which it otherwise works out token by token.
"""

import time

import torch

import fim
import mlm
import prefix_lm
import t5_span

T, ROWS, V = 2048, 24, 65
SPECIAL = {name: V + i for i, name in enumerate(("PRE", "SUF", "MID", "EOT"))}


def masks(windows, rng):
    """80/10/10, as in mlm.make_batch."""
    fates = mlm.draw_fates(windows.shape, 0.15, rng)
    random_ids = torch.randint(V, windows.shape, generator=rng)
    return mlm.mask_tokens(windows, fates, random_ids, V)


def prefixes(windows, rng):
    """A prefix length per row, and the targets behind it."""
    return prefix_lm.score_suffix(windows, prefix_lm.draw_prefix_len(*windows.shape, rng))


def spans(windows, rng):
    """T5: 15 % in spans of 3 on average, 102 of them in a window."""
    noise = torch.stack([t5_span.draw_noise(T, 0.15, 3.0, rng) for _ in windows])
    return t5_span.corrupt_spans(windows, noise, torch.arange(V, V + 128), V + 128)


def long_fim(windows, rng):
    """One gap in each window, as in the paper."""
    return [
        fim.fim_permute(ids, *fim.draw_cut(T, rng, T), SPECIAL, order)
        for ids, order in zip(windows, ["PSM", "SPM"] * (ROWS // 2))
    ]


def short_fim(windows, rng):
    """The default of fim.py: documents of 5 to 20 characters, until one stays without a gap."""
    return [fim.draw_row(ids, fim.Config(seq_len=T - 1), SPECIAL, rng) for ids in windows]


def collators():
    """name -> the Hugging Face collator on the same windows; none where it is not installed"""
    try:
        from tokenizers import Tokenizer, models
        from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast
    except ImportError:
        return {}
    words = {name: i for i, name in enumerate([*map(str, range(V)), "[MASK]", "[PAD]"])}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="0")),
        mask_token="[MASK]",
        pad_token="[PAD]",
    )
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    plain = torch.zeros(ROWS, T, dtype=torch.long)
    return {
        "HF collator": lambda windows, rng: collator(list(windows)),
        "HF collator, specials given": lambda windows, rng: collator.torch_mask_tokens(
            windows.clone(), special_tokens_mask=plain
        ),
    }


def measure(seed, out):
    """-> {label: {"mtokens_per_s": millions per second of one core's time}}"""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(seed)
    windows = torch.randint(V, (ROWS, T), generator=rng)
    ours = {function.__name__: function for function in (masks, prefixes, spans)}
    ours |= {"long fim": long_fim, "short fim": short_fim}
    results = {}
    for label, transform in {**ours, **collators()}.items():
        transform(windows, rng)  # not the first call
        begun, seconds = time.process_time(), []
        while time.process_time() - begun < 1 or len(seconds) < 5:
            before = time.process_time()
            transform(windows, rng)
            seconds.append(time.process_time() - before)
        median = sorted(seconds)[len(seconds) // 2]
        results[label] = {"mtokens_per_s": ROWS * T / median / 1e6}
    torch.set_num_threads(threads)
    return results
