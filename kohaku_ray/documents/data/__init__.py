"""Read files of many documents: rows, KohakuRAG JSON, the output of parsers."""
