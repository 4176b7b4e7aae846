"""Read files of many formats as documents: sections, paragraphs and sentences."""
