"""A holder's text, and how a lock stands: pure functions of the row, the clocks and the word of the system."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from hermes_store.errors import HolderError
from hermes_store.holders import DEFAULT_TTL, Holder, judge, make_holder, read_holder
from hermes_store.process import Here, Life

HOUR = 3600.0
BOOT, OTHER_BOOT = "11111111-aaaa", "22222222-bbbb"
US = Here(pid=100, namespace="4026", has_namespaces=True, boot=BOOT, start=5000, wall=1_780_000_000.0, uptime=9000.0)
MAC = Here(pid=100, namespace=None, has_namespaces=False, boot=BOOT, start=None, wall=US.wall, uptime=9000.0)
WINDOWS = replace(MAC, boot=None, uptime=None)


def says(life: Life) -> Any:
    """A system that says the same of every process."""
    return lambda _pid, _start: life


def nobody_asks(_pid: int, _start: int | None) -> Life:
    pytest.fail("a process of another host or namespace was looked for here")


def ours(**fields: Any) -> str:
    """A holder's text of another process of ours, made now."""
    other = replace(US, pid=200, start=7000)
    return make_holder(replace(other, **fields))


class TestTheText:
    def test_it_begins_as_hermes_writes_it_and_goes_on_with_our_stamp(self) -> None:
        assert re.fullmatch(
            r"pid=100:pidns=4026:tid=\d+:agent=x-1:nonce=[0-9a-f]{8}:start=5000:boot=11111111-aaaa:up=9000\.000",
            make_holder(US, "x-1"),
        )

    def test_no_two_are_the_same(self) -> None:
        assert len({make_holder(US) for _ in range(100)}) == 100

    def test_what_was_written_is_read(self) -> None:
        assert read_holder(make_holder(US)) == Holder(pid=100, namespace="4026", start=5000, boot=BOOT, up=9000.0)

    def test_what_the_system_does_not_say_is_left_out(self) -> None:
        assert re.fullmatch(r"pid=100:tid=\d+:agent=a:nonce=[0-9a-f]{8}", make_holder(WINDOWS, "a"))
        assert read_holder(make_holder(MAC)) == Holder(pid=100, boot=BOOT, up=9000.0)

    @pytest.mark.parametrize("agent", ["", "a:pid=1", "a b", "é"])
    def test_a_name_cannot_bring_fields_of_its_own(self, agent: str) -> None:
        with pytest.raises(HolderError, match="agent"):
            make_holder(US, agent)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            ":",
            "worker",
            "pid",
            "pid=",
            "pid=0",
            "pid=-4",
            "pid=x",
            "pid=٣",
            "pid=1e3",
            "xpid=4",
            "a=pid=4",
            "pid=" + "9" * 30,
        ],
    )
    def test_no_process_id_is_read_from_other_texts(self, text: str) -> None:
        assert read_holder(text).pid is None

    def test_the_first_of_two_fields_counts(self) -> None:
        assert read_holder("pid=1:pid=2").pid == 1


class TestWhetherAHolderIsDead:
    def state(self, text: str, life: Any, here: Here = US) -> str:
        return judge(text, here.wall - 10, here.wall + 100, here, life).state

    def test_one_of_ours_that_runs_is_live(self) -> None:
        assert self.state(ours(), says("alive")) == "live"

    def test_one_of_ours_without_a_process_is_dead(self) -> None:
        assert self.state(ours(), says("dead")) == "dead"

    def test_the_system_is_asked_for_the_id_and_the_start(self) -> None:
        asked = []
        self.state(ours(), lambda *question: asked.append(question) or "alive")
        assert asked == [(200, 7000)]

    def test_we_are_live_and_nobody_is_asked(self) -> None:
        assert self.state(make_holder(US), nobody_asks) == "live"

    def test_one_that_had_our_own_id_before_us_is_dead(self) -> None:
        assert self.state(make_holder(replace(US, start=4000)), says("dead")) == "dead"

    def test_one_of_another_host_is_unknown(self) -> None:
        assert self.state(ours(boot=OTHER_BOOT), nobody_asks) == "unknown"

    def test_one_of_another_host_with_our_own_id_is_unknown(self) -> None:
        assert self.state(make_holder(replace(US, boot=OTHER_BOOT)), nobody_asks) == "unknown"

    def test_one_of_another_namespace_is_unknown(self) -> None:
        assert self.state(ours(namespace="4027"), nobody_asks) == "unknown"

    def test_one_of_hermes_in_our_namespace_is_asked_for(self) -> None:
        assert self.state("pid=200:pidns=4026:tid=1:agent=ab:nonce=00000000", says("dead")) == "dead"

    @pytest.mark.parametrize(
        "text",
        [
            "pid=200:tid=1:agent=ab:nonce=00000000",  # written before the namespace was
            "pid=200:pidns=4027:tid=1:agent=ab:nonce=00000000",
            "worker-1",
            "",
        ],
    )
    def test_any_other_is_unknown(self, text: str) -> None:
        assert self.state(text, nobody_asks) == "unknown"

    def test_nobody_is_dead_where_our_own_namespace_is_not_known(self) -> None:
        here = replace(US, namespace=None)
        assert self.state(ours(namespace=None), nobody_asks, here) == "unknown"
        assert self.state(ours(), nobody_asks, here) == "unknown"

    def test_nobody_is_dead_by_our_word_where_the_boot_is_not_known(self) -> None:
        assert self.state(ours(), nobody_asks, replace(US, boot=None, uptime=None)) == "unknown"

    def test_a_mac_without_namespaces_asks_for_its_own_but_not_for_those_of_linux(self) -> None:
        assert self.state("pid=200:tid=1:agent=ab:nonce=00000000", says("dead"), MAC) == "dead"
        assert self.state(make_holder(replace(MAC, pid=200)), says("dead"), MAC) == "dead"
        assert self.state(make_holder(replace(MAC, pid=200, boot=OTHER_BOOT)), nobody_asks, MAC) == "unknown"
        assert self.state("pid=200:pidns=4026:tid=1:agent=ab:nonce=00000000", nobody_asks, MAC) == "unknown"


