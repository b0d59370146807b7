"""What the system says of a process, and what is made of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from locks.others import APART, dead_pid, kill, require_namespaces, sleeping, stopped

from hermes_store import process
from hermes_store.process import here, probe, start_time

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says so much of a process")

SHOW = "from hermes_store.process import here; me = here(); print(me.namespace, me.boot, me.start)"


def elsewhere(*prefix: str) -> list[str]:
    """Namespace, boot and start of a process that is started by other means."""
    done = subprocess.run([*prefix, sys.executable, "-c", SHOW], capture_output=True, text=True, check=True)
    return done.stdout.split()


class TestWhoWeAre:
    @linux
    def test_everything_is_known_on_linux(self) -> None:
        me = here()
        assert me.pid == os.getpid()
        assert me.namespace == str(Path("/proc/self/ns/pid").readlink())[5:-1]
        assert me.boot is not None
        assert len(me.boot) == 36
        assert me.start == start_time(os.getpid())
        assert me.uptime == pytest.approx(float(Path("/proc/uptime").read_text().split()[0]), abs=1)

    @linux
    def test_two_processes_share_the_boot_and_the_namespace_but_not_the_start(self) -> None:
        me, other = here(), elsewhere()
        assert [me.namespace, me.boot] == other[:2]
        time.sleep(0.02)
        assert other[2] != elsewhere()[2]

    @linux
    def test_a_process_in_another_namespace_has_another_inode_and_the_same_boot(self) -> None:
        require_namespaces()
        me, other = here(), elsewhere(*APART)
        assert other[0] != me.namespace
        assert other[1] == me.boot

    @linux
    def test_nothing_is_said_of_starts_where_proc_shows_another_namespace(self) -> None:
        require_namespaces()
        without_proc = [word for word in APART if word != "--mount-proc"]
        assert elsewhere(*without_proc)[2] == "None"

    @linux
    def test_a_shifted_clock_counts_as_another_boot(self) -> None:
        require_namespaces()
        shifted = subprocess.run(["unshare", "-UTrpf", "--boottime", "1000", "true"], capture_output=True, check=False)
        if shifted.returncode:
            pytest.skip("no time namespaces here")
        other = elsewhere("unshare", "-UTrpf", "--boottime", "1000", "--mount-proc")
        assert other[1] == f"{here().boot}+1000"

    def test_where_the_system_says_nothing_nothing_is_claimed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(process, "SYSTEM", "win32")
        monkeypatch.setattr(process, "Path", lambda _: Path("/nowhere"))
        me = here()
        assert (me.namespace, me.boot, me.start, me.uptime, me.has_namespaces) == (None, None, None, None, False)
        assert process.uptime() == pytest.approx(time.monotonic(), abs=1)


class TestWhetherAnotherProcessLives:
    def test_we_do(self) -> None:
        assert probe(os.getpid()) == "alive"

    def test_one_that_runs_does(self) -> None:
        with sleeping() as pid:
            assert probe(pid, start_time(pid)) == "alive"

    @linux
    def test_one_that_is_stopped_does(self) -> None:
        with sleeping() as pid, stopped(pid):
            assert probe(pid, start_time(pid)) == "alive"

    def test_one_of_somebody_else_does(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_pid: int, _signal: int) -> None:
            raise PermissionError

        with sleeping() as pid:
            monkeypatch.setattr(os, "kill", refuse)
            found = probe(pid)
            monkeypatch.undo()
        assert found == "alive"

    def test_one_that_was_waited_for_does_not(self) -> None:
        assert probe(dead_pid()) == "dead"

    @linux
    def test_one_that_was_killed_but_not_waited_for_does_not(self) -> None:
        with sleeping() as pid:
            start = start_time(pid)
            kill(pid)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            assert probe(pid, start) == "dead"

    @linux
    def test_one_whose_id_was_given_to_another_does_not(self) -> None:
        with sleeping() as pid:
            start = start_time(pid)
            assert start is not None
            assert probe(pid, start - 1) == "dead"

    @pytest.mark.parametrize("pid", [2**31, 2**63, 2**70])
    def test_an_impossible_id_is_unknown(self, pid: int) -> None:
        assert probe(pid) == "unknown"

    def test_nothing_is_sent_to_a_process_on_windows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def sent(*_: int) -> None:
            pytest.fail("os.kill ends a process there")

        monkeypatch.setattr(process, "SYSTEM", "win32")
        monkeypatch.setattr(os, "kill", sent)
        assert probe(os.getpid()) == "unknown"
