"""The three number formats of the reference quantizer, against tables written out by hand."""

from __future__ import annotations

import pytest
import torch

from shim.reference import formats

INF, NAN = float("inf"), float("nan")

# value, E2M1 code. A midpoint goes to the neighbour with the even code.
E2M1 = [
    (0.0, 0x0),
    (0.25, 0x0),  # between 0 and 0.5
    (0.2500001, 0x1),
    (0.5, 0x1),
    (0.7499999, 0x1),
    (0.75, 0x2),  # between 0.5 and 1
    (1.0, 0x2),
    (1.25, 0x2),  # between 1 and 1.5
    (1.2500001, 0x3),
    (1.5, 0x3),
    (1.7499999, 0x3),
    (1.75, 0x4),  # between 1.5 and 2
    (2.0, 0x4),
    (2.5, 0x4),  # between 2 and 3
    (2.5000003, 0x5),
    (3.0, 0x5),
    (3.4999998, 0x5),
    (3.5, 0x6),  # between 3 and 4
    (4.0, 0x6),
    (5.0, 0x6),  # between 4 and 6
    (5.0000005, 0x7),
    (6.0, 0x7),
    (7.0, 0x7),
    (1e30, 0x7),
    (INF, 0x7),
]

# value, E4M3 byte.
E4M3 = [
    (0.0, 0x00),
    (2.0**-10, 0x00),  # half the smallest subnormal: a tie, to even
    (2.0**-10 * 1.01, 0x01),
    (2.0**-9, 0x01),
    (3 * 2.0**-10, 0x02),  # a tie between subnormals
    (7 * 2.0**-9, 0x07),
    (2.0**-6, 0x08),  # the smallest normal
    (1.0, 0x38),
    (1.0625, 0x38),  # a tie between normals
    (1.1875, 0x3A),
    (6.0, 0x4C),
    (448.0, 0x7E),
    (464.0, 0x7E),
    (1e30, 0x7E),
    (INF, 0x7E),
    (NAN, 0x7F),
    (-NAN, 0x7F),
    (-1.0, 0xB8),
    (-INF, 0xFE),
]

# value, UE8M0 byte: never below the value.
UE8M0 = [
    (0.0, 0),
    (2.0**-126, 1),
    (2.0**-126 * 1.001, 2),
    (0.5, 126),
    (0.5000001, 127),
    (1.0, 127),
    (1.0000001, 128),
    (1.999, 128),
    (2.0, 128),
    (-2.0, 128),
    (2.0**127, 254),
    (3e38, 254),
    (INF, 254),
    (NAN, 255),
    (-NAN, 255),
]


@pytest.mark.parametrize(("value", "code"), E2M1)
def test_e2m1_rounds_to_nearest_and_ties_to_even(value: float, code: int) -> None:
    both = formats.encode_e2m1(torch.tensor([value, -value]))
    assert both.tolist() == [code, code | 8]


def test_e2m1_turns_nan_of_either_sign_into_plus_six() -> None:
    assert formats.encode_e2m1(torch.tensor([NAN, -NAN])).tolist() == [7, 7]


def test_e2m1_reads_back_every_code() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    values = formats.decode_e2m1(codes)
    assert values[:8].tolist() == [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert torch.equal(values[8:], -values[:8])
    assert torch.equal(formats.encode_e2m1(values), codes), "negative zero has a code of its own"


def test_the_even_element_is_the_low_nibble() -> None:
    codes = torch.tensor([[0x1, 0x2, 0xF, 0x0]], dtype=torch.uint8)
    packed = formats.pack_e2m1(codes)
    assert packed.tolist() == [[0x21, 0x0F]]
    assert torch.equal(formats.unpack_e2m1(packed), codes)


@pytest.mark.parametrize(("value", "byte"), E4M3)
def test_e4m3_rounds_to_nearest_even_and_saturates(value: float, byte: int) -> None:
    assert formats.encode_e4m3(torch.tensor([value])).tolist() == [byte]


def test_e4m3_reads_back_every_byte() -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    numbers = codes[(codes & 0x7F) != 0x7F]
    assert torch.equal(formats.encode_e4m3(formats.decode_e4m3(numbers)), numbers)
    assert formats.decode_e4m3(codes[[0x7F, 0xFF]]).isnan().all()


@pytest.mark.parametrize(("value", "byte"), UE8M0)
def test_ue8m0_rounds_up_to_a_power_of_two(value: float, byte: int) -> None:
    assert formats.encode_ue8m0(torch.tensor([value])).tolist() == [byte]


def test_ue8m0_reads_back_every_byte() -> None:
    codes = torch.arange(255, dtype=torch.int32).to(torch.uint8)
    values = formats.decode_ue8m0(codes)
    assert values.tolist() == [2.0 ** (byte - 127) for byte in range(255)]
    assert torch.equal(formats.encode_ue8m0(values[1:]), codes[1:])
    assert formats.decode_ue8m0(torch.tensor([255], dtype=torch.uint8)).isnan().all()
