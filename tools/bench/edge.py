"""One frame at a time: MobileNetV3-Large with batch 1 as one CUDA graph. ``python -m tools.bench.edge``.

Prints the frame's time on the host from the launch to its end, and of frames back to back; memory of weights, arena and
in all; the GPU's power while frames run back to back, and the energy of a frame. The emulated device runs it, too, at
small resolutions, where a frame takes seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.runtime.stream import Stream
from tools.bench import mobilenet

_TYPES = {"fp16": cudnn.data_type.HALF, "fp32": cudnn.data_type.FLOAT}
_WARM_FRAMES = 3
#: Milliseconds between two readings of the power.
_POWER_MS = 100


@dataclass(frozen=True)
class Frames:
    """Times of a frame in microseconds, memory in bytes, watts and joules; None where they are not known.

    back_to_back_us: the mean of the frames that ran without a wait between them.  in_use_bytes: the bytes of the
    device's free memory that the network takes.
    """

    device: str
    resolution: int
    data_type: str
    frames: int
    p50_us: float
    p99_us: float
    back_to_back_us: float
    weight_bytes: int
    arena_bytes: int
    in_use_bytes: int
    watts: float | None
    joules_per_frame: float | None


@dataclass
class Network:
    """The captured network with its memory: ``image`` and ``scores`` are the tensors to write and to read."""

    handle: lowdnn.Handle
    stream: Stream
    image: lowdnn.DeviceTensor
    scores: lowdnn.DeviceTensor
    weights: Mapping[str, lowdnn.DeviceTensor]
    arena: lowdnn.DeviceTensor
    executable: int

    def launch(self) -> None:
        self.handle.runtime.driver.graph_launch(self.executable, self.stream.handle)


@dataclass
class PowerMeter:
    """The readings of nvidia-smi in watts while a block runs; none where there is no nvidia-smi."""

    readings: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float | None:
        return float(np.mean(self.readings)) if self.readings else None

    @contextmanager
    def reading(self) -> Iterator[None]:
        command = ["nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits", "-i", "0"]
        try:
            meter = subprocess.Popen([*command, f"--loop-ms={_POWER_MS}"], stdout=subprocess.PIPE, text=True)
        except OSError:
            yield
            return
        with meter:
            reader = threading.Thread(target=self._read, args=(meter,))
            reader.start()
            try:
                yield
            finally:
                meter.terminate()
                reader.join()

    def _read(self, meter: subprocess.Popen[str]) -> None:
        assert meter.stdout is not None
        for line in meter.stdout:
            try:
                self.readings.append(float(line))
            except ValueError:  # [N/A], or the last line, cut
                continue


@contextmanager
def captured(handle: lowdnn.Handle, resolution: int, data_type: str, seed: int = 0) -> Iterator[Network]:
    """The network for images of ``resolution``, captured into one CUDA graph."""
    kind = _TYPES[data_type]
    steps = mobilenet.sequence(handle, resolution, kind)
    arrays = mobilenet.weights(resolution, seed)
    weights = {name: _on_device(handle, array, kind) for name, array in arrays.items()}
    image = _on_device(handle, np.zeros((1, 3, resolution, resolution), np.float32), kind)
    scores = _on_device(handle, np.zeros((1, mobilenet.CLASSES, 1, 1), np.float32), kind)
    arena = lowdnn.empty((steps.get_workspace_size(),), handle, cudnn.data_type.UINT8)
    driver, context = handle.runtime.driver, handle.runtime.context
    with lowdnn.create_stream(handle) as stream, context.activated():
        handle.set_stream(stream)
        values = {**weights, "image": image, "scores": scores}
        stream.begin_capture()  # building has loaded all kernels, which no stream can capture
        steps.execute(values, arena)
        graph = stream.end_capture()
        executable = driver.graph_instantiate(graph)
        try:
            yield Network(handle, stream, image, scores, weights, arena, executable)
        finally:
            stream.synchronize()
            driver.graph_exec_destroy(executable)
            driver.graph_destroy(graph)
            handle.set_stream(0)


def measure(device: str | None, resolution: int, data_type: str, frames: int) -> Frames:
    """``frames`` frames one by one, with the host waiting for each, and as many back to back."""
    meter = PowerMeter()
    with lowdnn.create_handle(device) as handle:
        driver, context = handle.runtime.driver, handle.runtime.context
        with context.activated():
            free_before, _ = driver.mem_get_info()
        with captured(handle, resolution, data_type) as network:
            for _ in range(_WARM_FRAMES if driver.kind == "cuda" else 0):
                network.launch()
            network.stream.synchronize()
            one_by_one_us = [_frame_us(network) for _ in range(frames)]
            with meter.reading():
                back_to_back_us = _back_to_back_us(network, frames)
            free_after, _ = driver.mem_get_info()
            return Frames(
                device=driver.device_name(context.device),
                resolution=resolution,
                data_type=data_type,
                frames=frames,
                p50_us=float(np.percentile(one_by_one_us, 50)),
                p99_us=float(np.percentile(one_by_one_us, 99)),
                back_to_back_us=back_to_back_us,
                weight_bytes=sum(tensor.size_bytes for tensor in network.weights.values()),
                arena_bytes=network.arena.size_bytes,
                in_use_bytes=free_before - free_after,
                watts=meter.mean,
                joules_per_frame=None if meter.mean is None else meter.mean * back_to_back_us * 1e-6,
            )


def _on_device(handle: lowdnn.Handle, array: mobilenet.Array, kind: cudnn.data_type) -> lowdnn.DeviceTensor:
    """The array n c h w with its channels side by side."""
    return lowdnn.from_numpy(array, handle, kind, lowdnn.channels_last_strides(array.shape))


def _frame_us(network: Network) -> float:
    started = time.perf_counter()
    network.launch()
    network.stream.synchronize()
    return (time.perf_counter() - started) * 1e6


def _back_to_back_us(network: Network, frames: int) -> float:
    started = time.perf_counter()
    for _ in range(frames):
        network.launch()
    network.stream.synchronize()
    return (time.perf_counter() - started) * 1e6 / frames


def report(found: Frames) -> str:
    """Lines for people."""
    power = "not known" if found.watts is None else f"{found.watts:.0f} W, {found.joules_per_frame:.4f} J a frame"
    return "\n".join(
        (
            f"MobileNetV3-Large, batch 1, {found.resolution}x{found.resolution}, {found.data_type}, on {found.device}",
            f"frame, one by one   p50 {found.p50_us:.1f} us, p99 {found.p99_us:.1f} us, of {found.frames}",
            f"frame, back to back {found.back_to_back_us:.1f} us",
            f"memory              weights {found.weight_bytes} bytes, arena {found.arena_bytes}, in use "
            f"{found.in_use_bytes}",
            f"power               {power}",
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("auto", "cuda", "emulated"))
    parser.add_argument("--resolution", type=int, default=224, help="height and width of images (default 224)")
    parser.add_argument("--type", choices=tuple(_TYPES), default="fp16")
    parser.add_argument("--frames", type=int, default=1000)
    parser.add_argument("--json", metavar="FILE", help="the numbers as one JSON object")
    arguments = parser.parse_args()
    if not (1 <= arguments.frames <= 10**7 and 32 <= arguments.resolution <= 1024):
        parser.error("frames: expected 1 to 10000000; resolution: expected 32 to 1024")
    found = measure(arguments.device, arguments.resolution, arguments.type, arguments.frames)
    print(report(found))
    if found.device.startswith("lowdnn emulated"):
        print("the emulated device: these are no times of a GPU")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(asdict(found)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
