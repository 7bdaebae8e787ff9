"""Past and possible defects of this device: each one put into the model, and the program that shows it."""

from __future__ import annotations

from typing import NamedTuple


class Defect(NamedTuple):
    """`switches` put it into the model; `scenario` shows it; `found` is part of the resulting report."""

    switches: tuple[str, ...]
    scenario: str
    found: str


DEFECTS = {
    "a fence is found by its place and a sequence number": Defect(
        ("signalled is a flag", "ticket is the sequence number"), "a place for another queue", "has not ended"
    ),
    "an early inference is claimed and not called off": Defect(
        ("claims without calling off",), "begun early", "out.y"
    ),
    "a state is overwritten before that is logged": Defect(
        ("staging is not logged",), "a state in place", "torn"
    ),
    "a fence is compared, then signalled": Defect(
        ("signalled is a flag",), "armed again before it is signalled", "has not ended"
    ),
    "the cancel word is read again at the end": Defect(
        ("cancel is read again",), "cancelled and armed again", "was cut off and ends with SUCCESS"
    ),
    "what was cut off is copied all the same": Defect(
        ("copies what was cut off",), "a state in place, cancelled", "instead of"
    ),
    "a fence of several lists has the result of the last one": Defect(
        ("the fence has the last result only",), "a fence of two lists", "told SUCCESS for A1"
    ),
    "failures are one high-water mark": Defect(("one high-water mark",), "failures and slots", "A1"),
    "a cancelled fence cancels all that it was given to": Defect(
        ("cancel is a flag",), "one of two cancelled", "A2 was cancelled"
    ),
    "an event is changed again by the next engine": Defect(
        ("events are not settled",), "an event that the host resets", "has changed event twice"
    ),
    "a place is given away while a thread waits on it": Defect(
        ("signalled is a flag", "destruction is not waited for"),
        "a queue that is destroyed",
        "which has not ended",
    ),
    "a queue counts as ended before its destruction is answered": Defect(
        ("destruction is not waited for",), "a queue that is destroyed", "instead of mine"
    ),
    "resume signals a fence without looking at what it waits for": Defect(
        ("signalled is a flag", "resume signals without looking"),
        "a place for another queue",
        "has not ended",
    ),
    "a fence is signalled before the end is logged": Defect(
        ("fence is signalled before the end is logged",), "the same fence again", "has not ended"
    ),
    "the result is written after the end is logged": Defect(
        ("result is written after the end is logged",), "a fence of two lists", "told SUCCESS"
    ),
    "resume tells the ring before the fence": Defect(
        ("ring is told before the fence",), "the same fence again", "was not signalled for it"
    ),
    "resume does not tell the fence": Defect(
        ("resume does not tell the fence",), "the same fence again", "was not signalled for it"
    ),
    "an injected fault is not logged": Defect(
        ("injections are not logged",), "a dropped signal", "although DEVICE_LOST was injected"
    ),
    "a hit counts before it is logged": Defect(
        ("a hit counts before it is logged",), "a dropped signal", "1 hits were counted, 0 were told"
    ),
    "an intent that was settled stays": Defect(
        ("a settled intent stays",), "an event of two queues", "events were changed by () instead of [0]"
    ),
    "a long command that went on later is not logged as done": Defect(
        ("goes on without logging",), "slices", "has changed event twice"
    ),
    "the driver looks at the ring twice before it uses a slot again": Defect(
        ("looks at the ring twice",), "a full ring", "A1"
    ),
    "a queue that was dropped while its fence was looked up is run": Defect(
        ("runs what it has just dropped",),
        "a queue that is destroyed",
        "after the destruction of A was answered",
    ),
    "a cancelled update is left half done": Defect(
        ("half of an effect is left",), "a state in place, cancelled", "instead of"
    ),
    "a decision is lost while the list is decoded": Defect(
        ("what ends a submission is lost while it is decoded",),
        "cancelled while it is decoded",
        "was cut off",
    ),
    "an abort is lost when the submission makes room": Defect(
        ("an abort is lost when it makes room",),
        "aborted by the watchdog",
        "was cut off and ends with SUCCESS",
    ),
    "staging is freed because its step was not logged": Defect(
        ("goes on without logging",), "a state behind a long command", "were logged and are not there"
    ),
    "the result in a fence is believed though it was armed again": Defect(
        ("the result in a fence is believed",),
        "armed again while another thread waits",
        "which has ended with FAILED",
    ),
    "the ticket is looked at again after the result": Defect(
        ("the ticket is looked at again",),
        "armed again while another thread waits",
        "which has ended with FAILED",
    ),
}
