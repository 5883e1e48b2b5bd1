"""Flash decoding gives what torch's attention gives with a mask."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "heads", "shared", "ahead", "width", "places", "dtype"),
    [
        (64, 9, 3, 16, 64, 3000, torch.bfloat16),
        (5, 8, 8, 1, 128, 700, torch.bfloat16),
        (1, 6, 2, 4, 16, 90, torch.float32),
        (3, 8, 2, 16, 128, 900, torch.float32),
    ],
)
def test_each_token_sees_its_text_up_to_itself(rows, heads, shared, ahead, width, places, dtype):
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    from cudal2.policy.decoding.attention import attend

    torch.manual_seed(0)
    query = torch.randn(rows, heads, ahead, width, dtype=dtype, device="cuda")
    # What lies outside of a text must not be read, whatever it is.
    key, value = torch.randn(2, rows, shared, places, width, dtype=dtype, device="cuda").unbind()
    first = torch.randint(0, 60, (rows, 1), device="cuda")
    last = torch.randint(61, places - ahead + 1, (rows, 1), device="cuda")
    place = torch.arange(places, device="cuda")
    sees = (place >= first[:, :, None]) & (place <= last[:, :, None] + torch.arange(ahead, device="cuda")[:, None])
    repeated = [one.repeat_interleave(heads // shared, 1) for one in (key, value)]
    expected = scaled_dot_product_attention(query, *repeated, attn_mask=sees[:, None], scale=0.2)
    outside = ((place < first) | (place >= last + ahead))[:, None, :, None]
    for kept in (key, value):
        kept.masked_fill_(outside, torch.nan)
    found = attend(query, key, value, first, last, 0.2)
    torch.testing.assert_close(found, expected, atol=0.02 if dtype == torch.bfloat16 else 1e-4, rtol=0.02)
