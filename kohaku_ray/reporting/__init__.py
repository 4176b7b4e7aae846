"""Tables, plots, one self-contained HTML page."""
