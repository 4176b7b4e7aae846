"""A file in; sections, paragraphs and sentences out."""
