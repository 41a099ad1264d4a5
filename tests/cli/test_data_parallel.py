"""The demo's training on several ranks: the losses of one device, to rounding or bit for bit; and checkpoints."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.cli import digits
from lowdnn.cli.main import main
from lowdnn.cli.training import network as network_module
from lowdnn.cli.training.batches import Batches
from lowdnn.cli.training.captured_step import captured_step
from lowdnn.cli.training.checkpoint import Checkpoint, _content
from lowdnn.cli.training.network import Network, initial_parameters
from lowdnn.cli.training.session import Session
from lowdnn.distributed.in_process import InProcessCommunicator
from lowdnn.distributed.split import Split
from lowdnn.enums import DataType
from lowdnn.status import AttributeTypeError, BadParamError, OutOfBoundError
from tests.cli.test_training import check_gradients, drawn, smooth_seed
from tests.support.data import fresh_seed
from tests.support.errors import raises
from tests.support.ranks import on_handles

BATCH, STEPS = 8, 2
#: Small, so that the network has several buckets.
BUCKET_BYTES = 2048
#: A step's rounding in fp32: sums of some thousand terms in another order, relative to the largest parameter.
ROUNDING = 2e-5


@pytest.fixture
def one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network without its second block of convolution, batch norm and pooling."""
    monkeypatch.setattr(network_module, "_FILTERS", (16,))
    monkeypatch.setattr(network_module, "_FEATURES", 16 * (network_module.WIDTH // 2) ** 2)


@dataclass(frozen=True)
class Training:
    """How to train: by ``seed``, in an activation type, with the batch in ``shards``, each step ``captured``."""

    seed: int
    activation_type: DataType = DataType.FLOAT
    shards: int | None = None
    captured: bool = False

    def on_rank(
        self, handle: Handle, split: Split, first: int = 0, last: int = STEPS, path: Path | None = None
    ) -> tuple[list[float], NDArray[Any]]:
        """The losses of the steps from ``first`` to ``last``, and the parameters behind them."""
        training, _ = digits.load()
        with Session(handle, self.activation_type, cudnn.heur_mode.FALLBACK, split) as session:
            rng = np.random.default_rng(self.seed)
            batches = Batches(session, training, BATCH, STEPS, rng)
            # Only rank 0's are taken.
            initial = initial_parameters(rng if split.rank == 0 else np.random.default_rng(split.rank))
            network = Network(session, BATCH, initial, BUCKET_BYTES)
            checkpoint = Checkpoint(path, session, network, {"seed": self.seed})
            assert checkpoint.load() == first
            losses = []
            captured = captured_step(session, network) if self.captured else nullcontext(network.train_step)
            with captured as train_step:
                for step in range(first, last):
                    batches.load(step, network)
                    network.set_rate(0.05 / (1 + step))
                    train_step()
                    losses.append(network.loss())
            checkpoint.save(last)
            return losses, session.read_back(network.parameters.masters)

    def on(self, size: int, **steps: Any) -> tuple[list[float], NDArray[Any]]:
        """``on_rank`` of ``size`` ranks, which must all have the same."""

        def work(handle: Handle, communicator: InProcessCommunicator) -> tuple[list[float], NDArray[Any]]:
            split = Split(communicator if size > 1 else None, self.shards)
            return self.on_rank(handle, split, **steps)

        of_ranks = on_handles(size, work)
        for losses, parameters in of_ranks[1:]:
            assert losses == of_ranks[0][0]
            np.testing.assert_array_equal(parameters, of_ranks[0][1])
        return of_ranks[0]


@pytest.mark.usefixtures("one_block")
def test_two_ranks_have_the_losses_of_one_and_the_whole_batch() -> None:
    training = Training(fresh_seed())
    (losses, parameters), (expected_losses, expected) = training.on(2), training.on(1)
    np.testing.assert_allclose(losses, expected_losses, rtol=ROUNDING * STEPS, err_msg=str(training))
    np.testing.assert_allclose(parameters, expected, atol=ROUNDING * STEPS * np.abs(expected).max())


def check_against_reference(handle: Handle, split: Split, seed: int) -> None:
    """The loss and the gradients of a rank against those of the whole batch in float64."""
    initial, images, targets = drawn(seed)
    with Session(handle, mode=cudnn.heur_mode.FALLBACK, split=split) as session:
        network = Network(session, len(images), initial, BUCKET_BYTES)
        count = split.part_of(len(images))
        for place, part in enumerate(split.own_parts):
            own = slice(part * count, (part + 1) * count)
            session.copy(session.on_device(images[own]), network.images.arrays[place])
            session.copy(session.on_device(targets[None, own]), network.targets.arrays[place])
        network.forward()
        network.backward()
        check_gradients(session, network, initial, images, targets)


def test_gradients_of_two_ranks_are_those_of_the_whole_batch() -> None:
    seed = smooth_seed()
    on_handles(2, lambda handle, communicator: check_against_reference(handle, Split(communicator, 2), seed))


@pytest.mark.usefixtures("one_block")
def test_the_deterministic_mode_has_the_same_bits_on_any_number_of_ranks(tmp_path: Path) -> None:
    """In mixed precision: one rank, and four that begin and leave a checkpoint with which two go on."""
    training = Training(fresh_seed(), DataType.HALF, shards=4)
    expected, parameters = training.on(1)
    path = tmp_path / "checkpoint"
    begun, _ = training.on(4, last=1, path=path)
    went_on, made = training.on(2, first=1, path=path)
    assert begun + went_on == expected, training
    np.testing.assert_array_equal(made, parameters, str(training))


@pytest.mark.usefixtures("one_block")
@pytest.mark.parametrize(("activation_type", "shards"), [(DataType.FLOAT, None), (DataType.HALF, 2)])
def test_captured_steps_have_the_bits_of_uncaptured_ones(activation_type: DataType, shards: int | None) -> None:
    """Collectives, gradient buckets in a stream of their own, and the loss scale are nodes of the graph."""
    training = Training(fresh_seed(), activation_type, shards)
    (losses, parameters), (expected_losses, expected) = replace(training, captured=True).on(2), training.on(2)
    assert losses == expected_losses, training
    np.testing.assert_array_equal(parameters, expected, str(training))


def damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def text(path: Path) -> None:
    path.write_text("no arrays")


def empty(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file)


@pytest.mark.usefixtures("one_block")
@pytest.mark.parametrize("change", [damaged, text, empty], ids=lambda change: change.__name__)
def test_files_that_are_no_checkpoints_are_refused(change: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    Training(1).on(1, last=0, path=path)
    change(path)
    with raises(BadParamError, "demo.checkpoint", got=str(path)):
        Training(1).on(1, path=path)


def test_no_damage_goes_unseen_or_ends_in_another_error(tmp_path: Path) -> None:
    """Bytes of the archive are changed at random: the arrays are read as they were, or the file is refused."""
    path, seed = tmp_path / "checkpoint", fresh_seed()
    arrays = {"facts": np.frombuffer(b'{"step": 1}', np.uint8), "a": np.arange(9.0), "b": np.zeros((1, 3), np.int32)}
    with path.open("wb") as file:
        np.savez(file, **arrays)
    whole, rng, refused = path.read_bytes(), np.random.default_rng(seed), 0
    for _ in range(300):
        changed = np.frombuffer(whole, np.uint8).copy()
        changed[rng.integers(len(whole), size=rng.integers(1, 4))] = rng.integers(256)
        path.write_bytes(changed.tobytes())
        try:
            found = _content(path)
        except BadParamError:
            refused += 1
        else:
            assert all(np.array_equal(array, arrays.get(name, array)) for name, array in found.items()), seed
    assert refused > 100, seed


@pytest.mark.usefixtures("one_block")
@pytest.mark.parametrize(
    ("text", "error", "where"),
    [
        ("[1]", AttributeTypeError, "facts"),
        ("{}", AttributeTypeError, "step"),
        ('{"step": true}', AttributeTypeError, "step"),
        ('{"step": -1}', OutOfBoundError, "step"),
    ],
)
def test_facts_of_checkpoints_are_checked(text: str, error: type[BadParamError], where: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    Training(1).on(1, last=0, path=path)
    with np.load(path) as file:
        arrays = dict(file) | {"facts": np.frombuffer(text.encode(), np.uint8)}
    with path.open("wb") as other:
        np.savez(other, **arrays)
    with raises(error, f"demo.checkpoint.{where}"):
        Training(1).on(1, path=path)


@pytest.mark.usefixtures("one_block")
def test_checkpoints_of_other_trainings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    Training(1).on(1, last=0, path=path)
    with raises(BadParamError, "demo.checkpoint", expected="'seed': 2", got="'seed': 1"):
        Training(2).on(1, path=path)
    with raises(BadParamError, "demo.checkpoint", expected="'mixed_precision': True", got="'mixed_precision': False"):
        Training(1, DataType.HALF, shards=4).on(1, path=path)
    with np.load(path) as file:
        arrays = dict(file) | {"mean1": np.zeros(3, np.float32)}
    with path.open("wb") as other:
        np.savez(other, **arrays)
    with raises(BadParamError, "demo.checkpoint.mean1", expected="(1, 16, 1, 1) of float32", got="(3,) of float32"):
        Training(1).on(1, path=path)
    del arrays["mean1"]
    with path.open("wb") as other:
        np.savez(other, **arrays)
    with raises(BadParamError, "demo.checkpoint", expected="an array mean1", got="['masters', 'momenta'"):
        Training(1).on(1, path=path)
    with raises(BadParamError, "demo.checkpoint", expected="a file that may be written"):
        Training(1).on(1, last=0, path=tmp_path / "missing" / "checkpoint")


@pytest.mark.usefixtures("one_block")
def test_the_command_trains_on_two_emulated_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One device begins, two go on from its checkpoint, and the first of them reports."""
    monkeypatch.setattr("lowdnn.cli.demo._BATCH", BATCH)
    monkeypatch.setattr("lowdnn.cli.demo_ranks._SHARDS", 2)
    monkeypatch.setattr("lowdnn.cli.demo._STEPS_PER_LINE", 1)
    monkeypatch.setattr("lowdnn.cli.digits._HELD_OUT", slice(4))
    common = ["demo", "--device", "emulated", "--steps", "2", "--deterministic"]
    common += ["--checkpoint", str(tmp_path / "file")]
    printed = []
    for more in (["--until", "1"], ["--devices", "2", "--captured"]):
        assert main([*common, *more]) == 1
        printed.append(capsys.readouterr().out)
    assert [re.findall(r"^step +(\d)", one, re.MULTILINE) for one in printed] == [["1"], ["2"]]
    assert "2 x " in printed[1]
    assert "each one CUDA graph" in printed[1]
    assert printed[1].count("test accuracy") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "3", "--deterministic"], "demo.devices: expected a divisor of the 8 parts of each batch, got 3"),
        (["--devices", "3"], "demo.devices: expected a divisor of the 64 images of each batch, got 3"),
        (["--devices", "environment"], "demo.devices: expected torchrun, mpirun, srun"),
        (["--until", "71"], "demo.until: expected 1 to 70, got 71"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    assert main(["demo", "--device", "emulated", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "-1", "two", "1025", "9" * 20, "²"])
def test_the_number_of_devices_is_checked(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--devices", text])
    assert "expected 1 to 1024, or environment" in capsys.readouterr().err
