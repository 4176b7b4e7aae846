"""Answer questions without Ray: the index, the tools of a system, the steps of a block of questions, replays."""
