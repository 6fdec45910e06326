"""Reading and selecting rows of measurement files."""

import pytest

from simulator.calibration.cells import Cells
from simulator.errors import ConfigError
from tests.validation.tables.rows import training_row, write
from validation.tables.reader import MEASUREMENTS, detect_kind, read_table, select, short_source


class TestReading:
    @pytest.mark.parametrize("name", ["training", "collectives", "kernels", "seeds"])
    def test_shipped_files_are_read_whole(self, name):
        rows = read_table(MEASUREMENTS / f"{name}.csv")
        assert len(rows) == len((MEASUREMENTS / f"{name}.csv").read_text(encoding="utf-8").splitlines()) - 1
        assert rows[0].kind == ("training" if name == "seeds" else name)
        assert all(row.measured >= 0 for row in rows)

    def test_optional_columns_may_be_missing_and_blank(self, tmp_path):
        path = write(tmp_path, "\ufefftopology,gpus,metric,value,micro_batch\nselene,8,iteration_time_s,1.5,\n\n")
        (row,) = read_table(path)
        assert (row.row_id, row.measured, row.integer("micro_batch", 4), row.text("notes")) == ("line-2", 1.5, 4, "")

    def test_bad_cells_are_reported_together_with_their_places(self, tmp_path):
        path = write(
            tmp_path, "topology,gpus,metric,value\nselene,eight,iteration_time_s,1\nselene,8,iteration_time_s,nan\n"
        )
        with pytest.raises(ConfigError) as caught:
            read_table(path)
        assert f"{path}:2:gpus: 'eight'" in caught.value.message
        assert f"{path}:3:value: 'nan'" in caught.value.message

    def test_a_blank_value_is_a_fault(self, tmp_path):
        path = write(tmp_path, "op,device,m,n,k,time_us\ngemm,h200-sxm,1,1,1,\n")
        with pytest.raises(ConfigError, match=":2:time_us: blank"):
            read_table(path)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "is empty"),
            ("topology,gpus,metric,value\n", "no rows"),
            ("topolgy,gpus,metric,value\nselene,1,fits,1\n", "topology is missing"),
            ("topology,gpus,metric,value\nselene,1,fits\n", "3 cells"),
            ("topology,gpus,gpus,metric,value\nselene,1,1,fits,1\n", "more than once"),
            ("{" * 200_000, ":1: is not a table: field larger"),
            ("topology,gpus,metric,value\nselene,1,fits," + "1" * 200_000, ":2: is not a table"),
        ],
    )
    def test_what_is_no_table_is_refused(self, tmp_path, text, said):
        with pytest.raises(ConfigError, match=said):
            read_table(write(tmp_path, text))

    def test_a_near_miss_in_the_header_is_suggested(self):
        with pytest.raises(ConfigError) as caught:
            detect_kind(["collective", "size_byte", "time_us"], "f.csv")
        assert "'size_byte' looks like 'size_bytes'" in caught.value.hint

    def test_a_missing_file_is_a_config_error(self, tmp_path):
        with pytest.raises(ConfigError, match="no such file"):
            read_table(tmp_path / "nothing.csv")

    def test_what_is_too_large_for_a_table_is_not_read(self, tmp_path):
        with open(tmp_path / "large.csv", "wb") as file:
            file.truncate(1 << 30)
        with pytest.raises(ConfigError, match="is larger than 256 MiB"):
            read_table(tmp_path / "large.csv")

    def test_sources_are_shortened_to_the_publication(self):
        assert short_source("own measurement, one H200, torch 2.11") == "own measurement"
        assert short_source("https://github.com/karpathy/nanoGPT/issues/110") == "karpathy/nanoGPT"


class TestSelecting:
    rows = tuple(
        training_row(row_id=str(i), gpus=str(8 * i), split="fit" if i % 2 else "test", model=f"GPT-{i}B")
        for i in range(1, 5)
    )

    @pytest.mark.parametrize(
        ("where", "split", "left"),
        [
            (["gpus=16"], "", ["2"]),
            (["gpus=16.0"], "", ["2"]),
            (["gpus!=16"], "", ["1", "3", "4"]),
            (["model~gpt-3"], "", ["3"]),
            (["topology=selene"], "fit", ["1", "3"]),
            (["gpus!=8", "gpus!=16"], "", ["3", "4"]),
        ],
    )
    def test_conditions(self, where, split, left):
        assert [row.row_id for row in select(self.rows, where, split)] == left

    def test_an_unknown_column_names_the_nearest(self):
        with pytest.raises(ConfigError) as caught:
            select(self.rows, ["topolgy=selene"])
        assert "topology" in caught.value.hint

    @pytest.mark.parametrize("where", ["gpus", "=8", "gpus>8"])
    def test_what_is_no_condition_is_refused(self, where):
        with pytest.raises(ConfigError, match="is not a condition"):
            select(self.rows, [where])

    def test_nothing_left_is_said(self):
        with pytest.raises(
            ConfigError, match=r"none of 4 rows has split=tset\nhint: split: one of fit, test, seed, public"
        ):
            select(self.rows, [], "tset")
        with pytest.raises(ConfigError, match="none of 4 rows"):
            select(self.rows, ["gpus=7"])


def test_a_misspelt_column_is_refused_and_another_separator_named(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("topology,gpus,metric,value,framewrok\npolaris,4,iteration_time_s,1,megatron\n")
    with pytest.raises(ConfigError, match=r":1: no column is called 'framewrok'\nhint: did you mean 'framework'"):
        read_table(path)
    path.write_text("topology;gpus;metric;value\npolaris;4;iteration_time_s;1\n")
    with pytest.raises(ConfigError, match=":1: cells are separated by ';'"):
        read_table(path)


@pytest.mark.parametrize(("text", "answer"), [("1", True), ("0.0", False), ("Yes", True), ("off", False), ("", None)])
def test_flags_are_yes_or_no(text, answer):
    assert Cells(cells={"causal": text}).flag("causal") is answer


@pytest.mark.parametrize("text", ["ture", "maybe", "2", "nan"])
def test_what_is_neither_yes_nor_no_is_refused(text):
    with pytest.raises(ConfigError, match=r"t\.csv:7:causal: .* is neither yes nor no"):
        Cells(cells={"causal": text}, file="t.csv", line=7).flag("causal")
