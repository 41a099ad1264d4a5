"""The convolution layers of real networks, as case lines in three directions.

A network is a function that walks a ``Walk`` through the network's convolutions in order; the walk keeps the running
shape and counts equal layers. Fully connected layers and attention are left out, 1x1 convolutions that a network calls
linear (ConvNeXt) are in. Inputs are of the networks' own size except where the comment beside a network says otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

Extents = tuple[int, ...]

DIRECTIONS = ("fprop", "dgrad", "wgrad")


@dataclass(frozen=True)
class Layer:
    """One convolution: ``c`` channels of ``hw`` to ``k`` filters of ``rs``; paddings are the same on both sides."""

    n: int
    c: int
    hw: Extents
    k: int
    rs: Extents
    pad: Extents
    stride: Extents
    dil: Extents
    groups: int

    @property
    def outputs(self) -> Extents:
        axes = zip(self.hw, self.rs, self.pad, self.stride, self.dil, strict=True)
        return tuple(1 + (x + 2 * pad - dil * (r - 1) - 1) // stride for x, r, pad, stride, dil in axes)

    def at_batch(self, n: int) -> Layer:
        return replace(self, n=n)

    def case(self, direction: str, dtype: str = "bf16") -> str:
        """The line of ``lowdnn.cases`` for this layer, channels-last."""
        words = [f"conv n={self.n} c={self.c} hw={_joined(self.hw)} k={self.k} rs={_joined(self.rs)}"]
        words += [
            f"{key}={_joined(values if len(set(values)) > 1 else values[:1])}"
            for key, values, default in (("pad", self.pad, 0), ("stride", self.stride, 1), ("dil", self.dil, 1))
            if set(values) != {default}
        ]
        if self.groups != 1:
            words.append(f"groups={self.groups}")
        if direction != "fprop":
            words.append(f"dir={direction}")
        return " ".join([*words, f"dtype={dtype}"])


class Walk:
    """The shape that a network has at some point, and the layers on the way there."""

    def __init__(self, batch: int, channels: int, extents: Extents) -> None:
        self.batch = batch
        self.channels = channels
        self.extents = extents
        self.layers: Counter[Layer] = Counter()

    def conv(
        self,
        filters: int,
        taps: int | Extents,
        stride: int | Extents = 1,
        *,
        dil: int | Extents = 1,
        groups: int = 1,
        pad: int | Extents | None = None,
    ) -> None:
        """A convolution behind the last one; ``pad``: half the dilated filter where left out."""
        layer = self._layer(filters, taps, stride, dil, groups, pad)
        self.layers[layer] += 1
        self.channels, self.extents = filters, layer.outputs

    def side(
        self,
        filters: int,
        taps: int | Extents,
        stride: int | Extents = 1,
        *,
        dil: int | Extents = 1,
        pad: int | None = None,
        channels: int | None = None,
    ) -> None:
        """A convolution on a branch: of the running shape (or of other ``channels``), which stays as it is."""
        kept = self.channels, self.extents
        self.channels = self.channels if channels is None else channels
        self.conv(filters, taps, stride, dil=dil, pad=pad)
        self.channels, self.extents = kept

    def depthwise(self, taps: int | Extents, stride: int | Extents = 1, *, pad: int | None = None) -> None:
        self.conv(self.channels, taps, stride, groups=self.channels, pad=pad)

    def pool(self, stride: int = 2) -> None:
        self.extents = tuple(-(-extent // stride) for extent in self.extents)

    def upsample(self) -> None:
        self.extents = tuple(2 * extent for extent in self.extents)

    def concat(self, channels: int) -> None:
        """``channels`` of a skip connection join the running ones."""
        self.channels += channels

    def _layer(
        self,
        filters: int,
        taps: int | Extents,
        stride: int | Extents,
        dil: int | Extents,
        groups: int,
        pad: int | Extents | None,
    ) -> Layer:
        rs, strides, dilations = (self._each(value) for value in (taps, stride, dil))
        same = tuple(d * (r - 1) // 2 for r, d in zip(rs, dilations, strict=True))
        pads = same if pad is None else self._each(pad)
        return Layer(self.batch, self.channels, self.extents, filters, rs, pads, strides, dilations, groups)

    def _each(self, value: int | Extents) -> Extents:
        return (value,) * len(self.extents) if isinstance(value, int) else value


def network_layers(name: str) -> Mapping[Layer, int]:
    """The distinct layers of a network and how often each occurs, in the order of their first occurrence."""
    batch, channels, extents, walk_through = NETWORKS[name]
    walk = Walk(batch, channels, extents)
    walk_through(walk)
    return walk.layers


def network_cases() -> Iterator[tuple[str, str]]:
    """(case line, names of the networks that have the layer) for each distinct layer of all networks and direction."""
    owners: dict[Layer, list[str]] = {}
    for name in NETWORKS:
        for layer in network_layers(name):
            owners.setdefault(layer, []).append(name)
    for layer, names in owners.items():
        for direction in DIRECTIONS:
            yield layer.case(direction), "+".join(names)


def _joined(values: Extents) -> str:
    return "x".join(map(str, values))


def _bottlenecks(walk: Walk, width: int, blocks: int, stride: int, *, groups: int = 1, out: int, dil: int = 1) -> None:
    """Residual blocks 1x1, 3x3, 1x1; the first one strides in its 3x3 and projects its input."""
    for block in range(blocks):
        step = stride if block == 0 else 1
        if block == 0:
            walk.side(out, 1, step)
        walk.conv(width, 1)
        walk.conv(width, 3, step, groups=groups, dil=dil)
        walk.conv(out, 1)


def _resnet_stem(walk: Walk) -> None:
    walk.conv(64, 7, 2)
    walk.pool()


def _resnet50(walk: Walk) -> None:
    """He et al. 2016, with the stride in the 3x3."""
    _resnet_stem(walk)
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        _bottlenecks(walk, width, blocks, stride, out=4 * width)


def _resnext50(walk: Walk) -> None:
    """Xie et al. 2017, 32 groups of 4."""
    _resnet_stem(walk)
    for width, blocks, stride in ((128, 3, 1), (256, 4, 2), (512, 6, 2), (1024, 3, 2)):
        _bottlenecks(walk, width, blocks, stride, groups=32, out=2 * width)


def _regnet_x(walk: Walk) -> None:
    """RegNetX-3.2GF (Radosavovic et al. 2020): groups of 48, no bottleneck."""
    walk.conv(32, 3, 2)
    for width, blocks in ((96, 2), (192, 6), (432, 15), (1008, 2)):
        _bottlenecks(walk, width, blocks, 2, groups=width // 48, out=width)


def _vgg16(walk: Walk) -> None:
    """Simonyan and Zisserman 2015, configuration D."""
    for width, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convolutions):
            walk.conv(width, 3)
        walk.pool()


def _mobilenet_v2(walk: Walk) -> None:
    """Sandler et al. 2018, table 2."""
    walk.conv(32, 3, 2)
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expansion, width, blocks, stride in stages:
        for block in range(blocks):
            _inverted_residual(walk, expansion, width, 3, stride if block == 0 else 1)
    walk.conv(1280, 1)


def _efficientnet_b0(walk: Walk) -> None:
    """Tan and Le 2019, table 1; the squeeze-and-excitation layers are 1x1 on one pixel."""
    walk.conv(32, 3, 2)
    stages = (
        (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    )  # fmt: skip
    for expansion, width, blocks, stride, taps in stages:
        for block in range(blocks):
            _inverted_residual(walk, expansion, width, taps, stride if block == 0 else 1, squeeze=4)
    walk.conv(1280, 1)


def _inverted_residual(walk: Walk, expansion: int, width: int, taps: int, stride: int, squeeze: int = 0) -> None:
    entered = walk.channels
    if expansion > 1:
        walk.conv(expansion * entered, 1)
    walk.depthwise(taps, stride)
    if squeeze:
        expanded, extents = walk.channels, walk.extents
        walk.extents = (1,) * len(extents)
        walk.conv(entered // squeeze, 1)
        walk.conv(expanded, 1)
        walk.extents = extents
    walk.conv(width, 1)


def _convnext_t(walk: Walk) -> None:
    """Liu et al. 2022."""
    for width, blocks, patch in ((96, 3, 4), (192, 3, 2), (384, 9, 2), (768, 3, 2)):
        walk.conv(width, patch, patch, pad=0)
        for _ in range(blocks):
            walk.depthwise(7)
            walk.conv(4 * width, 1)
            walk.conv(width, 1)


def _densenet121(walk: Walk) -> None:
    """Huang et al. 2017, growth 32."""
    _resnet_stem(walk)
    for layers in (6, 12, 24, 16):
        for _ in range(layers):
            entered = walk.channels
            walk.conv(128, 1)
            walk.conv(32, 3)
            walk.concat(entered)
        if layers != 16:
            walk.conv(walk.channels // 2, 1)
            walk.pool()


def _inception_v3(walk: Walk) -> None:
    """Szegedy et al. 2016: the 5x5, 7x1 and 1x7, 3x1 and 1x3 branches."""
    for filters, taps, stride, pad in ((32, 3, 2, 0), (32, 3, 1, 0), (64, 3, 1, 1)):
        walk.conv(filters, taps, stride, pad=pad)
    walk.extents = (73, 73)
    walk.conv(80, 1)
    walk.conv(192, 3, pad=0)
    walk.extents = (35, 35)
    for pooled in (32, 64, 64):
        for filters in (64, 48, 64, pooled):
            walk.side(filters, 1)
        walk.side(64, 5, channels=48)
        walk.side(96, 3, channels=64)
        walk.side(96, 3, channels=96)
        walk.channels = 224 + pooled
    walk.side(64, 1)
    walk.side(96, 3, channels=64)
    walk.side(96, 3, 2, pad=0, channels=96)
    walk.conv(384, 3, 2, pad=0)
    walk.channels = 768
    for width in (128, 160, 160, 192):
        for filters in (192, 192, width, width):
            walk.side(filters, 1)
        for taps in ((1, 7), (7, 1)):
            for filters in (width, width, 192):
                walk.side(filters, taps, channels=width)
    for filters in (192, 192):
        walk.side(filters, 1)
    for taps in ((1, 7), (7, 1)):
        walk.side(192, taps, channels=192)
    for filters in (192, 320):
        walk.side(filters, 3, 2, pad=0, channels=192)
    walk.extents, walk.channels = (8, 8), 1280
    for channels in (1280, 2048):
        for filters in (320, 384, 448, 192):
            walk.side(filters, 1, channels=channels)
        walk.side(384, 3, channels=448)
        for taps in ((1, 3), (3, 1), (1, 3), (3, 1)):
            walk.side(384, taps, channels=384)


def _unet_2d(walk: Walk) -> None:
    """Ronneberger et al. 2015 with padded convolutions; the up-convolutions as 1x1 on the doubled grid."""
    widths = (64, 128, 256, 512, 1024)
    for width in widths:
        walk.conv(width, 3)
        walk.conv(width, 3)
        if width != widths[-1]:
            walk.pool()
    for width in reversed(widths[:-1]):
        walk.upsample()
        walk.conv(width, 1)
        walk.concat(width)
        walk.conv(width, 3)
        walk.conv(width, 3)
    walk.conv(2, 1)


def _sdxl_unet(walk: Walk) -> None:
    """Podell et al. 2023: the residual blocks of the denoising network, 2 a level going down and 3 going up."""
    walk.conv(320, 3)
    skips = [320]
    for level, width in enumerate((320, 640, 1280)):
        for _ in range(2):
            _residual(walk, width)
            skips.append(width)
        if level < 2:
            walk.conv(width, 3, 2)
            skips.append(width)
    for _ in range(2):
        _residual(walk, 1280)
    for level, width in enumerate((1280, 640, 320)):
        for _ in range(3):
            walk.concat(skips.pop())
            _residual(walk, width)
        if level < 2:
            walk.upsample()
            walk.conv(width, 3)
    walk.conv(4, 3)


def _sdxl_vae(walk: Walk) -> None:
    """The decoder of the same paper's autoencoder: 3 residual blocks a level, then a doubled grid."""
    walk.conv(512, 3)
    for level, width in enumerate((512, 512, 256, 128)):
        for _ in range(3):
            _residual(walk, width)
        if level < 3:
            walk.upsample()
            walk.conv(width, 3)
    walk.conv(3, 3)


