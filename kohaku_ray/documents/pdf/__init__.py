"""Read PDFs: a page, its blocks, the document; fields of forms, and what no reader sees."""
