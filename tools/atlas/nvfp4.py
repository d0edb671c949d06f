"""The NVFP4 grid: E2M1 codes, an E4M3 scale for every 16 values of a row, one F32 scale a tensor."""
import torch

BLOCK = 16
LARGEST_CODE, LARGEST_SCALE = 6.0, 448.0
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def nearest_code(values):
    """Codes 0..7 of the magnitudes nearest to values, ties to the even code."""
    grid = E2M1.to(values.device)
    middle = (grid[1:] + grid[:-1]) / 2
    magnitude = values.abs().clamp(max=LARGEST_CODE)
    code = torch.bucketize(magnitude, middle, right=False) # a tie goes to the lower code
    tie = magnitude == middle[code.clamp(max=len(middle) - 1)]
    return code + (tie & (code % 2 == 1)).long()


def quantise(weight):
    """weight [..., out, in], in a multiple of 16 -> a dict of
        values [..., out, in]      what the codes stand for, F32
        codes [..., out, in]       0..15, sign in bit 3
        scales [..., out, in/16]   E4M3
        scale [...]                F32; the largest magnitude of each matrix / (6 * 448)
    """
    groups = weight.float().unflatten(-1, (-1, BLOCK))
    scale = (groups.abs().amax((-3, -2, -1)) / (LARGEST_CODE * LARGEST_SCALE)).clamp(min=1e-12)
    wide = scale[..., None, None]
    scales = (groups.abs().amax(-1) / LARGEST_CODE / wide).clamp(max=LARGEST_SCALE).to(torch.float8_e4m3fn)
    step = (scales.float() * wide)[..., None]
    steps = torch.where(step > 0, groups / step, torch.zeros_like(groups))
    code = nearest_code(steps)
    values = torch.sign(steps) * E2M1.to(weight.device)[code] * step
    return {"values": values.flatten(-2), "codes": (code + 8 * (steps < 0).long()).flatten(-2),
            "scales": scales, "scale": scale}


def fake_quantise(weight):
    """The value on the grid, the gradient of the identity: quantisation-aware training."""
    return weight + (quantise(weight)["values"] - weight.float()).to(weight.dtype).detach()


def pack(codes):
    """Two codes a byte, the even column in the low nibble."""
    codes = codes.to(torch.uint8)
    return (codes[..., 0::2] | codes[..., 1::2] << 4).contiguous()
