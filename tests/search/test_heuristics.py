"""What a library advises reaches the knobs of the families, as far as they go."""

import random

import pytest
from landscape import family

from cudal2.corpus import Family
from cudal2.problem import parse
from cudal2.search import heuristics


def test_advice_is_followed_as_far_as_the_knobs_go():
    able = family("good", splits=(1, 2, 4), cluster=("1x1", "2x1"), step=(32, 64))
    advice = {"cta_tile_m": 100, "cta_tile_n": 128, "cta_tile_k": 64, "stages": 9, "split_k": 5, "cluster": "2x1"}
    problem, rng = parse("256_256_256"), random.Random(0)
    other = Family(summary="", layouts=("tn",), knobs={"rows": (1, 2), "style": ("plain",)}, name="other")
    assert heuristics.follow([advice], problem, (other,), rng) == []
    (setting,) = heuristics.follow([advice], problem, (other, able), rng)
    wanted = {"tile_m": 128, "tile_n": 128, "step": 64, "stages": 6, "splits": 4, "cluster": "2x1"}
    assert wanted.items() <= setting.knobs.items()
    assert heuristics.follow([advice | {"cta_tile_m": 256, "cta_tile_n": 256}], problem, (able,), rng) == []


@pytest.mark.parametrize(
    ("device", "name"),
    [
        *[("NVIDIA H200", "H200_SXM"), ("NVIDIA H20", "H20_SXM"), ("NVIDIA H100 PCIe", "H100_PCIE")],
        *[("NVIDIA H100 80GB HBM3", "H100_SXM"), ("NVIDIA GeForce RTX 4090", "RTX_4090")],
    ],
)
def test_the_heuristics_know_a_gpu_by_its_driver_name(device, name):
    known = ["A100_SXM_80GB", "RTX_4090", "H100_SXM", "H100_PCIE", "H200_SXM", "H20_SXM"]
    assert heuristics._gpu(device, known) == name
    with pytest.raises(ValueError, match="TITAN"):
        heuristics._gpu("NVIDIA TITAN X", known)


@pytest.mark.parametrize("accumulate", ["f32", "f16"])
def test_nvidias_heuristics_advise_without_a_gpu(accumulate):
    pytest.importorskip("nvMatmulHeuristics", reason="nvMatmulHeuristics is not installed")
    advice = heuristics.advise(parse("4096_4096_512", "tn", accumulate), "NVIDIA H200", 4)
    assert 1 <= len(advice) <= 4
    for fields in advice:
        assert fields["cta_tile_m"] * fields["cta_tile_n"] >= 64 * 16 and "x" in fields["cluster"]
