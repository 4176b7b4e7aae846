"""Read Word, Excel and PowerPoint files."""
