"""A view of a daemon as one JSON document: its reports, and values computed from them."""

from __future__ import annotations

from softnpu.tools.shared.monitor.views import View


def document(view: View) -> dict[str, object]:
    """Return the view as one JSON document: the daemon's messages, and values computed from them."""
    from msgspec.structs import asdict

    sample, state = view.sample, view.sample.status
    known = {session.session: session for session in state.sessions}
    sessions = []
    for reported, shown in zip(sample.sessions, view.sessions, strict=True):
        held = asdict(known[reported.session]) if reported.session in known else {}
        computed = {"program": shown.program, "share": shown.share, "inferences_s": shown.inferences_s}
        sessions.append(held | asdict(reported) | {"models": shown.models} | computed)
    return {name: getattr(state, name) for name in state.__struct_fields__ if name != "must"} | {
        "interval_s": view.interval_s,
        "utilisation": [device.utilisation for device in view.devices],
        "sessions": sessions,
        "models": sample.models,
        "compilations": sample.compilations,
        "histograms": sample.histograms,
    }