class TestWhenTheTimeIsUp:
    """A lock taken for 300 s; 10 s passed, or 400."""

    def after(self, seconds: float, *, step: float = 0.0) -> Here:
        assert US.uptime is not None
        return replace(US, uptime=US.uptime + seconds, wall=US.wall + seconds + step)

    def test_a_lock_is_held_for_its_time(self) -> None:
        held = judge(ours(), US.wall, US.wall + 300, self.after(10), says("alive"))
        assert (held.state, held.age, held.left) == ("live", pytest.approx(10), pytest.approx(290))
        assert judge(ours(), US.wall, US.wall + 300, self.after(400), says("alive")).state == "expired"

    def test_at_the_very_end_it_is_still_held(self) -> None:
        assert judge("worker", US.wall, US.wall + 300, self.after(300)).state == "unknown"

    @pytest.mark.parametrize("step", [HOUR, -HOUR])
    def test_a_step_of_the_wall_clock_changes_nothing_for_our_stamp(self, step: float) -> None:
        held = judge(ours(), US.wall, US.wall + 300, self.after(10, step=step), says("alive"))
        assert (held.state, held.age, held.left) == ("live", pytest.approx(10), pytest.approx(290))
        assert judge(ours(), US.wall, US.wall + 300, self.after(400, step=step), says("alive")).state == "expired"

    @pytest.mark.parametrize("step", [HOUR, -HOUR])
    def test_it_changes_nothing_for_our_stamp_of_another_namespace_on_this_host(self, step: float) -> None:
        other = ours(namespace="4027")
        assert judge(other, US.wall, US.wall + 300, self.after(10, step=step), nobody_asks).state == "unknown"
        assert judge(other, US.wall, US.wall + 300, self.after(400, step=step), nobody_asks).state == "expired"

    @pytest.mark.parametrize("text", ["worker", "pid=200:pidns=4026:tid=1:agent=ab:nonce=00000000"])
    def test_rows_without_our_stamp_go_by_the_wall_clock(self, text: str) -> None:
        stepped = judge(text, US.wall, US.wall + 300, self.after(10, step=HOUR), says("alive"))
        assert (stepped.state, stepped.age) == ("expired", pytest.approx(HOUR + 10))
        back = judge(text, US.wall, US.wall + 300, self.after(10, step=-HOUR), says("alive"))
        assert back.state in {"live", "unknown"}
        assert (back.age, back.left) == (0, pytest.approx(HOUR + 290))

    def test_rows_of_another_boot_go_by_the_wall_clock(self) -> None:
        other = ours(boot=OTHER_BOOT, uptime=1e6)
        assert judge(other, US.wall, US.wall + 300, self.after(10), nobody_asks).state == "unknown"
        assert judge(other, US.wall, US.wall + 300, self.after(400), nobody_asks).state == "expired"

    def test_a_dead_holder_is_dead_also_when_its_time_is_up(self) -> None:
        assert judge(ours(), US.wall, US.wall + 300, self.after(400), says("dead")).state == "dead"

    def test_a_row_that_says_no_end_lasts_as_long_as_usual(self) -> None:
        assert judge("worker", US.wall, None, self.after(DEFAULT_TTL - 1)).state == "unknown"
        assert judge("worker", US.wall, None, self.after(DEFAULT_TTL + 1)).state == "expired"
        assert judge("worker", None, None, US).state == "expired"

    def test_a_stamp_from_the_future_is_no_negative_age(self) -> None:
        assert judge(ours(uptime=1e6), US.wall, US.wall + 300, US, says("alive")).age == 0
