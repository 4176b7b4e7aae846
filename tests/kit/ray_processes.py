"""The processes of the cluster that this test run started, and of no other on the machine."""

from __future__ import annotations

import contextlib
import ipaddress

import psutil


def our_processes() -> list[tuple[str, psutil.Process]]:
    """Titles with processes: a Ray worker is called after what it runs, such as ``ray::Member``."""
    processes = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            processes.append(((process.cmdline() or [""])[0], process))
    return processes


def reached_from_elsewhere() -> tuple[set[str], set[tuple[str, str]]]:
    """Names of the processes that listen; of those that other machines may reach, with the address."""
    listeners, driver = set(), psutil.Process()
    for process in (driver, *driver.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # ended meanwhile
            listening = [
                connection for connection in process.net_connections("inet") if connection.status == psutil.CONN_LISTEN
            ]
            listeners |= {(process.name().split()[0], item.laddr.ip) for item in listening}
    local = {item for item in listeners if ipaddress.ip_address(item[1].removeprefix("::ffff:")).is_loopback}
    return {name for name, _ in listeners}, listeners - local