def _residual(walk: Walk, width: int) -> None:
    if walk.channels != width:
        walk.side(width, 1)
    walk.conv(width, 3)
    walk.conv(width, 3)


def _deeplab_v3(walk: Walk) -> None:
    """Chen et al. 2017 on ResNet-50 at output stride 16: the dilated stage and the pyramid of rates 6, 12, 18."""
    walk.channels, walk.extents = 1024, (33, 33)
    _bottlenecks(walk, 512, 3, 1, out=2048, dil=2)
    walk.side(256, 1)
    for rate in (6, 12, 18):
        walk.side(256, 3, dil=rate)
    walk.channels = 5 * 256
    walk.conv(256, 1)
    walk.conv(256, 3)
    walk.conv(21, 1)


def _nnunet_3d(walk: Walk) -> None:
    """Isensee et al. 2021, full-resolution 3D network; up-convolutions as 1x1x1 on the doubled grid."""
    widths = (32, 64, 128, 256, 320)
    for width in widths:
        walk.conv(width, 3, 1 if width == 32 else 2)
        walk.conv(width, 3)
    for width in reversed(widths[:-1]):
        walk.upsample()
        walk.conv(width, 1)
        walk.concat(width)
        walk.conv(width, 3)
        walk.conv(width, 3)


def _r2plus1d_18(walk: Walk) -> None:
    """Tran et al. 2018: 3x3 over space, then 3 over time, with widths that keep the parameters of 3x3x3."""
    walk.conv(45, (1, 7, 7), (1, 2, 2))
    walk.conv(64, (3, 1, 1))
    for width in (64, 128, 256, 512):
        for block in range(2):
            stride = 2 if block == 0 and width > 64 else 1
            if stride == 2:
                walk.side(width, 1, 2)
            _factored(walk, width, stride)
            _factored(walk, width, 1)


