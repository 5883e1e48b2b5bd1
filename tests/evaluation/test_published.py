"""Somebody's table beside ours: what is joined with what, and what is refused."""

from pathlib import Path

import msgspec
import pytest

from cudal2.evaluation import published, results
from cudal2.problem import Problem
from tests.evaluation.test_tables import LARGE, SMALL, row

HEAD = "mnk,torch.matmul,cuBLAS-tn,cuBLAS-nn,cuBLAS-max,cuBLASLt-auto-tuning-max"


def table(tmp_path: Path, *lines: str, name: str = "theirs_offline.csv") -> published.Published:
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    return published.read(tmp_path / name)


def test_joins_by_shape_and_compares_like_with_like(tmp_path) -> None:
    theirs = table(
        tmp_path, HEAD, "64_64_64,1.1,1.2,1.3,1.2,0.5", "128_128_128,9,9,9,9,9", "2048_2048_2048,2,2,2,2,1.5"
    )
    rows = [
        row(SMALL, cublas_tn=7.0, offline_cublas_nn=1.4, offline_cublaslt_auto_tn=2.0),
        row(LARGE, offline_cublaslt_auto_nn=0.5),
        row(Problem(256, 256, 256), offline_cublas_nn=3.0),
    ]
    found = {one.figure.name: one for one in published.compare(rows, theirs)}
    assert found["cuBLAS-nn"].pairs == found["cuBLAS-max"].pairs | {SMALL: (1.4, 1.3)}
    assert found["cuBLAS-max"].pairs == {SMALL: (1.4, 1.2)}
    tuned = found["cuBLASLt-auto-tuning-max"]
    assert tuned.pairs == {SMALL: (2.0, 0.5), LARGE: (0.5, 1.5)}
    assert (tuned.means, tuned.wins) == ((1.25, 1.0), (0.5, 0.5))
    assert set(found) == {"cuBLAS-nn", "cuBLAS-max", "cuBLASLt-auto-tuning-max"}  # no torch, no tn, offline
    text = published.text(rows, theirs)
    assert "2.000 / 0.500" in text and "256_256_256" not in text and "128_128_128" not in text


def test_the_protocol_is_the_file_names(tmp_path) -> None:
    found = {name: table(tmp_path, HEAD, "64_64_64,1,1,1,1,1", name=name) for name in ("x_server.csv", "mine.csv")}
    protocols = {name: {figure.protocol for figure in one.figures} for name, one in found.items()}
    assert protocols == {"x_server.csv": {"server"}, "mine.csv": {"device"}}
    assert "nothing" in published.text([row(SMALL, cublas_nn=1.0)], found["x_server.csv"])


def test_microseconds_and_what_is_not_known(tmp_path) -> None:
    theirs = table(tmp_path, "mnk,floor_us,lta_nn,graph_lta_nn,wall_cublas_tn", "64_64_64,1,2,5.0,20.0")
    assert theirs.unknown == ("floor_us", "lta_nn")
    rows = [row(SMALL, cublaslt_auto_nn=2.0, offline_cublas_tn=3.0)]
    found = {one.figure.name: one.pairs[SMALL] for one in published.compare(rows, theirs)}
    assert found == {"graph_lta_nn": (20.0, 5.0), "wall_cublas_tn": (30.0, 20.0)}
    assert "floor_us" in published.text(rows, theirs)


def test_a_former_result_of_ours_agrees_with_itself(tmp_path) -> None:
    rows = [row(SMALL, cublas_tn=1.5, offline_cublas_nn=1.25), row(LARGE)]
    (tmp_path / "results.csv").write_text(results.as_csv(rows))
    found = published.compare(rows, published.read(tmp_path / "results.csv"))
    assert {(one.figure.of, one.figure.protocol) for one in found} == {
        ("cublas-tn", "device"),
        ("cublas-nn", "offline"),
    }
    assert all(ours == theirs for one in found for ours, theirs in one.pairs.values())


def test_ours_are_joined_by_layout_and_precision_too(tmp_path) -> None:
    """A result of ours says of which problem it is; whoever says less is taken at his word."""
    other, half = Problem(64, 64, 64, "nn"), Problem(64, 64, 64, accumulate="f16")
    assert len({SMALL, other, half}) == 3
    rows = [row(one, cublas_tn=speed) for one, speed in ((other, 1.5), (half, 2.0), (SMALL, 1.25))]
    (tmp_path / "results.csv").write_text(results.as_csv(rows))
    (found,) = published.compare(rows, published.read(tmp_path / "results.csv"))
    assert found.pairs == {other: (1.5, 1.5), half: (2.0, 2.0), SMALL: (1.25, 1.25)}
    assert not published.compare(rows[:1], table(tmp_path, results.as_csv(rows[1:]), name="other.csv"))
    text = published.text(rows, published.read(tmp_path / "results.csv"))
    assert all(one.name in text for one in (other, half, SMALL))


def test_a_table_with_m_n_k_and_a_speedup_over_the_best(tmp_path) -> None:
    theirs = table(tmp_path, "M,N,K,speedup,note", "64,64,64,1.5,hello", "64,64,64,1.6,again", name="t.csv")
    (found,) = published.compare([row(SMALL, cublas_nn=2.0, torch_nn=1.25)], theirs)
    assert found.pairs == {SMALL: (1.25, 1.6)} and theirs.unknown == ("note",)


@pytest.mark.parametrize(
    "text",
    ["", "mnk,colour\n64_64_64,1\n", "speedup\n1.0\n", "mnk,speedup\n64_64,1\n", "mnk,speedup\n64_64_64,fast\n",
     "mnk,speedup\n64_64_64,0\n", "mnk,speedup\n64_64_64,nan\n", "m,n,k,speedup\n1,2\n", "\x00\x01"],
)  # fmt: skip
def test_what_is_no_table_is_refused(tmp_path, text: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=r"t\.csv"):
        published.read(tmp_path / "t.csv")


@pytest.mark.parametrize("text", ["mnk,speedup\n\n64_64_64,1.2,extra\n", "# Title\n\nwords, and more\n"])
def test_a_line_with_too_many_cells_is_named(tmp_path, text: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=r"t\.csv, line 3: ") as error:
        published.read(tmp_path / "t.csv")
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"none\.csv"):
        published.read(tmp_path / "none.csv")


def test_figures_are_of_fp16_alone_unless_they_say_otherwise(tmp_path) -> None:
    """Neither another number type nor a bias is compared with a table that knows none."""
    problem = Problem(512, 512, 512)
    others = [msgspec.structs.replace(problem, **kind) for kind in ({"dtype": "bf16"}, {"epilogue": "bias"})]
    rows = [row(one, cublas_tn=float(speed)) for speed, one in enumerate([*others, problem], 1)]
    (silent,) = published.compare(rows, table(tmp_path, "mnk,cuBLAS-tn", "512_512_512,1.5", name="x.csv"))
    assert silent.pairs == {problem: (3.0, 1.5)}
    (own,) = published.compare(rows, table(tmp_path, *results.as_csv(rows).splitlines(), name="own.csv"))
    assert own.pairs == {one.problem: (one.timings[0].speedup,) * 2 for one in rows}
