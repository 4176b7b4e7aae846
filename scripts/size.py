"""Print the lines and files of every room, source and tests."""

from pathlib import Path

for top in ("kohaku_ray", "tests"):
    n_lines = n_files = 0
    for room in sorted({file.relative_to(top).parts[0] for file in Path(top).rglob("*.py")}):
        files = [Path(top, room)] if room.endswith(".py") else sorted(Path(top, room).rglob("*.py"))
        lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
        n_lines, n_files = n_lines + lines, n_files + len(files)
        print(f"{lines:7,} lines {len(files):4} files  {top}/{room}")
    print(f"{n_lines:7,} lines {n_files:4} files  {top}\n")