def _factored(walk: Walk, width: int, stride: int) -> None:
    entered = walk.channels if stride > 1 else width
    middle = 27 * entered * width // (9 * entered + 3 * width)
    walk.conv(middle, (1, 3, 3), (1, stride, stride))
    walk.conv(width, (3, 1, 1), (stride, 1, 1))


def _x3d_s(walk: Walk) -> None:
    """Feichtenhofer 2020: depthwise 3x3x3 between 1x1x1, expansion 2.25."""
    walk.conv(24, (1, 3, 3), (1, 2, 2))
    walk.depthwise((5, 1, 1))
    for width, blocks in ((24, 3), (48, 5), (96, 11), (192, 7)):
        for block in range(blocks):
            stride = (1, 2, 2) if block == 0 else 1
            if block == 0:
                walk.side(width, 1, stride)
            walk.conv(9 * width // 4, 1)
            walk.depthwise(3, stride)
            walk.conv(width, 1)
    walk.conv(432, 1)


def _wav2vec2(walk: Walk) -> None:
    """Baevski et al. 2020: the feature encoder, and the grouped convolution of relative positions."""
    for taps, stride in ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2)):
        walk.conv(512, taps, stride, pad=0)
    walk.channels = 768
    walk.conv(768, 128, groups=16, pad=64)


