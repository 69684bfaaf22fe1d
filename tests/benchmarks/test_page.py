import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import asked, floor, kernels, page

ROUND: dict[str, Any] = {
    "date": "2026-11-15",
    "machine": "NVIDIA H200",
    "host": "a host, 16 cores",
    "torch": "2.13.0",
    "repeats": 3,
    "model": "plain-cnn",
    "dim": 444_062,
    "clients": 156,
    "batch": 32,
    "times": {
        "plain batched pass": [0.01, 0.02, 0.03],
        "plain loop over clients": [0.04],
        "round, k = 1000": [0.03, 0.025, 0.031],
        "round, k = 10000": [0.022],
        "round, k = 222031": [0.05],
        "round, k = 444062": [0.06],
        "gradients only (FedAvg)": [0.03],
        "send-all round": [0.015],
    },
    "profile": {
        "plain batched pass": {"busy_ms": 9.0, "kernels": 20.0, "ms": {"sm80_xmma_fprop_implicit_gemm_tf32": 9.0}},
        "round, k = 1000": {
            "busy_ms": 8.5,
            "kernels": 200.0,
            "ms": {"sbtopk::gatherTopK<float>": 0.9, "cub::DeviceRadixSortOnesweepKernel": 0.4, "unheard of": 7.2},
        },
    },
}
ROUND["peaks"] = dict.fromkeys(ROUND["times"], 1234.5)


def test_the_page_shows_the_results_that_are_kept() -> None:
    text = page.PAGE.read_text()
    assert page.filled(text) == text


def test_every_part_has_its_place_and_every_result_is_shown() -> None:
    places = re.findall(r"<!-- results: ([\w-]+) -->", page.PAGE.read_text())
    assert sorted(places) == sorted(page.PARTS)
    shown = {name for names, _ in page.PARTS.values() for name in names}
    assert {path.stem for path in page.RESULTS.glob("*.json")} <= shown


def test_a_part_is_made_from_its_result(tmp_path: Path) -> None:
    (tmp_path / "round-cuda.json").write_text(json.dumps(ROUND))
    blank = "before\n<!-- results: round-cuda -->\nold\n<!-- end -->\n<!-- results: peers -->\n<!-- end -->\nafter\n"
    filled = page.filled(blank, tmp_path)
    assert "2026-11-15, NVIDIA H200 with a host, 16 cores, torch 2.13.0, 3 repeats; plain-cnn" in filled
    assert re.search(r"\| round, k = 1000 +\| 30.00 +\| 25.00 +\| 1.50 +\| 0.75 +\| 8.50 +\| 1,234", filled)
    assert re.search(r"\| send-all round +\| 15.00 .*\| - +\| 1,234", filled)
    assert "old" not in filled
    assert "<!-- results: peers -->\nNot measured yet.\n<!-- end -->\nafter\n" in filled
    assert page.filled(filled, tmp_path) == filled


def test_what_a_device_was_busy_with_is_shown_by_groups() -> None:
    text = page.kernels_part(ROUND)
    assert re.search(r"\| top-k +\| 0.00 +\| 0.90 +\|", text)
    assert re.search(r"\| sorting +\| 0.00 +\| 0.40 +\|", text)
    assert re.search(r"\| convolution +\| 9.00 +\| 0.00 +\|", text)
    assert re.search(r"\| the rest +\| 0.00 +\| 7.20 +\|", text)
    assert re.search(r"\| in all +\| 9.00 +\| 8.50 +\|", text)
    assert page.kernels_part({**ROUND, "profile": {}}) == page.MISSING


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("void at::native::mbtopk::radixFindKthValues<float, unsigned int>", "top-k"),
        ("void at::native::bitonicSortKVInPlace<2, -1, 16>", "sorting"),
        ("void at::native::max_pool_forward_nhwc<float, float>", "pooling"),
        ("void at::native::elementwise_kernel<128, 2, direct_copy_kernel_cuda>", "change of layout or type"),
        ("sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32", "convolution"),
        ("ampere_sgemm_32x128_nn", "product"),
        ("void at::native::_scatter_gather_elementwise_kernel<128, 8>", "scatter, gather, index"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", "sum or maximum"),
        ("Memset (Device)", "copy or zeros"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>", "copy or zeros"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::AbsFunctor>", "elementwise"),
    ],
)
def test_kernels_are_grouped_by_their_names(name: str, group: str) -> None:
    assert kernels.group(name) == group


def test_the_device_is_busy_for_the_union_of_its_kernels() -> None:
    assert kernels.busy([(5, 6), (0, 2), (1, 3), (2, 2.5)]) == 4
    assert kernels.busy([]) == 0


def test_the_floor_of_the_plain_cnn() -> None:
    text = page.floor_part(ROUND)
    # 696,808 bytes a sample, 4,992 samples; three passes through 156 x 444,062 residuals; 4.8 TB/s.
    assert re.search(r"\| plain batched pass +\| 0.72 +\| 9.00 +\| 12.4 +\| 20.00 +\| 27.6 +\|", text)
    assert re.search(r"\| round, k = 10000 +\| 0.90 +\| - +\| - +\| 22.00 +\| 24.5 +\|", text)
    assert page.floor_part({**ROUND, "machine": "another"}) == page.MISSING
    assert floor.milliseconds("NVIDIA H200", 0, 0, 10**9) == 2.5


def test_what_was_asked_is_met_or_missed_by_the_numbers() -> None:
    cpu = {**ROUND, "machine": "two cores", "clients": 20}
    contest = {
        "contestants": {
            "plain loop": {"seconds": [1.0]},
            "gradsift, adaptive, k = 1,000": {"seconds": [0.8]},
            "gradsift, adaptive, k = 10,000": {"seconds": [1.2]},
        }
    }
    lines = asked.table(ROUND, {**ROUND, "times": {**ROUND["times"], "round, k = 1000": [0.02408]}}, cpu, contest)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines.splitlines()[2:]]
    assert rows[0][2].startswith("plain CNN, k = 1,000: 1.50; plain CNN, k = 10,000: 1.10; paper's CNN, k = 1,000: 1.2")
    assert rows[0][3] == "missed by plain CNN, k = 1,000"  # 1.204 is shown as 1.20, and counts as that
    assert rows[1][2:] == ["plain CNN, k = 222,031: 2.50; paper's CNN, k = 222,031: 2.50", "met"]
    assert rows[3][3] == "missed by in turns, k = 10,000"
    assert rows[5][2:] == ["plain CNN: 1.50; paper's CNN: 1.50", "met"]
    assert rows[6][2:] == ["plain CNN: 2.00; paper's CNN: 2.00", "missed by plain CNN and paper's CNN"]
