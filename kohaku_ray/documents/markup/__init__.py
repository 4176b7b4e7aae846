"""Read HTML, Markdown and reStructuredText, and the formulas in them."""
