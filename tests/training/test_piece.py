"""Parameters in one piece of memory: what is put in comes out again."""

import torch

from stationary.training._piece import Piece, joined, split


def test_split_numbers_come_together_again():
    large = torch.tensor([0.0, -0.0, 1.0, -1.0, 3e38, -3e38, 1e-45, torch.inf, -torch.inf])
    ties = (torch.arange(-8, 8) * 2**15 + 0x3F808000).to(torch.int32).view(torch.float32)
    numbers = torch.cat([large, ties, -ties, torch.randn(10_000) * torch.logspace(-30, 30, 10_000)])
    high, low = split(numbers)
    assert high.dtype == torch.bfloat16 and low.dtype == torch.int16
    assert torch.equal(joined(high, low).view(torch.int32), numbers.view(torch.int32))
    finite = numbers.abs().clamp(1e-37, 1e38) == numbers.abs()
    torch.testing.assert_close(high[finite].float(), numbers[finite], rtol=2**-8, atol=0.0)
    assert joined(*split(torch.tensor([torch.nan]))).isnan().all()


def test_parameters_lie_in_the_piece_with_zeros_around_them():
    weights = [torch.randn(3, 9, 5), torch.randn(3, 8, 16)]
    piece = Piece([*weights, torch.randn(3, 9)])
    assert piece.padded == [(3, 16, 8), (3, 8, 16), (3, 16)] and len(piece.numbers) == sum(piece.sizes)
    for parameter, part, copy in zip(weights, piece.parameters, piece.whole(piece.copy), strict=False):
        assert part.is_leaf and part.requires_grad and torch.equal(part, parameter)
        assert torch.equal(copy[:, : parameter.shape[1], : parameter.shape[2]], parameter.bfloat16())
        assert copy.count_nonzero() == parameter.numel() and copy.is_contiguous()
        assert part.data_ptr() >= piece.numbers.data_ptr()
    piece.copy.copy_(torch.arange(len(piece.copy)))
    piece.low.zero_()
    piece.numbers.copy_(joined(piece.copy, piece.low))
    assert torch.equal(piece.parameters[1], piece.whole(piece.copy)[1].float())
