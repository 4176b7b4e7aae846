"""What left is refused with what to write instead."""

import json

import pytest
from kit.rows import check_rows

from kohaku_ray.cli import main
from kohaku_ray.config import load_config
from kohaku_ray.documents.parse import parse_documents
from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.removed import COMMANDS, OPTIONS, PARSERS, without_removed


@check_rows(
    ("system", "override", "message"),
    [
        ("default", "kohaku.check_value=true", r"kohaku\.check_value left in 0\.2: leave the key out"),
        ("default", "ensemble.evidence=split", r"ensemble\.evidence left in 0\.2: .* ensemble\.scope: question"),
        ("default", "kohaku.second_round=false", r"kohaku\.second_round left in 0\.2: .* kohaku\.max_retries"),
        ("hybrid", "hybrid.rrf_k=60", r"hybrid\.rrf_k left in 0\.2: drop it; the published value is the only one"),
        ("hybrid", "hybrid.neighbours=1", r"hybrid\.neighbours left in 0\.2: drop it"),
    ],
)
def test_a_setting_that_left_is_answered_with_what_to_write(system, override, message):
    with pytest.raises(ConfigError, match=message):
        load_config(system, [override])


def test_settings_that_left_are_dropped_from_what_a_bundle_says():
    values = {"kohaku": {"check_value": False, "top_k": 8}, "ensemble": {"evidence": "same"}, "seed": 0}
    assert without_removed(values) == {"kohaku": {"top_k": 8}, "ensemble": {}, "seed": 0}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_left_is_answered_with_what_to_do(name, capsys):
    command, option = name.split()
    for words in ([option, "x"], [f"{option}=x"]):
        with pytest.raises(SystemExit) as ended:
            main([command, "a", *(["b"] if command == "bundle" else []), *words])
        assert ended.value.code == 2
        assert f"kohaku-ray {name} left in 0.2: {OPTIONS[name]}" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_left_is_answered_with_what_does_its_work(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*name.split(), "a", "b"])
    assert ended.value.code == 2
    assert f"kohaku-ray {name} left in 0.2: {COMMANDS[name]}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["answer.py", "theirs.env"])
def test_another_programs_configuration_is_answered_with_our_presets(name, tmp_path, capsys):
    (tmp_path / name).write_text("top_k = 16\n")
    assert main(["validate", str(tmp_path / name)]) == 2
    said = "is another program's configuration: write `base: paper` (KohakuRAG) or `base: hybrid` into a YAML file"
    assert f"{tmp_path / name} {said}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("parser", "root"),
    [
        ("Docling", {"schema_name": "DoclingDocument", "version": "1.11.0", "texts": []}),
        ("MinerU", [{"type": "text", "text": "It drew 5 MW.", "page_idx": 0, "bbox": [1, 2, 3, 4]}]),
        ("MinerU", [[{"type": "title", "content": {}, "bbox": [1, 2, 3, 4]}]]),
        ("MinerU", {"pdf_info": []}),
        ("Marker", {"children": [], "block_type": "Document", "metadata": None}),
        ("Marker", {"table_of_contents": [], "page_stats": []}),
    ],
)
def test_json_of_a_parser_names_it_and_what_to_give(parser, root):
    with pytest.raises(DataError) as error:
        parse_documents("report.json", json.dumps(root).encode())
    assert str(error.value) == f"report.json is JSON of {parser}, which left in 0.2: give {PARSERS[parser]}."


def test_a_line_of_olmocr_is_a_reject_with_its_name():
    row = {"id": "9", "text": "Hello\n\nGreek Yogurt", "attributes": {"pdf_page_numbers": [[0, 19, 1]]}}
    parsed = parse_documents("out.jsonl", json.dumps(row).encode())
    assert parsed.rejects == (("out.jsonl: row 0", f"JSON of olmOCR, which left in 0.2: give {PARSERS['olmOCR']}"),)
