"""Networks that ``tools.bench.torch_steps`` trains besides torchvision's: UNets, language models."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowdnn.torch

_GROUPS = 32
_ROPE_BASE = 10000.0


class UNet(nn.Module):
    """A diffusion UNet over images of 4 channels; two blocks a resolution downwards, three upwards.

    width: channels of the first convolution, a multiple of 32.  multiples: channels of each resolution over the width;
    the third and later resolutions have attention.
    """

    def __init__(self, width: int = 128, multiples: tuple[int, ...] = (1, 2, 2, 4)) -> None:
        super().__init__()
        embedded, self.width = 4 * width, width
        self.embedding = nn.Sequential(nn.Linear(width, embedded), nn.SiLU(), nn.Linear(embedded, embedded))
        levels = [(width * multiple, level >= 2) for level, multiple in enumerate(multiples)]
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.down, self.up, skips, c = nn.ModuleList(), nn.ModuleList(), [width], width
        for level, (channels, attends) in enumerate(levels):
            for _ in range(2):
                self.down.append(_Level(c, channels, embedded, attends))
                c = channels
                skips.append(c)
            if level < len(levels) - 1:
                self.down.append(nn.Conv2d(c, c, 3, stride=2, padding=1))
                skips.append(c)
        self.middle = nn.ModuleList([_Level(c, c, embedded, True), _Level(c, c, embedded, False)])
        for level, (channels, attends) in reversed(list(enumerate(levels))):
            for _ in range(3):
                self.up.append(_Level(c + skips.pop(), channels, embedded, attends))
                c = channels
            if level:
                self.up.append(nn.Conv2d(c, c, 3, padding=1))
        self.last = nn.Sequential(nn.GroupNorm(_GROUPS, c), nn.SiLU(), nn.Conv2d(c, 4, 3, padding=1))

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        """x: (batch, 4, height, width).  times: (batch,)."""
        half = self.width // 2
        phases = times[:, None] * torch.exp(torch.arange(half, device=x.device) * (-9.2 / half))
        embedded = self.embedding(torch.cat([phases.sin(), phases.cos()], 1))
        h = self.first(x)
        skips = [h]
        for part in self.down:
            h = part(h) if isinstance(part, nn.Conv2d) else part(h, embedded)
            skips.append(h)
        for part in self.middle:
            h = part(h, embedded)
        for part in self.up:
            if isinstance(part, nn.Conv2d):
                h = part(F.interpolate(h, scale_factor=2.0, mode="nearest"))
            else:
                h = part(torch.cat([h, skips.pop()], 1), embedded)
        return self.last(h)


class _Level(nn.Module):
    """A residual block of two convolutions with group norms, which adds the embedded time; attention may follow."""

    def __init__(self, c_in: int, c_out: int, embedded: int, attends: bool) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(_GROUPS, c_in), nn.Conv2d(c_in, c_out, 3, padding=1)
        self.of_time = nn.Linear(embedded, c_out)
        self.norm2, self.conv2 = nn.GroupNorm(_GROUPS, c_out), nn.Conv2d(c_out, c_out, 3, padding=1)
        self.skip = nn.Conv2d(c_in, c_out, 1) if c_in != c_out else nn.Identity()
        self.attention = _ImageAttention(c_out) if attends else nn.Identity()

    def forward(self, x: Tensor, embedded: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.of_time(F.silu(embedded))[:, :, None, None]
        return self.attention(self.skip(x) + self.conv2(F.silu(self.norm2(h))))


class _ImageAttention(nn.Module):
    """Self-attention of an image's pixels, added to the image."""

    def __init__(self, channels: int, heads: int = 8) -> None:
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(_GROUPS, channels), heads
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        pixels = self.qkv(self.norm(x)).flatten(2).transpose(1, 2)
        q, k, v = pixels.reshape(b, h * w, 3, self.heads, c // self.heads).unbind(2)
        o = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return x + self.out(o.transpose(1, 2).reshape(b, h * w, c).transpose(1, 2).reshape(b, c, h, w))


class UNet3d(nn.Module):
    """A UNet for the segmentation of volumes with one channel into three classes.

    width: channels of the first level, which double at each of the ``depth`` levels.
    """

    def __init__(self, width: int = 32, depth: int = 4) -> None:
        super().__init__()
        channels = [width << level for level in range(depth)]
        pairs = list(pairwise(channels))
        self.down = nn.ModuleList(_volume_block(*pair) for pair in [(1, width), *pairs])
        self.larger = nn.ModuleList(nn.ConvTranspose3d(below, above, 2, 2) for above, below in pairs)
        self.up = nn.ModuleList(_volume_block(2 * above, above) for above, _ in pairs)
        self.last = nn.Conv3d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, 1, depth, height, width), sizes that 2 ** (levels - 1) divides."""
        skips: list[Tensor] = []
        for level, part in enumerate(self.down):
            x = part(F.max_pool3d(x, 2) if level else x)
            skips.append(x)
        for level in reversed(range(len(self.up))):
            x = self.up[level](torch.cat([self.larger[level](x), skips[level]], 1))
        return self.last(x)


def _volume_block(c_in: int, c_out: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for c in (c_in, c_out):
        layers += [nn.Conv3d(c, c_out, 3, padding=1, bias=False), nn.BatchNorm3d(c_out), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class LmBlock(nn.Module):
    """A block of a language model with a billion weights: rotary attention with grouped keys, and a gated MLP.

    width: channels.  heads, kv_heads: heads of queries and of keys.  hidden: channels inside of the MLP.
    has_ops: the block may call ``lowdnn.torch.ops``.  calls_ops: it does now.
    """

    def __init__(
        self, width: int = 2048, heads: int = 32, kv_heads: int = 8, hidden: int = 8192, has_ops: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, width // heads
        self.has_ops, self.calls_ops = has_ops, False
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * self.head, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up, self.down = nn.Linear(width, 2 * hidden, bias=False), nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, angles: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x: (batch, tokens, width).  angles, and their cos and sin: (tokens, width / heads)."""
        b, s, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(b, s, -1, self.head).transpose(1, 2)
        q, k, v = heads.split([self.heads, self.kv_heads, self.kv_heads], 1)
        if self.calls_ops:
            q, k = lowdnn.torch.ops.rotary_embedding(q, angles), lowdnn.torch.ops.rotary_embedding(k, angles)
        else:
            q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        o = self.out(o.transpose(1, 2).reshape(b, s, -1))
        if self.calls_ops:
            y, x = lowdnn.torch.ops.add_rms_norm(o, x, self.norm2.weight, eps=1.2e-7)
        else:
            x = x + o
            y = self.norm2(x)
        gate, up = self.gate_up(y).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return (x * cos + torch.cat([-second, first], -1) * sin).to(x.dtype)


class Lm(nn.Module):
    """Blocks of a language model with a norm behind them, on tokens that are embedded already.

    sizes: arguments of each ``LmBlock``.
    """

    def __init__(self, blocks: int = 2, **sizes: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(LmBlock(**sizes) for _ in range(blocks))
        self.norm = nn.RMSNorm(self.blocks[0].out.in_features)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, tokens, width)."""
        head = self.blocks[0].head
        rates = _ROPE_BASE ** (-torch.arange(0, head, 2, device=x.device) / head)
        half = torch.arange(x.shape[1], device=x.device)[:, None] * rates
        angles = torch.cat([half, half], 1)
        cos, sin = angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)
        for block in self.blocks:
            x = block(x, angles, cos, sin)
        return self.norm(x)


class LstmLm(nn.Module):
    """A language model of LSTM layers between an embedding and a projection onto the vocabulary."""

    def __init__(self, vocabulary: int = 10000, width: int = 1024, layers: int = 2) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.lstm = nn.LSTM(width, width, layers)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (length, batch); the result has (length, batch, vocabulary)."""
        return self.out(self.lstm(self.embedding(tokens))[0])
