"""The frame around events, compared with TensorBoard's own writer."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c as theirs
from tensorboard.summary.writer.record_writer import RecordWriter

from mpx.render.tfrecords import BLOCK, masked_crc32c, records


@given(st.lists(st.binary(min_size=4, max_size=3 * BLOCK), max_size=5))
def test_the_same_bytes_as_tensorboards_writer(events):
    file = io.BytesIO()
    writer = RecordWriter(file)
    for event in events:
        writer.write(event)
    assert records(events) == file.getvalue()


@pytest.mark.parametrize("length", [4, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 100_000])
def test_checksums_of_any_length(length):
    texts = [bytes(length), b"\xff" * length, bytes(i * i % 251 for i in range(length))]
    assert masked_crc32c(texts) == [theirs(text) for text in texts]


def test_the_published_checksum():
    """RFC 3720, B.4: 32 bytes of zero give 0x8A9136AA."""
    (masked,) = masked_crc32c([bytes(32)])
    turned = (masked - 0xA282EAD8) & 0xFFFFFFFF
    assert (turned >> 17 | turned << 15) & 0xFFFFFFFF == 0x8A9136AA
