"""Answer questions without Ray: an index, the tools of a system, the steps of a block of questions, runs made again."""