def _conformer(walk: Walk) -> None:
    """Gulati et al. 2020, large: the convolution module, 512 channels, 31 taps."""
    walk.conv(1024, 1)
    walk.channels = 512
    walk.depthwise(31)
    walk.conv(512, 1)


def _mamba(walk: Walk) -> None:
    """Gu and Dao 2023, 1.4B: the causal convolution, padded by 3 on both sides as its users run it."""
    walk.depthwise(4, pad=3)


#: name: (batch, channels of the input, extents of the input, the walk)
NETWORKS: Mapping[str, tuple[int, int, Extents, Callable[[Walk], None]]] = {
    "resnet50": (128, 3, (224, 224), _resnet50),
    "resnext50": (64, 3, (224, 224), _resnext50),
    "regnetx_3.2gf": (64, 3, (224, 224), _regnet_x),
    "vgg16": (32, 3, (224, 224), _vgg16),
    "mobilenet_v2": (64, 3, (224, 224), _mobilenet_v2),
    "efficientnet_b0": (64, 3, (224, 224), _efficientnet_b0),
    "convnext_t": (64, 3, (224, 224), _convnext_t),
    "densenet121": (32, 3, (224, 224), _densenet121),
    "inception_v3": (64, 3, (299, 299), _inception_v3),
    "unet_2d": (32, 1, (256, 256), _unet_2d),  # half the paper's size
    "sdxl_unet": (32, 4, (64, 64), _sdxl_unet),  # latents of 512 x 512 pixels
    "sdxl_vae": (32, 4, (32, 32), _sdxl_vae),  # latents of 256 x 256 pixels
    "deeplab_v3": (32, 3, (513, 513), _deeplab_v3),
    "nnunet_3d": (32, 1, (64, 64, 64), _nnunet_3d),  # half the usual patch, for the batch
    "r2plus1d_18": (32, 3, (8, 112, 112), _r2plus1d_18),
    "x3d_s": (32, 3, (13, 160, 160), _x3d_s),
    "wav2vec2": (32, 1, (64000,), _wav2vec2),  # 4 seconds
    "conformer": (32, 512, (500,), _conformer),
    "mamba": (32, 4096, (2048,), _mamba),
}
